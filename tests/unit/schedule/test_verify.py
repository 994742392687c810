"""The verifier rejects every kind of invalid schedule."""

import re
from dataclasses import replace

import numpy as np
import pytest

from phaze.schedule.bounds import bound_task, join_schedules, tasks_of
from phaze.schedule.graphs import ALL_CORES, LayerSchedule, ScheduledLayer
from phaze.schedule.verify import find_faults
from tests.unit.schedule.random_layers import random_layer

LATENCY = np.array([2.0, 3.0, 2.0, 1.0, 0.0])
LAYER = ScheduledLayer(
    core=("tensor", "vector", "fused", "network", "none"),
    latency_s=LATENCY,
    latency_all_s=LATENCY / 2,
    edges=((0, 2), (2, 3), (3, 4)),
    num_tc=2,
    num_vc=2,
)
"""Tensor operator 0 concurrent with vector operator 1, then fused 2, network 3 alone, and a no-op."""


def schedule(
    start: tuple[float, ...] = (0.0, 0.0, 2.0, 4.0, 4.5),
    core: tuple[int, ...] = (0, 1, 0, ALL_CORES, ALL_CORES),
    layer: ScheduledLayer = LAYER,
) -> LayerSchedule:
    """Return a schedule of the layer with the right durations."""
    wide = np.array(core) == ALL_CORES
    end = np.array(start) + np.where(wide, layer.latency_all_s, layer.latency_s)
    return LayerSchedule(np.array(start), end, np.array(core))


def test_a_schedule_that_can_be_executed_has_no_faults() -> None:
    """Concurrent operators on their cores, the collective alone."""
    assert find_faults(LAYER, schedule()) == ()


BROKEN = [
    (schedule(core=(2, 1, 0, -1, -1)), r"operator 0 \(tensor\) runs on core 2 of 2"),
    (schedule(core=(0, 1, 2, -1, -1)), r"operator 2 \(fused\) runs on core 2 of 2"),
    (schedule(core=(-2, 1, 0, -1, -1)), r"operator 0 \(tensor\) runs on core -2 of 2"),
    (schedule(core=(0, 1, 0, 0, -1)), r"operator 3 \(network\) runs on core 0 of 0"),
    (schedule(start=(-1.0, 0.0, 2.0, 4.0, 4.5)), "operator 0 begins at -1.0 s"),
    (schedule(start=(np.nan, 0.0, 2.0, 4.0, 4.5)), "operator 0 begins at nan s"),
    (replace(schedule(), end_s=np.array([1.5, 3.0, 4.0, 4.5, 4.5])), "operator 0 takes 1.5 s instead of 2"),
    (replace(schedule(), end_s=np.array([2.0, 3.0, 4.0, 4.5, 4.6])), "operator 4 takes .* instead of 0.0 s"),
    (schedule(start=(0.0, 0.0, 1.9, 4.0, 4.5)), "operator 2 begins at 1.9 s, before operator 0 ends"),
    (schedule(start=(0.0, 0.0, 2.0, 4.0, 4.2)), "operator 4 begins at 4.2 s, before operator 3 ends"),
    (schedule(core=(0, 0, 0, -1, -1)), "1 and 2 run at once, but vector core 0 runs one at a time"),
    (schedule(core=(-1, 1, 0, -1, -1)), "0 and 1 run at once, but one of them runs on all cores"),
    (schedule(start=(0.0, 2.0, 2.0, 4.0, 4.5)), "1 and 3 run at once, but network operators overlap nothing"),
    (LayerSchedule(np.zeros(4), np.zeros(4), np.zeros(4, dtype=np.int64)), "must be given for 5 operators"),
]


@pytest.mark.parametrize(("bad", "fault"), BROKEN, ids=[fault for _, fault in BROKEN])
def test_a_corrupted_schedule_is_rejected_with_the_rule_that_it_breaks(
    bad: LayerSchedule, fault: str
) -> None:
    """Missing cores, wrong times, broken order, and concurrent operators that exclude each other."""
    faults = find_faults(LAYER, bad)
    assert any(re.search(fault, found) for found in faults), faults


def test_a_fused_operator_needs_a_pair() -> None:
    """With one vector core there is one pair, for any number of tensor cores."""
    layer = ScheduledLayer(("fused",), np.ones(1), np.ones(1) / 2, (), 3, 1)
    bad = LayerSchedule(np.zeros(1), np.ones(1), np.array([1]))
    assert find_faults(layer, bad) == ("operator 0 (fused) runs on core 1 of 1",)


def test_the_link_carries_one_collective_at_a_time_beside_computation() -> None:
    """If communication may overlap, a collective runs concurrently with a product on all cores, but not with
    another collective.
    """
    layer = ScheduledLayer(("network", "network", "tensor"), np.ones(3), np.ones(3), (), 2, 2, True)
    good = LayerSchedule(np.array([0.0, 1.0, 0.5]), np.array([1.0, 2.0, 1.5]), np.array([0, 0, ALL_CORES]))
    assert find_faults(layer, good) == ()
    at_once = replace(good, start_s=np.array([0.0, 0.5, 0.5]), end_s=np.array([1.0, 1.5, 1.5]))
    assert find_faults(layer, at_once) == (
        "operators 0 and 1 run at once, but the link carries one at a time",
    )
    alone = replace(good, core=np.array([ALL_CORES, 0, ALL_CORES]))
    assert find_faults(layer, alone) == ("operators 0 and 2 run at once, but one of them runs on all cores",)


def test_rounding_is_no_fault() -> None:
    """Sums of latencies in different orders differ in the last digits."""
    good = schedule()
    shifted = replace(good, start_s=good.start_s - 1e-15, end_s=good.end_s)
    assert find_faults(LAYER, replace(shifted, start_s=np.maximum(shifted.start_s, 0.0))) == ()


@pytest.mark.parametrize("seed", range(12))
def test_any_shift_of_a_tight_schedule_is_noticed(seed: int) -> None:
    """Starting an operator before its earliest start breaks some rule."""
    layer = random_layer(seed, 7)
    pieces = [(task.component, bound_task(task).schedule) for task in tasks_of(layer)]
    good = join_schedules(layer, pieces)
    assert find_faults(layer, good) == ()
    for i in np.flatnonzero(good.start_s > 0):
        if good.core[i] != ALL_CORES:
            continue
        start, end = good.start_s.copy(), good.end_s.copy()
        start[i] -= 1e-7
        end[i] -= 1e-7
        assert find_faults(layer, LayerSchedule(start, end, good.core)) != ()
