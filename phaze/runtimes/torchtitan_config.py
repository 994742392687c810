"""A recipe as changes of a torchtitan configuration, and the recipe of such changes.

torchtitan takes the model from its own registry; the changes say the batch, the layout and who holds which
blocks. A schedule that torchtitan has no name for is a file in CSV: a row for every rank, a cell such as 2F0
for a stage, a pass and a microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from phaze.layout import Recompute
from phaze.pipeline.durations import JobKind
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.schedules import SCHEDULES
from phaze.runtimes.flags import Emitted
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.spec.plain import Plain

NAMES = {
    "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe", "zbv": "ZBVZeroBubble",
    "interleaved-zb": "InterleavedZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
"""Schedules that torchtitan has a name for (`torch.distributed.pipelining.schedules.get_schedule_class`)."""
BY_FILE = "PipelineScheduleMulti"
"""The name that stands for a schedule by CSV."""
CSV = "schedule.csv"
LETTERS = {
    JobKind.FORWARD: "F", JobKind.BACKWARD: "B", JobKind.INPUT_GRADIENT: "I", JobKind.WEIGHT_GRADIENT: "W",
}  # fmt: skip
"""Passes in cells: forward, backward; or gradients of the input, of the weights."""
CHECKPOINTING: dict[Recompute, str] = {
    "none": "None",
    "selective": "SelectiveAC.Config()",
    "full": "FullAC.Config()",
}
CHECKPOINT = "activation_checkpoint"


def emit_torchtitan(recipe: Recipe) -> Emitted:
    """Changes of a torchtitan configuration; raises PhazeError for a recipe that torchtitan cannot run.

    Full recomputation is of all blocks or none. What differs is named.
    """
    recipe.check(TORCHTITAN)
    files = {"plan.py": _python(recipe)}
    if recipe.schedule not in NAMES:
        files[CSV] = schedule_csv(recipe)
    said = replace(recipe, recomputed=recipe.blocks) if any(recipe.recomputed) else recipe
    return Emitted(f"torchtitan {TORCHTITAN.version}", files, recipe.beyond(said))


def _python(recipe: Recipe) -> str:
    settings = [f"    config.{name} = {value!r}" for name, value in _settings(recipe)]
    return "\n".join(
        [
            f"# torchtitan {TORCHTITAN.version}, {recipe.model.name} on {recipe.layout.devices} devices",
            "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
            "",
            "",
            "def planned(config):",
            '    """A configuration of config_registry, trained as planned."""',
            *settings,
            f"    config.{CHECKPOINT} = {CHECKPOINTING[recipe.layout.recompute]}",
            "    return config",
            "",
        ]
    )


def _settings(recipe: Recipe) -> Iterator[tuple[str, Plain]]:
    layout, pipelined = recipe.layout, recipe.layout.pp > 1
    count = layout.microbatches(recipe.global_batch) if pipelined else 1
    yield "training.seq_len", recipe.sequence
    yield "training.global_batch_size", recipe.global_batch
    yield "training.local_batch_size", layout.microbatch * count
    yield "parallelism.data_parallel_replicate_degree", 1 if layout.zero else layout.dp
    yield "parallelism.data_parallel_shard_degree", layout.dp if layout.zero else 1
    yield "parallelism.fsdp_reshard_after_forward", "always" if layout.zero == 3 else "never"
    yield "parallelism.tensor_parallel_degree", layout.tp
    yield "parallelism.enable_sequence_parallel", layout.sequence_parallel
    yield "parallelism.context_parallel_degree", layout.cp
    yield "parallelism.pipeline_parallel_degree", layout.pp
    if pipelined:
        yield "training.disable_cuda_graphs", True  # `Trainer` has none in a pipeline
        yield "parallelism.pipeline_parallel_microbatch_size", layout.microbatch
        yield "parallelism.pipeline_parallel_schedule", NAMES.get(recipe.schedule, BY_FILE)
        yield "parallelism.module_fqns_per_model_part", cast(Plain, modules(recipe.blocks))
        if recipe.schedule not in NAMES:
            yield "parallelism.pipeline_parallel_schedule_csv", CSV


def modules(blocks: Sequence[int]) -> list[list[str]]:
    """Names of the modules of every virtual stage, from the embedding to norm and head."""
    ends = np.cumsum([0, *blocks]).tolist()
    names = [[f"layers.{i}" for i in range(*ends[q : q + 2])] for q in range(len(blocks))]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return names


def schedule_csv(recipe: Recipe) -> str:
    """Passes of every rank in their order, a line a rank."""
    layout, count = recipe.layout, recipe.layout.microbatches(recipe.global_batch)
    stages, schedule = (StageCost(0.0),) * layout.stages, SCHEDULES[recipe.schedule]
    pipeline = Pipeline(stages, count, schedule.name, chunks=layout.vp, data=(1,) * layout.pp)
    rows = []
    for rank in range(layout.pp):
        kinds, stage, microbatch = (
            each.tolist() for each in schedule.order(pipeline, rank, np.arange(count))
        )
        cells = zip(stage, kinds, microbatch, strict=True)
        rows.append(",".join(f"{q}{LETTERS[JobKind(kind)]}{m}" for q, kind, m in cells))
    return "\n".join(rows) + "\n"
