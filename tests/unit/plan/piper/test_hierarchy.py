"""Plans for networks with levels are the best of Appendix E's objective (Piper)."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.plan.piper.hierarchy import plan_hierarchy
from phaze.plan.piper.instance import read_instance
from phaze.plan.piper.layers import Cluster, Layers
from phaze.plan.piper.nested import Hierarchy, Memory, NestedPlan
from phaze.plan.piper.planner import plan
from tests.unit.plan.piper.hierarchy_exhaustive import Judge, as_nodes, hierarchies, least_time

MEMORIES: tuple[Memory, ...] = ("exact", "crude", "lossy")
GIB = 2.0**30
TWO = ((1, 2), (2, 1), (2, 2), (3, 2), (2, 3), (4, 2))
THREE = ((1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 2, 2), (3, 2, 2))


def time_of(plan: NestedPlan | None) -> float:
    """Return the time per sample, infinite without a plan."""
    return inf if plan is None else plan.time_per_sample_s


@settings(derandomize=True, deadline=None, max_examples=150)
@given(hierarchies(TWO, 4), st.sampled_from(MEMORIES))
def test_two_levels_equal_exhaustive_search(instance: tuple[Layers, Hierarchy], memory: Memory) -> None:
    """Branches, several widths, memory that binds, both ways to synchronise."""
    layers, hierarchy = instance
    found = plan_hierarchy(layers, hierarchy, memory=memory)
    assert time_of(found) == pytest.approx(least_time(layers, hierarchy, memory), rel=1e-9)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(hierarchies(THREE, 3), st.sampled_from(MEMORIES))
def test_three_levels_equal_exhaustive_search(instance: tuple[Layers, Hierarchy], memory: Memory) -> None:
    layers, hierarchy = instance
    found = plan_hierarchy(layers, hierarchy, memory=memory)
    assert time_of(found) == pytest.approx(least_time(layers, hierarchy, memory), rel=1e-9)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(hierarchies((*TWO, *THREE, (4, 3), (6,)), 6), st.sampled_from(MEMORIES))
def test_a_plan_takes_the_time_it_says(instance: tuple[Layers, Hierarchy], memory: Memory) -> None:
    """Judged from the outside in; its layers, devices and degrees are within what is given."""
    layers, hierarchy = instance
    found = plan_hierarchy(layers, hierarchy, memory=memory)
    if found is None:
        return
    judged = Judge(layers, hierarchy, memory).time(as_nodes(found.parts))
    assert found.time_per_sample_s == pytest.approx(judged, rel=1e-12)
    assert sorted(v for _, stage in found.stages for v in stage.layers) == list(range(len(layers)))
    assert found.devices <= hierarchy.counts[-1]
    assert found.degree <= hierarchy.microbatches
    assert found.degree == sum(around * stage.layout.dp for around, stage in found.stages)
    assert all(stage.memory_bytes <= hierarchy.memory_bytes for _, stage in found.stages)
    assert 1 <= found.binding_level <= hierarchy.levels


@settings(derandomize=True, deadline=None, max_examples=150)
@given(hierarchies(((4,), (3, 2), (2, 3), (2, 2, 2)), 5))
def test_assuming_more_in_flight_is_never_better(instance: tuple[Layers, Hierarchy]) -> None:
    layers, hierarchy = instance
    exact, crude, lossy = (time_of(plan_hierarchy(layers, hierarchy, memory=m)) for m in MEMORIES)
    assert min(crude, lossy) >= exact * (1 - 1e-11)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(hierarchies(((4,), (3, 2), (2, 2, 2)), 5))
def test_ways_of_counting_agree_where_memory_is_plentiful(instance: tuple[Layers, Hierarchy]) -> None:
    layers, hierarchy = instance
    hierarchy = replace(hierarchy, memory_bytes=1e6)
    exact, crude, lossy = (time_of(plan_hierarchy(layers, hierarchy, memory=m)) for m in MEMORIES)
    assert crude == pytest.approx(exact, rel=1e-11)
    assert lossy == pytest.approx(exact, rel=1e-11)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(hierarchies(((2,), (4,), (5,)), 5), st.integers(1, 3))
def test_levels_of_one_device_change_nothing(instance: tuple[Layers, Hierarchy], more: int) -> None:
    """Whatever their bandwidth: nothing crosses their border."""
    layers, hierarchy = instance
    nested = replace(
        hierarchy,
        counts=(*hierarchy.counts, *(1,) * more),
        bandwidths_bytes_per_s=(*hierarchy.bandwidths_bytes_per_s, *(1e-6,) * more),
    )
    flat = time_of(plan_hierarchy(layers, hierarchy))
    assert time_of(plan_hierarchy(layers, nested)) == pytest.approx(flat, rel=1e-11)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(hierarchies(((1,), (4,), (6,), (1, 1), (4, 1), (3, 1, 1)), 6), st.booleans())
def test_one_level_equals_the_flat_planner(instance: tuple[Layers, Hierarchy], linear: bool) -> None:
    """And so do levels of one device; configurations are chosen exactly in both."""
    layers, hierarchy = instance
    cluster = Cluster(
        devices=hierarchy.counts[0],
        memory_bytes=hierarchy.memory_bytes,
        bandwidth_bytes_per_s=hierarchy.bandwidths_bytes_per_s[0],
        microbatches=hierarchy.microbatches,
        exactly=hierarchy.exactly,
        synchronisation=hierarchy.synchronisation,
    )
    flat = plan(layers, cluster, linear=linear, exact_knapsack=True)
    nested = plan_hierarchy(layers, hierarchy, linear=linear)
    assert time_of(nested) == pytest.approx(inf if flat is None else flat.time_per_sample_s, rel=1e-9)


@pytest.mark.parametrize(
    ("counts", "gib", "microbatches", "optimum"),
    [
        ((8,), 80, 1920, 0.12200726935),
        ((8, 1), 80, 1920, 0.12200726935),
        ((32,), 8, 1920, 0.0415154504417),
        ((128,), 2, 512, 0.0167178639016),
    ],
)
def test_bert_on_one_level_has_the_authors_optimum(
    counts: tuple[int, ...], gib: float, microbatches: int, optimum: float, shared_data: Path
) -> None:
    layers = read_instance(shared_data / "piper" / "bert32a100.json").layers()
    levels = (25 * GIB, 1 * GIB)[: len(counts)]
    found = plan_hierarchy(layers, Hierarchy(counts, levels, GIB * gib, microbatches))
    assert time_of(found) == pytest.approx(optimum, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": (2, 2)}, "2 counts and 1 bandwidths"),
        ({"counts": (), "bandwidths_bytes_per_s": ()}, "at least one level"),
        ({"counts": (0,)}, "level 1: 0 devices"),
        ({"bandwidths_bytes_per_s": (0.0,)}, "at 0 bytes/s"),
        ({"memory_bytes": 0.0}, "memory: must be positive"),
        ({"microbatches": 0}, "microbatches: must be >= 1, got 0"),
    ],
)
def test_what_is_no_network_is_rejected(changes: dict[str, tuple[float, ...]], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        replace(Hierarchy((2,), (1.0,), 1.0, 1), **changes)  # type: ignore[arg-type]
