"""Write the pipeline split of a planner's plan as changes to a torchtitan configuration.

Plans of planners from the literature may have stages of different widths, split and recompute the layers of a
stage in different ways, and run without flushes. No runtime does all of these. The batch, the split of the
layers into stages, and whatever all layers have in common are written; all else is a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

from phaze.base.errors import PhazeError
from phaze.runtimes.flags import Emitted, comments
from phaze.runtimes.settings import KeyValues
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import (
    BATCH,
    CHECKPOINT,
    CHECKPOINTING,
    EP,
    LOCAL,
    MICROBATCH,
    MODULES,
    PP,
    REPLICAS,
    SCHEDULE,
    SCHEDULES,
    SEQUENCE,
    SEQUENCE_PARALLEL,
    SHARDS,
    TP,
    modules,
)
from phaze.spec.plain import Plain
from phaze.spec.planner_rows import PlannerRow, PlannerStage, SplitKind
from phaze.spec.training_plan import AskedPlan


class LayerOptions(NamedTuple):
    """Split and recomputation of a layer."""

    kind: SplitKind
    recompute: str


def emit_split(row: PlannerRow, question: AskedPlan) -> Emitted:
    """Changes that give a torchtitan configuration a planner's stages, and a list of what it cannot express.

    Raises PhazeError if the planner has no plan, or its plan has a single stage and thus no split.
    """
    if len(row.stages) < 2:
        wrong = "has one stage, and no split to write" if row.stages else f"has no plan: {row.reason}"
        raise PhazeError(f"planner {row.planner} {wrong}", "leave out --planner to write the plan itself")
    differences = tuple(_differences(row, question))
    runtime = f"torchtitan {TORCHTITAN.version}"
    settings = [f"    config.{name} = {value!r}" for name, value in _settings(row, question)]
    checkpointing = _checkpointing(row)
    if checkpointing is not None:
        settings.append(f"    config.{CHECKPOINT} = {checkpointing}")
    title = f"{runtime}, {question.model.name}, stages of planner {row.planner}"
    text = "\n".join(
        [
            *comments(title, differences=differences),
            "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
            "",
            "",
            "def planned(config):",
            '    """A configuration of config_registry with the stages of the planner."""',
            *settings,
            "    return config",
            "",
        ]
    )
    return Emitted(runtime, {"plan.py": text}, differences)


def _widths(row: PlannerRow) -> set[tuple[int, int]]:
    """Distinct widths tp and dp of the stages."""
    return {(stage.tp, stage.dp) for stage in row.stages}


def _configurations(stage: PlannerStage) -> str:
    """Number of layers with each configuration; Phaze's planner has one configuration in a stage."""
    if stage.configurations is not None:
        return stage.configurations
    kind = "tensor" if stage.tp > 1 else "whole"
    return f"{stage.layers} × {kind}{', recompute full' * stage.recompute}"


def _options(row: PlannerRow) -> set[LayerOptions]:
    """Distinct options of the layers of all stages."""
    options = set()
    for stage in row.stages:
        for counted in _configurations(stage).split("; "):
            kind, _, recompute = counted.partition(" × ")[2].partition(", recompute ")
            options.add(LayerOptions(cast(SplitKind, kind), recompute or "none"))
    return options


def _kinds(row: PlannerRow) -> list[SplitKind]:
    """Distinct splits of the layers."""
    return sorted({options.kind for options in _options(row)})


def _recomputes(row: PlannerRow) -> list[str]:
    """Distinct recomputations of the layers."""
    return sorted({options.recompute for options in _options(row)})


def _checkpointing(row: PlannerRow) -> str | None:
    """Recomputation of all layers in torchtitan's words; None if layers differ or it has no such option."""
    recomputes = _recomputes(row)
    return CHECKPOINTING.get(recomputes[0]) if len(recomputes) == 1 else None


def _piece(row: PlannerRow) -> int:
    """Samples of a microbatch over all replicas; all stages must have the same number of replicas."""
    return (row.microbatch or 1) * row.stages[0].dp


def _settings(row: PlannerRow, question: AskedPlan) -> KeyValues:
    """Yield the settings that torchtitan has for the batch and the stages."""
    first, kinds, same_widths = row.stages[0], _kinds(row), len(_widths(row)) == 1
    yield from ((SEQUENCE, question.sequence), (BATCH, question.global_batch))
    if same_widths and question.global_batch % _piece(row) == 0:
        # A pipeline splits the local batch, the samples of a replica in a step, into microbatches.
        yield LOCAL, question.global_batch // first.dp
    yield PP, len(row.stages)
    if same_widths:
        yield from ((TP, first.tp), (REPLICAS, first.dp), (SHARDS, 1))
    if len(kinds) == 1:
        yield SEQUENCE_PARALLEL, kinds[0] in ("sequence", "expert")
        if same_widths:
            yield EP, first.tp if kinds[0] == "expert" else 1
    yield MICROBATCH, row.microbatch or 1
    yield SCHEDULE, SCHEDULES["1f1b"]
    # The embedding and the head are layers of the planners, and stay at the ends of the pipeline.
    blocks = [stage.layers for stage in row.stages]
    blocks[0] -= 1
    blocks[-1] -= 1
    yield MODULES, cast(Plain, modules(blocks))


def _differences(row: PlannerRow, question: AskedPlan) -> Iterator[str]:
    """Yield the parts of the plan that no runtime, or torchtitan, can run."""
    kinds, recomputes, same_widths = _kinds(row), _recomputes(row), len(_widths(row)) == 1
    if not same_widths:
        widths = ", ".join(f"tp {stage.tp} dp {stage.dp}" for stage in row.stages)
        experts = ", ep as wide as tp" * (kinds == ["expert"])
        yield (
            f"no runtime has widths by stage ({widths}): set one tp and one dp for all stages{experts}, and "
            f"{LOCAL} to the {question.global_batch} samples over dp"
        )
    elif question.global_batch % _piece(row):
        yield (
            f"replicas have whole microbatches: set {BATCH} to a multiple of {_piece(row)} instead of "
            f"{question.global_batch}, and {LOCAL} to its share of {row.stages[0].dp} replicas"
        )
    if row.schedule == "2bw":
        yield "no runtime has schedule 2bw (two versions of the weights, no flush): the stages run 1f1b"
    listed = " | ".join(map(_configurations, row.stages))
    if len(kinds) > 1:
        mixed = "splits and recomputation" if len(recomputes) > 1 else "splits"
        yield f"no runtime has {mixed} by layer ({listed}): set one for all layers"
    elif len(recomputes) > 1:
        yield f"torchtitan has no recomputation by layer ({listed}): set one for all layers"
    if len(recomputes) == 1 and _checkpointing(row) is None:
        yield f"torchtitan has no recomputation {recomputes[0]}: set {CHECKPOINT} to none, selective or full"
