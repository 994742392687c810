"""First plans are close to the best one, long before every layout has a bound."""

from __future__ import annotations

import pytest

from phaze.plan.bounds.families import LayoutFamilies
from phaze.plan.effort import MOST_WORK
from phaze.plan.search.contenders import GAP
from phaze.plan.search.guesses import CHOICES
from phaze.plan.search.search import LayoutPlanner, LayoutSearch
from phaze.runtimes.space import legal_space
from tests.unit.plan.search.exhaustive import SmallCase

CASES = {
    "dense": SmallCase("llama-3.1-8b", 8, 4096, devices=32, hbm_gib=12.0, global_batch=64),
    "experts": SmallCase("mixtral-8x7b", 4, 2048, devices=8, hbm_gib=48.0, global_batch=16),
}
CLOSE = 1.05


def _search(case: SmallCase, fixed: dict[str, int | str] | None = None) -> LayoutSearch:
    question = case.question("megatron")
    families = LayoutFamilies.of(question, legal_space(question.runtime, question.task, fixed))
    return LayoutSearch(question, families, LayoutPlanner(gap=GAP, most_work=MOST_WORK))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_neighbours_of_simple_layouts_lead_close_to_the_best_plan(name: str) -> None:
    search = _search(CASES[name])
    search.guesses.start()
    first_s = search.best_s
    search.guesses.descend()
    found = LayoutPlanner(gap=0.02)(CASES[name].question("megatron"))
    assert found.certificate.bound_s <= search.best_s <= CLOSE * found.plans[0].time_s
    assert search.best_s < first_s
    assert search.families.bounded.mean() < 0.5


def test_neighbours_differ_in_two_fields_at_most_each_by_one_value() -> None:
    search = _search(CASES["dense"])
    every = search.families.every
    start = len(every) // 2
    near = search.guesses.neighbours_of(start)
    values = {name: sorted(set(getattr(every, name).tolist())) for name in CHOICES}
    place = {name: [values[name].index(one) for one in getattr(every, name).tolist()] for name in CHOICES}
    expected = [
        family
        for family in range(len(every))
        if sum(steps := [abs(place[name][family] - place[name][start]) for name in CHOICES]) <= 2
        and max(steps) <= 1
    ]
    assert near.tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [{"microbatch": 2}, {"pp": 4, "vp": 2}, {"tp": 32, "microbatch": 64}])
def test_fixed_fields_have_a_first_plan_too(fixed: dict[str, int | str]) -> None:
    search = _search(CASES["dense"], fixed)
    search.guesses.start()
    search.guesses.descend()
    found = LayoutPlanner(fixed=fixed, gap=0.1)(CASES["dense"].question("megatron"))
    assert bool(found.plans) == (search.best_s < float("inf"))
