"""Certificates of plans, compared with random plans."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from phaze.base.errors import PhazeError
from phaze.certify.plans import PlanAudit, certify_plan
from phaze.layout import Compute
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.priced import MeasuredInterval
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.registry import RUNTIMES
from phaze.runtimes.rules import TrainingTask
from phaze.spec.documents import text_of
from phaze.spec.models import load_transformer
from phaze.spec.training_plan import TrainingPlan
from tests.chip_parts import stored_chips
from tests.commands import assert_refused, invoke
from tests.plans import plan_of, planner_of

DRAWS = 40


@cache
def planned(runtime: str, pp: int | None = None, precision: Compute = "bf16") -> TrainingPlan:
    """Return the plan of a model of few layers."""
    fields: dict[str, Any] = {"devices": 8, "global_batch": 8, "runtime": runtime, "precision": precision}
    if runtime == "chip":
        fields |= {"system": "tpu-v4", "stack": "chip", "machine": stored_chips("tpu-v4")}
    fixed = {} if pp is None else {"pp": pp}
    return plan_of(planner_of(gap=0.0, fixed=fixed, rank="expected", **fields), 5)


@cache
def audited(runtime: str, pp: int | None = None, seed: int = 0) -> PlanAudit:
    """Return the audit of that plan."""
    return certify_plan(planned(runtime, pp), DRAWS, seed)


def with_bound(plan: TrainingPlan, bound_s: float) -> TrainingPlan:
    """Return a plan whose certificate has another bound."""
    changes = {"bound_s": bound_s, "gap": 1 - bound_s / plan.time_s}
    certificate = plan.certificate.model_copy(update=changes)
    return plan.model_copy(update={"certificate": certificate})


@pytest.mark.slow
@pytest.mark.parametrize("runtime", sorted(RUNTIMES))
def test_no_drawn_plan_is_faster_than_the_bound(runtime: str) -> None:
    for pp in (None, *(() if runtime == "maxtext" else (4,))):
        found = audited(runtime, pp)
        assert found.counterexamples == []
        assert len(found.drawn) == DRAWS
        assert len(found.fitting) > DRAWS // 4
        assert planned(runtime, pp).certificate.bound_s == found.bound_s


@pytest.mark.slow
def test_drawn_plans_are_different_ones_that_the_runtime_can_run() -> None:
    for runtime, pp in (("megatron", None), ("torchtitan", 4)):
        asked = planned(runtime, pp).question
        drawn = audited(runtime, pp).drawn
        for one in drawn:
            sizes = asked.model, asked.sequence, asked.global_batch
            recipe = Recipe(*sizes, one.layout, one.schedule, one.blocks, one.recomputed)
            recipe.check(RUNTIMES[runtime])
            assert recipe.task == TrainingTask(asked.model, asked.sequence, asked.global_batch, asked.devices)
            assert pp in (None, one.layout.pp)
        assert len({(one.layout, one.schedule, one.blocks, one.recomputed) for one in drawn}) == DRAWS


@pytest.mark.slow
def test_plans_outside_the_searched_space_are_drawn_and_counted_apart() -> None:
    """For a model with experts: other etp, module sets equivalent to others, and two-level exchanges."""
    model = load_transformer("mixtral-8x7b", "test").model_copy(update={"layers": 2})
    asked = planned("megatron").question.model_copy(
        update={"model": model, "global_batch": 1024, "sequence": 512, "devices": 8, "fixed": {"pp": 1}}
    )
    planner = TrainingPlanner(asked, lambda _: MeasuredInterval(None), gap=0.05)
    plan = planner.answer(planner.best(1))
    assert isinstance(plan, TrainingPlan)
    found = certify_plan(plan, 200, 0)
    outside = [one for one in found.drawn if not one.searched]
    inside = [one.layout for one in found.drawn if one.searched]
    row = found.as_row()
    assert (row["outside"], row["counterexamples"]) == (len(outside), 0)
    assert f"{len(outside)} of them outside the searched space" in found.in_words()
    layouts = [one.layout for one in outside]
    assert any(one.tp % one.etp for one in layouts)
    assert any(one.cp_kind.startswith("a2a+p2p") for one in layouts)
    assert any("core_attn" in one.modules for one in layouts)
    assert any(one.microbatch > 64 for one in inside)
    assert all(one.tp % one.etp == 0 or one.ep == 8 for one in inside)
    assert any(one.etp not in (1, one.tp) for one in inside)
    lower = replace(found, bound_s=2 * max(one.time_s for one in found.drawn))
    assert len(lower.unsearched) + len(lower.counterexamples) == len(found.fitting)


@pytest.mark.slow
def test_plans_are_drawn_in_the_precision_of_the_question() -> None:
    found = certify_plan(planned("megatron", 2, "fp8-cs"), DRAWS, 0)
    assert found.counterexamples == []
    assert {one.layout.compute for one in found.drawn} == {"fp8-cs"}
    assert found.bound_s < audited("megatron").bound_s


@pytest.mark.slow
def test_seeds_draw_the_same_again_and_others() -> None:
    assert certify_plan(planned("megatron"), DRAWS, 0) == audited("megatron")
    assert audited("megatron", seed=1).drawn != audited("megatron").drawn


def test_a_bound_that_is_too_high_is_contradicted(tmp_path: Path) -> None:
    plan, fastest = planned("megatron", 4), audited("megatron", 4).fitting[0]
    wrong = with_bound(plan, 1.001 * fastest.time_s)
    assert fastest in certify_plan(wrong, DRAWS, 0).counterexamples
    right_file, wrong_file = tmp_path / "right.json", tmp_path / "wrong.json"
    right_file.write_text(text_of(plan))
    wrong_file.write_text(text_of(wrong))
    assert invoke(f"certify {right_file} --draws {DRAWS}").exit_code == 0
    assert_refused(re.escape(str(fastest)), f"certify {wrong_file} --draws {DRAWS}")


def test_a_file_that_is_not_its_own_price_is_refused() -> None:
    plan = planned("megatron", 4)
    faster = plan.model_copy(update={"time_s": 0.9 * plan.time_s})
    with pytest.raises(PhazeError, match="expected time must be the plan's price"):
        certify_plan(faster, 1, 0)
    with pytest.raises(PhazeError, match="blocks: must be"):
        certify_plan(plan.model_copy(update={"stages": plan.stages[1:]}), 1, 0)
