"""Table of torchtitan's batch and layout settings, for writing and reading a recipe.

Settings that are not given have torchtitan's defaults (`config/configs.py`, version 0.3.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np

from phaze.base.errors import PhazeError
from phaze.layout import Compute, Recompute
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.torchtitan_software import CONVERTERS, LINEAR
from phaze.spec.plain import Plain, short

Said = Mapping[str, object]
"""Values of settings, by name."""
KeyValues = Iterable[tuple[str, Plain]]
"""Settings to write, with their values."""
Word = TypeVar("Word", bound=str)

TP, CP, PP, EP = (
    f"parallelism.{name}_parallel_degree" for name in ("tensor", "context", "pipeline", "expert")
)
REPLICAS, SHARDS = (f"parallelism.data_parallel_{kind}_degree" for kind in ("replicate", "shard"))
PIECE, SCHEDULE, EACH, LESS_FIRST, LESS_LAST = (
    f"parallelism.pipeline_parallel_{name}"
    for name in (
        "microbatch_size", "schedule", "layers_per_stage",
        "first_stage_less_layers", "last_stage_less_layers",
    )
)  # fmt: skip
MODULES, SCHEDULE_FILE = "parallelism.module_fqns_per_model_part", f"{SCHEDULE}_csv"
SEQUENCE_PARALLEL, RESHARD = "parallelism.enable_sequence_parallel", "parallelism.fsdp_reshard_after_forward"
SEQUENCE, BATCH, LOCAL = (f"training.{name}" for name in ("seq_len", "global_batch_size", "local_batch_size"))
GRAPHS = "training.disable_cuda_graphs"
CHECKPOINT = "activation_checkpoint"
CHECKPOINTING: dict[Recompute, str] = {
    "none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()",
}  # fmt: skip
CHECKPOINTS: Mapping[str, Recompute] = {
    **{theirs: ours for ours, theirs in CHECKPOINTING.items()},
    **{ours: ours for ours in CHECKPOINTING},
}
SCHEDULES = {
    "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "gpipe": "GPipe", "zbv": "ZBVZeroBubble",
    "interleaved-zb": "InterleavedZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
"""torchtitan's names of our schedules (`torch.distributed.pipelining.schedules.get_schedule_class`)."""
BY_FILE, CSV = "PipelineScheduleMulti", "schedule.csv"
"""torchtitan's name for a schedule read from a CSV file, and the name of the file that we write."""
OURS = {name: ours for ours, name in SCHEDULES.items()} | {BY_FILE: "zb-h1"}


@dataclass(frozen=True)
class FieldSettings:
    """Settings for one field of a recipe or its layout, with functions that write and read the settings."""

    field: str
    usual: Said
    """Settings that determine the field, with torchtitan's default values."""
    write: Callable[[Recipe], KeyValues]
    """Function that returns the settings of a recipe."""
    read: Callable[[Said], object] | None = None
    """Function that reads the layout field from settings; None if it depends on other fields."""


def whole(said: Said, name: str) -> int:
    """Read a setting as an integer >= 1; PhazeError for any other value."""
    text = str(said[name])
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:19]) < 10**18):
        raise PhazeError(f"{name}: must be a whole number >= 1, got {short(said[name])}")
    return int(text)


def word(said: Said, name: str, words: Mapping[str, Word]) -> Word:
    """Translate a setting's value to our name; PhazeError for any other value."""
    value = str(said[name])
    if value not in words:
        raise PhazeError(f"{name}: must be one of {', '.join(words)}, got {short(value)}")
    return words[value]


def modules(blocks: Sequence[int]) -> list[list[str]]:
    """Module names of every virtual stage, from the embedding to the final norm and head."""
    ends = np.cumsum([0, *blocks]).tolist()
    names = [[f"layers.{i}" for i in range(*ends[q : q + 2])] for q in range(len(blocks))]
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return names


