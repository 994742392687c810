"""Lower bounds on the latency of a layer, and schedules that attain the upper bounds.

The components of a layer are in series, so their bounds add up. A component of few operators is searched over
its barriers (`paths`): its bounds meet unless the effort is exhausted. A wider component gets a lower bound
from weights (`clock`) and the best of many sequences (`sequences`). All functions work on many architectures
at once, which share one graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.schedule.barriers import Blocks, make_blocks
from phaze.schedule.clock import bound_by_weights
from phaze.schedule.graphs import (
    ALL_CORES,
    CORES,
    FUSED,
    NETWORK,
    NONE,
    TENSOR,
    VECTOR,
    Component,
    ComponentArrays,
    ComponentDesigns,
    Edges,
    LayerSchedule,
    ScheduledLayer,
    core_codes,
    make_graph,
    single_latencies,
)
from phaze.schedule.paths import bound_all, find_path, follow_path
from phaze.schedule.sequences import bound_wide_all, search_sequences

EQUAL = 1e-9
"""Relative difference below which a lower bound and a feasible latency count as equal."""
MAX_STEPS = 2_000_000
"""Number of steps between barriers above which a component counts as wide."""


class BoundEffort(NamedTuple):
    """Search effort for better bounds, as counts, so that results do not depend on the machine."""

    rounds: int
    """Number of shortest-path computations over the barriers."""
    nodes: int
    """Number of branch-and-bound nodes, over all blocks of a component."""
    moves: int
    """Number of moves of the search in a wide component."""


SCREENING = BoundEffort(100, 5_000, 400)
"""Effort for screening tens of thousands of architectures."""
SCHEDULING = BoundEffort(10_000, 5_000_000, 30_000)
"""Effort for scheduling the architectures that screening kept."""


@dataclass(frozen=True, eq=False)
class ComponentTask:
    """A component with its operators' latencies and the usable cores on one architecture."""

    component: Component
    one_s: Floats
    """Latency on one core ℓ, infinite for operators that must run on all cores, shape (n,)."""
    every_s: Floats
    """Latency on all cores ℓ̂, shape (n,)."""
    num_tc: int
    """Number of tensor cores, at most one per operator that could use one."""
    num_vc: int
    """Number of vector cores, at most one per operator that could use one."""


@dataclass(frozen=True, eq=False)
class Bounded:
    """Lower bound and best schedule of a component, found without an integer program."""

    lower_s: float
    schedule: LayerSchedule

    @property
    def proven(self) -> bool:
        """True if the schedule is proven to be the shortest."""
        return self.lower_s >= self.schedule.latency_s * (1 - EQUAL)


def layer_bounds(
    core: tuple[str, ...],
    edges: Edges,
    latency_s: Floats,
    latency_all_s: Floats,
    num_tc: Ints,
    num_vc: Ints,
    *,
    overlap_communication: bool = False,
    effort: BoundEffort = SCREENING,
) -> tuple[Floats, Floats]:
    """Lower bounds and feasible latencies of one layer on A architectures, both of shape (A,).

    Latencies on one core and on all cores have shape (A, n), core counts shape (A,); seconds. A feasible
    latency belongs to a schedule under the paper's model (Section 4).
    """
    lower, feasible = np.zeros(len(num_tc)), np.zeros(len(num_tc))
    one_s = single_latencies(core_codes(core), latency_s, overlap_communication)
    for component in make_graph(core, edges).components:
        members = list(component.operators)
        one_core_s, every = (
            np.ascontiguousarray(one_s[:, members]),
            np.ascontiguousarray(latency_all_s[:, members]),
        )
        bounds = _bound_component(component, one_core_s, every, num_tc, num_vc, effort)
        lower, feasible = lower + bounds[0], feasible + bounds[1]
    return lower, feasible


def least_latencies(
    core: tuple[str, ...],
    edges: Edges,
    latency_s: Floats,
    latency_all_s: Floats,
    num_tc: Ints,
    num_vc: Ints,
) -> Floats:
    """Lower bounds in closed form on the latency of one layer on A architectures, (A,), without schedules.

    Arguments are those of `layer_bounds`, whose bounds are at least as high and take a search. In each
    component the bound is the longest of the critical path and of the loads of tensor cores, of vector cores
    and of pairs of both. An operator on all cores loads all of them for its latency; one on a single core
    loads one. These are bounds by weights (`clock`): 1 on a path, or 1 / cores on operators of a type.
    Operators on the network run alone, so that they add to every load.
    """
    kinds, least = core_codes(core), np.zeros(len(num_tc))
    one_s = single_latencies(kinds, latency_s, overlap_communication=False)
    cores = (num_tc, num_vc, np.minimum(num_tc, num_vc))
    users = ((TENSOR, FUSED), (VECTOR, FUSED), (FUSED,))
    for component in make_graph(core, edges).components:
        members = list(component.operators)
        single_s, every_s = one_s[:, members], latency_all_s[:, members]
        alone = component.kinds == NETWORK
        bounds = [_longest_path(component, np.minimum(single_s, every_s))]
        for count, types in zip(cores, users, strict=True):
            loaded = np.isin(component.kinds, types)
            shared = np.minimum(single_s[:, loaded] / count[:, None], every_s[:, loaded])
            bounds.append(shared.sum(axis=1) + every_s[:, alone].sum(axis=1))
        least += np.max(bounds, axis=0)
    return least


def _longest_path(component: Component, latencies: Floats) -> Floats:
    """Latency of the longest path through a component on A architectures, (A,); latencies are (A, n)."""
    ends = latencies.copy()
    for target in range(latencies.shape[1]):  # operators are in topological order
        before = component.order[:, target]
        if before.any():
            ends[:, target] += ends[:, before].max(axis=1)
    longest: Floats = ends.max(axis=1)
    return longest


