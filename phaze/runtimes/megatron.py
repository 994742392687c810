"""Layouts that Megatron-Core 0.16.1 can run, as checked by Megatron-LM and Megatron-Core.

Sources are `megatron/training/arguments.py`, `TransformerConfig`, `pipeline_parallel/schedules.py` and
`pipeline_parallel_layer_layout.py`. Every tp >= 2 is valid with and without sequence parallelism, which only
experts need. The vocabulary is padded to a multiple of 128 · tp, so it excludes no layout.
"""

import numpy as np

from phaze.base.arrays import Bools
from phaze.layout import SHARED_OPTIONS, Offloaded, heads_ranks_of
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import Runtime, TrainingTask, rule
from phaze.runtimes.shared_rules import (
    BATCH,
    EXPERT_BIAS,
    KEY_VALUE_GROUPS,
    LOW_PRECISION,
    REPLICATED_SHARDS,
    SEQUENCE_PARALLEL,
    SEQUENCE_SLICES,
    STAGES,
    not_divisible,
    parallel_rules,
)


@rule("context parallel", "the sequence {sequence} must be a multiple of 2 * cp, got cp {cp}", "cp")
def context_parallel(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: the sequence must split into 2 · cp equal chunks (`validate_args`).

    Each rank has a chunk from the front and one from the back of a causal sequence.
    """
    return (grid.cp > 1) & not_divisible(task.sequence, 2 * grid.cp)


@rule(
    "context heads",
    "the key-value heads {kv_heads} of one of tp {tp} ranks must be a multiple of the "
    "ranks that exchange heads (cp, or k of a2a+p2p:k, which divides cp), got {cp_kind} "
    "with cp {cp}",
    "cp_kind cp tp",
)
def context_heads(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: head counts must suit the context-parallel exchange (`TransformerConfig`).

    Ranks that exchange whole sequences have equal shares of a tensor-parallel rank's heads. The sizes of the
    two levels multiply to cp.
    """
    inner = np.array([heads_ranks_of(kind, 0) for kind in grid.cp_kinds])[grid.cp_kind]
    # `heads_ranks_of(kind, 0)` is 0 if all cp ranks exchange heads (a2a), and 1 if none do.
    ranks = np.where(inner == 0, grid.cp, inner)
    heads = np.minimum(task.model.heads, task.model.kv_heads) // grid.tp
    broken: Bools = (ranks > 1) & (grid.cp > 1) & ((heads < 1) | not_divisible(heads, ranks))
    return broken | ((inner > 1) & ((inner >= grid.cp) | not_divisible(grid.cp, ranks)))


@rule(
    "expert sequences",
    "experts with tp {tp} need sequence_parallel, got {sequence_parallel}",
    "tp sequence_parallel",
)
def expert_sequence(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: experts with tp >= 2 need sequence parallelism; otherwise `MoELayer` raises in training."""
    return (task.experts > 0) & (grid.tp > 1) & ~grid.sequence_parallel


@rule("whole sequences", "delta rules and sparse attention need cp 1, got {cp}", "cp")
def whole_sequences(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: models that need whole sequences cannot use context parallelism (`TransformerConfig`).

    A gated delta net scans whole sequences, and an indexer selects among all tokens of one.
    """
    model = task.model
    needs_whole = model.delta is not None or (model.latent is not None and model.latent.index is not None)
    return needs_whole & (grid.cp > 1)


@rule(
    "delayed scaling", "fp8 does not support recomputing moe_act or layernorm, got {recompute}", "recompute"
)
def _delayed_scaling(_: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: delayed scaling excludes recomputing `moe_act` or `layernorm` (`TransformerConfig`)."""
    parts = {"moe_act", "layernorm"}
    excluded = [i for i, word in enumerate(grid.recomputes) if parts & set(word.split("+"))]
    return (grid.compute == "fp8") & np.isin(grid.recompute, excluded)


@rule(
    "offload",
    "offload of k layers needs pp 1, recompute none and more than k layers; offloaded "
    "modules must not be fully recomputed; attn_proj needs core_attn, expert_fc1 and "
    "moe_act need experts, optimizer needs zero 1; got {offload} with pp {pp}, recompute "
    "{recompute}, zero {zero}",
    "pp zero recompute",
)
def _offload(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: the layout must support the grid's offload option.

    Sources: `TransformerConfig` for activations, `OptimizerStateOffloader` for the states of a distributed
    optimizer.
    """
    offloaded, words = Offloaded.of(grid.offload), grid.recomputes
    free = [i for i, word in enumerate(words) if word == "none" or (word != "full" and not offloaded.layers)]
    of_experts = bool(offloaded.modules & {"expert_fc1", "moe_act"}) and not task.experts
    lone = "attn_proj" in offloaded.modules and "core_attn" not in offloaded.modules
    # The option is one for all layouts, so these conditions hold for all or none of them.
    broken: Bools = np.full(len(grid), of_experts or lone or offloaded.layers >= max(task.model.layers, 1))
    if offloaded.layers or offloaded.modules:
        broken |= ~np.isin(grid.recompute, free)
    broken |= bool(offloaded.layers) & (grid.pp > 1)
    broken |= offloaded.optimizer & (grid.zero != 1)
    return broken


@rule(
    "moments",
    "optimizer {optimizer} needs a distributed optimizer, zero >= 1, got {zero}",
    "zero",
)
def _moments(_: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: only a distributed optimizer has smaller states (`--use-precision-aware-optimizer`)."""
    broken: Bools = (grid.zero == 0) & (grid.optimizer in ("adam-bf16", "adam-fp8"))
    return broken


@rule(
    "microbatch groups",
    "microbatches of a replica must be at least pp {pp} under schedule interleaved, got {microbatches}",
    "schedule pp dp microbatch",
)
def microbatch_groups(task: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: an interleaved schedule needs a valid microbatch group size.

    The size lies between pp and the number of microbatches, and leaves no group of fewer than pp
    microbatches. A single group of all microbatches is valid if it has at least pp of them
    (`forward_backward_pipelining_with_interleaving`).
    """
    short: Bools = grid.microbatches(task.global_batch) < grid.pp
    return grid.under("interleaved") & short


@rule(
    "sharded pipeline",
    "zero 2 and 3 are Megatron-FSDP, which has no pipeline, so pp must be 1, got {pp}",
    "zero pp",
)
def _sharded_pipeline(_: TrainingTask, grid: LayoutGrid) -> Bools:
    """Rule: FSDP excludes a pipeline; Megatron-FSDP supports only tp, cp and ep (issue 1455)."""
    return (grid.zero >= 2) & (grid.pp > 1)


MEGATRON = Runtime(
    name="megatron",
    version="0.16.1",
    schedules=("1f1b", "interleaved"),
    zeros=(0, 1, 2, 3),
    sequence_parallel=(False, True),
    cp_kinds=("all_gather", "p2p", "a2a"),
    rules=(
        *parallel_rules(KEY_VALUE_GROUPS),
        SEQUENCE_PARALLEL,
        context_parallel,
        SEQUENCE_SLICES,
        BATCH,
        STAGES,
        LOW_PRECISION,
        context_heads,
        expert_sequence,
        whole_sequences,
        EXPERT_BIAS,
        _delayed_scaling,
        microbatch_groups,
        _sharded_pipeline,
        _offload,
        _moments,
        REPLICATED_SHARDS,
    ),
    two_levels=True,
    options=SHARED_OPTIONS,
    recomputed_counts="equal",
    modules=("moe_act", "layernorm", "mla_up_proj", "shared_experts", "mlp", "moe"),
)
"""Megatron-Core, whose distributed optimizer is ZeRO 1.

ZeRO 2 and 3 are Megatron-FSDP (`optim_grads`, `optim_grads_params`). Recompute is `full`, `selective` of
`core_attn`, or sets of modules. One flag has the number of fully recomputed blocks of all virtual stages
(`--recompute-num-layers`).
"""
