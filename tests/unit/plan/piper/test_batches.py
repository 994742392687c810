"""The outer loop over accumulation and microbatch finds the best of all (Piper, Appendix A)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.plan.piper.batches import Batched, Split, plan_batch, splits
from phaze.plan.piper.layers import Cluster, Layers, Plan
from phaze.plan.piper.planner import plan
from tests.unit.plan.piper.exhaustive import best_times, draw_layers


def test_a_batch_is_split_where_that_leaves_whole_microbatches() -> None:
    assert list(splits(12, [3, 1, 2], [4, 1, 5])) == [
        Split(1, 1, 12),
        Split(1, 4, 3),
        Split(2, 1, 6),
        Split(3, 1, 4),
        Split(3, 4, 1),
    ]


def larger(layers: Layers, microbatch: int) -> Layers:
    """Return layers for a larger microbatch: time and activations grow, though less than it."""

    def grown(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> np.ndarray:
        return values * (0.5 + 0.5 * microbatch)

    options = {
        t: replace(o, time_s=grown(o.time_s), stash_bytes=grown(o.stash_bytes))
        for t, o in layers.options.items()
    }
    return replace(layers, edge_bytes=grown(layers.edge_bytes), options=options)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(("batch", "round")), st.sampled_from((4, 6)))
def test_the_plan_is_the_best_of_all_splits(seed: int, exactly: bool, how: str, samples: int) -> None:
    rng = np.random.default_rng(seed)
    layers = draw_layers(rng, 3, False)
    models = {b: larger(layers, b) for b in (1, 2)}
    cluster = Cluster(
        4, float(rng.integers(10, 60)), 10.0, 99, exactly, "batch" if how == "batch" else "round"
    )
    found = plan_batch(models, cluster, samples, [1, 2, 3], lambda *given: plan(*given, exact_knapsack=True))
    times = [
        best_times(model, replace(cluster, microbatches=samples // (g * b)), exact=True)[-1] / b
        for b, model in models.items()
        for g in (1, 2, 3)
        if samples % (g * b) == 0
    ]
    assert (found.time_per_sample_s if found else np.inf) == pytest.approx(min(times), rel=1e-9)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from(("batch", "round")))
def test_accumulation_does_not_help_where_the_degrees_need_not_sum_up_to_n(seed: int, how: str) -> None:
    rng = np.random.default_rng(seed)
    models = {1: draw_layers(rng, 3, False)}
    cluster = Cluster(
        4, float(rng.integers(10, 60)), 10.0, 1, synchronisation="batch" if how == "batch" else "round"
    )

    def exact(layers: Layers, cluster: Cluster, below_s: float) -> Plan | None:
        return plan(layers, cluster, below_s, exact_knapsack=True)

    none, some = (plan_batch(models, cluster, 12, g, exact) for g in ([1], [1, 2, 3, 4]))
    assert none == some


def test_times_are_those_of_a_sample_and_equal_ones_go_to_the_first_split() -> None:
    one = Plan(())

    class Fixed(Plan):
        @property
        def time_per_sample_s(self) -> float:
            return 6.0

    cluster = Cluster(4, 1.0, 1.0, 1)
    layers = draw_layers(np.random.default_rng(0), 2, False)
    found = plan_batch({2: layers, 3: layers}, cluster, 12, [1, 2], lambda *_: Fixed(one.stages))
    assert isinstance(found, Batched)
    assert found.split == Split(1, 3, 4)
    assert found.time_per_sample_s == 2.0


def test_no_plan_for_any_split_is_none() -> None:
    layers = draw_layers(np.random.default_rng(0), 2, False)
    assert plan_batch({1: layers}, Cluster(4, 1.0, 1.0, 1), 12, [1, 2], lambda *_: None) is None


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from((0.5, 1.0, 1.001, 2.0)))
def test_a_plan_that_has_to_beat_a_time_is_the_best_one_or_none(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    layers, cluster = draw_layers(rng, 3, False), Cluster(4, float(rng.integers(10, 60)), 10.0, 8)
    best = plan(layers, cluster)
    asked = plan(layers, cluster, factor * best.time_per_sample_s if best else 1.0)
    assert asked == (best if factor > 1.0 else None)
