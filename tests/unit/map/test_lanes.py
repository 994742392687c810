"""A plan becomes stages of a mapping that send and reduce as many bytes as the plan."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest

from phaze.map.lanes import lanes_of, stored_stages
from phaze.pipeline.pipeline import Pipeline
from phaze.plan.replay import replay
from phaze.workload.operator_graphs import stage_graph
from tests.unit.map.plans import plan, stage


def test_with_equal_widths_the_stages_are_those_of_the_plan() -> None:
    found = stored_stages(plan([stage(4)] * 3, 8), "model")
    assert (len(found.stages), found.replicas, found.microbatches) == (3, 4, 2)
    assert found.recompute
    assert [(e.source, e.target, e.bytes) for e in found.edges] == [(0, 1, 6e6), (1, 2, 6e6)]
    first = found.stages[0]
    assert (first.forward_s, first.backward_s, first.parameter_bytes) == (0.01, 0.02, 8e6)


def test_replicas_of_a_lane_are_workers_that_share_its_microbatches() -> None:
    """4, 2 and 6 replicas form two lanes of 2, 1 and 3 workers, as in the simulated pipeline."""
    wide = plan([stage(4), stage(2), stage(6)], 12)
    lanes = lanes_of(wide)
    assert (lanes.count, lanes.shape, lanes.unit, lanes.devices) == (2, (6, 2), 1, 12)
    assert lanes.workers == ((0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2))
    assert lanes.workers == replay(wide).pipeline.workers
    found = stored_stages(wide, "model")
    assert found.microbatches == 6
    assert [s.forward_s for s in found.stages] == pytest.approx([0.005, 0.005, 0.01, *[0.01 / 3] * 3])
    passed = {(e.source, e.target): e.bytes for e in found.edges}
    assert passed == pytest.approx({(0, 2): 3e6, (1, 2): 3e6, (2, 3): 2e6, (2, 4): 2e6, (2, 5): 2e6})


@pytest.mark.parametrize(("a", "b"), [(1, 1), (2, 3), (4, 6), (6, 4), (3, 9)])
def test_workers_pass_on_what_their_microbatches_do(a: int, b: int) -> None:
    """Microbatch n goes from worker n mod a to worker n mod b: counted one by one."""
    lanes = gcd(a, b)
    found = stored_stages(plan([stage(a), stage(b)], 36 * lanes), "model")
    workers, others = a // lanes, b // lanes
    counted = np.zeros((workers, others))
    for n in range(36):
        counted[n % workers, n % others] += 6e6
    passed = np.zeros_like(counted)
    for edge in found.edges:
        passed[edge.source, edge.target - workers] = edge.bytes * found.microbatches
    assert passed == pytest.approx(counted)


@pytest.mark.parametrize("widths", [(4, 4), (4, 8), (6, 4, 2), (1, 2), (3, 3, 3)])
def test_a_link_of_a_ring_carries_what_all_replicas_need(widths: tuple[int, ...]) -> None:
    """Every replica of a stage sends 2 (d - 1)/d of the weights; with one lane a ring has no links."""
    graph = stage_graph(stored_stages(plan([stage(d) for d in widths], 24), "model"))
    lanes = gcd(*widths)
    shares = {q: 2 * (d - 1) / d * 8e6 for q, d in enumerate(widths)}
    of = [q for q, d in enumerate(widths) for _ in range(d // lanes)]
    link = 2 * (lanes - 1) / lanes * graph.parameter_bytes
    assert link == pytest.approx([shares[q] if lanes > 1 else 0.0 for q in of])


def test_a_tensor_parallel_group_is_a_unit_and_every_slice_needs_the_whole_tensor() -> None:
    wide = plan([stage(2, 4), stage(2, 4)], 4)
    assert lanes_of(wide).unit == 4
    assert stored_stages(wide, "model").edges[0].bytes == 6e6


def test_unequal_groups_pass_on_by_as_many_pairs_as_the_wider_has_slices() -> None:
    """4 tensor-parallel ranks send to 2, which need 2 tensors, and receive 4: a mean of 3 over 4 pairs."""
    unequal = plan([stage(2, 4), stage(2, 2)], 4)
    lanes = lanes_of(unequal)
    assert (lanes.unit, lanes.devices) == (4, 16)
    assert stored_stages(unequal, "model").edges[0].bytes == pytest.approx(6e6 * (2 + 4) / 2 / 4)


def test_microbatches_that_do_not_divide_count_for_the_fullest_lane() -> None:
    wide = plan([stage(3), stage(3)], 10)
    pipeline: Pipeline = replay(wide).pipeline
    assert stored_stages(wide, "model").microbatches == pipeline.lane_microbatches == 4
