"""Time of a layer's operators on the cores of an architecture, which a static schedule shares among them.

An operator runs on one core or on all cores of its type. The mapper gives its time on both, and the schedule
of `phaze.schedule` the makespan of all. Collectives run alone; their additions take all vector cores. Time on
the network is that of the price.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.cost.kernels import KERNEL_LIMITS, times_on, works_of_kernels
from phaze.cost.mapper.loads import REDUCING
from phaze.cost.network.network import sent_bytes
from phaze.layout import Layout
from phaze.schedule.bounds import EQUAL, layer_bounds, least_latencies
from phaze.schedule.graphs import Edges
from phaze.spec.system import Device
from phaze.workload.operators import LayerPass, Operator, Part

if TYPE_CHECKING:
    from scipy.sparse import csr_array

COLLECTIVE = "network"
"""Core type of collectives."""


class OperatorTimes(NamedTuple):
    """Time of an operator in seconds and its bottleneck on all cores, for every device, (D,)."""

    one_s: Floats
    """Time on one core."""
    all_s: Floats
    """Time on all cores of its type."""
    limit: Ints
    """Index in `KERNEL_LIMITS`."""


Work = tuple[str, tuple[Part, ...]]
"""Core type and parts of an operator."""
WorkGraph = tuple[tuple[Work, ...], Edges]
"""Operators of a pass, and the pairs of them of which the second reads the first."""


@dataclass(frozen=True, eq=False)
class WorkGraphs:
    """Distinct graphs of operators, with their operators as numbers, to bound them on many devices.

    `works`, `runs` and `shapes` hold once all graphs are numbered.
    """

    _works: dict[Work, int] = field(default_factory=dict)
    _graphs: dict[tuple[tuple[int, ...], Edges], int] = field(default_factory=dict)
    _edges: dict[Edges, Edges] = field(default_factory=dict)
    """Edges of all graphs, each once: thousands of graphs differ only in sizes."""

    def number_of(self, layer_pass: LayerPass, layout: Layout) -> int:
        """Number of the graph of a whole pass of a layer, which equal graphs share."""
        works, edges = _graph_of(layer_pass, layout)
        numbers = tuple(self._works.setdefault(work, len(self._works)) for work in works)
        edges = self._edges.setdefault(edges, edges)
        return self._graphs.setdefault((numbers, edges), len(self._graphs))

    def __len__(self) -> int:
        return len(self._graphs)

    @cached_property
    def works(self) -> tuple[Work, ...]:
        """Distinct operators of all graphs, by number."""
        return tuple(self._works)

    @cached_property
    def runs(self) -> csr_array:
        """How often each graph runs each operator, (G, W)."""
        from scipy.sparse import csr_array  # slow to import, and searches without chips need none

        pairs = [(graph, number) for (numbers, _), graph in self._graphs.items() for number in numbers]
        rows, columns = np.array(pairs).T
        return csr_array((np.ones(len(pairs)), (rows, columns)), (len(self._graphs), len(self._works)))

    @cached_property
    def shapes(self) -> dict[tuple[tuple[str, ...], Edges], tuple[Ints, Ints]]:
        """Indices of all graphs with equal core types and edges, (P,), and of their operators, (P, n)."""
        cores = [core for core, _ in self.works]
        rows: dict[tuple[tuple[str, ...], Edges], list[tuple[int, ...]]] = defaultdict(list)
        for (numbers, edges), graph in self._graphs.items():
            if numbers:
                rows[tuple(cores[number] for number in numbers), edges].append((graph, *numbers))
        tables = {shape: np.array(table) for shape, table in rows.items()}
        return {shape: (table[:, 0], table[:, 1:]) for shape, table in tables.items()}


@dataclass(frozen=True, eq=False)
class LayerSchedules:
    """Cache of the schedules of operators; each distinct graph with its sizes is scheduled once.

    Operators are timed on all devices at once, and so are lower bounds of their graphs. Schedules are those
    of the first device. A schedule is the proven shortest one, unless `gap` is positive.
    """

    devices: tuple[Device, ...]
    vector_cycles: Mapping[tuple[str, str], float]
    bytes_per_element: int
    _times: dict[Work, OperatorTimes] = field(default_factory=dict)
    _spans_s: dict[WorkGraph, tuple[float, float]] = field(default_factory=dict)
    """Lower bound and makespan of the operators of a graph on the first device, in seconds."""

    def least_s(self, graphs: WorkGraphs) -> Floats:
        """Lower bound on the makespan of each graph on every device in seconds, (G, D), by closed forms."""
        self._estimate(graphs.works)
        one_s, all_s = (
            np.array([times[column] for times in map(self._times.__getitem__, graphs.works)])
            for column in range(2)
        )
        counts = np.array([(device.num_tc, device.num_vc) for device in self.devices]).T
        least_s = np.zeros((len(graphs), len(self.devices)))
        for (cores, edges), (places, works) in graphs.shapes.items():
            # Rows are pairs of a graph and a device: (P, n, D) becomes (P · D, n).
            times_s = (np.moveaxis(times[works], 2, 1).reshape(-1, len(cores)) for times in (one_s, all_s))
            bounds_s = least_latencies(cores, edges, *times_s, *np.tile(counts, len(places)))
            least_s[places] = bounds_s.reshape(len(places), -1)
        return least_s

    @property
    def gap(self) -> float:
        """Largest relative gap between a schedule and the lower bound of its graph."""
        gaps = [1.0 - low / span for low, span in self._spans_s.values() if span]
        return max((gap for gap in gaps if gap > EQUAL), default=0.0)

    def seconds(self, operators: Sequence[Operator], edges: Edges, layout: Layout) -> Floats:
        """Makespan of operators without time on the network, by bottleneck, in seconds, (limits,).

        It is attributed to the limits of the operators, in proportion to their time on all cores.
        """
        works = tuple(work_of(operator, layout) for operator in operators)
        self._schedule([(works, edges)])
        by_limit_s = np.zeros(len(KERNEL_LIMITS))
        for work in works:
            times = self._times[work]
            by_limit_s[times.limit[0]] += times.all_s[0]
        total_s = by_limit_s.sum()
        span_s = self._spans_s[works, edges][1]
        return by_limit_s * (span_s / total_s) if total_s else by_limit_s

    def seconds_on_all(self, operators: Sequence[Operator], layout: Layout) -> float:
        """Time of operators one after the other on all cores, without time on the network, in seconds."""
        works = [work_of(operator, layout) for operator in operators]
        self._estimate(works)
        return float(sum(self._times[work].all_s[0] for work in works))

    def weight_s(self, operators: Sequence[Operator], layout: Layout) -> float:
        """Time of weight gradients in seconds, by the share of their GEMMs in an operator's FLOPs."""
        seconds = 0.0
        for operator in operators:
            flops = sum(part.tensor_flops for part in operator.parts if part.role == "weight_gradient")
            if flops:
                times = self._times[work_of(operator, layout)]
                seconds += float(times.all_s[0]) * flops / operator.tensor_flops
        return seconds

    def prepare(self, passes: Iterable[tuple[LayerPass, Layout]]) -> None:
        """Schedule several passes together, which is much faster than one by one."""
        self._schedule([_graph_of(layer_pass, layout) for layer_pass, layout in passes])

    def _schedule(self, graphs: Sequence[WorkGraph]) -> None:
        """Compute the missing makespans of graphs, one shape of graph at a time."""
        new = [graph for graph in dict.fromkeys(graphs) if graph not in self._spans_s]
        if not new:
            return
        self._estimate(work for works, _ in new for work in works)
        for (cores, edges), places in _by_shape(new).items():
            cases = [new[place][0] for place in places]
            times = np.array(
                [[[column[0] for column in self._times[work][:2]] for work in works] for works in cases]
            )
            first = self.devices[0]
            counts = (np.full(len(cases), count) for count in (first.num_tc, first.num_vc))
            if not cores:
                spans = np.zeros((2, len(cases)))
            else:
                spans = np.array(layer_bounds(cores, edges, times[..., 0], times[..., 1], *counts))
            for works, lower_s, span_s in zip(cases, *spans.tolist(), strict=True):
                self._spans_s[works, edges] = lower_s, span_s

    def _estimate(self, works: Iterable[Work]) -> None:
        """Map operators that are not known yet onto the cores."""
        by_core: dict[str, list[Work]] = defaultdict(list)
        for work in dict.fromkeys(works):
            if work in self._times:
                continue
            core, parts = work
            if parts:
                by_core["vector" if core == COLLECTIVE else core].append(work)
            else:
                none = np.zeros(len(self.devices))
                self._times[work] = OperatorTimes(none, none, none.astype(np.int64))
        for core, cases in by_core.items():
            mapped = works_of_kernels([parts for _, parts in cases], self.vector_cycles)
            (one_s, _), (all_s, limit) = times_on(
                mapped, self.devices, core, self.bytes_per_element, preload=True
            )
            columns = zip(cases, one_s, all_s, limit, strict=True)
            self._times.update({work: OperatorTimes(*times) for work, *times in columns})


