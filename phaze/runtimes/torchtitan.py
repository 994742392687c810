"""Layouts that torchtitan 0.3.0 can run, as checked by torchtitan and `torch.distributed.pipelining`.

Sources are torchtitan's `trainer.py`, `parallel_dims.py`, `pipeline_parallel.py` and `decoder.py`, and
`torch.distributed.pipelining.schedules`. Every tp >= 2 is valid with and without sequence parallelism
(`enable_sequence_parallel`). The feed-forward network must be sharded evenly here, which torchtitan does not
require.
"""

import numpy as np

from phaze.base.arrays import Bools
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import Rule, Runtime, TrainingTask, rule
from phaze.runtimes.shared_rules import (
    BATCH,
    EXPERTS_WHOLE,
    KEY_VALUE_HEADS,
    LOW_PRECISION,
    REPLICATED_SHARDS,
    SEQUENCE_PARALLEL,
    STAGES,
    not_divisible,
    parallel_rules,
    uneven_sequence,
)


@rule(
    "few microbatches",
    "microbatches of a replica must be at least pp {pp} under {schedule}, got {microbatches}",
    "schedule pp dp microbatch",
)
def _few_microbatches(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: schedules with one stage per rank need at least pp microbatches (`PipelineScheduleSingle`)."""
    single = grid.under("1f1b", "gpipe") & (grid.pp > 1)
    short: Bools = grid.microbatches(task.global_batch) < grid.pp
    return single & short


@rule(
    "rounds",
    "microbatches of a replica must split into equal rounds of at least pp {pp} under "
    "{schedule}, got {microbatches}",
    "schedule pp dp microbatch",
)
def _rounds(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: microbatches must form m // pp equal rounds (`ScheduleInterleaved1F1B` and similar)."""
    count = grid.microbatches(task.global_batch)
    rounds = grid.under("interleaved", "interleaved-zb")
    return rounds & not_divisible(count, np.maximum(1, count // grid.pp))


@rule(
    "unfilled stages",
    "microbatches of a replica must be at least the number of stages, {stages}, under "
    "{schedule}, got {microbatches}",
    "schedule pp vp dp microbatch",
)
def _unfilled_stages(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: DualPipeV needs at least as many microbatches as stages (`ScheduleDualPipeV`)."""
    short: Bools = grid.microbatches(task.global_batch) < grid.stages
    return grid.under("dualpipev") & short


@rule("replicas", "zero 0 replicates the weights, but cp shards them, so cp must be 1, got {cp}", "zero cp")
def _replicas(_: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: ZeRO 0 excludes context parallelism, which shards weights (`ParallelDims.fsdp_enabled`)."""
    return (grid.cp > 1) & (grid.zero < 1)


@rule(
    "expert mesh",
    "ep must divide cp * tp without sharding over replicas (zero 0), got ep {ep}, cp {cp} and tp {tp}",
    "zero ep cp tp",
)
def _expert_mesh(_: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: a layout with ZeRO 0 must allow an expert mesh (`ParallelDims`).

    The mesh needs dp_shard · cp · tp = efsdp · ep. Replicas with ZeRO 0 are not part of dp_shard.
    """
    return (grid.zero < 1) & not_divisible(grid.cp * grid.tp, grid.ep)


@rule(
    "further tokens",
    "layers of multi-token prediction need latent attention, pp 1 and cp 1, got {mtp} with pp {pp} "
    "and cp {cp}",
    "pp cp",
)
def _further_tokens(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: multi-token prediction needs a DeepSeek model, pp 1 and cp 1 (`MTPDecoder.Config`)."""
    refused = (grid.pp > 1) | (grid.cp > 1) | (task.model.latent is None)
    return refused & (task.model.mtp > 0)


@rule(
    "tied pipeline",
    "weight tying is not supported with a pipeline, so pp must be 1 with tied embeddings, got {pp}",
    "pp",
)
def _tied_pipeline(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: tied embeddings exclude a pipeline, since two stages would share a matrix (`Decoder.Config`)."""
    most = 1 if task.model.tied_embeddings else task.devices
    return grid.pp > most


TORCHTITAN = Runtime(
    name="torchtitan",
    version="0.3.0",
    schedules=("1f1b", "interleaved", "gpipe", "zb-h1", "interleaved-zb", "zbv", "dualpipev"),
    zeros=(0, 2, 3),
    sequence_parallel=(False, True),
    cp_kinds=("all_gather",),
    recomputed_counts="all",
    computes=("bf16", "fp8-cs", "mxfp8"),
    options=("replicate",),
    rules=(
        *parallel_rules(KEY_VALUE_HEADS),
        SEQUENCE_PARALLEL,
        Rule(
            "sequence slices",
            "the sequence {sequence} must be a multiple of tp with sequence_parallel, and of 2 * "
            "cp * tp with cp >= 2, got tp {tp} and cp {cp}",
            ("sequence_parallel", "tp", "cp"),
            uneven_sequence,
        ),
        BATCH,
        STAGES,
        LOW_PRECISION,
        _few_microbatches,
        _rounds,
        _unfilled_stages,
        _replicas,
        _expert_mesh,
        EXPERTS_WHOLE,
        _further_tokens,
        _tied_pipeline,
        REPLICATED_SHARDS,
    ),
)
"""torchtitan, whose `replicate` is ZeRO 0.

ZeRO 2 is FSDP2 that keeps the gathered weights until the backward pass (`fsdp_reshard_after_forward: never`,
the default in a pipeline); ZeRO 3 is FSDP2 that frees them (`always`). zb-h1 is a schedule from a CSV file.
fp8-cs is torchtitan's float8, which has one scale per row.
"""
