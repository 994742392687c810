"""Rules for the layouts that DeepSpeed 0.19.8 can run (`runtime/engine.py`, `runtime/pipe/engine.py`)."""

from __future__ import annotations

from phaze.base.arrays import Bools
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import Runtime, TrainingTask, rule
from phaze.runtimes.shared_rules import (
    BATCH,
    EXPERTS_OF_ALL_TOKENS,
    KEY_VALUE_GROUPS,
    SEQUENCE_PARALLEL,
    SEQUENCE_SLICES,
    STAGES,
    not_divisible,
    parallel_rules,
)


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
    ulysses = grid.cp_kind == grid.cp_kinds.index("a2a")
    # A rank that shares a key-value head with others has no whole head to exchange.
    heads = task.model.kv_heads // grid.tp
    uneven = (heads < 1) | not_divisible(heads, grid.cp) | not_divisible(task.sequence, grid.cp)
    broken: Bools = (grid.cp > 1) & (uneven | ~ulysses)
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
        *parallel_rules(KEY_VALUE_GROUPS),
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
