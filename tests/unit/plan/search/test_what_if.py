"""Effects of a change to a plan's question."""

from __future__ import annotations

import re

import pytest

from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.what_if import other_batch
from phaze.plan.machines import load_machine
from phaze.plan.question import PlanQuestion
from phaze.plan.search.search import LayoutPlanner
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.spec.models import load_transformer


def _best(batch: int, devices: int = 24) -> PricedLayout:
    """Best plan of a small model."""
    model = load_transformer("llama2-7b", "test").model_copy(update={"layers": 6})
    machine = load_machine("h100", devices=devices)
    question = PlanQuestion(TrainingTask(model, 2048, batch, devices), machine, MEGATRON)
    return PricedLayout.of(question, LayoutPlanner(number=1)(question).plans[0])


@pytest.mark.slow
def test_a_batch_that_limits_replicas_is_named_with_the_nearest_that_does_not() -> None:
    plan, free = _best(128), _best(120)
    sentence = other_batch(plan, {})
    assert sentence is not None
    found = re.fullmatch(
        r"128 samples allow at most 8 replicas. With --global-batch 120 a short search finds ([\d.]+) % more "
        r"tokens/s \(expected\): (.+)\.",
        sentence,
    )
    assert found is not None
    gain = free.tokens_per_s_per_device / plan.tokens_per_s_per_device - 1
    assert float(found[1]) == pytest.approx(100 * gain, abs=0.06)
    assert found[2] == free.shape


def test_no_other_batch_is_named_if_it_is_no_faster() -> None:
    assert other_batch(_best(120), {}) is None
    plan = _best(128)
    assert other_batch(plan, {"dp": 8}) is None
