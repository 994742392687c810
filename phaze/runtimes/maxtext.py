"""Layouts that MaxText can run: meshes of the axes fsdp, tensor, context and expert, without a pipeline.

The source is `logical_axis_rules` of MaxText's `configs/base.yml`. Weights are sharded over fsdp, context and
expert; batches over fsdp and expert; heads, feed-forward and vocabulary over tensor or tensor_sequence. JAX
shards arrays evenly. Here dp is fsdp × expert.
"""

from __future__ import annotations

from phaze.base.arrays import Bools
from phaze.runtimes.grid import LayoutGrid
from phaze.runtimes.rules import Rule, Runtime, TrainingTask, rule
from phaze.runtimes.shared_rules import (
    BATCH,
    EXPERT_SLICES,
    EXPERTS,
    EXPERTS_BY_TENSOR,
    FEED_FORWARD,
    HEADS,
    KEY_VALUE_HEADS,
    SCANS,
    SEQUENCE_PARALLEL,
    VIRTUAL_STAGES,
    not_divisible,
    uneven_sequence,
)
from phaze.spec.training_plan import ChosenLayout


@rule("no pipeline", "plans have no stage axis, so pp must be 1, got {pp}", "pp")
def _no_pipeline(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return grid.pp > 1


@rule("fsdp", "weights are sharded over dp * cp, so zero must be 3, got {zero}", "zero")
def _fsdp(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return (grid.sharers > 1) & (grid.zero < 3)


@rule("expert axis", "ep must divide dp {dp}, got {ep}", "ep dp")
def _expert_axis(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return not_divisible(grid.dp, grid.ep)


MAXTEXT = Runtime(
    name="maxtext",
    version="of 2025",
    schedules=("1f1b",),
    zeros=(0, 3),
    sequence_parallel=(False, True),
    cp_kinds=("all_gather",),
    recomputed_counts="all",
    computes=("bf16",),
    rules=(
        _no_pipeline,
        VIRTUAL_STAGES,
        HEADS,
        KEY_VALUE_HEADS,
        FEED_FORWARD,
        SCANS,
        EXPERTS,
        _expert_axis,
        EXPERT_SLICES,
        EXPERTS_BY_TENSOR,
        SEQUENCE_PARALLEL,
        Rule(
            "sequence slices",
            "the sequence {sequence} must be a multiple of 2 * cp with cp >= 2, times tp with "
            "sequence_parallel, got tp {tp} and cp {cp}",
            ("sequence_parallel", "tp", "cp"),
            uneven_sequence,
        ),
        BATCH,
        _fsdp,
    ),
)
"""MaxText, without the mesh axes data and stage.

ZeRO 3 is fsdp. With sequence parallelism the axis is tensor_sequence instead of tensor. Recompute full and
none are its remat policies full and minimal_with_context.
"""


def axes_of(layout: ChosenLayout) -> str:
    """Axis sizes of MaxText's mesh for a layout, as MaxText options."""
    tensor = "tensor_sequence" if layout.sequence_parallel else "tensor"
    sizes = {"fsdp": layout.dp // layout.ep, "expert": layout.ep, "context": layout.cp, tensor: layout.tp}
    return ", ".join(f"ici_{name}_parallelism={size}" for name, size in sizes.items())
