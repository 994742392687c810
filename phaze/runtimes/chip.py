"""Layouts that a chip without a runtime allows: every axis, as far as its model can be sharded evenly.

No software restricts them. A compiler schedules each rank's operators and collectives ahead of time, so that
ZeRO 2 and 3 combine with a pipeline, and any module may be recomputed.
"""

from phaze.runtimes.megatron import (
    context_heads,
    context_parallel,
    expert_sequence,
    microbatch_groups,
    whole_sequences,
)
from phaze.runtimes.rules import Runtime
from phaze.runtimes.shared_rules import (
    BATCH,
    KEY_VALUE_GROUPS,
    SEQUENCE_PARALLEL,
    SEQUENCE_SLICES,
    STAGES,
    parallel_rules,
)

CHIP = Runtime(
    name="chip",
    version="without a runtime",
    schedules=("1f1b", "interleaved"),
    zeros=(0, 1, 2, 3),
    sequence_parallel=(False, True),
    cp_kinds=("all_gather", "a2a"),
    computes=("bf16",),
    options=("optimizer",),
    rules=(
        *parallel_rules(KEY_VALUE_GROUPS),
        SEQUENCE_PARALLEL,
        context_parallel,
        SEQUENCE_SLICES,
        BATCH,
        STAGES,
        context_heads,
        expert_sequence,
        whole_sequences,
        microbatch_groups,
    ),
    modules=("moe_act", "layernorm", "mla_up_proj", "shared_experts", "mlp", "moe"),
)
"""Layouts for the architectures of studies and of `phaze plan --architecture`.

A ring of keys and values is left out: attention is one operator, which waits for all of them.
"""
