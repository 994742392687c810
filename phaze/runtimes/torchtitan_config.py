"""Write a recipe as changes to a torchtitan configuration, and read a recipe from changes or flags.

torchtitan takes the model from its own registry. The changes set the batch, the layout, the compute format
and the pipeline split. A schedule without a torchtitan name is a CSV file with one row per rank; a cell such
as 2F0 has the stage, the pass and the microbatch.

Settings that are missing when a run is read have torchtitan's defaults (`config/configs.py`, version 0.3.0),
except for the model, which the caller gives. Without a list of modules, a pipeline has the split that
torchtitan generates.

One table of `FieldSettings` serves to write and to read batch and layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.layout import BALANCED, Compute, Layout, Load, Recompute, Zero
from phaze.pipeline.durations import JobKind
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import SCHEDULES as ORDERS
from phaze.pipeline.stages import StageCost
from phaze.runtimes.flags import Emitted, comments, load_comment, read_load
from phaze.runtimes.megatron_software import Software
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.settings import (
    FieldSettings,
    KeyValues,
    Settings,
    choice,
    integer,
    read_fields,
    settings_of,
    write_fields,
)
from phaze.runtimes.shared_rules import expert_widths
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_files import settings_in
from phaze.runtimes.untimed import unsettable_fields
from phaze.spec.model import Model
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
CONVERTERS = {*(name for table in (LINEAR, GROUPED) for words in table.values() for name in words), LORA}
"""Names of all converters that a recipe can express."""
TRAINED: list[Plain] = ["wq", "wkv", "wqkv", "wq_a", "wq_b", "wkv_a", "wkv_b", "wo", "w1", "w2", "w3"]
"""Weight matrices of blocks that LoRA adapts, by the last part of their names; the head is excluded."""
TP, CP, PP, EP = (
    f"parallelism.{name}_parallel_degree" for name in ("tensor", "context", "pipeline", "expert")
)
REPLICAS, SHARDS = (f"parallelism.data_parallel_{kind}_degree" for kind in ("replicate", "shard"))
MICROBATCH, SCHEDULE, STAGE_LAYERS, FEWER_FIRST, FEWER_LAST = (
    f"parallelism.pipeline_parallel_{name}"
    for name in (
        "microbatch_size", "schedule", "layers_per_stage",
        "first_stage_less_layers", "last_stage_less_layers",
    )
)  # fmt: skip
MODULES, SCHEDULE_FILE = "parallelism.module_fqns_per_model_part", f"{SCHEDULE}_csv"
SEQUENCE_PARALLEL, RESHARD = "parallelism.enable_sequence_parallel", "parallelism.fsdp_reshard_after_forward"
SEQUENCE, BATCH, LOCAL = (f"training.{name}" for name in ("seq_len", "global_batch_size", "local_batch_size"))
TOKENS, STEP_TOKENS, CONTEXT = (
    f"training.{name}"
    for name in ("num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step", "max_context_length")
)
MICROBATCHES = "parallelism.num_pp_microbatches"
ROUTED: Load = "max_vio_0.04"
"""Expert load of a run: torchtitan balances experts by biases, as its stacks say."""
IN_TOKENS: Settings = {TOKENS: 16384, STEP_TOKENS: -1, CONTEXT: 2048, MICROBATCHES: 1}
"""Settings of the batch since August 2026, in tokens, with torchtitan's defaults."""
EXPERT_TP, FORCED = "parallelism.expert_tensor_parallel_degree", "debug.moe_force_load_balance"
LOSS, CHUNKS = "loss", "loss.num_chunks"
CHUNKED, USUAL_CHUNKS = "ChunkedLossWrapper.Config()", 8
"""Loss that computes logits in chunks, each with its backward pass, and its default number of chunks."""
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
COMPONENTS = "compile.components"
FLOAT8_RECIPE = "Float8LinearConverter.recipe_name"
LETTERS = {
    JobKind.FORWARD: "F", JobKind.BACKWARD: "B", JobKind.INPUT_GRADIENT: "I", JobKind.WEIGHT_GRADIENT: "W",
}  # fmt: skip
"""Letters that stand for passes: forward, backward, input gradient and weight gradient."""
SCALES: dict[Compute, tuple[str, ...]] = {"fp8-cs": ("scales of float8: of rows instead of whole tensors",)}
"""Differences between `Float8LinearConverter` and the priced format."""


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


