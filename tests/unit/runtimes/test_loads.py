"""The expert load of a plan survives emit and read, and settings that force balanced routing are read."""

from dataclasses import replace

import pytest

from phaze.layout import Layout, Load
from phaze.runtimes.deepspeed_config import emit_deepspeed, read_deepspeed
from phaze.runtimes.megatron_flags import emit_megatron, read_megatron
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.torchtitan_config import emit_torchtitan, read_torchtitan
from phaze.spec.files import FOLDER
from phaze.spec.models import load_transformer
from phaze.spec.speeds.experts import ExpertLoads
from phaze.spec.system import Stack
from phaze.spec.systems import load_stack
from tests.laws.forms import script_options
from tests.unit.runtimes.recipes import of_model

EXPERTS = load_transformer("qwen3-30b-a3b", "model")
USUAL = {"megatron": "natural", "torchtitan": "max_vio_0.04"}
FORCED = {
    "megatron": "--moe-router-force-load-balancing",
    "torchtitan": "config.debug.moe_force_load_balance = True",
}


def with_load(load: Load, name: str = "qwen3-30b-a3b") -> Recipe:
    recipe = of_model(load_transformer(name, "model"))
    return replace(recipe, layout=replace(recipe.layout, load=load))


def read_text(runtime: str, text: str) -> Layout:
    if runtime == "megatron":
        return read_megatron(text, 1)[0].layout
    return read_torchtitan(text, EXPERTS, 1)[0].layout


def emitted_text(runtime: str, recipe: Recipe) -> str:
    emit = emit_megatron if runtime == "megatron" else emit_torchtitan
    return next(iter(emit(recipe).files.values()))


@pytest.mark.parametrize("runtime", ["megatron", "torchtitan"])
@pytest.mark.parametrize("load", ["natural", "balanced", "1.5", "max_vio_0.72", "max_vio_0.04"])
def test_the_load_of_a_plan_is_read_back_and_never_forced(runtime: str, load: Load) -> None:
    text = emitted_text(runtime, with_load(load))
    assert read_text(runtime, text).load == load
    assert FORCED[runtime] not in text
    assert ("Expert load" in text) == (load != USUAL[runtime])


@pytest.mark.parametrize(
    ("runtime", "stacks"), [("megatron", "megatron-core"), ("torchtitan", "torchtitan*")]
)
def test_the_load_that_is_not_written_is_that_of_plans(runtime: str, stacks: str) -> None:
    paths = sorted((FOLDER / "stacks").glob(f"{stacks}.yaml"))
    assert paths
    for path in paths:
        assert load_stack(path.stem).load.expected == USUAL[runtime]


@pytest.mark.parametrize("load", ["natural", "balanced", "1.5"])
def test_the_script_of_deepspeed_has_the_load(load: Load) -> None:
    emitted = emit_deepspeed(with_load(load), Stack())
    options = script_options(emitted)
    recipe = read_deepspeed(emitted.files["deepspeed.json"], EXPERTS, 1, options)[0]
    assert recipe.layout.load == load
    assert ("load" in options) == (load != "natural")


@pytest.mark.parametrize("runtime", ["megatron", "torchtitan"])
def test_a_runtime_that_forces_balanced_experts_is_read_so(runtime: str) -> None:
    text = emitted_text(runtime, with_load("1.5")).rstrip()
    separator = " " if runtime == "megatron" else "\n    "
    assert read_text(runtime, f"{text}{separator}{FORCED[runtime]}\n").load == "balanced"
    off = f"{text}\n    {FORCED[runtime].replace('True', 'False')}\n"
    assert runtime == "megatron" or read_text(runtime, off).load == "1.5"


def test_earlier_settings_of_torchtitan_force_balance_as_well() -> None:
    flags = "--training.seq_len 2048 --training.debug_moe_force_load_balance"
    assert read_torchtitan(flags, EXPERTS, 1)[0].layout.load == "balanced"
    assert (
        read_torchtitan(flags.partition(" --training.d")[0], EXPERTS, 1)[0].layout.load == USUAL["torchtitan"]
    )


@pytest.mark.parametrize("runtime", ["megatron", "torchtitan"])
def test_a_load_of_the_stack_is_neither_lost_nor_invented(runtime: str) -> None:
    """A stack with a load of its own: a plan with the runtime's usual load says so, and a file without a load
    has that of the stack.
    """
    own = Stack(load=ExpertLoads(expected="1.7", prudent="1.9"))
    emit = emit_megatron if runtime == "megatron" else emit_torchtitan
    for load in ("1.7", USUAL[runtime], "balanced"):
        text = next(iter(emit(with_load(load), own).files.values()))
        assert f"# Expert load: {load}" in text
        assert read_text(runtime, text).load == load
    text = emitted_text(runtime, with_load(USUAL[runtime]))
    if runtime == "megatron":
        assert read_megatron(text, 1, routed="1.7")[0].layout.load == "1.7"
    else:
        assert read_torchtitan(text, EXPERTS, 1, "1.7")[0].layout.load == "1.7"


def test_models_without_experts_are_balanced() -> None:
    text = emitted_text("megatron", with_load("balanced", "llama2-7b"))
    assert "Expert load" not in text
    assert read_megatron(text, 1)[0].layout.load == "balanced"
