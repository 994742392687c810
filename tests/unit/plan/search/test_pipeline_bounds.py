"""Bounds by flows that pipelines of a shape share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.plan.bounds.flows import PipelineBounds
from phaze.plan.bounds.layouts import bound_layouts
from phaze.plan.question import PlanQuestion
from phaze.plan.splits.search import SplitSearch
from phaze.plan.splits.split import layer_ranges
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.space import legal_space
from tests.unit.plan.search.exhaustive import SmallCase, drawn_blocks, priced

DRAWN = 6
ROUNDING = 1e-9
DENSE = SmallCase("llama2-7b", 6, 2048, devices=8, hbm_gib=300.0)
CASES = {
    "dense": DENSE,
    "experts": SmallCase("mixtral-8x7b", 6, 2048, devices=4, hbm_gib=300.0, pairs=True),
    "kinds": SmallCase("deepseek-v2", 0, 2048, devices=4, hbm_gib=3000.0),
}


def pipelines(question: PlanQuestion, **fixed: int | str) -> tuple[LayoutGrid, PipelineBounds]:
    """Return layouts in pipelines under the schedules of Megatron-LM, and their bounds."""
    grid = legal_space(question.runtime, question.task, fixed).grid
    grid = grid.take(np.flatnonzero((grid.pp > 1) & grid.under("1f1b", "interleaved")))
    return grid, PipelineBounds.of(question, grid, np.arange(len(grid)))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("overlap", ["all", "proven", "none"])
def test_no_division_is_faster_than_any_flow_of_its_shape_says(case: str, overlap: str) -> None:
    """For any overlapping share of communication."""
    question = CASES[case].question("megatron")
    if overlap == "proven":
        question = question.prudent
    if overlap == "none":
        machine = question.machine
        stack = machine.stack.model_copy(update={"overlap": ()})
        question = replace(question, machine=replace(machine, stack=stack))
    grid, bounds = pipelines(question, recompute="full")
    every = np.ones(len(grid), np.bool_)
    rng = np.random.default_rng(0)
    for first in rng.choice(len(grid), 3, replace=False).tolist():
        alike, flow = bounds.alike(first, every), bounds.best(first)
        assert alike[0] == first
        assert flow is not None
        assert flow.passing.update.reshape(-1, int(grid.pp[first]))[0].sum() == pytest.approx(1)
        for place in {first, *rng.choice(alike, min(len(alike), 3)).tolist()}:
            bound_s = bounds.by_flow(flow, np.array([place]))[0]
            layout, schedule = grid.layout(place), grid.schedule_of(place)
            staged = question.staged(layout, schedule)
            for _ in range(DRAWN):
                blocks = drawn_blocks(rng, layer_ranges(staged), staged.layers)
                again = rng.integers(0, blocks + 1) * staged.partial
                own = priced(question, layout, schedule, tuple(blocks.tolist()), tuple(again.tolist()))
                assert bound_s <= own.time_s * (1 + ROUNDING)


def test_the_flow_of_a_layout_is_nearly_its_best_division_and_above_its_bound() -> None:
    """Nor far below the program of its own events, without memory limits: within the last gradient bucket and
    the first gathered weights, 4 % of this short step.
    """
    question = DENSE.question("megatron")
    grid, bounds = pipelines(question, recompute="none", tp=1, cp=1, zero=1, pp=4, vp=2, dp=2)
    known = bound_layouts(question, grid).time_s
    for place in range(len(grid)):
        flow = bounds.best(place)
        assert flow is not None
        own_s = bounds.by_flow(flow, np.array([place]))[0]
        search = SplitSearch(question.staged(grid.layout(place), grid.schedule_of(place)), 2.0**60)
        search.relax(np.inf)
        assert known[place] < own_s
        assert own_s == pytest.approx(search.bound_s, rel=0.04)


TIGHT = {
    "dense": replace(DENSE, hbm_gib=10.0, global_batch=32),
    "experts": SmallCase("mixtral-8x7b", 6, 2048, devices=4, hbm_gib=60.0, global_batch=32),
}
"""Memory that forces recomputation in some stages, and steps with rounds that shapes omit."""


@pytest.mark.slow
@pytest.mark.parametrize("case", TIGHT)
@pytest.mark.parametrize("prudent", [False, True])
def test_no_division_that_fits_is_faster_than_any_flow_of_its_shape_says(case: str, prudent: bool) -> None:
    """Nor if the flow is of another layout of the shape, with other memory and recomputation."""
    question = TIGHT[case].question("megatron")
    question = question.prudent if prudent else question
    grid, bounds = pipelines(question, microbatch=1)
    count = grid.microbatches(question.task.global_batch)
    long = np.array([bounds.shapes[shape].microbatches for shape in bounds.shape]) < count
    long &= bound_layouts(question, grid).fits
    rng, fitting, higher = np.random.default_rng(1), 0, 0
    for first in rng.choice(np.flatnonzero(long), 5, replace=False).tolist():
        flow = bounds.best(first)
        if flow is None:
            continue
        roomy = replace(bounds, limits=np.full(len(grid), 2.0**60))
        for place in {first, *rng.choice(bounds.alike(first, long), 2).tolist()}:
            which = np.array([place])
            bound_s = bounds.by_flow(flow, which)[0]
            higher += bound_s > roomy.by_flow(flow, which)[0] * (1 + 1e-3)
            layout, schedule = grid.layout(place), grid.schedule_of(place)
            search = SplitSearch(question.staged(layout, schedule), question.limit_bytes(layout))
            search.guess()
            search.relax(np.inf)
            search.finish(np.inf)
            search.climb()
            if search.best:
                fitting += 1
                assert bound_s <= search.best.time_s * (1 + ROUNDING)
    assert fitting > 2
    assert higher > 2