def converter_settings(converters: Converters) -> Iterator[tuple[str, Plain]]:
    """Yield a setting `True` for each converter, and its arguments as further settings."""
    for name, arguments in converters.items():
        yield name, True
        yield from ((f"{name}.{key}", value) for key, value in arguments.items())


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

    return FieldSettings(field, {name: 1}, write, lambda settings: integer(settings, name))


def _local(recipe: Recipe) -> KeyValues:
    """Yield the local batch: samples per replica and step, or per microbatch if there is no pipeline."""
    # A pipeline splits the local batch into microbatches; else gradients accumulate over local batches.
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
        yield MICROBATCH, layout.microbatch
        yield SCHEDULE, SCHEDULES.get(recipe.schedule, BY_FILE)
        yield MODULES, cast(Plain, modules(recipe.blocks))
        yield from [] if named else [(SCHEDULE_FILE, CSV)]


def _compute(settings: Settings) -> Compute:
    """Operand format of the GEMMs with block weights, read from settings."""
    return next((ours for ours, words in LINEAR.items() if words.keys() & settings.keys()), "bf16")


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
        lambda values: values[SEQUENCE_PARALLEL] in (True, "True", "true") and integer(values, TP) > 1,
    ),
    FieldSettings(
        "stages",
        {MICROBATCH: 1, SCHEDULE: "1F1B", MODULES: None, STAGE_LAYERS: None, FEWER_FIRST: 1, FEWER_LAST: 1},
        _stages,
    ),
    FieldSettings(
        "recompute", {CHECKPOINT: "selective"}, lambda _: (),
        lambda settings: choice(settings, CHECKPOINT, CHECKPOINTS),
    ),
    FieldSettings("compute", {}, lambda _: (), _compute),
    FieldSettings("load", {FORCED: False}, lambda _: ()),
)  # fmt: skip
"""Settings of the batch and the layout, in the order in which they are written.

Recompute and the compute format are objects in torchtitan, which `torchtitan_config` writes.
"""


DEFAULTS: Settings = {
    **{name: usual for field in FIELDS for name, usual in field.usual.items()},
    COMPILE: False,
    ASYNC_TP: False,
}
"""torchtitan's defaults for the settings that are read."""
SIZES = {*IN_TOKENS, *(name for field in FIELDS for name in field.usual)} - {CHECKPOINT}
"""Settings of the layout and the batch; all job files recompute in some way."""
CONVERTED = ("fqns", "filter_fqns", "pad_multiple", "model_compile_enabled")
READ = {
    *DEFAULTS, *IN_TOKENS, *CONVERTERS, f"{LORA}.rank", f"{LORA}.target_modules", FLOAT8_RECIPE,
    *(f"{name}.{key}" for name in CONVERTERS for key in CONVERTED),
    GRAPHS, SCHEDULE_FILE, COMPONENTS, EXPERT_TP, CHUNKS, "model_spec.model",
}  # fmt: skip
"""Settings that reading a recipe handles; `tables/torchtitan.yaml` lists the others."""


