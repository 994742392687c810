"""The shortest schedule of a small layer by trying everything: who runs on all cores, all sequences, all
cores.

Operators are started one after the other in the order of their start times, on all cores or on any core of
their type, each as early as what has been started allows. Every schedule in which no operator could start
earlier by itself arises in this way, so the shortest one does. Shares no code with phaze.
"""

from collections.abc import Iterator
from typing import NamedTuple

from phaze.schedule.graphs import ScheduledLayer

Core = tuple[str, int]


class Run(NamedTuple):
    """Started operator."""

    operator: int
    end: float
    wide: bool
    cores: frozenset[Core]


def shortest_latency(layer: ScheduledLayer) -> float:
    """Return the latency of the shortest schedule of a layer, in seconds."""
    before = _closure(layer)
    working = [i for i, kind in enumerate(layer.core) if kind != "none"]
    least = [float(min(a, b)) for a, b in zip(layer.latency_s, layer.latency_all_s, strict=True)]
    for i in working:
        if layer.core[i] == "network" and not layer.overlap_communication:
            least[i] = float(layer.latency_all_s[i])
    tails = {i: _tail(i, working, before, least) for i in working}
    best = [sum(least[i] for i in working)]
    _start_rest(layer, before, tails, [], set(working), 0.0, best)
    return best[0]


def _closure(layer: ScheduledLayer) -> list[set[int]]:
    """Return all predecessors of every operator."""
    before: list[set[int]] = [set() for _ in layer.core]
    for _ in layer.core:
        for i, j in layer.edges:
            before[j] |= {i} | before[i]
    return before


def _tail(i: int, working: list[int], before: list[set[int]], least: list[float]) -> float:
    followers = [_tail(j, working, before, least) for j in working if i in before[j]]
    return least[i] + max(followers, default=0.0)


def _start_rest(
    layer: ScheduledLayer,
    before: list[set[int]],
    tails: dict[int, float],
    runs: list[Run],
    left: set[int],
    now: float,
    best: list[float],
) -> None:
    """Try all ways to start the remaining operators, none of them before `now`; record the best latency."""
    if not left:
        best[0] = min(best[0], max((run.end for run in runs), default=0.0))
        return
    for i in left:
        if before[i] & left:
            continue
        seen = set()
        for start, run in _options(layer, before[i], runs, i, now):
            if (start, run) in seen or start + tails[i] >= best[0]:
                continue
            seen.add((start, run))
            _start_rest(layer, before, tails, [*runs, run], left - {i}, start, best)


def _options(
    layer: ScheduledLayer, before: set[int], runs: list[Run], i: int, now: float
) -> Iterator[tuple[float, Run]]:
    """Yield the start times and runs of operator i on all cores and on every single core."""
    kind = layer.core[i]
    ready = max([now, *(run.end for run in runs if run.operator in before)])
    for wide, cores, latency in _modes(layer, i):
        start = ready
        for run in runs:
            beside = layer.overlap_communication and (kind == "network") != (
                layer.core[run.operator] == "network"
            )
            network_wide = run.wide if layer.core[run.operator] == "network" else wide
            alone = network_wide if beside else wide or run.wide
            if alone or cores & run.cores:
                start = max(start, run.end)
        yield start, Run(i, start + latency, wide, cores)


def _modes(layer: ScheduledLayer, i: int) -> Iterator[tuple[bool, frozenset[Core], float]]:
    """Yield whether operator i has all cores, the cores that it occupies otherwise, and how long it takes."""
    kind = layer.core[i]
    yield True, frozenset(), float(layer.latency_all_s[i])
    one = float(layer.latency_s[i])
    if kind == "network":
        if layer.overlap_communication:
            yield False, frozenset({("link", 0)}), one
        return
    if kind == "fused":
        for c in range(min(layer.num_tc, layer.num_vc)):
            yield False, frozenset({("tensor", c), ("vector", c)}), one
        return
    for c in range(layer.num_tc if kind == "tensor" else layer.num_vc):
        yield False, frozenset({(kind, c)}), one
