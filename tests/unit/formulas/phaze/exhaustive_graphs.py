"""A second implementation of the placement of graphs with branches: every order of stages, every assignment.

It shares only the definition of the costs with phaze: no downsets, tables, bounds or prunings.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import ceil, inf

import networkx as nx

from phaze.formulas.flushing import Chain, Setting

Stage = frozenset[int]
Groups = tuple[tuple[int, ...], ...]


def successions(graph: Chain, left: Stage | None = None) -> Iterator[list[Stage]]:
    """Yield all sequences of stages that contain all layers, without backward edges."""
    left = frozenset(range(len(graph))) if left is None else left
    if not left:
        yield []
    for size in range(1, len(left) + 1):
        for stage in map(frozenset, combinations(sorted(left), size)):
            if not any(v in stage and u in left - stage for u, v in graph.pairs):
                yield from ([stage, *rest] for rest in successions(graph, left - stage))


def branches(graph: Chain, stage: Stage) -> list[tuple[int, ...]]:
    """Return the longest runs of layers without a fork or a join among the layers of a stage."""
    whole = nx.DiGraph()
    whole.add_nodes_from(range(len(graph)))
    whole.add_edges_from((u, v) for u, v in graph.pairs)
    direct = nx.transitive_reduction(whole).subgraph(stage)
    tied = nx.Graph()
    tied.add_nodes_from(stage)
    tied.add_edges_from((u, v) for u, v in direct.edges if direct.out_degree(u) == direct.in_degree(v) == 1)
    return sorted(tuple(sorted(part)) for part in nx.connected_components(tied))


def partitions(parts: list[tuple[int, ...]]) -> Iterator[Groups]:
    """Yield all partitions of branches into groups."""
    if not parts:
        yield ()
        return
    for groups in partitions(parts[:-1]):
        yield (*groups, parts[-1])
        for g in range(len(groups)):
            yield (*groups[:g], groups[g] + parts[-1], *groups[g + 1 :])


def ends(
    graph: Chain, groups: Groups, bandwidth: float, start: list[float], *, forward: bool, arrivals: bool
) -> list[float]:
    """Run a pass and return the end of each group; no group waits while one of its layers could start."""
    where = {v: g for g, layers in enumerate(groups) for v in layers}
    seconds = graph.forward_s if forward else graph.backward_s
    needs = [(u, v, size) if forward else (v, u, size) for u, v, size in graph.tensors]
    clock, done = list(start), dict[int, float]()
    while len(done) < len(where):
        able = []
        for v in where.keys() - done.keys():
            before = [(u, size / bandwidth) for u, target, size in needs if target == v]
            if all(u in done for u, _ in before if u in where):
                waits = [
                    done[u] + (0.0 if where[u] == where[v] else transfer) if u in where else transfer
                    for u, transfer in before
                    if u in where or arrivals
                ]
                able.append((max([clock[where[v]], *waits]), v if forward else -v, v))
        at, _, v = min(able)
        clock[where[v]] = done[v] = at + float(seconds[v])
    return clock


def load_s(graph: Chain, groups: Groups, bandwidth: float, *, recompute: bool) -> float:
    """Return the longest load of groups that exchange tensors: their last ends of both passes."""
    free = [0.0] * len(groups)
    first = ends(graph, groups, bandwidth, free, forward=True, arrivals=True)
    again = ends(graph, groups, bandwidth, free, forward=True, arrivals=False) if recompute else free
    second = ends(graph, groups, bandwidth, again, forward=False, arrivals=True)
    where = {v: g for g, layers in enumerate(groups) for v in layers}
    linked = nx.Graph((where[u], where[v]) for u, v in graph.pairs if u in where and v in where)
    linked.add_nodes_from(where.values())
    return max(
        max(first[g] for g in crew) + max(second[g] for g in crew) for crew in nx.connected_components(linked)
    )


def devices(graph: Chain, groups: Groups, tensor: int) -> int:
    """Return t devices for each group with a layer that is split, and one for each other."""
    return sum(tensor if any(graph.tensor_parallel[v] for v in layers) else 1 for layers in groups)


def memory_bytes(graph: Chain, groups: Groups, *, recompute: bool, in_flight: int) -> float:
    """Return the peak memory of any device."""
    stage = {v for layers in groups for v in layers}
    needed = []
    for layers in groups:
        activations = sum(float(graph.activation_bytes[v]) for v in layers)
        stashed = activations
        if recompute:
            stashed = sum(size for u, v, size in graph.tensors if v in layers and u not in stage)
        static = sum(float(graph.static_bytes[v]) for v in layers)
        needed.append(static + activations + in_flight * stashed)
    return max(needed)


Choice = tuple[int, float, list[Groups]]


def choices(graph: Chain, stage: Stage, tensor: int, bandwidth: float, *, recompute: bool) -> list[Choice]:
    """Return the lowest load and all schedules with it, for each number of devices."""
    found: dict[int, tuple[float, list[Groups]]] = {}
    for groups in partitions(branches(graph, stage)):
        load = load_s(graph, groups, bandwidth, recompute=recompute)
        a = devices(graph, groups, tensor)
        least, ways = found.get(a, (inf, []))
        if load < least:
            found[a] = (load, [groups])
        elif load == least:
            ways.append(groups)
    return [(a, load, ways) for a, (load, ways) in found.items()]


def best(graph: Chain, tensor: int, setting: Setting, *, wide: bool = True) -> float:
    """Return the best time per batch; without `wide` no stage has more than one group."""
    known: dict[tuple[Stage, bool], list[Choice]] = {}
    least = inf
    for stages in successions(graph):
        options = []
        for stage in stages:
            recompute = setting.recompute and stage is not stages[-1]
            if (stage, recompute) not in known:
                known[stage, recompute] = choices(
                    graph, stage, tensor, setting.bandwidth_bytes_per_s, recompute=recompute
                )
            options.append([c for c in known[stage, recompute] if wide or len(c[2][0]) == 1])
        for chosen in product(*options):
            least = min(least, best_data_s(graph, stages, chosen, setting))
    return least


def best_data_s(graph: Chain, stages: list[Stage], chosen: tuple[Choice, ...], setting: Setting) -> float:
    """Return the best time over data widths of a pipeline with given stages and devices."""
    least, depth = inf, len(stages)
    used = sum(a for a, _, _ in chosen)
    weights = sum(float(graph.parameter_bytes[v]) for v in stages[0])
    for data in range(1, min(setting.devices // used, setting.microbatches) + 1):
        microbatches = ceil(setting.microbatches / data)
        sync = setting.all_reduce_factor * (data - 1) / data * weights / setting.bandwidth_bytes_per_s
        time = max(load for _, load, _ in chosen) * (microbatches + depth - 1) + sync
        if time < least and fits(graph, chosen, setting, microbatches):
            least = time
    return least


def fits(graph: Chain, chosen: tuple[Choice, ...], setting: Setting, microbatches: int) -> bool:
    """Return whether every stage has a schedule of its load that fits at its position."""
    depth = len(chosen)
    return all(
        any(
            memory_bytes(
                graph,
                groups,
                recompute=setting.recompute and number < depth - 1,
                in_flight=depth - number - 1 if setting.schedule == "1f1b" else microbatches,
            )
            <= setting.memory_bytes
            for groups in ways
        )
        for number, (_, _, ways) in enumerate(chosen)
    )