def read_torchtitan(
    text: str, model: Model, devices: int, routed: Load = ROUTED
) -> tuple[Recipe, tuple[str, ...]]:
    """Recipe of a run on `devices` devices, read from configuration or flags, and its harmless settings.

    `routed` is the expert load if neither a setting nor a comment has it.
    Raises PhazeError for a value that is invalid or not priced, and for a layout that torchtitan cannot run.
    """
    file_settings, other = _read_settings(text), settings_of("torchtitan")
    settings = {**DEFAULTS, **_in_samples(file_settings)}
    forced = BALANCED if settings[FORCED] in (True, "True", "true") else None
    replica = Layout(**read_fields(FIELDS, settings), load=read_load(text, model, forced, routed))
    copies, shards = _copies(settings, devices, replica)
    blocks = _blocks(settings, model.layers, replica.pp) if replica.pp > 1 else (model.layers + model.mtp,)
    local = integer(settings, LOCAL)
    layout = replace(
        replica,
        vp=len(blocks) // replica.pp,
        dp=copies * shards,
        microbatch=integer(settings, MICROBATCH) if replica.pp > 1 else local,
        zero=_zero(settings, shards * replica.cp, replica.pp),
        replicate=copies if shards * replica.cp > 1 else 1,
        **_expert_widths(settings, model, replica),  # type: ignore[arg-type]
    )
    # -1 is torchtitan's default: no gradient accumulation.
    batch = local * layout.dp if str(settings[BATCH]) == "-1" else integer(settings, BATCH)
    schedule = choice(settings, SCHEDULE, OURS) if layout.pp > 1 else "1f1b"
    recomputed = blocks if layout.recompute == "full" else (0,) * len(blocks)
    lora = integer(settings, f"{LORA}.rank") if LORA in settings else None
    trained = model.model_copy(update={"lora": lora})
    recipe = Recipe(trained, integer(settings, SEQUENCE), batch, layout, schedule, blocks, recomputed)
    recipe.check(TORCHTITAN)
    return recipe, tuple(name for name in file_settings if other.subject(name) is not None)


def torchtitan_software(text: str, recipe: Recipe, stack: Stack) -> Software:
    """Training software set by a file's settings; those that are not modelled are named."""
    settings = _read_settings(text)
    chunks = integer({CHUNKS: USUAL_CHUNKS, **settings}, CHUNKS) if settings.get(LOSS) == CHUNKED else 1
    # Only the logits of one chunk exist at a time; the peak of the price keeps those in half precision.
    chunked = stack.model_copy(update={"logit_bytes": stack.logit_bytes / chunks})
    differences = torchtitan_differences(text, recipe, stack)
    unlike = (f"stack {stack.name} is priced {difference}" for difference in differences)
    return Software(chunked, unmodelled=(*settings_of("torchtitan").named(settings), *unlike))


def torchtitan_differences(text: str, recipe: Recipe, stack: Stack) -> tuple[str, ...]:
    """Differences between the file's settings and the priced software stack and compute format."""
    settings = {**DEFAULTS, **_read_settings(text)}
    priced = dict([*software(recipe, stack), *converter_settings(converters(recipe))])
    different = {name: value for name, value in priced.items() if str(settings.get(name)) != str(value)}
    # torchtitan's float8 scales rows unless its recipe is tensorwise; the priced format scales tensors.
    by_rows = recipe.layout.compute == "fp8-cs" and settings.get(FLOAT8_RECIPE, "rowwise") != "tensorwise"
    return (
        *(f"with {name} {value}, not {short(settings.get(name))}" for name, value in different.items()),
        *["with float8 scaled by whole tensors, not by rows"] * by_rows,
    )


def _read_settings(text: str) -> dict[str, object]:
    """Settings of a text under their present names; PhazeError if one is unknown, or none is of a layout."""
    settings, other = settings_of("torchtitan").present(settings_in(text)), settings_of("torchtitan")
    unknown = next((name for name in settings if name.endswith("Converter") and name not in CONVERTERS), None)
    if unknown is not None:
        raise PhazeError(f"{unknown}: is not modelled; known are {', '.join(sorted(CONVERTERS))}")
    other.check(settings, READ, SIZES)
    # torch.compile may be limited to components, such as the loss.
    if "model" not in str(settings.get(COMPONENTS, "model")):
        settings[COMPILE] = False
    return settings