def _bound_component(
    component: Component, one_core_s: Floats, every: Floats, num_tc: Ints, num_vc: Ints, effort: BoundEffort
) -> tuple[Floats, Floats]:
    kinds = component.kinds
    if len(kinds) == 1:
        shortest = np.minimum(one_core_s, every)[:, 0]
        return shortest, shortest
    tc, vc = np.minimum(num_tc, tensor_users(kinds)), np.minimum(num_vc, vector_users(kinds))
    designs = ComponentDesigns(one_core_s, every, tc, vc)
    blocks = None if overlaps(kinds, one_core_s) else blocks_of(component)
    if blocks is None:
        return bound_wide_all(component.arrays, designs, effort.moves)
    return bound_all(blocks, component.arrays, designs, effort.rounds, effort.nodes)


def tasks_of(layer: ScheduledLayer) -> tuple[ComponentTask, ...]:
    """Components of a layer, first to last, with their latencies and usable cores."""
    return tuple(_make_task(layer, component) for component in layer.graph.components)


def layer_of(task: ComponentTask) -> ScheduledLayer:
    """Convert a component to a standalone layer."""
    return ScheduledLayer(
        core=tuple(CORES[kind] for kind in task.component.kinds),
        latency_s=np.where(np.isinf(task.one_s), task.every_s, task.one_s),
        latency_all_s=task.every_s,
        edges=task.component.edges,
        num_tc=task.num_tc,
        num_vc=task.num_vc,
        overlap_communication=overlaps(task.component.kinds, task.one_s),
    )


def whole_task(layer: ScheduledLayer) -> ComponentTask:
    """All operators of a layer, except no-ops, as one task."""
    members = [i for i in layer.graph.topological if layer.kinds[i] != NONE]
    order = layer.graph.order[np.ix_(members, members)]
    component = Component(tuple(members), layer.kinds[members], order)
    return _make_task(layer, component)


def _make_task(layer: ScheduledLayer, component: Component) -> ComponentTask:
    members = list(component.operators)
    tc = min(layer.num_tc, tensor_users(component.kinds))
    vc = min(layer.num_vc, vector_users(component.kinds))
    return ComponentTask(component, layer.single_s[members], layer.latency_all_s[members], tc, vc)


def bound_task(task: ComponentTask, effort: BoundEffort = SCHEDULING) -> Bounded:
    """Lower bound on the latency of a component and the best schedule found, from time 0.

    With at least the effort of the screening, these bounds lie within those of the screening.
    """
    part = ComponentArrays(*task.component.arrays, task.one_s, task.every_s, task.num_tc, task.num_vc)
    blocks = None if overlaps(part.kinds, part.one) else blocks_of(task.component)
    if len(part.kinds) == 1:
        wide = bool(part.every[0] < part.one[0])
        start, core = np.zeros(1), np.array([ALL_CORES if wide else 0])
        lower = float(min(part.every[0], part.one[0]))
    elif blocks is None:
        lower = bound_by_weights(part)
        sequences = [search_sequences(part, moves) for moves in sorted({SCREENING.moves, effort.moves})]
        _, start, core = min(sequences, key=lambda sequence: sequence[0])
    else:
        lower, start, core = _search_barriers(blocks, part, effort)
    end = start + np.where(core == ALL_CORES, part.every, part.one)
    schedule = LayerSchedule(start, end, core)
    return Bounded(min(lower, schedule.latency_s), schedule)


def _search_barriers(
    blocks: Blocks, part: ComponentArrays, effort: BoundEffort
) -> tuple[float, Floats, Ints]:
    """Find a lower bound and a schedule; `effort` is spent only if the screening effort leaves a gap."""
    lower, feasible, path, latencies = find_path(blocks, part, SCREENING.rounds, SCREENING.nodes)
    if effort != SCREENING and lower < feasible * (1 - EQUAL):
        longer = find_path(blocks, part, effort.rounds, effort.nodes)
        lower = max(lower, longer[0])
        if longer[1] < feasible:
            path, latencies = longer[2:]
    return (lower, *follow_path(path, latencies, part, effort.nodes))


def join_schedules(layer: ScheduledLayer, parts: Sequence[tuple[Component, LayerSchedule]]) -> LayerSchedule:
    """Concatenate the schedules of a layer's components; no-ops take no time."""
    n = len(layer.core)
    start, end, core = np.zeros(n), np.zeros(n), np.full(n, ALL_CORES)
    now = 0.0
    for component, part in parts:
        members = list(component.operators)
        start[members], end[members], core[members] = now + part.start_s, now + part.end_s, part.core
        now = float(end[members].max(initial=now))
    for i in layer.graph.topological:
        if layer.kinds[i] == NONE:
            start[i] = end[i] = end[layer.graph.order[:, i]].max(initial=0.0)
    return LayerSchedule(start, end, core)


def tensor_users(kinds: Ints) -> int:
    """Number of operators that can occupy a tensor core, at least 1."""
    return max(1, int(((kinds != VECTOR) & (kinds != NETWORK)).sum()))


def vector_users(kinds: Ints) -> int:
    """Number of operators that can occupy a vector core, at least 1."""
    return max(1, int(((kinds != TENSOR) & (kinds != NETWORK)).sum()))


def overlaps(kinds: Ints, one_core_s: Floats) -> bool:
    """True if a network operator may overlap with other operators, including operators on all cores."""
    return bool(np.isfinite(one_core_s[..., kinds == NETWORK]).any())


@lru_cache(maxsize=256)
def blocks_of(component: Component) -> Blocks | None:
    """Blocks between the barriers of a component, or None if it has too many steps between downsets."""
    return make_blocks(component, MAX_STEPS)
