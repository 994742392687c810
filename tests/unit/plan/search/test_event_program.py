"""Flows along the events of a step, as bounds of all pipeline splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.layout import Layout
from phaze.plan.splits.event_program import EventFlows, Flow
from phaze.plan.splits.planes import Paths, planes_of
from phaze.plan.splits.program import SplitProgram
from phaze.plan.splits.split import StagedLayout, all_splits, even_split
from tests.unit.plan.search.exhaustive import SmallCase

CASE = SmallCase("llama2-7b", 6, 2048, devices=8, hbm_gib=80.0)
LAYOUTS = [
    (Layout(pp=4, vp=2, dp=2), "interleaved"),
    (Layout(pp=4, dp=2, zero=1), "1f1b"),
    (Layout(pp=2, vp=2, tp=2, dp=2, recompute="full"), "interleaved"),
]
ROUNDING = 1e-9


def flows_of(staged: StagedLayout) -> tuple[EventFlows, Flow]:
    """Return the best flow of a layout."""
    planes = planes_of(staged, staged.layers, even_split(staged))
    events = EventFlows(Paths(staged.frame, staged.events, planes))
    program = SplitProgram(staged, events.paths, 2.0**50, staged.layers)
    found = events.best(program.constrained(program.limits, len(events.paths.graph.jobs)), program.variables)
    assert found is not None
    return events, found


@pytest.mark.parametrize(("layout", "schedule"), LAYOUTS)
def test_no_division_is_faster_than_a_flow_says_and_somewhere_between_none_is_slower(
    layout: Layout, schedule: str
) -> None:
    staged = CASE.question("megatron").staged(layout, schedule)
    events, flow = flows_of(staged)
    cut = events.cut(flow)
    for split in all_splits(staged):
        point = np.stack([np.ones(staged.count), split.blocks, split.recomputed], axis=1)
        assert (cut * point).sum() <= staged.timeline(split).time_s * (1 + ROUNDING)
    n, k = flow.point.reshape(2, -1)
    there = np.stack([np.ones(staged.count), n, k], axis=1)
    longest = events.paths.timeline(events.paths.seconds(there), there)
    assert (cut * there).sum() == pytest.approx(longest.time_s, rel=1e-3)


@pytest.mark.parametrize(("layout", "schedule"), LAYOUTS)
def test_a_flow_is_one_unit_and_bounds_layouts_with_the_same_events_too(
    layout: Layout, schedule: str
) -> None:
    question = CASE.question("megatron")
    events, flow = flows_of(question.staged(layout, schedule))
    graph, jobs = events.paths.graph, events.paths.graph.jobs
    assert (flow.jobs >= 0).all()
    assert flow.jobs.max() <= 1 + ROUNDING
    into = np.add.reduceat(np.append(flow.waits, 0.0), graph.preceded[:-1]) * (np.diff(graph.preceded) > 0)
    assert (into <= flow.jobs + ROUNDING).all()
    assert flow.jobs[jobs.first[1:] - 1].sum() >= 1 - ROUNDING
    slices = replace(layout, tp=layout.dp * layout.tp, dp=1, zero=0)
    if layout.zero == 0:
        slices = replace(slices, microbatch=layout.dp)  # as many microbatches
        other = question.staged(slices, schedule)
        planes = planes_of(other, other.layers, even_split(other))
        beside = EventFlows(Paths(other.frame, other.events, planes))
        if beside.key == events.key:
            cut = beside.cut(flow)
            for split in all_splits(other):
                point = np.stack([np.ones(other.count), split.blocks, split.recomputed], axis=1)
                assert (cut * point).sum() <= other.timeline(split).time_s * (1 + ROUNDING)


@pytest.mark.parametrize("recompute", ["layernorm", "full"])
def test_only_layouts_that_recompute_whole_layers_take_their_number_from_a_point(recompute: str) -> None:
    """A point of another layout with the same events gives the number of recomputed layers."""
    staged = CASE.question("megatron").staged(Layout(pp=2, dp=4, recompute=recompute), "1f1b")
    planes = planes_of(staged, staged.layers, even_split(staged))
    paths = Paths(staged.frame, staged.events, planes)
    program = SplitProgram(staged, paths, 2.0**50, staged.layers)
    blocks, again = program.rounded(np.array([[3.0], [3.0]]), np.array([[0.4], [1.2]]))
    assert blocks == (3, 3)
    assert again == ((1, 2) if recompute == "full" else (0, 0))
