"""Numbers of any size: a configuration that costs 1e20 does not affect others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.base.arrays import Floats
from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions, plan
from tests.unit.formulas.piper.exhaustive import best_times, draw_layers, with_extremes
from tests.unit.formulas.piper.knapsacks import Knapsack
from tests.unit.formulas.piper.test_planner import time_of
from tests.unit.formulas.piper.test_stages import layers_of

NEVER = 1e20
"""Cost of a configuration that must not be chosen."""


def test_a_forbidden_configuration_that_comes_first_takes_nothing_off_the_next() -> None:
    layers = layers_of((0, 1.0, NEVER, 1000.0, 0.0), (0, 4.0, 0.3, 1.0, 1.0))
    found = plan(layers, FlatCluster(2, 100.0, 1.0, 2))
    assert time_of(found) == pytest.approx(4 / 2 + 4 * 0.3 / 2 / 2), "in two replicas, never for nothing"


def test_an_exchange_that_comes_first_and_takes_forever_leaves_the_next_as_it_is() -> None:
    one, other = (0, 1.0, 0.0, 0.0, 60.0), (1, 4.0, 0.0, 0.0, 60.0)
    layers = layers_of(one, other, other)
    options = replace(
        layers.options[1],
        forward_sync_bytes=np.array([[0.0], [NEVER], [0.0]]),
        backward_sync_bytes=np.zeros((3, 1)),
    )
    joined = replace(layers, edges=np.array([[0, 1]]), edge_bytes=np.array([1.0]), options={1: options})
    assert time_of(plan(joined, FlatCluster(2, 100.0, 1.0, 2))) == 4 + 2 * 1


def test_a_layer_that_is_forbidden_at_one_width_leaves_the_others_there_as_they_are() -> None:
    """Layer 0 has to be sharded, layer 1 must not be: one stage at each width."""
    chain = layers_of((0, 1.0, 0.0, 0.0, 0.0), (1, 1.0, 0.0, 0.0, 0.0))
    layers = replace(chain, options={1: of_widths([NEVER, 3.0]), 2: of_widths([5.0, NEVER])})
    assert time_of(plan(layers, FlatCluster(3, 1.0, 4.0, 2))) == 5.0 + 2 * 3.0 / 4.0


def of_widths(time_s: list[float]) -> Configurations:
    """Return a configuration for every layer, of these times."""
    none = np.zeros(len(time_s))
    return Configurations(
        names=tuple("only" for _ in time_s),
        layer=np.arange(len(time_s)),
        time_s=np.array(time_s),
        weight_bytes=none,
        stash_bytes=none,
        fixed_bytes=none,
        forward_sync_bytes=np.zeros((len(time_s), len(time_s) - 1)),
        backward_sync_bytes=np.zeros((len(time_s), len(time_s) - 1)),
    )


@pytest.mark.parametrize("exact", [False, True])
def test_the_plan_is_the_best_of_all_whatever_the_size_of_the_numbers(exact: bool) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        layers, cluster = drawn(rng, alike=seed % 2 == 0)
        found = plan(layers, cluster, SearchOptions(exact_knapsack=exact))
        expected = best_times(layers, cluster, exact=exact)[-1]
        assert time_of(found) == pytest.approx(expected, rel=1e-9), f"seed {seed}"


def drawn(rng: np.random.Generator, *, alike: bool) -> tuple[ProfiledLayers, FlatCluster]:
    """Return up to three layers with numbers from 1e-6 to 1e20, and a cluster."""
    small = draw_layers(rng, int(rng.integers(1, 4)), alike)
    layers = with_extremes(rng, small, float(rng.choice([0.15, 0.4, 1.0])), alike)
    cluster = FlatCluster(
        devices=int(rng.integers(1, 5)),
        memory_bytes=float(rng.integers(5, 60)),
        bandwidth_bytes_per_s=float(rng.choice([0.5, 4.0, 64.0])),
        microbatches=int(rng.integers(1, 6)),
        exactly=bool(rng.random() < 0.3),
        synchronisation="round" if rng.random() < 0.5 else "batch",
    )
    return layers, cluster


def test_a_knapsack_is_the_best_of_all_whatever_the_size_of_the_numbers() -> None:
    for seed in range(500):
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, 5, int(rng.integers(1, 6)))
        sizes = extremes(rng, (2, int(counts.sum())))
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        limit = float(rng.choice(sizes[1])) * float(rng.uniform(0.5, 4.0))
        given = Knapsack(first, np.ones(len(counts), dtype=np.bool_), sizes[0], sizes[1], limit)
        found = given.exactly()
        assert (np.inf if found is None else found) == pytest.approx(least_time(given), rel=1e-9), (
            f"seed {seed}"
        )


def extremes(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Return numbers, some of them from 1e-6 to 1e20, the others below 20."""
    some = rng.random(shape) < rng.choice([0.2, 0.5, 1.0])
    return np.where(some, 10.0 ** rng.uniform(-6, 20, shape), rng.integers(1, 20, shape).astype(float))


def least_time(given: Knapsack) -> float:
    """Return the minimum time of all choices that fit; infinite if none does."""
    sums = np.zeros((1, 2))
    for pairs in given.choices:
        sums = (sums[:, None] + np.array(pairs)).reshape(-1, 2)
    fits = sums[sums[:, 1] <= given.limit_bytes, 0]
    return float(fits.min(initial=np.inf))
