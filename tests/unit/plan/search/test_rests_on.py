"""Assumptions that decide the order of the first plans."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from phaze.base.units import GIB
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.assumptions import HIDDEN
from phaze.plan.answer.priced import MeasuredInterval, PricedLayout
from phaze.plan.answer.what_if import made_to_fit, rests_on
from phaze.plan.machines import device_of, load_machine
from phaze.plan.pricing.price import price
from phaze.plan.question import PlanQuestion
from phaze.plan.search.planned import LayoutPlans
from phaze.plan.search.search import LayoutPlanner
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.spec.models import load_transformer
from phaze.spec.names import Rank
from phaze.spec.training_plan import TrainingPlan
from tests.plans import planner_of


@pytest.fixture(scope="module")
def plans() -> list[PricedLayout]:
    """Return plans of a model whose tensor-parallel communication overlaps."""
    machine = load_machine("h100", stack="megatron-core-2024", devices=256)
    task = TrainingTask(load_transformer("llama-3.1-8b", "test"), 8192, 32, 256)
    question = PlanQuestion(task, machine, MEGATRON)
    return [PricedLayout.of(question, plan) for plan in LayoutPlanner(number=6)(question).plans]


@pytest.mark.slow
def test_the_plan_that_would_win_without_an_assumption_is_faster_without_it(
    plans: list[PricedLayout],
) -> None:
    sentence = next(rests_on(plans))
    hidden = next(name for name, text in HIDDEN.items() if text in sentence)
    found = re.search(
        r"plan (\d+) \((.*)\) is the fastest of the first 6: (\S+) s \(plan 1: (\S+) s\)", sentence
    )
    assert found is not None
    machine = plans[0].question.machine
    kept = tuple(one for one in machine.stack.overlap if one != hidden)
    exposed = replace(machine, stack=machine.stack.model_copy(update={"overlap": kept}))
    question = PlanQuestion(plans[0].question.task, exposed, MEGATRON)
    times = [
        price(question.staged(one.staged.layout, one.staged.schedule).plan(one.split), exposed).time_s
        for one in plans
    ]
    assert times.index(min(times)) + 1 == int(found[1]) > 1
    assert found[2] == plans[int(found[1]) - 1].shape
    assert float(found[3]) == pytest.approx(min(times), rel=1e-3)
    assert float(found[4]) == pytest.approx(times[0], rel=1e-3)


def test_an_order_that_needs_no_hidden_communication_rests_on_nothing(plans: list[PricedLayout]) -> None:
    machine = plans[0].question.machine
    open_ = replace(machine, stack=machine.stack.model_copy(update={"overlap": ()}))
    question = replace(plans[0].question, machine=open_)
    assert not list(rests_on([replace(one, question=question) for one in plans]))


def small_planner(rank: Rank) -> TrainingPlanner:
    """Planner of a small model on two nodes."""
    fields = {"stack": "megatron-core-2024", "devices": 16, "global_batch": 16, "rank": rank}
    return planner_of(gap=0.005, interval=MeasuredInterval((1.0, 2.0)), **fields)


@pytest.mark.slow
def test_more_plans_are_compared_than_a_short_table_shows() -> None:
    """The winner without overlap is not among the rows of a table of one row."""
    planner = small_planner("expected")
    short, long = (planner.answer(planner.best(top), top) for top in (1, 10))
    assert isinstance(short, TrainingPlan)
    assert isinstance(long, TrainingPlan)
    assert (len(short.alternatives), len(long.alternatives)) == (1, 10)
    assert [re.sub(r" \(\D.*\) ", " ", one) for one in short.rests_on] == list(long.rests_on)
    found = re.search(r"plan (\d+) \(", short.rests_on[0])
    assert found is not None
    assert int(found[1]) > 1


@pytest.fixture(scope="module")
def ranked() -> tuple[TrainingPlanner, LayoutPlans]:
    """Return plans of a small model ranked by prudent time, with their planner."""
    planner = small_planner("prudent")
    return planner, planner.best(4)


@pytest.mark.slow
def test_a_plan_with_less_expected_time_is_named_although_the_short_search_misses_it(
    ranked: tuple[TrainingPlanner, LayoutPlans], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a short search that finds nothing, the sentence names the fastest of the ranked plans."""
    planner, found = ranked
    nothing = replace(found, plans=())
    monkeypatch.setattr(LayoutPlanner, "__call__", lambda *_: nothing)
    plan = planner.answer(found)
    assert isinstance(plan, TrainingPlan)
    least_s = min(one.time_s for one in plan.alternatives)
    assert least_s < plan.time_s
    assert plan.prudence is not None
    assert f"expected {least_s:.4g} s" in plan.prudence


