"""Plans for networks with levels are the best of Appendix E's objective (Piper)."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.formulas.piper.hierarchy import plan_hierarchy
from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.layers import FlatCluster, Hierarchy, NetworkLevel, PiperPlan, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions, plan
from tests.unit.formulas.piper.hierarchy_exhaustive import Judge, as_nodes, hierarchies, least_time

GIB = 2.0**30
TWO = ((1, 2), (2, 1), (2, 2), (3, 2), (2, 3), (4, 2))
THREE = ((1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 2, 2), (3, 2, 2))
Levelled = tuple[ProfiledLayers, Hierarchy]


def time_of(plan: PiperPlan | None) -> float:
    """Return the time per sample, infinite without a plan."""
    return inf if plan is None else plan.time_per_sample_s


@given(st.one_of(hierarchies(TWO, 4), hierarchies(THREE, 3)))
def test_a_plan_equals_exhaustive_search(instance: Levelled) -> None:
    """Branches, several widths, tight memory, both kinds of synchronisation, two and three levels."""
    assert time_of(plan_hierarchy(*instance)) == pytest.approx(least_time(*instance), rel=1e-9)


@given(hierarchies((*TWO, *THREE, (4, 3), (6,)), 6))
def test_a_plan_takes_the_time_it_says(instance: Levelled) -> None:
    """Evaluated from the outside in; its layers, devices and degrees are within the limits."""
    layers, hierarchy = instance
    found = plan_hierarchy(layers, hierarchy)
    if found is None:
        return
    judged = Judge(layers, hierarchy).time(as_nodes(found.stages))
    assert found.time_per_sample_s == pytest.approx(judged, rel=1e-12)
    inside = [pair for stage in found.stages for pair in stage.walk() if pair[1].level == 1]
    assert sorted(v for _, stage in inside for v in stage.layers) == list(range(len(layers)))
    assert found.devices <= hierarchy.levels[-1].devices
    assert found.degree <= hierarchy.inner.microbatches
    assert found.degree == sum(around * stage.layout.dp for around, stage in inside)
    assert all(stage.memory_bytes <= hierarchy.inner.memory_bytes for _, stage in inside)
    assert 1 <= found.binding_level <= len(hierarchy.levels)


@given(hierarchies(((1,), (4,), (6,), (1, 1), (4, 1), (3, 1, 1)), 6), st.booleans())
def test_one_level_equals_the_flat_planner_and_levels_of_one_device_change_nothing(
    instance: Levelled, linear: bool
) -> None:
    """For any bandwidth: no bytes cross the borders of levels of one device. Both choose configurations
    exactly.
    """
    layers, hierarchy = instance
    flat = plan(layers, hierarchy.inner, SearchOptions(linear=linear, exact_knapsack=True))
    slow = replace(hierarchy, above=(*hierarchy.above, NetworkLevel(1, 1e-6)))
    for nested in (hierarchy, slow):
        found = plan_hierarchy(layers, nested, linear=linear)
        assert time_of(found) == pytest.approx(time_of(flat), rel=1e-9)


@pytest.mark.parametrize(
    ("counts", "gib", "microbatches", "optimum"),
    [((8, 1), 80, 1920, 0.12200726935), ((32,), 8, 1920, 0.0415154504417), ((128,), 2, 512, 0.0167178639016)],
)
def test_bert_on_one_level_has_the_authors_optimum(
    counts: tuple[int, ...], gib: float, microbatches: int, optimum: float, shared_data: Path
) -> None:
    layers = read_instance(shared_data / "piper" / "bert32a100.json").layers()
    inner = FlatCluster(counts[0], GIB * gib, 25 * GIB, microbatches)
    above = tuple(NetworkLevel(count, GIB) for count in counts[1:])
    assert time_of(plan_hierarchy(layers, Hierarchy(inner, above))) == pytest.approx(optimum, rel=1e-9)
