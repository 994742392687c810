"""Assumptions that decide the order of the first plans."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from phaze.base.units import GIB, percent
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.priced import MeasuredInterval, PricedLayout
from phaze.plan.answer.regrets import MOST_MEASURED, NOISE, Regrets, scenarios
from phaze.plan.answer.what_if import made_to_fit
from phaze.plan.machines import device_of, load_machine, proven
from phaze.plan.pricing.price import price
from phaze.plan.question import PlanQuestion
from phaze.plan.search.guesses import Guesses
from phaze.plan.search.planned import LayoutPlans
from phaze.plan.search.search import LayoutPlanner
from phaze.plan.splits.split import even_split
from phaze.plan.time_limit import TimeLimit
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.spec.models import load_transformer
from phaze.spec.names import Rank
from phaze.spec.training_plan import TIE, TrainingPlan
from tests.plans import planner_of


@pytest.fixture(scope="module")
def plans() -> list[PricedLayout]:
    """Return plans of a model whose tensor-parallel communication overlaps."""
    machine = load_machine("h100", stack="megatron-core-2024", devices=256)
    task = TrainingTask(load_transformer("llama-3.1-8b", "test"), 8192, 32, 256)
    question = PlanQuestion(task, machine, MEGATRON)
    return [PricedLayout.of(question, plan) for plan in LayoutPlanner(number=6)(question).plans]


def test_the_sentence_names_the_largest_loss_of_plan_1_priced_apart(plans: list[PricedLayout]) -> None:
    """Every plan is priced again under every assumption, without the code that compares them."""
    question = plans[0].question
    machines = {
        "overlap works as expected": question.machine,
        "only measured overlap works": proven(question.machine),
    }
    times_s = {
        words: [
            price(question.staged(one.staged.layout, one.staged.schedule).plan(one.split), machine).time_s
            for question in [replace(question, machine=machine)]
            for one in plans
        ]
        for words, machine in machines.items()
    }
    for first in range(len(plans)):
        ranked = [plans[first], *plans[:first], *plans[first + 1 :]]
        losses = {words: seconds[first] / min(seconds) - 1 for words, seconds in times_s.items()}
        where = max(losses, key=lambda words: losses[words])
        sentence = Regrets(tuple(ranked), scenarios(question)).in_words(len(plans))
        if losses[where] < NOISE:
            assert sentence.startswith("Under both assumptions on overlap, plan 1 is ")
        else:
            assert f"if {where}, plan 1 takes {percent(losses[where])} longer than plan " in sentence


def test_the_first_plan_by_regret_loses_least_in_its_worst_case(plans: list[PricedLayout]) -> None:
    regrets = Regrets(tuple(plans), scenarios(plans[0].question))
    worst = [
        max(times[place] / min(times) - 1 for times in regrets.times_s.tolist())
        for place in range(len(plans))
    ]
    assert worst[regrets.order[0]] <= min(worst) + TIE
    assert regrets.worst.tolist() == pytest.approx(worst)


def test_plans_without_communication_rest_on_no_overlap() -> None:
    machine = load_machine("h100", stack="megatron-core-2024", devices=1)
    task = TrainingTask(load_transformer("gpt2", "test"), 1024, 8, 1)
    question = PlanQuestion(task, machine, MEGATRON)
    plans = [PricedLayout.of(question, plan) for plan in LayoutPlanner(number=3)(question).plans]
    regrets = Regrets(tuple(plans), scenarios(question))
    assert np.ptp(regrets.times_s, axis=0).tolist() == [0.0] * len(plans)
    assert regrets.in_words(3).startswith("Under both assumptions on overlap, plan 1 is the fastest")


def small_planner(rank: Rank) -> TrainingPlanner:
    """Planner of a small model on two nodes."""
    fields = {"stack": "megatron-core-2024", "devices": 16, "global_batch": 16, "rank": rank}
    return planner_of(gap=0.005, interval=MeasuredInterval((1.0, 2.0)), **fields)


@pytest.mark.slow
def test_more_plans_are_compared_than_a_short_table_shows() -> None:
    """A table of one row rests on the same plans as one of ten."""
    planner = small_planner("expected")
    short, long = (planner.answer(planner.best(top), top) for top in (1, 10))
    assert isinstance(short, TrainingPlan)
    assert isinstance(long, TrainingPlan)
    assert (len(short.alternatives), len(long.alternatives)) == (1, 10)
    figures = [re.findall(r"[\d.]+ %", sentence) for sentence in (*short.rests_on, *long.rests_on)]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_a_robust_request_puts_the_plan_of_least_regret_first_within_its_certificate(
    ranked: tuple[TrainingPlanner, LayoutPlans],
) -> None:
    planner, usual = ranked
    robust = replace(planner, request=planner.request.model_copy(update={"robust": True}))
    best = robust.best(4)
    regrets = Regrets(
        tuple(PricedLayout.of(robust.question, plan) for plan in best.plans), scenarios(robust.expected)
    )
    assert regrets.worst[0] <= regrets.worst.min() + TIE
    proof = best.certificate
    assert proof.bound_s is not None
    assert proof.gap == pytest.approx(1 - proof.bound_s / best.plans[0].time_s)
    assert {(plan.layout, plan.schedule) for plan in usual.plans} <= {
        (plan.layout, plan.schedule) for plan in best.plans
    }


def test_a_plan_that_lacks_memory_under_an_assumption_is_not_safe(plans: list[PricedLayout]) -> None:
    regrets = Regrets(tuple(plans[:2]), scenarios(plans[0].question))
    vars(regrets)["times_s"] = np.array([[1.0, 2.0], [np.inf, 2.0]])
    assert regrets.order == [1, 0]
    assert "only measured overlap works, plan 1 does not fit, unlike plan 2" in regrets.in_words(2)
    vars(regrets)["times_s"] = np.array([[1.0, 2.0], [np.inf, np.inf]])
    assert regrets.worst.tolist() == [0.0, 1.0]  # where nothing fits, nothing is lost


def test_what_to_measure_first_starts_with_plan_1(plans: list[PricedLayout]) -> None:
    sentences = [*Regrets(tuple(plans), scenarios(plans[0].question)).measure_first(len(plans))]
    assert re.fullmatch(r"Measure first: plan 1, plan \d, plan \d\.", sentences[0])
    assert len(sentences) == MOST_MEASURED


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
    planner, ranking = ranked
    found = replace(ranking, plans=ranking.plans[::-1])  # so that the first plan is not the fastest
    nothing = replace(found, plans=())
    monkeypatch.setattr(LayoutPlanner, "__call__", lambda *_: nothing)
    plan = planner.answer(found)
    assert isinstance(plan, TrainingPlan)
    least_s = min(one.time_s for one in plan.alternatives)
    assert least_s < plan.time_s
    assert plan.prudence is not None
    assert f"expected {least_s:.4g} s" in plan.prudence


def test_a_plan_that_is_faster_by_both_times_becomes_plan_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search with fewer guesses misses the plan of a short one by expected time; its bound still holds."""
    fields = {"devices": 16, "global_batch": 16, "rank": "prudent", "fixed": {"pp": 2}}
    planner = planner_of(gap=0.9, sequence=8192, **fields)
    (faster,) = planner._fastest_expected
    time_s = PricedLayout.of(planner.expected, faster).priced_for(planner.question).price.time_s
    with monkeypatch.context() as fewer:
        for name in ("descend", "try_groups"):
            fewer.setattr(Guesses, name, lambda _: None)
        (search := planner.search_chips()).run(1)
    missed_s, bound_s = search.best_s, search.bound_s
    assert bound_s < time_s < missed_s
    planner.try_fastest_expected(search, with_all=True)
    plan = planner.answer(search.plans(1))
    assert isinstance(plan, TrainingPlan)
    assert plan.prudent_s == pytest.approx(search.best_s)
    assert search.best_s <= time_s * (1 + TIE)
    assert plan.certificate.bound_s == pytest.approx(bound_s)
    assert plan.certificate.gap == pytest.approx(1 - bound_s / search.best_s)


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
        sentence = made_to_fit(own, own, {})
        assert (sentence is None) == (hbm_gib > needs_gib)
        if sentence is None:
            continue
        assert f"to {needs_gib - device.driver_gib:.1f} GiB" in sentence
        assert ("expandable_segments" in sentence) == (hbm_gib == needs_gib - 1)
        sure = [place for place, one in enumerate(own) if _surely_fits(one, hbm_gib - device.driver_gib)]
        named = re.search(r"The first that surely fits: (.*) \(expected (\S+) s, (\S+) %\)\.$", sentence)
        assert named is not None
        if sure:
            assert named[1] == own[sure[0]].shape
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