def _with_memory(plans: list[PricedLayout], hbm_gib: float) -> list[PricedLayout]:
    """The same plans on a device with another size of HBM."""
    machine = plans[0].question.machine
    device = device_of(machine).model_copy(update={"hbm_gib": hbm_gib})
    question = replace(plans[0].question, machine=replace(machine, device=device))
    return [one.priced_for(question) for one in plans]


def _surely_fits(plan: PricedLayout, capacity_gib: float) -> bool:
    return plan.price.memory.in_use.of("device").high / GIB <= capacity_gib * (1 + 1e-12)


def test_a_plan_that_may_not_fit_names_the_first_that_surely_does_and_its_cost(
    plans: list[PricedLayout],
) -> None:
    """With memory for the whole range and for less: the named setting helps, and a row that fits is first."""
    device = device_of(plans[0].question.machine)
    memory = plans[0].price.memory.in_use
    needs_gib = memory.of("device").high / GIB + device.driver_gib
    gaps_gib = memory.fragments.high / GIB
    assert gaps_gib > 2
    for hbm_gib in (needs_gib + 0.01, needs_gib - 1, needs_gib - gaps_gib - 1):
        own = _with_memory(plans, hbm_gib)
        sentence = made_to_fit(own, own, {}, len(own))
        assert (sentence is None) == (hbm_gib > needs_gib)
        if sentence is None:
            continue
        assert f"to {needs_gib - device.driver_gib:.1f} GiB" in sentence
        assert ("expandable_segments" in sentence) == (hbm_gib == needs_gib - 1)
        sure = [place for place, one in enumerate(own) if _surely_fits(one, hbm_gib - device.driver_gib)]
        named = re.search(r"The first that surely fits: (.*) \(expected (\S+) s, (\S+)%\)\.$", sentence)
        assert named is not None
        if sure:
            assert named[1] == f"Plan {sure[0] + 1}"
            longer = own[sure[0]].price.time_s / own[0].price.time_s - 1
            assert float(named[3]) == pytest.approx(100 * longer, abs=0.06)


def test_a_plan_that_surely_fits_keeps_the_fields_that_are_fixed(plans: list[PricedLayout]) -> None:
    needs_gib = plans[0].price.memory.in_use.of("device").high / GIB
    own = _with_memory(plans[:1], needs_gib - 7.5)
    for zero in (2, 3):
        sentence = made_to_fit(own, own, {"zero": zero})
        assert sentence is not None
        named = re.search(r"surely fits: (.*) \(expected", sentence)
        assert named is not None
        assert f"ZeRO-{zero}" in named[1]


def test_a_search_that_finds_no_plan_that_surely_fits_says_so(plans: list[PricedLayout]) -> None:
    own = _with_memory(plans[:1], plans[0].price.memory.in_use.of("device").low / GIB + 1.5)
    fixed: dict[str, int | str] = {"dp": plans[0].staged.layout.dp, "zero": 0, "recompute": "none"}
    sentence = made_to_fit(own, own, fixed)
    assert sentence is not None
    assert sentence.endswith("A short search finds none that surely fits.")
