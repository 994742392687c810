"""What the order of the first plans rests on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from phaze.plan.layouts.priced import PricedLayout
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.search import plan_layouts
from phaze.plan.layouts.what_if import rests_on
from phaze.plan.machines import load_machine
from phaze.plan.price import price
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.spec.models import load_transformer


@pytest.fixture(scope="module")
def plans() -> list[PricedLayout]:
    """Return plans of a model whose slices hide what they exchange."""
    machine = load_machine("h100", stack="megatron-core-2024", devices=256)
    task = TrainingTask(load_transformer("llama-3.1-8b", "test"), 8192, 32, 256)
    question = PlanQuestion(task, machine, MEGATRON)
    return [PricedLayout.of(question, plan) for plan in plan_layouts(question, wanted=6).plans]


def test_the_plan_that_would_win_without_an_assumption_is_faster_without_it(
    plans: list[PricedLayout],
) -> None:
    sentences = list(rests_on(plans))
    slices = next(one for one in sentences if one.startswith("if collectives of slices"))
    found = re.search(r"plan (\d+) would be the fastest, (\S+) s against (\S+) s", slices)
    assert found is not None
    machine = plans[0].question.machine
    kept = tuple(one for one in machine.stack.overlap if one != "tp")
    exposed = replace(machine, stack=machine.stack.model_copy(update={"overlap": kept}))
    question = PlanQuestion(plans[0].question.task, exposed, MEGATRON)
    times = [
        price(question.divided(one.divided.layout, one.divided.schedule).plan(one.division), exposed).time_s
        for one in plans
    ]
    assert times.index(min(times)) + 1 == int(found[1]) > 1
    assert float(found[2]) == pytest.approx(min(times), rel=1e-3)
    assert float(found[3]) == pytest.approx(times[0], rel=1e-3)


def test_an_order_that_needs_no_hidden_communication_rests_on_nothing(plans: list[PricedLayout]) -> None:
    machine = plans[0].question.machine
    open_ = replace(machine, stack=machine.stack.model_copy(update={"overlap": ()}))
    question = replace(plans[0].question, machine=open_)
    assert not list(rests_on([replace(one, question=question) for one in plans]))
