"""The planner finds the brute-force optimum, and its plans are valid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.deadline import Deadline
from phaze.base.errors import PhazeError
from phaze.formulas.piper.layers import FlatCluster, PiperPlan, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions, ThresholdSearch, plan, plan_over_devices
from phaze.workload.graphs import edge_arrays
from tests.unit.formulas.piper.exhaustive import best_times, instances, stage_time
from tests.unit.formulas.piper.test_stages import cluster_of, layers_of

Instance = tuple[ProfiledLayers, FlatCluster]


def time_of(found: PiperPlan | None) -> float:
    """Return the time per sample, infinite without a plan."""
    return found.time_per_sample_s if found else inf


@given(instances(), st.booleans(), st.sampled_from((None, 1, 2)))
def test_the_plan_is_the_best_of_all(instance: Instance, linear: bool, most_data: int | None) -> None:
    layers, cluster = instance
    found = plan(layers, cluster, SearchOptions(linear=linear, most_data=most_data))
    expected = best_times(layers, cluster, linear=linear, most_data=most_data)[-1]
    assert time_of(found) == pytest.approx(expected, rel=1e-10)
    if found:
        assert_is_a_plan(layers, cluster, found)


@given(instances())
def test_an_exact_knapsack_gives_the_best_of_all_configurations_too(instance: Instance) -> None:
    layers, cluster = instance
    found = plan(layers, cluster, SearchOptions(exact_knapsack=True))
    assert time_of(found) == pytest.approx(best_times(layers, cluster, exact=True)[-1], rel=1e-10)
    assert time_of(found) <= time_of(plan(layers, cluster)) * (1 + 1e-10)


@given(instances())
def test_one_run_gives_the_best_of_every_number_of_devices(instance: Instance) -> None:
    layers, cluster = instance
    times = plan_over_devices(layers, cluster)
    assert times.tolist() == pytest.approx(best_times(layers, cluster), rel=1e-10)


def test_larger_graphs_with_branches_are_planned_as_well_as_plain_search_does() -> None:
    """Six layers, two of them parallel, numbered so that ids do not give the order."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        layers = branched(rng)
        cluster = FlatCluster(4, float(rng.integers(40, 160)), 4.0, 4, exactly=seed % 3 == 0)
        for exact in (False, True):
            found = plan(layers, cluster, SearchOptions(exact_knapsack=exact))
            assert time_of(found) == pytest.approx(best_times(layers, cluster, exact=exact)[-1], rel=1e-10)


@settings(max_examples=30)
@given(instances(), st.sampled_from((0.5, 1.0, 1.001, 2.0)))
def test_a_plan_that_has_to_beat_a_time_is_the_best_one_or_none(instance: Instance, factor: float) -> None:
    best = plan(*instance)
    asked = plan(*instance, below_s=factor * best.time_per_sample_s if best else 1.0)
    assert asked == (best if factor > 1.0 else None)


def branched(rng: np.random.Generator) -> ProfiledLayers:
    """Return layers 0 -> (1 -> 2 | 3 -> 4) -> 5 with an edge that skips, from 0 to 5."""
    options = [
        (v, float(rng.integers(1, 20)), 0.0, float(rng.integers(0, 9)), float(rng.integers(0, 20)))
        for v in range(6)
        for _ in range(3)
    ]
    edges = np.array([(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5), (0, 5)])
    chain = layers_of(*options)
    none = np.zeros((len(options), len(edges)))
    widened = replace(chain.options[1], forward_sync_bytes=none, backward_sync_bytes=none)
    return replace(
        chain, edges=edges, edge_bytes=rng.integers(0, 9, len(edges)).astype(float), options={1: widened}
    )


def assert_is_whole(layers: ProfiledLayers, cluster: FlatCluster, found: PiperPlan) -> None:
    """Check all layers, in the order of the data flow, within devices, batch and memory (Section 3)."""
    placed = [v for stage in found.stages for v in stage.layers]
    assert sorted(placed) == list(range(len(layers)))
    where = {v: i for i, stage in enumerate(found.stages) for v in stage.layers}
    assert all(where[u] <= where[v] for u, v in layers.pairs)
    assert found.devices <= cluster.devices
    assert found.degree <= cluster.microbatches
    assert not cluster.exactly or found.degree == cluster.microbatches
    assert all(stage.memory_bytes <= cluster.memory_bytes for stage in found.stages)


def assert_is_a_plan(layers: ProfiledLayers, cluster: FlatCluster, found: PiperPlan) -> None:
    """Check all conditions of Section 3 on a solution, and its claimed time."""
    assert_is_whole(layers, cluster, found)
    degree = found.degree
    for stage in found.stages:
        assert stage.in_flight == ceil(degree / stage.layout.dp)
        tp, dp = stage.layout.tp, stage.layout.dp
        expected = stage_time(layers, cluster, frozenset(stage.layers), tp, dp, degree)
        assert stage.time_s == pytest.approx(expected, rel=1e-12)
        degree -= dp