def _graph_of(layer_pass: LayerPass, layout: Layout) -> WorkGraph:
    """Operators of a whole pass of a layer, with its edges."""
    return tuple(work_of(operator, layout) for operator in layer_pass.operators), edges_of(layer_pass)


def _by_shape(graphs: Sequence[WorkGraph]) -> dict[tuple[tuple[str, ...], Edges], list[int]]:
    """Indices of the graphs that differ only in sizes, by their core types and edges."""
    shapes: dict[tuple[tuple[str, ...], Edges], list[int]] = defaultdict(list)
    for place, (works, edges) in enumerate(graphs):
        shapes[tuple(core for core, _ in works), edges].append(place)
    return shapes


def work_of(operator: Operator, layout: Layout) -> Work:
    """Core type and parts of an operator; a collective has its additions on vector cores as parts."""
    if operator.core != COLLECTIVE:
        return operator.core, operator.parts
    adds = (
        sent_bytes("reduce_scatter", part.elements, layout.group(part.axis).ranks)
        for part in operator.parts
        if part.axis and part.kind in REDUCING
    )
    return COLLECTIVE, tuple(Part("add", "forward", elements=round(number)) for number in adds)


def edges_of(layer_pass: LayerPass, chosen: Sequence[int] | None = None) -> Edges:
    """Data dependencies of a pass: pairs of producer and consumer among all or the chosen operators.

    A chosen consumer may depend on its producer through operators that are not chosen.
    """
    places = range(len(layer_pass.operators)) if chosen is None else chosen
    place = {number: position for position, number in enumerate(places)}
    read: dict[int, set[int]] = {number: set() for number in range(len(layer_pass.operators))}
    for edge in sorted(layer_pass.edges, key=lambda edge: (edge.target, edge.source)):
        # Operators are in topological order: what a source reads is complete before its readers come.
        read[edge.target] |= {edge.source} if edge.source in place else read[edge.source]
    return tuple(sorted((place[i], place[j]) for j in place for i in read[j]))