def test_after_an_early_end_a_short_search_looks_for_a_faster_plan_that_surely_fits(
    plans: list[PricedLayout],
) -> None:
    """The second plan recomputes every block and surely fits: a search finds one that recomputes fewer."""
    device = device_of(plans[0].question.machine)
    first = _with_memory(plans, plans[0].price.memory.in_use.of("device").high / GIB + device.driver_gib / 2)[
        0
    ]
    staged = first.question.staged(replace(first.staged.layout, recompute="full"), first.staged.schedule)
    slow, times_s = PricedLayout(first.question, staged, even_split(staged)), list[float]()
    for early in (None, TimeLimit()):
        sentence = made_to_fit([first, slow], [first, slow], {}, early)
        assert sentence is not None
        figures = re.search(r"surely fits: .* \(expected (\S+) s", sentence)
        assert figures is not None
        times_s.append(float(figures[1]))
    assert times_s[0] == pytest.approx(slow.price.time_s, rel=1e-3)
    assert times_s[1] < 0.95 * times_s[0]


def test_a_search_that_finds_no_plan_that_surely_fits_says_so(plans: list[PricedLayout]) -> None:
    own = _with_memory(plans[:1], plans[0].price.memory.in_use.of("device").low / GIB + 1.5)
    fixed: dict[str, int | str] = {"dp": plans[0].staged.layout.dp, "zero": 0, "recompute": "none"}
    sentence = made_to_fit(own, own, fixed)
    assert sentence is not None
    assert sentence.endswith("A short search finds none that surely fits.")