def test_nothing_fits_where_a_layer_is_too_large() -> None:
    layers = layers_of((0, 1.0, 0, 1, 5), (1, 1.0, 0, 1, 9))
    assert plan(layers, cluster_of(9.0)) is None
    assert plan_over_devices(layers, cluster_of(9.0)).tolist() == [inf] * 9
    assert time_of(plan(layers, cluster_of(10.0, 1))) == inf, "both stages need a microbatch in flight"
    assert time_of(plan(layers, cluster_of(10.0, 2))) == 4.0


def test_memory_counts_the_microbatches_of_later_stages_only() -> None:
    """The first of two stages stores two microbatches, the second one."""
    layers = layers_of((0, 4.0, 0, 1, 0), (1, 4.0, 0, 2, 0))
    found = plan(layers, cluster_of(2.0, 2))
    assert found is not None
    assert [(stage.layers, stage.in_flight, stage.memory_bytes) for stage in found.stages] == [
        ((0,), 2, 2.0),
        ((1,), 1, 2.0),
    ]
    turned = layers_of((0, 4.0, 0, 2, 0), (1, 4.0, 0, 1, 0))
    assert plan(turned, cluster_of(2.0, 2)) is None


def test_a_batch_of_exactly_n_may_take_more_devices_than_are_useful() -> None:
    layers = layers_of((0, 4.0, 100.0, 0, 0))
    assert time_of(plan(layers, cluster_of(1.0, 4))) == 4.0
    found = plan(layers, cluster_of(1.0, 4, exactly=True))
    assert found is not None
    assert found.degree == 4
    assert time_of(found) == pytest.approx(1 + 4 * 3 / 4 * 100 / (4 * 2))
    assert plan(layers, cluster_of(1.0, 16, exactly=True)) is None, "there are eight devices"


def test_layers_that_take_no_time_are_planned_too() -> None:
    assert time_of(plan(layers_of((0, 0.0, 0, 0, 0)), cluster_of(1.0))) == 0.0
    layers = layers_of((0, 0.0, 0, 0, 1), (1, 3.0, 0, 0, 1), (2, 0.0, 0, 0, 1))
    assert time_of(plan(layers, cluster_of(3.0, 1))) == 3.0
    assert time_of(plan(layers, cluster_of(0.0))) == inf


def test_more_devices_never_take_longer() -> None:
    rng = np.random.default_rng(1)
    times = plan_over_devices(branched(rng), FlatCluster(12, 60.0, 4.0, 12))
    assert times[0] == inf
    assert all(later <= earlier for earlier, later in pairwise(times))


def test_too_many_downsets_are_refused_and_one_linear_order_is_offered() -> None:
    layers = branched(np.random.default_rng(0))
    with pytest.raises(PhazeError, match=r"at least \d+ downsets .* allowed are 8: .* one linear order"):
        plan(layers, cluster_of(100.0), SearchOptions(max_downsets=8))
    assert plan(layers, cluster_of(100.0), SearchOptions(linear=True, max_downsets=8)) is not None


def test_too_many_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phaze.base.room.machine_bytes", lambda: 4 * 3 * 1001)
    layers = layers_of((0, 1.0, 0, 0, 0), (1, 1.0, 0, 0, 0))
    assert planner_of(layers, 1000).table.shape == (3, 1001)
    with pytest.raises(
        PhazeError, match=r"3 downsets with sums of degrees up to 1,001 need .* GiB of memory"
    ):
        _ = planner_of(layers, 1001).table


def planner_of(layers: ProfiledLayers, devices: int) -> ThresholdSearch:
    """Return a search for these numbers of devices and microbatches."""
    return ThresholdSearch(layers, FlatCluster(devices, 1000.0, 1.0, devices), SearchOptions())


def test_choices_beyond_the_memory_of_the_machine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phaze.base.room.machine_bytes", lambda: 2**16)
    layers = layers_of((0, 1.0, 0, 1, 0), (1, 1.0, 0, 1, 0))
    assert plan(layers, FlatCluster(100, 1000.0, 1.0, 100)) is not None
    with pytest.raises(PhazeError, match=r"with up to 1000 microbatches in flight need .* GiB of memory"):
        plan(layers, FlatCluster(1000, 1000.0, 1.0, 1000))


def test_layers_without_any_configuration_have_no_plan_and_no_layers_are_refused() -> None:
    layers = layers_of((0, 1.0, 0, 0, 0), (1, 1.0, 0, 0, 0))
    assert plan(replace(layers, options={}), cluster_of(1)) is None
    with pytest.raises(PhazeError, match="at least one layer"):
        plan(ProfiledLayers((), (), {}, **edge_arrays([])), cluster_of(1))


def test_the_search_can_be_interrupted_between_downsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code does not see Ctrl-C: the caller checks after each slice."""
    layers = layers_of(*((k, 1.0, 0, 0, 0) for k in range(6)))
    ends = list[int]()

    def one_by_one(steps: int, _: Deadline, __: int) -> Iterator[tuple[int, int]]:
        for begin in range(steps):
            if len(ends) == 3:
                raise KeyboardInterrupt
            ends.append(begin + 1)
            yield begin, begin + 1

    monkeypatch.setattr("phaze.formulas.piper.planner.slices", one_by_one)
    with pytest.raises(KeyboardInterrupt):
        plan(layers, cluster_of(1, 4))
    assert ends == [1, 2, 3]
