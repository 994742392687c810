"""Bounds of layouts hold for far too many pipeline splits for brute force."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Literal, get_args

import numpy as np
import pytest

from phaze.base.units import GIB
from phaze.layout import Layout
from phaze.plan.bounds.capacity import CLOSE
from phaze.plan.bounds.layouts import LayoutBounds, bound_layouts, in_flight_by_rank, in_flight_of_chunks
from phaze.plan.bounds.shards import Common, LayerFigures, ShardCosts
from phaze.plan.machines import device_of, load_machine
from phaze.plan.question import PlanQuestion
from phaze.plan.splits.split import Split, even_blocks, even_split, layer_ranges
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.runtimes.space import legal_space
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.spec.models import load_transformer
from tests.effort import DRAWS, EVERY
from tests.unit.plan.search.exhaustive import PricedSplit, SmallCase, drawn_blocks, priced

DEEP = SmallCase("llama2-70b", 16, 2048, devices=8, hbm_gib=300.0, global_batch=8)
DIVISIONS = 3
ROUNDING = 1e-9
AGAIN = [LayerFigures._fields.index(name) for name in ("recompute_s", "saved_bytes")]
"""Figures of layers that may be recomputed."""


def leanest(figures: LayerFigures) -> LayerFigures:
    """Return figures with only exposed time in passes, and with the smallest stored bytes of
    recomputation.
    """
    return figures._replace(
        stash_bytes=figures.stash_bytes - figures.saved_bytes,
        forward_s=figures.forward_s - figures.hidden_forward_s,
        backward_s=figures.backward_s - figures.hidden_backward_s,
        hidden_forward_s=np.zeros(1),
        hidden_backward_s=np.zeros(1),
    )


def some_divisions(question: PlanQuestion, layout: Layout, schedule: str) -> Iterator[PricedSplit]:
    """Yield prices of nearly equal stages, and of random ones."""
    staged, rng = question.staged(layout, schedule), np.random.default_rng(0)
    drawn = [drawn_blocks(rng, layer_ranges(staged), DEEP.layers) for _ in range(DIVISIONS)]
    for blocks in (np.array(even_blocks(staged)), *drawn):
        again = rng.integers(0, blocks + 1) * staged.partial
        for one in (0 * again, again):
            yield priced(question, layout, schedule, tuple(blocks.tolist()), tuple(one.tolist()))


@pytest.mark.parametrize("recompute", ["none", "layernorm", "full"])
def test_a_split_that_just_fits_is_not_ruled_out(recompute: Literal["none", "layernorm", "full"]) -> None:
    """The last rank has no microbatch in the head at its memory peak, and no layer beside the head."""
    question = SmallCase("mixtral-8x7b", 32, 4096, 8, 100.0, global_batch=64).question("megatron")
    layout = Layout(tp=2, pp=2, vp=17, dp=2, sequence_parallel=True, recompute=recompute)
    blocks = (0, *(1,) * 32, 0)
    split = Split(blocks, blocks if recompute == "full" else (0,) * 34)
    peak_bytes = question.staged(layout, "interleaved").timeline(split).peak_bytes.max()
    lacking_gib = (peak_bytes - question.limit_bytes(layout)) / GIB
    grid = question.runtime.grid(question.task.model, [(layout, "interleaved")])
    for more_gib, fits in ((1e-3, True), (-1.0, False)):
        device = device_of(question.machine)
        device = device.model_copy(update={"hbm_gib": device.hbm_gib + lacking_gib + more_gib})
        sized = replace(question, machine=question.machine.with_device(device))
        assert bound_layouts(sized, grid).fits.tolist() == [fits]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", TORCHTITAN.schedules)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_no_division_is_faster_than_the_bound_of_its_layout(schedule: str, share: float) -> None:
    question = replace(DEEP, share=share).question("torchtitan in part")
    grid = legal_space(question.runtime, question.task, {"schedule": schedule, "microbatch": 1}).grid
    grid = grid.take((grid.pp > 2) & (grid.cp == 1))
    bounds, closest = bound_layouts(question, grid), 0.0
    assert bounds.fits.all()
    for place in range(len(grid)):
        for found in some_divisions(question, grid.layout(place), schedule):
            closest = max(closest, bounds.time_s[place] / found.time_s)
    assert 0.8 < closest <= 1 + ROUNDING


def test_ranks_hold_of_many_microbatches_what_they_hold_of_enough() -> None:
    """Orders repeat in the middle of a step: the rows used by the bounds equal those of the whole order."""
    schedules = ("interleaved", "interleaved-zb", "zbv", "dualpipev")
    for schedule, depth, rounds in product(schedules, (2, 4, 5), (5, 9)):
        rows = in_flight_by_rank(schedule, depth, 2, rounds * depth)
        assert rows.tolist() == in_flight_of_chunks(schedule, depth, 2, rounds * depth).tolist()


@pytest.mark.parametrize(("depth", "count"), [(2, 31), (3, 50), (4, 49), (4, 50), (5, 64), (6, 85)])
def test_ranks_hold_of_uneven_groups_what_they_hold_of_enough(depth: int, count: int) -> None:
    rows = in_flight_by_rank("interleaved", depth, 3, count)
    assert rows.tolist() == in_flight_of_chunks("interleaved", depth, 3, count).tolist()


def test_memory_that_a_layout_lacks_grows_with_its_states() -> None:
    question = replace(DEEP, hbm_gib=1.0).question("megatron")
    layouts = [(Layout(tp=8, pp=1, zero=0), "1f1b"), (Layout(tp=4, dp=2, zero=0), "1f1b")]
    grid = question.runtime.grid(question.task.model, layouts)
    each = [bound_layouts(question, grid.take(np.array([place]))).lacking_bytes[0] for place in (0, 1)]
    lacking = np.array(each)
    assert (lacking > 0).all()
    assert bound_layouts(question, grid).lacking_bytes.min() == lacking.min()
    assert lacking[1] > 1.9 * lacking[0]


@dataclass(frozen=True)
class Spread:
    """Layouts from all parts of a space, and the bounds of each in enough and in too little memory."""

    question: PlanQuestion
    tight: PlanQuestion
    grid: LayoutGrid
    own: ShardCosts
    bounds: tuple[LayoutBounds, LayoutBounds]


@cache
def spread_of(name: str, pairs: bool) -> Spread:
    case = replace(DEEP, model=name, layers=4, hbm_gib=1000.0, pairs=pairs)
    question, tight = case.question("megatron"), replace(case, hbm_gib=6.0).question("megatron")
    every = legal_space(question.runtime, question.task).grid
    repeats = question.repeats(every.recomputes)[every.recompute]
    grid = every.take(np.flatnonzero(~repeats)[:: 79 if DRAWS >= EVERY else 197])
    bounds = bound_layouts(question, grid, "nothing"), bound_layouts(tight, grid, "nothing")
    return Spread(question, tight, grid, ShardCosts.of(question, grid, "nothing"), bounds)


@pytest.mark.slow
@pytest.mark.parametrize("common", ["recompute", "microbatch", "tokens"])
@pytest.mark.parametrize(
    ("name", "pairs"), [("llama2-7b", False), ("qwen3-30b-a3b", False), ("qwen3-30b-a3b", True)]
)
def test_bounds_of_what_layouts_have_in_common_are_below_those_of_each(
    name: str, pairs: bool, common: Common
) -> None:
    """A microbatch k times as large takes at most k times as long, and stores k times the bytes; likewise
    ranks with k times the tokens of a sequence.
    """
    spread = spread_of(name, pairs)
    grid, own = spread.grid, spread.own
    assert len(np.unique(grid.cp)) > 2
    assert len(np.unique(grid.recompute)) > 2
    which, shared = np.arange(len(grid)), ShardCosts.of(spread.question, grid, common)
    words = 0 * grid.recompute
    pairs = [
        (*leanest(costs.layers_of(which, options)), *costs.ends_of(which, options), costs.links_of(which))
        for costs, options in ((shared, words), (own, grid.recompute))
    ]
    for number, (least, each) in enumerate(zip(*pairs, strict=True)):
        if number in AGAIN:
            continue  # any layer may recompute, at the rate of the best option
        assert (least <= each * (1 + 1e-9)).all()
    few, many = bound_layouts(spread.question, grid, common), spread.bounds[0]
    assert (few.time_s <= many.time_s * (1 + CLOSE)).all()
    assert (few.lacking_bytes <= many.lacking_bytes).all()
    few, many = bound_layouts(spread.tight, grid, common), spread.bounds[1]
    assert (many.lacking_bytes > 0).any()
    assert (many.lacking_bytes > 0)[few.lacking_bytes > 0].all()
    fits = many.fits
    assert (few.time_s[fits] <= many.time_s[fits] * (1 + CLOSE)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama2-7b", "qwen3-30b-a3b"])
def test_least_working_memory_is_that_of_a_stage_with_one_layer(name: str) -> None:
    spread = spread_of(name, pairs=False)
    places = np.flatnonzero(spread.grid.stages > 2).tolist()
    assert len(places) > 5
    for place in places:
        staged = spread.question.staged(spread.grid.layout(place), spread.grid.schedule_of(place))
        figures = spread.own.layers_of(np.array([place]), spread.grid.recompute[[place]])
        work = staged.cost("middle", range(1, 2), 0).work_bytes
        assert figures.work_bytes[0, 0] == pytest.approx(work)


def test_exchanges_of_experts_hide_in_no_pipeline_as_deep_as_its_batch() -> None:
    """With as many microbatches as ranks none is paired, with more those that gain more than they lose."""
    case = SmallCase("mixtral-8x7b", 8, 2048, devices=4, hbm_gib=300.0, global_batch=8)
    whole, paired = case.question("megatron"), replace(case, pairs=True).question("megatron")
    grid = legal_space(whole.runtime, whole.task, {"pp": 2, "ep": 2, "tp": 1, "recompute": "none"}).grid
    grid = grid.take(np.flatnonzero(grid.vp > 1))
    microbatches = grid.microbatches(case.global_batch)
    bounds, others = (bound_layouts(question, grid).time_s for question in (whole, paired))
    layouts = [grid.layout(place) for place in range(len(grid))]
    pairs = np.array([paired.lowering(layout).pairs(layout) for layout in layouts]) & (microbatches > grid.pp)
    assert not pairs.all()
    assert pairs[(microbatches > grid.pp) & (grid.cp == 1)].all()
    assert bounds[~pairs] == pytest.approx(others[~pairs], rel=CLOSE)
    assert (others[pairs] < bounds[pairs] * (1 - CLOSE)).all()


@pytest.mark.parametrize("common", get_args(Common))
def test_layers_that_wait_for_weights_hide_behind_layers_that_do_not(common: Common) -> None:
    """With ZeRO 3 a stage takes its passes or its exchanges, not the sum of the maxima by layer."""
    machine = load_machine("h100", devices=64)
    device = device_of(machine).model_copy(update={"hbm_gib": 1000.0})
    task = TrainingTask(load_transformer("nemotron-3-nano-30b-a3b", "test"), 8192, 2048, 64)
    question = PlanQuestion(task, replace(machine, device=device), MEGATRON)
    assert machine.stack.overlap_share("dp") == 1
    layouts = [
        Layout(cp=cp, dp=64 // cp, zero=3, microbatch=size, recompute=word)
        for cp in (2, 16, 64)
        for size in (1, 16, 32)
        for word in ("none", "full")
    ]
    grid = MEGATRON.grid(task.model, [(one, "1f1b") for one in layouts])
    bounds_s = bound_layouts(question, grid, common).time_s
    staged = [question.staged(one, "1f1b") for one in layouts]
    times_s = [one.timeline(even_split(one)).time_s for one in staged]
    assert (bounds_s <= times_s).all()
    if common == "nothing":
        assert (bounds_s >= 0.7 * np.array(times_s)).all()