def _in_samples(file_settings: Settings) -> Settings:
    """Settings with the batch in samples: local, per microbatch and per step."""
    if not file_settings.keys() & IN_TOKENS.keys():
        return file_settings
    settings = {**IN_TOKENS, PP: 1, **file_settings}
    for name in (SEQUENCE, BATCH, LOCAL, MICROBATCH):
        if name in settings:
            value = short(settings[name])
            raise PhazeError(f"{name}: must be left out with {CONTEXT} and {TOKENS}, got {value}")
    sequence, stages = integer(settings, CONTEXT), integer(settings, PP)
    names = [TOKENS, *[STEP_TOKENS] * (str(settings[STEP_TOKENS]) != "-1")]
    tokens = {name: integer(settings, name) for name in names}
    for name, number in tokens.items():
        if number % sequence:
            raise PhazeError(f"{name}: must be a multiple of {CONTEXT} {sequence}, got {number}")
    piece = tokens[TOKENS] // sequence
    step = tokens[STEP_TOKENS] // sequence if STEP_TOKENS in tokens else -1
    local = piece * (integer(settings, MICROBATCHES) if stages > 1 else 1)
    return {**file_settings, SEQUENCE: sequence, MICROBATCH: piece, LOCAL: local, BATCH: step}


def _expert_widths(settings: Settings, model: Model, replica: Layout) -> dict[str, int]:
    """Widths ep and etp: the width that a file gives experts with ep >= 2, or else torchtitan's."""
    widths = expert_widths(model, replica.tp, replica.ep, whole_experts=True)
    if EXPERT_TP in settings and widths["ep"] > 1:
        widths["etp"] = integer(settings, EXPERT_TP)
    return widths


def _copies(settings: Settings, devices: int, replica: Layout) -> tuple[int, int]:
    """Number of replicas, each of all FSDP shards, and of shards (without the factor cp)."""
    copies, derived = integer(settings, REPLICAS), str(settings[SHARDS]) == "-1"
    shards = 1 if derived else integer(settings, SHARDS)
    product = replica.devices * copies * shards
    if devices % product if derived else devices != product:
        which = "a multiple of " * derived
        raise PhazeError(f"devices: must be {which}{product}, the product of degrees, got {devices}")
    return copies, devices // product if derived else shards


def _zero(settings: Settings, shards: int, pp: int) -> Zero:
    """ZeRO stage: 0 without shards, 2 if gathered weights are kept after the forward pass, else 3."""
    policy = choice(settings, RESHARD, {word: word for word in ("default", "always", "never")})
    if shards == 1:
        return 0
    return 3 if policy == "always" or (policy == "default" and pp == 1) else 2


def _blocks(settings: Settings, layers: int, pp: int) -> tuple[int, ...]:
    """Blocks per virtual stage, from the file's list of modules or else by torchtitan's default split."""
    parts = settings[MODULES]
    if parts is None:
        ends = integer(settings, FEWER_FIRST), integer(settings, FEWER_LAST)
        stages = pp * ORDERS[choice(settings, SCHEDULE, OURS)].chunks[0]
        if str(settings[STAGE_LAYERS]) != "None":
            stages = -(-(layers + sum(ends)) // integer(settings, STAGE_LAYERS))
        if stages % pp:
            raise PhazeError(f"{STAGE_LAYERS}: must give a multiple of pp {pp} stages, got {stages}")
        return default_split(layers, stages, ends)
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts) or len(parts) % pp:
        raise PhazeError(f"{MODULES}: must be lists of modules, a multiple of pp {pp}, got {short(parts)}")
    stage_blocks = [[name for name in part if str(name).startswith("layers.")] for part in parts]
    if [name for part in stage_blocks for name in part] != [f"layers.{i}" for i in range(layers)]:
        raise PhazeError(
            f"{MODULES}: must contain layers.0 to layers.{layers - 1} in order, got {short(parts)}"
        )
    return tuple(map(len, stage_blocks))


