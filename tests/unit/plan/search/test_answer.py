"""Published recipes next to the plans of their own questions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest

from phaze.base.units import GIB
from phaze.layout import Layout
from phaze.plan.answer.answer import recipe_rows, recipes_of
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.words import in_words, proof_in_words
from phaze.plan.machines import device_of, load_machine
from phaze.plan.pricing.price import price
from phaze.plan.question import PlanQuestion
from phaze.plan.search.search import LayoutPlanner
from phaze.plan.splits.split import Split
from phaze.runtimes.layout_string import blocks_of
from phaze.runtimes.registry import RUNTIMES
from phaze.runtimes.rules import TrainingTask
from phaze.spec.memory import UsedGib
from phaze.spec.models import load_transformer
from phaze.spec.names import Rank
from phaze.spec.recipes import PublishedRecipe, published_recipes
from phaze.spec.systems import load_cluster
from phaze.spec.training_plan import NearRun, PlanCertificate, RecipeRow, TrainingPlan
from tests.effort import if_every
from tests.plans import planner_of

LLAMA = "llama-3.1-405b", "h100", 16384
LLAMA_8B = load_transformer("llama-3.1-8b", "test")
FASTEST = ("h100", "gb200", "gb300")


def asked(
    model: str, system: str, devices: int, sequence: int, batch: int, precision: str = "bf16"
) -> PlanQuestion:
    task = TrainingTask(load_transformer(model, "test"), sequence, batch, devices, compute=precision)
    return PlanQuestion(task, load_machine(system, devices=devices), RUNTIMES["megatron"])


def rows(question: PlanQuestion, system: str) -> list[RecipeRow]:
    """Rows compared with a plan of two seconds."""
    return list(recipe_rows(question, system, 2.0, PricedLayout.row))


def small() -> dict[tuple[str, str, str], PublishedRecipe]:
    """Newest recipes for one node, one for each model, system and precision."""
    return {
        (one.model, one.system, one.precision): one
        for one in published_recipes()
        if one.gpus == 8 and one.system in FASTEST and one.global_batch and one.source == "megatron-bridge"
    }


def test_a_recipe_of_the_question_is_a_row_with_its_price() -> None:
    question = asked("llama-3.1-70b", "h100", 64, 8192, 256)
    (found,) = rows(question, "h100")
    assert (found.source, found.shape) == ("megatron-bridge", "tp 4 cp 2 pp 4 vp 5 dp 2 mbs 1 ZeRO-1")
    assert found.plan is not None
    assert found.over_plan == found.plan.time_s / 2.0
    layout = found.plan.layout
    blocks = blocks_of(layout.pipeline_layout)
    assert blocks == (4,) * 20
    plan = question.staged(layout.spread, "interleaved").plan(Split(blocks, (0,) * 20))
    assert found.plan.time_s == price(plan, question.machine).time_s


def test_a_recipe_that_leaves_virtual_stages_open_has_the_fastest() -> None:
    question = asked(*LLAMA, 131072, 128)
    device = device_of(question.machine).model_copy(update={"hbm_gib": 160.0})
    (found,) = rows(replace(question, machine=replace(question.machine, device=device)), "h100")
    assert found.source == "llama-3"
    assert found.plan is not None
    layout = found.plan.layout
    assert (layout.tp, layout.cp, layout.pp, layout.dp, layout.cp_kind) == (8, 16, 16, 8, "all_gather")
    assert layout.zero == 1, "Megatron-FSDP has no pipeline"
    assert (layout.vp, found.lacking_gib) == (8, None)


@pytest.mark.parametrize(
    ("devices", "sequence", "batch", "precision"),
    [(32, 8192, 256, "bf16"), (64, 4096, 256, "bf16"), (64, 8192, 255, "bf16"), (64, 8192, 256, "fp8-block")],
)
def test_a_recipe_of_another_question_is_none(
    devices: int, sequence: int, batch: int, precision: str
) -> None:
    assert not recipes_of(asked("llama-3.1-70b", "h100", devices, sequence, batch, precision), "h100")


def test_recipes_are_of_a_device_or_a_system() -> None:
    task = ("deepseek-v3", "h800", 2048, 4096, 15360, "fp8-block")
    (found,) = rows(asked(*task), "h800")
    assert found.reason == "megatron: schedule must be one of 1f1b, interleaved, got dualpipe"
    assert found.plan is None
    assert not rows(asked("deepseek-v3", "h100", *task[2:]), "h100")


def test_a_recipe_that_is_too_large_says_what_it_lacks() -> None:
    question = asked("llama-3.1-8b", "h100", 8, 8192, 128)
    bridge, titan = rows(question, "h100")
    assert (bridge.lacking_gib, titan.source) == (None, "torchtitan")
    assert titan.plan is not None
    limit_gib = question.limit_bytes(Layout(dp=8)) / GIB
    assert titan.lacking_gib == pytest.approx(titan.plan.fullest_gib - limit_gib)


def test_layers_of_further_tokens_are_those_of_the_model() -> None:
    question = asked("deepseek-v3", "gb300", 256, 4096, 4096, "mxfp8")
    without = question.task.model.model_copy(update={"mtp": 0})
    for model, layers in ((question.task.model, 62), (without, 61)):
        own = replace(question, task=replace(question.task, model=model))
        found = [row.plan.layout for row in rows(own, "gb300") if row.plan is not None]
        assert {sum(blocks_of(layout.pipeline_layout)) for layout in found} == {layers}


def test_adapters_have_no_recipe() -> None:
    question = asked("llama-3.1-8b", "h100", 8, 8192, 128)
    model = question.task.model.model_copy(update={"lora": 16})
    assert not recipes_of(replace(question, task=replace(question.task, model=model)), "h100")


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, marks=[if_every] * (place % 3 > 0), id="-".join(key))
        for place, (key, recipe) in enumerate(small().items())
    ],
)
def test_the_first_plan_of_the_same_widths_is_no_slower(recipe: PublishedRecipe) -> None:
    assert recipe.global_batch is not None
    sizes = recipe.gpus, recipe.sequence, recipe.global_batch
    question = asked(recipe.model, recipe.system, *sizes, recipe.precision)
    fitting = [one for one in rows(question, recipe.system) if one.lacking_gib is None]
    for plan in (one.plan for one in fitting if one.plan is not None):
        layout = plan.layout
        fixed: dict[str, int | str] = {"tp": layout.tp, "cp": layout.cp, "pp": layout.pp}
        found = LayoutPlanner(fixed=fixed, gap=0.0, number=1)(question)
        assert found.certificate.bound_s <= plan.time_s * (1 + 1e-9)
        assert found.plans[0].time_s <= plan.time_s * (1 + 1e-9)


@pytest.fixture(scope="module")
def answered() -> TrainingPlan:
    """Return the answer to the question of a recipe for one node."""
    fields = {"model": LLAMA_8B, "devices": 8, "global_batch": 128, "sequence": 8192, "rank": "expected"}
    planner = planner_of(gap=0.01, **fields)
    search = planner.search({"tp": 1, "pp": 1})
    search.run(2)
    found = planner.answer(search.plans(2))
    assert found.format == "phaze-plan"
    return found


def words_of(plan: TrainingPlan) -> str:
    return " ".join(in_words(plan, load_cluster("h100")[1]).split())


def test_the_answer_lists_recipes_below_its_plans(answered: TrainingPlan) -> None:
    bridge, titan = answered.recipes
    assert bridge.plan is not None
    rank = answered.question.rank
    assert bridge.over_plan == pytest.approx(bridge.plan.by(rank) / answered.by(rank))
    text = words_of(answered)
    assert (
        f"Recipe megatron-bridge 26.08 (cp 2 dp 4 mbs 1 ZeRO-1): {rank} {bridge.plan.by(rank):.4g} s, "
        f"{bridge.over_plan:.2f} × plan 1; may fit Recipe torchtitan 2024-12 "
    ) in text
    assert titan.plan is not None
    assert titan.plan.in_use_gib is not None
    least_gib = titan.plan.in_use_gib.low
    assert f"× plan 1; does not fit: needs {least_gib:.1f} GiB or more of 80 GiB" in text
    nearly = titan.plan.model_copy(update={"in_use_gib": UsedGib(low=70.0, expected=77.0, high=81.5)})
    recipes = bridge, titan.model_copy(update={"plan": nearly})
    larger = words_of(answered.model_copy(update={"recipes": recipes}))
    assert re.search(r"× plan 1; may fit: needs 70\.0 to 81\.5 GiB; 7\d\.?\d* of 80 GiB are usable", larger)
    assert TrainingPlan.model_validate_json(answered.model_dump_json()) == answered
    assert TrainingPlan.model_validate(answered.model_dump(exclude={"recipes"})).recipes == ()


@pytest.mark.parametrize(("over", "named"), [(1.04, False), (1.07, True)])
def test_a_plan_faster_than_recipes_has_evidence(answered: TrainingPlan, over: float, named: bool) -> None:
    near = NearRun(source="given", label="row 3", distance=0.1, error=-0.02)
    bridge, titan = answered.recipes
    rows = (bridge.model_copy(update={"over_plan": over}), titan)
    text = words_of(answered.model_copy(update={"recipes": rows, "evidence": (near,)}))
    line = "Faster than every recipe by prediction. Measured runs like it, with the errors of their"
    assert (f"{line} predictions: given row 3 (-2.0 %)." in text) == named


def test_a_recipe_that_cannot_run_gives_the_reason(answered: TrainingPlan) -> None:
    bridge, titan = answered.recipes
    rows = (RecipeRow(source="a", release="1", shape="tp 1", stated_in="b", reason="why"), titan)
    text = words_of(answered.model_copy(update={"recipes": rows}))
    assert "Recipe a 1 (tp 1): why Recipe torchtitan" in text
    assert bridge.source not in text
    assert "fastest recipe" not in text


@pytest.mark.slow
def test_with_a_wide_gap_the_plan_by_expected_time_is_no_slower_than_the_one_by_prudent_time() -> None:
    fields = {"model": LLAMA_8B, "system": "a100-roce", "devices": 16, "global_batch": 128, "sequence": 16384}
    times_s = {}
    for rank in get_args(Rank):
        planner = planner_of(gap=0.1, rank=rank, **fields)
        found = planner.best(1).plans[0]
        times_s[rank] = PricedLayout.of(planner.question, found).priced_for(planner.expected).price.time_s
    assert times_s["expected"] <= times_s["prudent"] * (1 + 1e-9)


def test_without_a_bound_nothing_is_said_to_be_proven() -> None:
    """A search that ended before its first bound, and one that has a bound."""
    limit = "its time limit of 1 s was reached"
    counts = {"layouts": 10, "illegal": {}, "same": 0, "unfit": 0, "bounded": {"layout": 9}, "divisions": 1}
    for bound_s, start, meaning in (
        (0.0, "Nothing is proven of the other 9 layouts.", "no other layout is excluded."),
        (4.0, "Any other layout is", "layouts up to 20.00 % faster are not excluded."),
    ):
        certificate = PlanCertificate.parse(
            {**counts, "simulated": 1, "bound_s": bound_s, "gap": 1 - bound_s / 5, "stopped": limit}, "proof"
        )
        (sentence,) = proof_in_words(certificate, "expected")
        assert sentence.startswith(start)
        assert f"The search ended early: {limit}. The plan is valid, but {meaning}" in sentence
        assert sentence.endswith("More --seconds may exclude some.")
    slow = certificate.model_copy(update={"stopped": "at its pace the proof needs more than the limit"})
    assert "More time would not help: fix a field, such as --fix pp=4" in next(
        proof_in_words(slow, "expected")
    )
    stopped = certificate.model_copy(update={"stopped": "it was interrupted"})
    assert next(proof_in_words(stopped, "expected")).endswith("The search ended early: it was interrupted.")
