"""Recipes by release of a software stack."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER
from phaze.spec.models import load_transformer
from phaze.spec.recipes import (
    ROUTER_KERNELS,
    StackRecipe,
    load_recipes,
    published_model,
    published_recipes,
    recipe_of,
    release_of,
)
from phaze.spec.systems import load_stack

PATH = FOLDER / "recipes" / "megatron-bridge.csv"
SOURCES = {"megatron-bridge": 474, "torchtitan": 23, "llama-3": 3, "megatron-core": 2, "deepseek-v3": 1}
UNKNOWN = {
    "deepseek-v4-flash", "deepseek-v4-pro", "mixtral-8x22b", "nemotron-3-super-120b-a12b",
    "nemotron-3-ultra", "nemotron-h-56b", "qwen3-next-80b-a3b",
}  # fmt: skip
"""Models that are not in config/models."""
RELEASES = ("25.09", "25.11", "26.02", "26.02.01", "26.04", "26.04.01", "26.08")


def found(release: str, model: str, device: str, precision: str, gpus: int) -> StackRecipe:
    """Recipe for a model of config/models, under another name."""
    renamed = load_transformer(model, "model").model_copy(update={"name": "x"})
    recipe = recipe_of("megatron-bridge", release, renamed, device, precision, gpus)
    assert recipe is not None
    assert recipe.model == model
    return recipe


def test_every_recipe_is_of_a_model_and_uses_all_of_its_devices() -> None:
    recipes = published_recipes()
    assert Counter(recipe.source for recipe in recipes) == SOURCES
    names = {path.stem for path in (FOLDER / "models").glob("*.yaml")}
    assert {recipe.model for recipe in recipes} - names == UNKNOWN
    assert all(recipe.tp * recipe.cp * recipe.pp * recipe.dp == recipe.gpus for recipe in recipes)


def test_a_recipe_says_its_layout() -> None:
    llama = next(
        recipe for recipe in published_recipes() if recipe.source == "llama-3" and recipe.sequence > 8192
    )
    layout = llama.layout(microbatch=1, vp=8, load="balanced")
    assert (layout.tp, layout.cp, layout.pp, layout.vp, layout.dp) == (8, 16, 16, 8, 8)
    assert (layout.zero, layout.cp_kind, layout.sequence_parallel) == (2, "all_gather", True)
    assert llama.shape == "tp 8 cp 16 pp 16 dp 8 ZeRO-2"
    part = next(recipe for recipe in published_recipes() if recipe.recompute == "full:5")
    assert (part.layout(1, 1, "balanced").recompute, part.recomputed_blocks) == ("full", 5)


HEAD = "release,model,system,precision,gpus,sequence,tp,zero,repository,commit,file"
ROW = "2024-07,llama-3.1-8b,h100,bf16,8,8192,1,3,a,b,c"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEAD}\n{ROW}\n{ROW.replace(',1,', ',two,')}\n", "line 3: tp: must be a whole number, got"),
        (f"{HEAD}\n{ROW.replace(',3,', ',4,')}\n", "line 2: zero: should be 0, 1, 2 or 3, got 4"),
        (f"{HEAD}\n{ROW.replace('8192', '')}\n", "line 2: sequence: Field required"),
        (f"{HEAD.replace('zero', 'zer')}\n{ROW}\n", "line 1: zer: is not a column; did you mean zero"),
        (f"{HEAD}\n{ROW},9\n", "line 2: has more cells than columns"),
    ],
)
def test_a_bad_row_is_refused_by_file_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(PhazeError, match=f"^{path}: {message}"):
        load_recipes(path)


def test_every_recipe_is_read_and_says_where_it_stands() -> None:
    recipes = load_recipes(PATH)
    assert tuple(sorted({recipe.release for recipe in recipes})) == RELEASES
    keys = Counter(
        (recipe.release, recipe.model, recipe.system, recipe.precision, recipe.gpus) for recipe in recipes
    )
    assert set(keys.values()) == {1}
    stacks = [recipe for recipe in recipes if isinstance(recipe, StackRecipe)]
    assert len(stacks) == len(recipes)
    assert all(bool(recipe.dispatcher) == bool(recipe.experts) for recipe in stacks)
    with PATH.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["repository"] and row["commit"] and row["file"] for row in rows)
    assert {row["agrees"] for row in rows if row["release"] != "26.08"} == {"yes", "no"}


def test_every_published_run_has_a_recipe_of_its_release() -> None:
    for name in ("megatron-bridge", "megatron-bridge-26.04"):
        with (FOLDER / "measured" / f"{name}.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                recipe = found(row["release"], row["model"], row["system"], row["compute"], int(row["gpus"]))
                assert (recipe.release, recipe.gpus) == (row["release"], int(row["gpus"]))


@pytest.mark.parametrize(
    ("text", "release"), [("26.04.01 NeMo Container", "26.04.01"), (" 25.09", "25.09"), ("26.02", "26.02")]
)
def test_a_release_is_the_beginning_of_a_text(text: str, release: str) -> None:
    assert release_of(text) == release


def test_a_text_without_a_release_is_refused() -> None:
    with pytest.raises(PhazeError, match=r"release must look like 26\.04 or 26\.04\.01, got 'newest'"):
        release_of("newest")


def test_without_its_release_the_last_one_before_is_taken() -> None:
    run = ("deepseek-v3", "gb300", "mxfp8", 256)
    assert found("26.06", *run).release == "26.04.01"
    assert found("27.01", *run).release == "26.08"
    assert found("24.05", *run).release == "25.11"


def test_of_several_numbers_of_devices_the_nearest_is_taken() -> None:
    run = ("26.08", "qwen3-235b-a22b", "gb200", "mxfp8")
    assert [found(*run, gpus).gpus for gpus in (16, 120, 140, 4096)] == [64, 64, 256, 256]


def test_a_stack_takes_what_its_recipe_says() -> None:
    stack = load_stack("megatron-bridge")
    today = found("26.08", "deepseek-v3", "gb300", "mxfp8", 256).applied(stack)
    assert (today.dispatch, today.experts, today.cuda_graphs) == ("tokens", "fused", ("full",))
    assert today.overlap == ("dp", "pp", "ep")
    assert today.attention == ("cudnn-fp8", "cudnn", "2")
    before = found("25.09", "qwen3-30b-a3b", "h100-80gb", "fp8-cs", 16).applied(stack)
    assert (before.dispatch, before.experts, before.cuda_graphs) == ("rows", "each", ())
    dense = found("26.04", "llama-3.1-70b", "gb200", "nvfp4", 64).applied(stack)
    assert dense.model_copy(update={"overlap": stack.overlap}) == stack
    assert dense.overlap == ("dp", "pp")


def test_what_has_no_recipe_has_none_or_is_refused_with_its_stack() -> None:
    deepseek, small = (load_transformer(name, "model") for name in ("deepseek-v3", "gpt2-xl"))
    with pytest.raises(PhazeError, match=r"stack torchtitan has no recipes.*: megatron-bridge"):
        recipe_of("torchtitan", "26.04", deepseek, "gb300", "mxfp8", 256)
    assert recipe_of("megatron-bridge", "26.04", small, "gb300", "mxfp8", 256) is None
    assert recipe_of("megatron-bridge", "26.04", deepseek, "a100-80gb", "bf16", 256) is None


def test_models_with_recipes_have_sizes_of_their_own() -> None:
    """A model of other sizes, or with other experts, has no recipe of another one."""
    named = {recipe.model for recipe in published_recipes()}
    models = [path.stem for path in (FOLDER / "models").glob("*.yaml") if path.stem in named]
    assert all(published_model(load_transformer(name, "model")) == name for name in models)
    assert published_model(load_transformer("llama2-7b", "model")) == "llama2-7b"
    kin = load_transformer("llama-3.1-8b", "model").model_copy(update={"key_value_heads": 4, "name": "kin"})
    assert published_model(kin) == "kin"
    assert recipe_of("megatron-bridge", "26.04", kin, "h100-80gb", "bf16", 8) is None


@pytest.mark.parametrize(
    "name", ["megatron-bridge", "megatron-bridge-alltoall", "megatron-core", "megatron-nemo", "primus"]
)
def test_a_stack_has_the_router_kernels_of_recipes_with_its_dispatcher(name: str) -> None:
    stack = load_stack(name)
    assert stack.router_kernels == ROUTER_KERNELS[stack.dispatch == "tokens"]
