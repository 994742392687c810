"""Piper's objective by brute force over all partitions, degrees and, with `exact`, configurations.

It shares no code with the planner: no downsets as bits, no tables, no compiled code. Times are rational
numbers. Of steps with equal ratios, the one of the first layer is taken, and of those the smallest, without
rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import chain, combinations, product
from math import ceil, inf

import numpy as np
from hypothesis import strategies as st

from phaze.base.arrays import Floats, Ints
from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers, Synchronisation

Choice = tuple[Fraction, float]
"""Contribution of a configuration to the time and the memory of a stage."""


def choices_of(
    layers: ProfiledLayers,
    cluster: FlatCluster,
    members: frozenset[int],
    tensor: int,
    data: int,
    in_flight: int,
) -> list[list[Choice]]:
    """Return the configurations of the layers of a stage, by layer and in the order given."""
    options, bandwidth = layers.options[tensor], Fraction(cluster.bandwidth_bytes_per_s)
    together = cluster.microbatches if cluster.synchronisation == "batch" else data
    found: dict[int, list[Choice]] = {v: [] for v in sorted(members)}
    for x, v in enumerate(options.layer.tolist()):
        if v not in members:
            continue
        moved = Fraction(0)
        for e, (source, target) in enumerate(layers.pairs):
            if target == v and source not in members:
                moved += 2 * Fraction(layers.edge_bytes[e] + options.forward_sync_bytes[x, e])
            if source == v and target not in members:
                moved += 2 * Fraction(layers.edge_bytes[e] + options.backward_sync_bytes[x, e])
        synchronised = Fraction(4 * (data - 1), data * together) * Fraction(options.weight_bytes[x])
        time = Fraction(options.time_s[x]) / data + (moved / data + synchronised) / bandwidth
        found[v].append((time, options.stash_bytes[x] * in_flight + options.fixed_bytes[x]))
    return list(found.values())


def time_by_the_rule(choices: list[list[Choice]], limit: float) -> float:
    """Return the time of a stage by the paper's rule; infinite if nothing fits."""
    if not all(choices):
        return inf
    picked = [min(options) for options in choices]
    while sum(memory for _, memory in picked) > limit:
        steps = [
            (
                (picked[i][1] - memory) / (time - picked[i][0]) if time > picked[i][0] else inf,
                i,
                (time, memory),
            )
            for i, options in enumerate(choices)
            for time, memory in options
            if memory < picked[i][1]
        ]
        if not steps:
            return inf
        _, i, step = max(steps, key=lambda s: s[0])
        picked[i] = step
    return sum(time for time, _ in picked)


def time_exactly(choices: list[list[Choice]], limit: float) -> float:
    """Return the minimum time of a stage over all choices of configurations."""
    fits = (p for p in product(*choices) if sum(memory for _, memory in p) <= limit)
    return float(min((sum(time for time, _ in p) for p in fits), default=inf))


def stage_time(
    layers: ProfiledLayers,
    cluster: FlatCluster,
    members: frozenset[int],
    tensor: int,
    data: int,
    degree: int,
    exact: bool = False,
) -> float:
    """Return TPS(S, t, d, s); infinite if it does not fit."""
    choices = choices_of(layers, cluster, members, tensor, data, ceil(degree / data))
    return (time_exactly if exact else time_by_the_rule)(choices, cluster.memory_bytes)


def stages_before(layers: ProfiledLayers, taken: frozenset[int], linear: bool) -> Iterator[frozenset[int]]:
    """Yield every set of layers that may be the stage before those taken."""
    left = [v for v in range(len(layers)) if v not in taken]
    if linear:
        stage = taken
        while len(stage) < len(layers):
            ready = (v for v in left if v not in stage and not _blocked(layers, v, stage))
            stage |= {min(ready)}
            yield stage - taken
        return
    for subset in chain.from_iterable(combinations(left, size) for size in range(1, len(left) + 1)):
        if not any(_blocked(layers, v, taken | set(subset)) for v in subset):
            yield frozenset(subset)


def _blocked(layers: ProfiledLayers, v: int, taken: frozenset[int]) -> bool:
    return any(target not in taken for source, target in layers.pairs if source == v)


def best_times(
    layers: ProfiledLayers,
    cluster: FlatCluster,
    *,
    linear: bool = False,
    exact: bool = False,
    most_data: int | None = None,
) -> list[float]:
    """Return the minimum time per sample on at most k devices, (K + 1,); infinite if no plan fits."""
    best = [inf] * (cluster.devices + 1)
    timed = lru_cache(maxsize=None)(partial(stage_time, layers, cluster, exact=exact))
    degrees = [d for d in range(1, (most_data or cluster.devices) + 1) if _allowed(cluster, d)]
    shapes = [(t, d) for t in layers.options for d in degrees]

    def extend(taken: frozenset[int], devices: int, degree: int, slowest: float) -> None:
        if devices > cluster.devices or degree > cluster.microbatches or slowest == inf:
            return
        if len(taken) == len(layers):
            if not cluster.exactly or degree == cluster.microbatches:
                best[devices] = min(best[devices], slowest)
            return
        for stage in stages_before(layers, taken, linear):
            for t, d in shapes:
                time = timed(stage, t, d, degree + d)
                extend(taken | stage, devices + d * t, degree + d, max(slowest, time))

    extend(frozenset(), 0, 0, 0.0)
    return np.minimum.accumulate(best).tolist()