def default_split(layers: int, stages: int, ends: tuple[int, int] = (1, 1)) -> tuple[int, ...]:
    """Blocks per stage in torchtitan's even default split; embedding and head count as `ends` blocks.

    Raises PhazeError if a stage would have fewer blocks than its end counts
    (`_generate_llm_fqn_per_model_part`).
    """
    # Ends count as layers, so that their stages have fewer blocks for the embedding and the head.
    per_stage, extra = divmod(layers + sum(ends), stages)
    if per_stage < max(ends):
        raise PhazeError(f"stages: must be at most {(layers + sum(ends)) // max(ends)}, got {stages}")
    blocks = [per_stage + (q < extra) for q in range(stages)]
    blocks[0] -= ends[0]
    blocks[-1] -= ends[1]
    return tuple(blocks)


def emit_torchtitan(recipe: Recipe, stack: Stack | None = None) -> Emitted:
    """Write a recipe and a software stack as changes to a torchtitan configuration.

    Raises PhazeError for a recipe that torchtitan cannot run. The result lists every difference from the
    plan.
    """
    recipe.check(TORCHTITAN)
    routed = (ROUTED, stack.load.expected if stack else ROUTED)
    lines = [*load_comment(recipe.layout, recipe.model, *routed), *_lines(recipe, stack or Stack())]
    text = "\n".join(lines)
    model = recipe.model.model_copy(update={"lora": None})
    # The changes are read back: this finds whatever they cannot express, without a list of cases.
    reread = read_torchtitan(text, model, recipe.layout.devices)[0]
    differences = (*recipe.differences(reread), *SCALES.get(recipe.layout.compute, ()))
    further = f" (num_mtp_layers={model.mtp})" if model.mtp else ""
    user_settings = (f"model {model.name}{further}", *unsettable_fields(model))
    title = f"torchtitan {TORCHTITAN.version}, {model.name}{further} on {recipe.layout.devices} devices"
    header = comments(title, differences=differences, user_settings=user_settings)
    files = {"plan.py": "\n".join([*header, text])}
    if recipe.schedule not in SCHEDULES:
        files[CSV] = schedule_csv(recipe)
    return Emitted(f"torchtitan {TORCHTITAN.version}", files, differences, user_settings)


def _lines(recipe: Recipe, stack: Stack) -> Iterator[str]:
    """Yield the lines of a Python file that defines the function `planned`."""
    settings = dict([*write_fields(FIELDS, recipe), *software(recipe, stack)])
    kinds = converters(recipe)
    yield "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC"
    for module in ("quantization", "lora"):
        names = [name for name in kinds if name.startswith("LoRA") == (module == "lora")]
        if names:
            yield f"from torchtitan.components.{module} import {', '.join(names)}"
    yield from ("", "", "def planned(config):")
    yield '    """A configuration of config_registry, its model without converters, trained as planned."""'
    yield from (f"    config.{name} = {value!r}" for name, value in settings.items())
    yield f"    config.{CHECKPOINT} = {CHECKPOINTING[recipe.layout.recompute]}"
    for name, arguments in kinds.items():
        compiled = {} if name.startswith("LoRA") else {"model_compile_enabled": bool(stack.compiled)}
        call = ", ".join(f"{key}={value!r}" for key, value in {**arguments, **compiled}.items())
        yield f"    converter = {name}.Config({call}).build()"
        yield "    config.model_spec.model = converter.convert(config.model_spec.model)"
    yield from ("    return config", "")


def schedule_csv(recipe: Recipe) -> str:
    """CSV text with the passes of every rank in execution order, one line per rank."""
    layout, count = recipe.layout, recipe.layout.microbatches(recipe.global_batch)
    stages, schedule = (StageCost(0.0),) * layout.stages, ORDERS[recipe.schedule]
    pipeline = Pipeline(stages, count, schedule.name, chunks=layout.vp, data=(1,) * layout.pp)
    rows = []
    for rank in range(layout.pp):
        kinds, stage, microbatch = (
            column.tolist() for column in schedule.order(pipeline, rank, np.arange(count))
        )
        cells = zip(stage, kinds, microbatch, strict=True)
        rows.append(",".join(f"{q}{LETTERS[JobKind(kind)]}{m}" for q, kind, m in cells))
    return "\n".join(rows) + "\n"
