"""For every objective the chosen chip is that of brute force, and no bound exceeds the score of a chip."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf
from typing import get_args

import numpy as np
import pytest

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.chip_choice import ChipChooser
from phaze.plan.answer.chip_designs import designs_of
from phaze.plan.answer.chip_energy import least_joules, step_joules
from phaze.plan.answer.chip_objectives import ChipGoal
from phaze.plan.answer.chip_robust import assumptions_of
from phaze.plan.answer.common_chip import CommonChip
from phaze.plan.answer.model_chips import ModelChips
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.search.chip_scores import ChipScores
from phaze.plan.search.search import LayoutPlanner
from phaze.plan.time_limit import TimeLimit
from phaze.runtimes.space import legal_space
from phaze.spec.architecture import Architecture, load_technology
from phaze.spec.chip_choice import ChipPrices
from phaze.spec.names import ChipObjective
from tests.effort import DRAWS
from tests.unit.plan.search.test_chips import alike_chips, drawn_chips, planner_on

GAP = 0.005
FIXED: dict[str, int | str] = {"cp": 1, "vp": 1, "zero": 1}
OBJECTIVES = get_args(ChipObjective)
CHOICES = ({"tp": 2}, {"dp": 4}, {"pp": 2, "microbatch": 1})
PRICES = ChipPrices(per_mm2=0.3, per_gib=12.0, currency="USD")


def goal(objective: ChipObjective) -> ChipGoal:
    return ChipGoal(objective, load_technology("22nm"), PRICES)


@cache
def space(seed: int) -> tuple[Architecture, ...]:
    """Return drawn chips with their areas: half of the seeds draw chips that form one group."""
    draw = alike_chips if seed % 2 else drawn_chips
    chips = draw(np.random.default_rng(seed), 5)
    return tuple(chip.model_copy(update={"area_mm2": goal("time").area_mm2(chip)}) for chip in chips)


@cache
def planner(seed: int, layers: int = 2) -> TrainingPlanner:
    """Return the planner of a small model on drawn chips."""
    planned = planner_on(space(seed), GAP, layers)
    return replace(planned, request=planned.request.model_copy(update={"fixed": FIXED}))


@cache
def fastest(seed: int, layers: int = 2) -> list[PricedLayout | None]:
    """Return the fastest plan on every chip, by one search on each."""
    search = LayoutPlanner(number=1, gap=0.0, fixed=FIXED)
    questions = [planner(seed, layers).on_chip(place).question for place in range(len(space(seed)))]
    plans = [search(question).plans for question in questions]
    return [
        PricedLayout.of(question, found[0]) if found else None
        for question, found in zip(questions, plans, strict=True)
    ]


def scores(seed: int, objective: ChipObjective, layers: int = 2) -> Floats:
    """Return the score of the fastest plan on every chip."""
    pairs = zip(space(seed), fastest(seed, layers), strict=True)
    return np.array([inf if plan is None else goal(objective).score(chip, plan) for chip, plan in pairs])


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_best_chip_is_that_of_brute_force(objective: ChipObjective) -> None:
    for seed in range(DRAWS // 10):
        model, expected = ModelChips(planner(seed), goal(objective)), scores(seed, objective)
        search = model.search
        # A bound on the energy holds for all layouts, so that it need not reach the fastest plan's.
        assert expected.min() * (1 - 1e-9) <= model.best_score <= expected.min() / (1 - GAP)
        assert expected[search.place] == pytest.approx(model.best_score, rel=2 * GAP)
        assert (search.bounds <= expected * (1 + 1e-9)).all()
        others = np.arange(len(expected)) != search.place
        undecided = [place not in search.searches for place in range(len(expected))] & others
        assert (search.bounds[undecided] >= model.best_score * (1 - GAP)).all()


def test_the_least_energy_is_below_that_of_every_plan() -> None:
    figures = goal("energy").technology.energy
    rng = np.random.default_rng(0)
    question = planner(0).on_chip(0).question
    space_of = legal_space(question.runtime, question.task, {"cp": 1})
    devices = planner(0).search_chips().chips
    least = least_joules(question, space_of.families, devices, figures)
    assert len({*least.tolist()}) == len(least)
    for place in range(len(devices)):
        on_chip = planner(0).on_chip(place).question
        for choice in rng.choice(len(CHOICES), 2, replace=False).tolist():
            for plan in LayoutPlanner(number=3, gap=0.2, fixed=CHOICES[choice])(on_chip).plans:
                joules = step_joules(PricedLayout.of(on_chip, plan), figures, 100.0)
                assert sum(joules.values()) - joules["leakage"] >= least[place] * (1 - 1e-9)


def test_a_group_scores_at_least_its_bound() -> None:
    """For any rates and fixed parts. From the longest time of some chips on, none of them reaches a score."""
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        fixed, rates = rng.uniform(0, 1, 6), rng.uniform(0.1, 2, 6)
        drawn, bound_s, score = ChipScores(fixed, rates), rng.uniform(0, 3), rng.uniform(1, 4)
        places = rng.choice(6, 3, replace=False).tolist()
        bounds_s = np.full(6, bound_s)
        times_s = bounds_s + rng.uniform(0, 2, 6)
        assert (drawn.bounds(bounds_s, places) <= drawn.bounds(times_s, places)).all()
        longest_s = np.full(6, drawn.longest_s(places, score))
        assert drawn.bounds(longest_s * (1 + 1e-9), places).min() >= score * (1 - 1e-9)
        assert drawn.bounds(longest_s * 0.999, places).min() < score


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["time", "area"])
def test_the_common_chip_is_that_of_brute_force(objective: ChipObjective) -> None:
    for seed in range(DRAWS // 20):
        models = tuple(ModelChips(planner(seed, layers), goal(objective)) for layers in (2, 4))
        relative = [scores(seed, objective, layers) for layers in (2, 4)]
        means = np.exp(np.mean([np.log(row / row.min()) for row in relative], axis=0))
        common = CommonChip(models, GAP, TimeLimit())
        compared = common.search([model.search.place for model in models])
        assert min(compared.values()) <= means.min() / (1 - GAP) ** 3
        assert (common.bounds <= means * (1 + 3 * GAP)).all()
        left_out = [place for place in range(len(means)) if place not in compared]
        assert (common.bounds[left_out] >= min(compared.values()) * (1 - GAP) * (1 - 1e-9)).all()


@pytest.mark.slow
def test_the_robust_chip_has_the_least_regret_by_brute_force() -> None:
    planned = planner(0)
    slow = planned.request.stored_machine().cluster
    slow = slow.model_copy(
        update={
            "levels": tuple(level.model_copy(update={"bandwidth_bytes_per_s": 1e9}) for level in slow.levels)
        }
    )
    networks = {"slow": slow}
    chooser = ChipChooser(
        (planned.request,), GAP, TimeLimit(), goal("time"), is_robust=True, networks=networks
    )
    choice, chips = chooser.robust, space(0)
    assert choice is not None
    search = LayoutPlanner(number=1, gap=GAP, fixed=FIXED)
    rows = []
    for case in assumptions_of(planned, networks):
        questions = [case.changed(planned.on_chip(place).question) for place in range(len(chips))]
        plans = [search(question).plans for question in questions]
        rows.append([found[0].time_s if found else inf for found in plans])
    times_s = np.array(rows)
    regrets = times_s / times_s.min(axis=1, keepdims=True) - 1
    # The search of a case has a gap, and plans on other chips are those of short searches.
    assert regrets.max(axis=0)[chooser.chosen] <= regrets.max(axis=0).min() + 0.05
    assert [row.regret for row in choice.compared] == sorted(row.regret or 0.0 for row in choice.compared)
    assert choice.compared[0].chip == chips[chooser.chosen].name
    assert choice.compared[0].regret == max(case.regret or 0.0 for case in choice.cases)
    assert len(choice.cases) == len(times_s)
    assert "the network is slow" in [case.assumption for case in choice.cases]
    assert choice.gap <= 0.05 + 1e-9
    designs = designs_of(chooser)
    relative, known = times_s[0] / times_s[0].min(), designs["time"].notna().to_numpy()
    assert known.tolist() == np.isfinite(relative).tolist()
    # A plan is no faster than the fastest one, and a bound no slower.
    assert (designs["time"].to_numpy()[known] >= relative[known] * (1 - GAP)).all()
    assert (designs["time_bound"] <= relative * (1 + 1e-9)).all()
    assert (designs["time_bound"] <= designs["time"].fillna(inf) * (1 + 1e-9)).all()
    assert designs["name"].tolist() == [chip.name for chip in chips]


def test_costs_need_prices() -> None:
    with pytest.raises(PhazeError, match="--objective cost: needs the prices"):
        ChipGoal("cost", load_technology("22nm"))
