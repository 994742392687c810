"""Best time per batch of a chain of layers of any kinds, computed for many architectures at once.

The optimum is that of the dynamic program of `formulas.phaze.flush`, for every architecture with its own
layer latencies. Memory and the devices of a cut do not depend on the architecture, so both are computed once,
for the search of `formulas.phaze.sequences`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.cost.memory import ParameterBytes
from phaze.formulas.cuts import Shape, possible_cuts, shape_of
from phaze.formulas.flushing import Chain, Footprints, Room, Setting, room, useful_widths
from phaze.formulas.phaze.sequences import SLACK, DataWidths, LayerSequence, search
from phaze.layout import Layout


@dataclass(frozen=True)
class Runs:
    """Model as consecutive runs of identical layers; arrays have one value per kind of layer.

    Bytes are per tensor-parallel rank.
    """

    counts: tuple[int, ...]
    """Number of layers of every run."""
    weight_bytes: Floats
    static_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    """Size of the tensor that a layer passes to the next one."""
    tensor_parallel: Bools
    kinds: tuple[int, ...] = ()
    """Layer kind of every run; by default every run has a kind of its own."""

    @cached_property
    def layers(self) -> Ints:
        """Kind of every layer, in order."""
        return np.repeat(np.array(self.kinds or range(len(self.counts)), np.int64), self.counts)

    def chain(self, forward_s: Floats, backward_s: Floats) -> Chain:
        """Layer chain with the given latencies, one value per kind."""
        starts = np.arange(len(self.layers) - 1)
        return Chain(
            forward_s=forward_s[self.layers],
            backward_s=backward_s[self.layers],
            parameter_bytes=self.weight_bytes[self.layers],
            static_bytes=self.static_bytes[self.layers],
            activation_bytes=self.activation_bytes[self.layers],
            tensor_parallel=self.tensor_parallel[self.layers],
            edges=np.stack([starts, starts + 1], axis=1),
            edge_bytes=self.output_bytes[self.layers][:-1],
        )

    @property
    def totals(self) -> Ints:
        """Number of layers of every kind."""
        return np.bincount(self.layers, minlength=len(self.weight_bytes))

    def untimed(self) -> Chain:
        """Layer chain with all latencies set to zero."""
        return self.chain(np.zeros_like(self.weight_bytes), np.zeros_like(self.weight_bytes))


def read_runs(
    layers: pd.DataFrame, graph: pd.DataFrame, per_parameter: ParameterBytes
) -> tuple[Runs, list[str]]:
    """Read a model as runs of layers, and the names of all kinds of layers."""
    graph = graph.sort_values("position")
    kinds, names = pd.factorize(graph["layer"])
    rows = layers.set_index("layer").loc[names]
    parameters = rows["parameters"].to_numpy(np.float64)
    runs = Runs(
        counts=tuple(int(count) for count in graph["count"]),
        weight_bytes=per_parameter.weights * parameters,
        static_bytes=per_parameter.static * parameters,
        activation_bytes=rows["activation_bytes"].to_numpy(np.float64),
        output_bytes=rows["output_bytes"].to_numpy(np.float64),
        tensor_parallel=rows["tensor_parallel"].to_numpy(np.bool_),
        kinds=tuple(kinds.tolist()),
    )
    return runs, list(names)


def best_times(
    runs: Runs,
    forward_s: Floats,
    backward_s: Floats,
    layout: Layout,
    settings: Sequence[Setting],
    at_most_s: float = np.inf,
) -> Floats:
    """Best time per batch for all settings and architectures, capped at `at_most_s`.

    The result is (settings, A); the latencies (A, kinds) are of one layer of each kind. Settings in which the
    same stages fit are computed once. A limit prunes the search.
    """
    chain = runs.untimed()
    total_s = (forward_s + backward_s) @ runs.totals
    order = np.argsort(total_s, kind="stable")  # consecutive architectures are similar
    forward, backward = (_on_grid(values, total_s[:, None])[order] for values in (forward_s, backward_s))
    solved: dict[tuple[object, ...], Floats] = {}
    times = []
    for setting in settings:
        # Settings with the same room for stages differ only in memory that decides nothing.
        groups = _groups(chain.footprints, setting)
        cluster = (setting.devices, setting.bandwidth_bytes_per_s, setting.recompute)
        key = (*cluster, *(group.key() for group in groups))
        if key not in solved:
            best_s = np.full(len(order), at_most_s)
            for group in groups:
                _improve(runs, chain, forward, backward, layout, setting, group, best_s)
            solved[key] = np.empty_like(best_s)
            solved[key][order] = best_s
        times.append(solved[key])
    return np.array(times).reshape(len(settings), len(order))


def _on_grid(values: Floats, total: Floats) -> Floats:
    """Round values so that every sum of them up to the total is exact in floating point.

    A stage then has the same time wherever it starts, and an architecture the same best time in any
    selection. The grid has 2^52 steps up to the total or beyond.
    """
    # Adding a power of two above the total rounds to its grid; subtracting it again is exact.
    above = np.ldexp(1.0, np.frexp(total)[1])
    return np.ascontiguousarray((values + above) - above)


@dataclass(frozen=True)
class Depths:
    """Pipeline depths and last stages that fit in memory, independent of latencies."""

    devices: Ints
    """(s,): fewest devices of a pipeline with s stages, 0 where none fits."""
    last_start: int
    """First layer of the longest last stage that fits."""

    def key(self) -> bytes:
        """Hashable key that identifies these depths."""
        return self.devices.tobytes() + bytes(str(self.last_start), "ascii")


def possible_depths(runs: Runs, layout: Layout, setting: Setting) -> Depths:
    """Pipeline depths with a cut that fits in memory, for GPipe with the fewest microbatches per pipeline."""
    chain = runs.untimed()
    footprints, shape = chain.footprints, shape_of(chain, layout, setting.devices)
    fitting = room(footprints, setting, int(useful_widths(setting.microbatches, setting.devices)[0].min()))
    fits, taken = possible_cuts(footprints, fitting, shape)
    devices = np.where(fits, taken, setting.devices + 1).min(axis=1)
    fewest = np.where(devices <= setting.devices, devices, 0).astype(np.int64)
    return Depths(fewest, int(np.argmax(fitting.last_fits)) if fitting.last_fits.any() else len(chain))


@dataclass(frozen=True)
class _EqualRoom:
    """Data-parallel widths at which the same stages fit in memory."""

    room: Room
    counts: Ints
    widths: Ints

    def key(self) -> tuple[bytes, ...]:
        """Hashable key that identifies the group."""
        arrays = (self.room.most_stages, self.room.last_fits, self.counts, self.widths)
        return tuple(array.tobytes() for array in arrays)


def _groups(footprints: Footprints, setting: Setting) -> list[_EqualRoom]:
    """Candidate data-parallel widths, grouped by which stages fit in memory; under 1F1B all in one group."""
    counts, widths = useful_widths(setting.microbatches, setting.devices)
    if setting.schedule == "1f1b":
        return [_EqualRoom(room(footprints, setting, setting.microbatches), counts, widths)]
    groups: dict[bytes, list[int]] = {}
    # Under GPipe the microbatches of a pipeline, and so the room for stages, depend on d.
    rooms = [room(footprints, setting, int(count)) for count in counts]
    for w, fitting in enumerate(rooms):
        groups.setdefault(fitting.most_stages.tobytes() + fitting.last_fits.tobytes(), []).append(w)
    return [_EqualRoom(rooms[ws[0]], counts[ws], widths[ws]) for ws in groups.values()]


def _improve(
    runs: Runs,
    chain: Chain,
    forward: Floats,
    backward: Floats,
    layout: Layout,
    setting: Setting,
    group: _EqualRoom,
    times: Floats,
) -> None:
    """Lower each architecture's time to that of its best cut at the group's data-parallel widths."""
    shape = shape_of(chain, layout, setting.devices)
    fits, used = possible_cuts(chain.footprints, group.room, shape)
    # The widest data-parallel width with which the pipelines do not exceed the devices.
    widest = np.searchsorted(group.widths, setting.devices // np.maximum(used, 1), side="right") - 1
    widest = np.where(fits & (used <= setting.devices), widest, -1)
    if (widest >= 0).any():
        sequence = _sequence(runs, chain, shape, setting, group.room)
        search(forward, backward, sequence, _data_widths(chain, setting, group, widest), times)


def _data_widths(chain: Chain, setting: Setting, group: _EqualRoom, widest: Ints) -> DataWidths:
    """Data-parallel widths of a group; `widest` is by depth and by number of single-device stages."""
    most, depths = widest.max(axis=1), np.arange(len(widest))
    exchange = setting.exchange_s(chain.parameter_bytes)
    wait = np.full(len(most), exchange[0])
    if setting.gradients == "every-stage":
        # The longest exchange is at least that of the largest layer, and at least the mean of s stages.
        wait = np.maximum(exchange.max(), exchange.sum() / np.maximum(depths, 1))
    return DataWidths(
        counts=group.counts,
        widths=group.widths,
        widest=widest,
        least=np.where(most >= 0, group.counts[most] + depths - 1.0, np.inf),
        most=most,
        wait_s=wait * (1.0 - SLACK),
    )


def _sequence(runs: Runs, chain: Chain, shape: Shape, setting: Setting, fitting: Room) -> LayerSequence:
    """Inputs of the search over cuts: the layers, their memory and the network."""
    between = runs.output_bytes[runs.layers][:-1] / setting.bandwidth_bytes_per_s
    exchange = setting.exchange_s(chain.parameter_bytes)
    split = np.append(np.flatnonzero(chain.tensor_parallel), len(chain))
    reach = _reach(fitting.most_stages, shape.stages)
    return LayerSequence(
        kinds=runs.layers,
        # Pigeonhole: of s stages, one has at least the s-th part of the layers of a kind.
        fullest=np.ceil(runs.totals / np.maximum(np.arange(shape.stages + 1), 1)[:, None]),
        transfer_s=np.concatenate([[0.0], between, [0.0]]),
        shortest_s=float(min(between, default=0.0)),
        exchange_s=np.concatenate([[0.0], np.cumsum(_on_grid(exchange, exchange.sum()))]),
        every_stage=setting.gradients == "every-stage",
        recompute=setting.recompute,
        alone=split[np.searchsorted(split, np.arange(len(chain)))],
        singles=np.minimum(np.cumsum(~chain.tensor_parallel[::-1])[::-1], shape.singles),
        reach=reach,
        farthest=np.maximum.accumulate(reach, axis=1),
        last_start=int(np.argmax(fitting.last_fits)) if fitting.last_fits.any() else len(chain),
    )


@njit
def _reach(most_stages: Ints, stages: int) -> Ints:
    """End (s, n) of the longest stage that starts at layer i and fits as the s-th from the end."""
    n = len(most_stages)
    reach = np.zeros((stages + 1, n), np.int64)
    for i in range(n):
        end = i
        # A stage that fits s-th from the end also fits nearer to it, so the search for ends continues.
        for s in range(stages, 1, -1):
            while end < n and most_stages[i, end + 1] >= s:
                end += 1
            reach[s, i] = end
    return reach
