"""torchtitan's settings for the compiler and the model converters."""

from __future__ import annotations

from collections.abc import Iterator

from phaze.layout import Compute
from phaze.runtimes.recipe import Recipe
from phaze.spec.plain import Plain
from phaze.spec.system import Stack

COMPILE, ASYNC_TP = "compile.enable", "compile.enable_async_tensor_parallel"
Converters = dict[str, dict[str, Plain]]
"""Model converters by name, with their arguments."""
LINEAR: dict[Compute, Converters] = {
    "fp8-cs": {"Float8LinearConverter": {"filter_fqns": ["lm_head", "router.gate"]}},
    "mxfp8": {"MXFP8LinearConverter": {"fqns": ["attention", "feed_forward", "shared_experts"]}},
}
"""Converters that make the GEMMs of blocks low-precision, excluding the head and the router."""
GROUPED: dict[Compute, Converters] = {
    "fp8-cs": {"Float8GroupedExpertsConverter": {}},
    "mxfp8": {"MXFP8GroupedExpertsConverter": {"pad_multiple": 128}},
}
"""Converters for expert GEMMs; row counts are padded for Blackwell's kernels (`config_registry.py`)."""
LORA = "LoRAConverter"
CONVERTERS = {*(name for words in (LINEAR, GROUPED) for said in words.values() for name in said), LORA}
"""Names of all converters that a recipe can express."""
TRAINED: list[Plain] = [
    "wq", "wkv", "wqkv", "wq_a", "wq_b", "wkv_a", "wkv_b", "wo", "w1", "w2", "w3",
]  # fmt: skip
"""Weight matrices of blocks that LoRA adapts, by the last part of their names; the head is excluded."""


def converters(recipe: Recipe) -> Converters:
    """Model converters that give torchtitan's model the recipe's compute format and LoRA."""
    compute, model = recipe.layout.compute, recipe.model
    experts = GROUPED.get(compute, {}) if model.experts else {}
    trained: Converters = {LORA: {"rank": model.lora, "target_modules": TRAINED}} if model.lora else {}
    return {**LINEAR.get(compute, {}), **experts, **trained}


def software(recipe: Recipe, stack: Stack) -> Iterator[tuple[str, bool]]:
    """Yield the settings of a software stack."""
    if stack.compiled is not None:
        yield COMPILE, stack.compiled
        yield ASYNC_TP, stack.compiled and "tp" in stack.overlap and recipe.layout.cuts_sequence


def flat(said: Converters) -> Iterator[tuple[str, Plain]]:
    """Yield a setting `True` for each converter, and its arguments as further settings."""
    for name, told in said.items():
        yield name, True
        yield from ((f"{name}.{key}", value) for key, value in told.items())