def _allowed(cluster: FlatCluster, data: int) -> bool:
    return cluster.synchronisation == "round" or cluster.microbatches % data == 0


@st.composite
def instances(
    draw: st.DrawFn, most_layers: int = 4, most_devices: int = 5
) -> tuple[ProfiledLayers, FlatCluster]:
    """Draw a small graph of layers, a cluster whose memory may bind, and the mode."""
    seed = draw(st.integers(0, 2**32 - 1))
    n = draw(st.integers(1, most_layers))
    synchronisation: Synchronisation = draw(st.sampled_from(("batch", "round")))
    rng = np.random.default_rng(seed)
    layers = draw_layers(rng, n, draw(st.booleans()))
    cluster = FlatCluster(
        devices=draw(st.integers(1, most_devices)),
        memory_bytes=float(rng.integers(5, 60)),
        bandwidth_bytes_per_s=float(rng.choice([0.5, 4.0, 64.0])),
        microbatches=draw(st.integers(1, 6)),
        exactly=draw(st.booleans()),
        synchronisation=synchronisation,
    )
    return layers, cluster


def draw_layers(rng: np.random.Generator, n: int, alike: bool) -> ProfiledLayers:
    """Return layers with branches and up to four configurations each, at times none.

    alike: a layer's configurations have the same weights and exchanges.
    """
    number = rng.permutation(n)
    pairs = [(number[i], number[j]) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.5]
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    widths = [1, *(t for t in (2, 3) if rng.random() < 0.5)]

    def options() -> Configurations:
        counts = rng.choice([0, 1, 2, 3, 4], n, p=[0.04, 0.26, 0.3, 0.2, 0.2])
        return draw_options(rng, counts, *edges.T, alike=alike)

    return ProfiledLayers(
        ids=tuple(range(n)),
        names=tuple(f"layer {v}" for v in range(n)),
        edges=edges,
        edge_bytes=rng.integers(0, 5, len(pairs)).astype(float),
        options={t: options() for t in widths},
    )


def draw_options(
    rng: np.random.Generator, counts: Ints, sources: Ints, targets: Ints, *, alike: bool
) -> Configurations:
    """Return several configurations per layer, with small numbers so that some are equal."""
    layer = np.repeat(np.arange(len(counts)), counts)
    like = np.repeat(np.cumsum(counts) - counts, counts) if alike else np.arange(len(layer))
    shape = (len(layer), len(sources))
    forward, backward = rng.integers(0, 4, shape)[like], rng.integers(0, 4, shape)[like]
    return Configurations(
        names=tuple(f"option {x}" for x in range(len(layer))),
        layer=layer,
        time_s=rng.integers(1, 12, len(layer)).astype(float),
        weight_bytes=rng.integers(0, 9, len(layer))[like].astype(float),
        stash_bytes=rng.integers(0, 6, len(layer)).astype(float),
        fixed_bytes=rng.integers(0, 9, len(layer)).astype(float),
        forward_sync_bytes=np.where(targets == layer[:, None], forward, 0).astype(float),
        backward_sync_bytes=np.where(sources == layer[:, None], backward, 0).astype(float),
    )


def with_extremes(
    rng: np.random.Generator, layers: ProfiledLayers, share: float, alike: bool
) -> ProfiledLayers:
    """Return layers with a share of their numbers between 1e-6 and 1e20; alike: as in `draw_layers`."""

    def widened(values: Floats, part: float = share) -> Floats:
        chosen = (rng.random(values.shape) < part) & (values > 0)
        return np.where(chosen, 10.0 ** rng.uniform(-6, 20, values.shape), values)

    def of_layers(options: Configurations) -> Configurations:
        like = np.searchsorted(options.layer, options.layer) if alike else np.arange(len(options.layer))
        return replace(
            options,
            time_s=widened(options.time_s),
            weight_bytes=widened(options.weight_bytes)[like],
            stash_bytes=widened(options.stash_bytes, share / 3),
            fixed_bytes=widened(options.fixed_bytes, share / 3),
            forward_sync_bytes=widened(options.forward_sync_bytes)[like],
            backward_sync_bytes=widened(options.backward_sync_bytes)[like],
        )

    options = {t: of_layers(each) for t, each in layers.options.items()}
    return replace(layers, edge_bytes=widened(layers.edge_bytes), options=options)