def _width(field: str, name: str) -> FieldSettings:
    """Table entry for the setting of a parallel width."""

    def write(recipe: Recipe) -> KeyValues:
        yield name, getattr(recipe.layout, field)

    return FieldSettings(field, {name: 1}, write, lambda said: whole(said, name))


def _local(recipe: Recipe) -> KeyValues:
    """Yield the local batch: samples per replica and step, or per microbatch if there is no pipeline."""
    count = recipe.layout.microbatches(recipe.global_batch) if recipe.layout.pp > 1 else 1
    yield LOCAL, recipe.layout.microbatch * count


def _replicas(recipe: Recipe) -> KeyValues:
    zero, dp, copies = recipe.layout.zero, recipe.layout.dp, recipe.layout.replicate
    yield REPLICAS, copies if zero else dp
    yield SHARDS, dp // copies if zero else 1
    yield RESHARD, "always" if zero == 3 else "never"


def _stages(recipe: Recipe) -> Iterator[tuple[str, Plain]]:
    """Yield the pipeline settings: microbatch size, schedule, and modules per stage."""
    layout, named = recipe.layout, recipe.schedule in SCHEDULES
    if layout.pp > 1 or layout.ep > 1:
        # `Trainer` has no CUDA graphs in a pipeline, nor if the host counts the tokens of experts.
        yield GRAPHS, True
    if layout.pp > 1:
        yield PIECE, layout.microbatch
        yield SCHEDULE, SCHEDULES.get(recipe.schedule, BY_FILE)
        yield MODULES, cast(Plain, modules(recipe.blocks))
        yield from [] if named else [(SCHEDULE_FILE, CSV)]


def _compute(said: Said) -> Compute:
    """Operand format of the GEMMs with block weights, read from settings; PhazeError if it is unknown."""
    unknown = next((name for name in said if name.endswith("Converter") and name not in CONVERTERS), None)
    if unknown is not None:
        raise PhazeError(f"{unknown}: is not modelled; known are {', '.join(sorted(CONVERTERS))}")
    return next((ours for ours, words in LINEAR.items() if words.keys() & said.keys()), "bf16")


FIELDS = (
    FieldSettings("sequence", {SEQUENCE: 2048}, lambda recipe: [(SEQUENCE, recipe.sequence)]),
    FieldSettings("global_batch", {BATCH: -1}, lambda recipe: [(BATCH, recipe.global_batch)]),
    FieldSettings("microbatch", {LOCAL: 8}, _local),
    FieldSettings("zero", {REPLICAS: 1, SHARDS: -1, RESHARD: "default"}, _replicas),
    _width("tp", TP),
    _width("cp", CP),
    _width("pp", PP),
    _width("ep", EP),
    FieldSettings(
        "sequence_parallel", {SEQUENCE_PARALLEL: True},
        lambda recipe: [(SEQUENCE_PARALLEL, recipe.layout.sequence_parallel)],
        lambda said: said[SEQUENCE_PARALLEL] in (True, "True", "true") and whole(said, TP) > 1,
    ),
    FieldSettings(
        "stages", {PIECE: 1, SCHEDULE: "1F1B", MODULES: None, EACH: None, LESS_FIRST: 1, LESS_LAST: 1},
        _stages,
    ),
    FieldSettings(
        "recompute", {CHECKPOINT: "selective"}, lambda _: (),
        lambda said: word(said, CHECKPOINT, CHECKPOINTS),
    ),
    FieldSettings("compute", {}, lambda _: (), _compute),
)  # fmt: skip
"""Settings of the batch and the layout, in the order in which they are written.

Recompute and the compute format are objects in torchtitan, which `torchtitan_config` writes.
"""


def written(recipe: Recipe) -> Iterator[tuple[str, Plain]]:
    """Yield the batch and layout settings of a recipe."""
    for one in FIELDS:
        yield from one.write(recipe)


def read_fields(said: Said) -> dict[str, object]:
    """Read the layout fields, except vp, dp, etp, microbatch and zero, which depend on other fields."""
    return {one.field: one.read(said) for one in FIELDS if one.read is not None}
