"""Assumptions of an answer, and the reason why a time has no interval."""

from __future__ import annotations

import pytest

from phaze.layout import Layout
from phaze.plan.answer.assumptions import above_measured, assumptions, uncalibrated
from phaze.plan.answer.priced import MeasuredInterval
from phaze.plan.machines import load_machine
from phaze.plan.question import PlanQuestion
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.spec.models import load_transformer


def stated(model: str) -> str:
    """Return the assumptions about a model on a stack that overlaps token dispatches."""
    task = TrainingTask(load_transformer(model, "test"), 2048, 64, 8)
    question = PlanQuestion(task, load_machine("b200", stack="megatron-bridge"), MEGATRON)
    return "; ".join(assumptions(question, Layout()))


def test_only_models_with_experts_assume_anything_about_token_dispatches() -> None:
    dense, sparse = stated("llama-3.1-8b"), stated("mixtral-8x7b")
    overlapped = "data-parallel collectives, tensor-parallel collectives, messages between stages"
    assert f"{overlapped} overlapped with compute" in dense
    assert f"{overlapped}, token dispatches overlapped with compute" in sparse
    assert ("load of experts" in dense, "load of experts" in sparse) == (False, True)


def test_the_slowest_of_all_devices_is_assumed() -> None:
    assert f"the slowest of {load_machine('b200').devices:,} decides" in stated("llama-3.1-8b")


@pytest.mark.parametrize(
    ("system", "unmeasured", "reason"),
    [
        ("h100", (), "No 80 % interval: no measured run is like it."),
        ("h100", ("LoRA", "HSDP"), "No 80 % interval: no measured run has LoRA, HSDP."),
        (
            "tpu-v5p",
            ("stack maxtext", "device tpu-v5p"),
            ("Optimistic: no run like this was measured on tpu-v5p, or with stack maxtext on other devices."),
        ),
    ],
)
def test_a_time_without_an_interval_has_a_reason(
    system: str, unmeasured: tuple[str, ...], reason: str
) -> None:
    assert uncalibrated(load_machine(system), MeasuredInterval(None, unmeasured=unmeasured)) == reason


def test_a_utilisation_above_all_measured_ones_is_named() -> None:
    machine, measured = load_machine("h100"), MeasuredInterval(None, mfus=(0.4, 0.54))
    sentence = "No bf16 run on h100-80gb reached 62.0 % MFU: the best of 2 measured is 54.0 %."
    assert above_measured(machine, "bf16", 0.62, measured) == sentence
    assert above_measured(machine, "bf16", 0.54, measured) is None
    assert above_measured(machine, "bf16", 0.62, MeasuredInterval(None)) is None, "nothing is measured"
