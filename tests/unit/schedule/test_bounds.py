"""Bounds on the latency of layers: never wrong, tight where possible, and attained by valid schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.schedule.bounds import (
    EQUAL,
    SCHEDULING,
    SCREENING,
    BoundEffort,
    blocks_of,
    bound_task,
    join_schedules,
    layer_bounds,
    least_latencies,
    tasks_of,
)
from phaze.schedule.graphs import ComponentArrays, LayerSchedule, ScheduledLayer
from phaze.schedule.sequences import search_sequences
from phaze.schedule.verify import find_faults
from tests.unit.schedule.exhaustive import shortest_latency
from tests.unit.schedule.random_layers import brush_layer, random_layer, transformer_layer

SEEDS = st.integers(0, 10**6)


def bound_layer(layer: ScheduledLayer, effort: BoundEffort = SCREENING) -> tuple[float, float]:
    """Return the lower bound and the feasible latency of one layer."""
    lower, feasible = layer_bounds(
        *(layer.core, layer.edges, layer.latency_s[None], layer.latency_all_s[None]),
        *(np.array([layer.num_tc]), np.array([layer.num_vc])),
        overlap_communication=layer.overlap_communication,
        effort=effort,
    )
    return float(lower[0]), float(feasible[0])


def schedule_by_bounds(
    layer: ScheduledLayer, effort: BoundEffort = SCHEDULING
) -> tuple[float, LayerSchedule]:
    """Return the lower bound and the schedule that bounds alone give."""
    pieces = [(task.component, bound_task(task, effort)) for task in tasks_of(layer)]
    schedule = join_schedules(layer, [(component, bounded.schedule) for component, bounded in pieces])
    return sum(bounded.lower_s for _, bounded in pieces), schedule


@pytest.mark.slow
@given(SEEDS, st.integers(2, 5), st.sampled_from(["plain", "network", "overlap"]))
def test_the_optimum_lies_between_the_bounds(seed: int, operators: int, kind: str) -> None:
    """Exhaustive search finds no latency below the lower bound, and none above the feasible latency."""
    layer = random_layer(seed, operators, network=kind != "plain", overlap=kind == "overlap")
    lower, feasible = bound_layer(layer)
    optimum = shortest_latency(layer)
    assert lower <= optimum * (1 + EQUAL)
    assert feasible >= optimum * (1 - EQUAL)


@given(SEEDS, st.integers(2, 12), st.booleans())
def test_the_bound_in_closed_form_is_below_every_schedule(seed: int, operators: int, network: bool) -> None:
    """It is at most the bound of the search, and exact where one operator runs after the other."""
    layer = random_layer(seed, operators, network=network, overlap=False)
    columns = layer.latency_s[None], layer.latency_all_s[None]
    counts = np.array([layer.num_tc]), np.array([layer.num_vc])
    least = least_latencies(layer.core, layer.edges, *columns, *counts)
    assert least.shape == (1,)
    assert 0 <= least[0] <= bound_layer(layer)[1] * (1 + EQUAL)
    if operators <= 5:
        assert least[0] <= shortest_latency(layer) * (1 + EQUAL)
    chain = tuple((i, i + 1) for i in range(operators - 1))
    alone = np.where(np.array(layer.core) == "network", np.inf, layer.latency_s)
    no_work = np.array(layer.core) == "none"
    expected = np.minimum(alone, layer.latency_all_s)[~no_work].sum()
    assert least_latencies(layer.core, chain, *columns, *counts)[0] == pytest.approx(expected, rel=EQUAL)


@given(SEEDS, st.integers(2, 12), st.sampled_from(["plain", "network", "overlap"]))
def test_the_feasible_latency_is_that_of_a_schedule_that_can_be_executed(
    seed: int, operators: int, kind: str
) -> None:
    """The verifier, which shares no code with the bounds, accepts the corresponding schedule."""
    layer = random_layer(seed, operators, network=kind != "plain", overlap=kind == "overlap")
    lower, schedule = schedule_by_bounds(layer, SCREENING)
    assert find_faults(layer, schedule) == ()
    assert lower <= schedule.latency_s * (1 + EQUAL)
    assert schedule.latency_s == pytest.approx(bound_layer(layer)[1], rel=EQUAL)


@given(SEEDS, st.integers(2, 10))
def test_bounds_meet_where_no_operator_is_fused(seed: int, operators: int) -> None:
    """Without fused operators, the search over barriers proves every small component."""
    layer = random_layer(seed, operators)
    single = tuple("tensor" if core == "fused" else core for core in layer.core)
    lower, schedule = schedule_by_bounds(replace(layer, core=single))
    assert lower == pytest.approx(schedule.latency_s, rel=EQUAL)


@given(SEEDS, st.integers(2, 9), st.sampled_from(["plain", "network", "overlap"]))
def test_more_effort_stays_within_the_bounds_of_less(seed: int, operators: int, kind: str) -> None:
    """Results of the schedule stage lie within the bounds of the screen."""
    layer = random_layer(seed, operators, network=kind != "plain", overlap=kind == "overlap")
    lower, feasible = bound_layer(layer)
    tighter, schedule = schedule_by_bounds(layer, BoundEffort(1000, 50000, 3000))
    assert tighter >= lower * (1 - EQUAL)
    assert schedule.latency_s <= feasible * (1 + EQUAL)


@given(SEEDS)
def test_the_bounds_lie_between_the_critical_path_and_everything_on_all_cores(seed: int) -> None:
    """No schedule beats the longest path, and running all operators alone is always possible."""
    layer = random_layer(seed, 9, network=True)
    lower, feasible = bound_layer(layer)
    shortest = np.minimum(layer.single_s, layer.latency_all_s)
    shortest[layer.kinds == 4] = 0.0
    end = np.zeros(len(shortest))
    for i in layer.graph.topological:
        end[i] = shortest[i] + max(end[layer.graph.order[:, i]], default=0.0)
    assert lower >= end.max() * (1 - EQUAL)
    assert feasible <= shortest.sum() * (1 + EQUAL)


def test_many_architectures_at_once_get_what_each_gets_alone() -> None:
    """The loop over architectures has no state."""
    layers = [transformer_layer(seed, num_tc=1 + seed % 4, num_vc=1 + seed % 3) for seed in range(20)]
    names = ("latency_s", "latency_all_s", "num_tc", "num_vc")
    columns = (np.array([getattr(layer, name) for layer in layers]) for name in names)
    lower, feasible = layer_bounds(layers[0].core, layers[0].edges, *columns)
    alone = [bound_layer(layer) for layer in layers]
    assert [(float(a), float(b)) for a, b in zip(lower, feasible, strict=True)] == alone


@pytest.mark.parametrize(("num_tc", "num_vc"), [(1, 2), (2, 1), (4, 8)])
def test_bounds_of_a_transformer_layer_meet(num_tc: int, num_vc: int) -> None:
    """Its widest component has fewer than a hundred barriers."""
    layer = transformer_layer(7, num_tc, num_vc)
    lower, feasible = bound_layer(layer)
    assert lower == pytest.approx(feasible, rel=EQUAL)
    assert feasible <= layer.latency_all_s.sum()


def test_a_wide_component_is_searched_by_sequences() -> None:
    """Independent operators have no list of barriers, but bounds within ten percent."""
    layer = brush_layer(5)
    widest = max(tasks_of(layer), key=lambda task: len(task.component.operators))
    assert blocks_of(widest.component) is None
    lower, schedule = schedule_by_bounds(layer)
    assert find_faults(layer, schedule) == ()
    assert 0.9 * schedule.latency_s <= lower <= schedule.latency_s


@pytest.mark.parametrize(("num_tc", "num_vc"), [(1, 2), (2, 1), (4, 8)])
def test_bounds_meet_where_weight_gradients_hang_beside_everything(num_tc: int, num_vc: int) -> None:
    """One component of 32 operators, with thousands of barriers."""
    layer = transformer_layer(7, num_tc, num_vc, "split")
    assert max(len(task.component.operators) for task in tasks_of(layer)) > 30
    lower, schedule = schedule_by_bounds(layer)
    assert find_faults(layer, schedule) == ()
    assert lower == pytest.approx(schedule.latency_s, rel=EQUAL)


def test_the_search_by_sequences_is_the_same_in_every_run() -> None:
    """Its random seed is fixed."""
    (task,) = tasks_of(brush_layer(5))
    part = ComponentArrays(*task.component.arrays, task.one_s, task.every_s, task.num_tc, task.num_vc)
    first, second = search_sequences(part, 2000), search_sequences(part, 2000)
    assert first[0] == second[0]
    assert (first[1] == second[1]).all()


def test_no_ops_take_no_time_but_have_a_place_in_the_schedule() -> None:
    """A reshape starts and ends when its input is ready."""
    latencies = np.array([3.0, 0.0, 1.0]), np.array([2.0, 0.0, 1.0])
    layer = ScheduledLayer(("tensor", "none", "vector"), *latencies, ((0, 1), (1, 2)), 2, 2)
    _, schedule = schedule_by_bounds(layer)
    assert schedule.start_s.tolist() == [0.0, 2.0, 2.0]
    assert schedule.end_s.tolist() == [2.0, 2.0, 3.0]


def test_an_empty_layer_takes_no_time() -> None:
    """Its latency is 0."""
    empty = np.zeros((1, 0))
    one = np.array([1])
    assert [bound.tolist() for bound in layer_bounds((), (), empty, empty, one, one)] == [[0.0], [0.0]]
