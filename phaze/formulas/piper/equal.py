"""Baseline `equi`: stages with equal numbers of repeated layers, all with the same degrees d and t.

The repeated layers are those with the most frequent name, or all layers if all names differ, as in GNMT and
ResNet-50. Layers before (embedding, masks) and after them (pooling) are stages of their own, or join the
first and the last group. The layers are in the topological order of a depth-first search, from the smallest
id and along edges as the input lists them. If w groups cannot be equal, the later ones, which store fewer
microbatches in flight, have one layer more. (Piper, Section 5, gives the options that are tried. It says
nothing of the order and the uneven groups; these choices reproduce all its printed times.)

With equal d, the j-th stage from the end stores ceil(j d / d) = j microbatches for any d: memory decides
about groups, width and configurations, and the degrees d differ only in time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.formulas.piper.layers import Configurations, FlatCluster, PiperPlan, PlannedStage, ProfiledLayers
from phaze.layout import Layout

Cut = tuple[int, ...]
"""Positions in the layer order at which stages begin."""


@dataclass(frozen=True, eq=False)
class _EqualStages:
    """Costs of L equal stages at one tensor-parallel width, for any degree of data parallelism."""

    layout: Layout
    """Layout of one replica."""
    members: list[Ints]
    chosen: Ints
    """(n,) configuration of each layer."""
    time_s: Floats
    """(L,) time per sample, with d = 1."""
    weight_s: Floats
    """(L,) gradient exchange time 4 w / B."""
    memory_bytes: Floats
    """(L,) memory of each device."""

    def times(self, cluster: FlatCluster, widths: Ints) -> Floats:
        """Time per sample of every stage at several data-parallel widths, (widths, L)."""
        shares = np.array([cluster.exchanged(Layout(dp=d)) / d for d in widths.tolist()])
        return self.time_s / widths[:, None] + shares[:, None] * self.weight_s

    def plan(self, cluster: FlatCluster, layout: Layout) -> PiperPlan:
        """Build the plan for these stages under a layout."""
        times = self.times(cluster, np.array([layout.dp]))[0]
        return PiperPlan(
            tuple(
                PlannedStage(
                    layers=tuple(members.tolist()),
                    layout=layout,
                    configurations=tuple(self.chosen[members].tolist()),
                    in_flight=len(times) - j,
                    time_s=float(times[j]),
                    memory_bytes=float(self.memory_bytes[j]),
                )
                for j, members in enumerate(self.members)
            )
        )

    def best_layout(self, cluster: FlatCluster) -> tuple[float, Layout] | None:
        """Slowest stage's time at the best data-parallel width, and the layout; None if stages do not fit."""
        count = len(self.members)
        most = min(cluster.devices // (count * self.layout.tp), cluster.microbatches // count)
        if most == 0 or np.any(self.memory_bytes > cluster.memory_bytes):
            return None
        widths = cluster.data_widths(most)
        if cluster.exactly:
            # All stages have the same degree, so the degrees sum to d times their number.
            widths = widths[widths * count == cluster.microbatches]
        if len(widths) == 0:
            return None
        times = self.times(cluster, widths).max(axis=1)
        return float(times.min()), replace(self.layout, dp=int(widths[np.argmin(times)]))


def plan_equally(layers: ProfiledLayers, cluster: FlatCluster) -> PiperPlan | None:
    """Plan with equal stages and the least time per sample; None if none fits."""
    best: tuple[float, Layout, _EqualStages] | None = None
    order = depth_first_order(layers)
    cuts = list(equal_cuts([layers.names[v] for v in order]))
    for width, options in layers.options.items():
        most = min(cluster.devices // width, cluster.microbatches)
        for chosen in uniform_choices(options, len(layers)):
            for cut in (cut for cut in cuts if len(cut) <= most):
                stages = _stages(layers, cluster, Layout(tp=width), chosen, np.split(order, cut[1:]))
                candidate = stages.best_layout(cluster)
                if candidate is not None and (best is None or candidate[0] < best[0]):
                    best = (*candidate, stages)
    return None if best is None else best[2].plan(cluster, best[1])


def depth_first_order(layers: ProfiledLayers) -> Ints:
    """Layer positions in the topological order of a depth-first search, (n,)."""
    import networkx as nx  # slow import that planners of chains do not need

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(layers)))
    graph.add_edges_from(layers.pairs)
    return np.array(list(nx.dfs_postorder_nodes(graph))[::-1], dtype=np.int64)


def equal_cuts(names: Sequence[str]) -> Iterator[Cut]:
    """Yield the cuts of a sequence of named layers into equal stages, for every number of groups."""
    name, times = Counter(names).most_common(1)[0]
    repeated = [i for i, other in enumerate(names) if times == 1 or other == name]
    for groups in range(1, len(repeated) + 1):
        yield from group_cuts(len(names), repeated, groups)


def group_cuts(layers: int, repeated: Sequence[int], groups: int) -> Iterator[Cut]:
    """Yield cuts of the repeated layers into groups; other layers join them or form their own stages."""
    size, longer = divmod(len(repeated), groups)
    # Later groups are longer: the last `longer` ones have one layer more.
    inner = tuple(repeated[j * size + max(0, j - (groups - longer))] for j in range(groups))
    before, after = (0,) * (repeated[0] > 0), (repeated[-1] + 1,) * (repeated[-1] + 1 < layers)
    yield (0, *inner[1:])
    if before or after:
        yield (*before, *inner, *after)


def uniform_choices(options: Configurations, layers: int) -> Iterator[Ints]:
    """Yield one choice (n,) per configuration name; a layer without that name uses its fastest one."""
    first = options.first(layers)
    # A layer without a configuration at this width rules the width out for all stages.
    if np.any(first[1:] == first[:-1]):
        return
    fastest = [begin + int(np.argmin(options.time_s[begin:end])) for begin, end in pairwise(first)]
    for name in dict.fromkeys(options.names):
        chosen = np.array(fastest, dtype=np.int64)
        named = [x for x, other in enumerate(options.names) if other == name]
        chosen[options.layer[named]] = named
        yield chosen


def _stages(
    layers: ProfiledLayers, cluster: FlatCluster, layout: Layout, chosen: Ints, members: list[Ints]
) -> _EqualStages:
    """Compute the costs of given stages (Piper, Section 4)."""
    options, count = layers.options[layout.tp], len(members)
    stage = np.empty(len(layers), dtype=np.int64)
    for j, inside in enumerate(members):
        stage[inside] = j

    def total(values: Floats) -> Floats:
        return np.bincount(stage, values[chosen], count).astype(np.float64)

    sources, targets = layers.sources, layers.targets
    crossing = np.flatnonzero(stage[sources] != stage[targets])
    # Each end pays for a tensor that crosses, with the exchange among its own t devices.
    arriving = layers.edge_bytes + options.forward_sync_bytes[chosen[targets], np.arange(len(targets))]
    leaving = layers.edge_bytes + options.backward_sync_bytes[chosen[sources], np.arange(len(sources))]
    moved = np.bincount(stage[targets[crossing]], arriving[crossing], count)
    moved += np.bincount(stage[sources[crossing]], leaving[crossing], count)
    return _EqualStages(
        layout=layout,
        members=[np.sort(inside) for inside in members],
        chosen=chosen,
        time_s=total(options.time_s) + 2 * moved / cluster.bandwidth_bytes_per_s,
        weight_s=cluster.network.endless_s("all_reduce", total(options.weight_bytes)),
        # The j-th stage from the end stores j microbatches, whatever the degree.
        memory_bytes=total(options.stash_bytes) * np.arange(count, 0, -1) + total(options.fixed_bytes),
    )
