"""Write a recipe as DeepSpeed's JSON configuration; rules for the layouts that DeepSpeed 0.19.8 can run.

The file has the batch, ZeRO, precision, gradients and the optimizer. The training script assigns
tensor-parallel shards, sequences, experts and blocks to ranks and passes them to `deepspeed.initialize`
(`mpu`, `PipelineModule`, `MoE`). Sources are `docs/_pages/config-json.md`, `runtime/config.py`,
`runtime/engine.py` and `runtime/pipe/engine.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields

from phaze.base.arrays import Bools
from phaze.layout import Layout
from phaze.runtimes.flags import Emitted
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.recipe import Recipe, shown
from phaze.runtimes.rules import Runtime, TrainingTask, rule
from phaze.runtimes.shared_rules import (
    BATCH,
    EXPERT_RANKS,
    EXPERT_SLICES,
    EXPERTS,
    EXPERTS_OF_ALL_TOKENS,
    FEED_FORWARD,
    HEADS,
    KEY_VALUE_GROUPS,
    PIPELINE,
    SCANS,
    SEQUENCE_PARALLEL,
    SEQUENCE_SLICES,
    STAGES,
    VIRTUAL_STAGES,
    leaves_rest,
)
from phaze.runtimes.untimed import unsettable_fields
from phaze.spec.plain import Plain
from phaze.spec.system import Stack

COVERED_FIELDS = frozenset({"dp", "microbatch", "zero", "recompute", "cp_kind"})
"""Layout fields that the file sets or implies, or that `_elsewhere` reports in its own form."""


@rule("sharded pipeline", "zero 2 and 3 are incompatible with a pipeline, pp must be 1, got {pp}", "zero pp")
def _sharded_pipeline(_: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: ZeRO 2 and 3 are invalid with a pipeline (`PipelineEngine` rejects them)."""
    return (grid.zero >= 2) & (grid.pp > 1)


@rule(
    "sequences",
    "cp exchanges heads: cp_kind must be a2a, and the sequence {sequence} and key-value "
    "heads {kv_heads} / tp must be multiples of cp, got {cp_kind} with cp {cp} and tp "
    "{tp}",
    "cp_kind cp tp",
)
def _sequences(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: context parallelism must be Ulysses, with equal shares of heads and sequence."""
    whole = grid.cp_kind == grid.cp_kinds.index("a2a")
    heads = task.model.kv_heads // grid.tp
    uneven = (heads < 1) | leaves_rest(heads, grid.cp) | leaves_rest(task.sequence, grid.cp)
    broken: Bools = (grid.cp > 1) & (uneven | ~whole)
    return broken


DEEPSPEED = Runtime(
    name="deepspeed",
    version="0.19.8",
    schedules=("1f1b",),
    zeros=(0, 1, 2, 3),
    sequence_parallel=(False, True),
    cp_kinds=("all_gather", "a2a"),
    computes=("bf16",),
    rules=(
        VIRTUAL_STAGES,
        PIPELINE,
        HEADS,
        KEY_VALUE_GROUPS,
        FEED_FORWARD,
        SCANS,
        EXPERTS,
        EXPERT_RANKS,
        EXPERT_SLICES,
        EXPERTS_OF_ALL_TOKENS,
        SEQUENCE_PARALLEL,
        SEQUENCE_SLICES,
        BATCH,
        STAGES,
        _sharded_pipeline,
        _sequences,
    ),
)
"""DeepSpeed, with a script that implements tensor and expert parallelism, like Megatron-DeepSpeed."""


def emit_deepspeed(recipe: Recipe, stack: Stack) -> Emitted:
    """Write the DeepSpeed configuration of a recipe on a stack; PhazeError if DeepSpeed cannot run it.

    The result lists the settings that the script must make, and the differences from the plan.
    """
    recipe.check(DEEPSPEED)
    bytes_each = _gradient_bytes(recipe, stack)
    beyond = ["optimizer: a rate of 0.001 unless its params say another"]
    if bytes_each != stack.gradient_bytes:
        beyond.append(f"bytes of a gradient: {bytes_each} instead of {stack.gradient_bytes}")
    text = json.dumps(dict(_settings(recipe, stack)), indent=2) + "\n"
    runtime = f"DeepSpeed {DEEPSPEED.version}"
    return Emitted(runtime, {"deepspeed.json": text}, tuple(beyond), tuple(_elsewhere(recipe)))


def _gradient_bytes(recipe: Recipe, stack: Stack) -> int:
    """Bytes per accumulated gradient.

    Without ZeRO they are the bytes of a weight (`_do_optimizer_sanity_check`), or four in a pipeline
    (`BF16_Optimizer`).
    """
    if recipe.layout.zero:
        return stack.gradient_bytes
    return 4 if recipe.layout.pp > 1 else 2


def _settings(recipe: Recipe, stack: Stack) -> Iterator[tuple[str, Plain]]:
    layout, words = recipe.layout, {2: "bf16", 4: "fp32"}
    yield "train_batch_size", recipe.global_batch
    yield "train_micro_batch_size_per_gpu", layout.microbatch
    yield "gradient_accumulation_steps", layout.microbatches(recipe.global_batch)
    yield "bf16", {"enabled": True}
    yield "data_types", {"grad_accum_dtype": words[stack.gradient_bytes] if layout.zero else "bf16"}
    yield "communication_data_type", words[stack.gradient_bytes]
    yield "gradient_clipping", 1.0
    yield "optimizer", {"type": "AdamW", "params": {}}
    hides = "dp" in stack.overlap
    yield (
        "zero_optimization",
        {"stage": layout.zero, "overlap_comm": hides, "reduce_scatter": True, "contiguous_gradients": True},
    )
    if _recomputes_all(recipe):
        yield "activation_checkpointing", {"partition_activations": False, "cpu_checkpointing": False}
        if layout.pp > 1:
            yield "pipeline", {"activation_checkpoint_interval": 1}


def _recomputes_all(recipe: Recipe) -> bool:
    return any(recipe.recomputed) and recipe.recomputed == recipe.blocks


def _elsewhere(recipe: Recipe) -> Iterator[str]:
    """Yield the plan's settings that the user's training script must apply itself."""
    layout, usual = recipe.layout, Layout()
    yield f"model {recipe.model.name}"
    yield from unsettable_fields(recipe.model)
    yield f"sequence {recipe.sequence}"
    for field in fields(Layout):
        value = getattr(layout, field.name)
        if field.name not in COVERED_FIELDS and value != getattr(usual, field.name):
            yield f"{field.name} {shown(value)}"
    if layout.cp > 1:
        yield f"cp_kind {layout.cp_kind}"
    if layout.pp > 1:
        yield f"blocks {shown(recipe.blocks)}"
    if layout.recompute != "none" and not (_recomputes_all(recipe) and layout.pp > 1):
        again = f" of {shown(recipe.recomputed)} blocks" if any(recipe.recomputed) else ""
        yield f"recompute {layout.recompute}{again}"
