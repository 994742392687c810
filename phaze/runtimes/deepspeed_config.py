"""Write a recipe as DeepSpeed's JSON configuration, and read a recipe from such a file.

The file has the batch, ZeRO, precision, gradients and the optimizer. The training script assigns
tensor-parallel shards, sequences, experts and blocks to ranks and passes them to `deepspeed.initialize`
(`mpu`, `PipelineModule`, `MoE`): what it sets is written as advice, and read as options. Sources are
`docs/_pages/config-json.md` and `runtime/config.py`.

One table of `FieldSettings` serves to write and to read both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.layout import NATURAL, Layout, Load, cp_kind_of, load_of, recompute_of
from phaze.runtimes.deepspeed import DEEPSPEED
from phaze.runtimes.flags import Emitted, usual_load
from phaze.runtimes.megatron_software import Software
from phaze.runtimes.recipe import Recipe, counts_of, shown
from phaze.runtimes.settings import (
    FieldSettings,
    KeyValues,
    Settings,
    choice,
    integer,
    read_fields,
    settings_of,
    settings_of_sections,
    write_fields,
)
from phaze.runtimes.untimed import unsettable_fields
from phaze.spec.model import Model
from phaze.spec.plain import Plain, parse_json
from phaze.spec.system import Stack

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
STAGE, OVERLAP = "zero_optimization.stage", "zero_optimization.overlap_comm"
HALF, MIXED = "bf16.enabled", ("bf16.enabled", "fp16.enabled")
GRADIENTS, INTERVAL = "data_types.grad_accum_dtype", "pipeline.activation_checkpoint_interval"
AUTO = "auto"
"""Value of settings that the Trainer of Hugging Face fills in from its own arguments."""
BOTH = {
    "global_batch": TRAIN, "microbatch": MICRO, "zero": STAGE, "tp": "tensor_parallel.autotp_size",
    "cp": "sequence_parallel_size",
}  # fmt: skip
"""Options that a setting of the file has as well."""
BYTES = {AUTO: 2, "bf16": 2, "bfp16": 2, "fp16": 2, "fp32": 4}
"""Bytes per accumulated gradient with ZeRO, by the file's setting; without it those of a weight."""

PRECISIONS = {name: name for name in ("mixed", "single")}


def _by_script(field: str) -> FieldSettings:
    """Table entry for a layout field that the training script sets."""
    usual = getattr(Layout(), field)

    def write(recipe: Recipe) -> KeyValues:
        value = getattr(recipe.layout, field)
        return [(field, value)] * (value != usual)

    def read(settings: Settings) -> object:
        if isinstance(usual, bool):
            return bool(choice(settings, field, {"1": "1", "0": "", "True": "1", "False": ""}))
        return integer(settings, field)

    return FieldSettings(field, {field: usual}, write, read)


def _recompute(recipe: Recipe) -> Iterator[tuple[str, Plain]]:
    """Yield the recompute option, and the number of blocks unless all are recomputed."""
    # The interval is a setting of `PipelineModule`; without a pipeline the script recomputes blocks.
    every = any(recipe.recomputed) and recipe.recomputed == recipe.blocks
    if every and recipe.layout.pp > 1:
        yield INTERVAL, 1
    elif recipe.layout.recompute != "none":
        yield "recompute", recipe.layout.recompute
    if recipe.layout.recompute == "full" and not every:
        yield "recomputed", shown(recipe.recomputed)


FIELDS = (
    FieldSettings("global_batch", {TRAIN: None}, lambda recipe: [(TRAIN, recipe.global_batch)]),
    FieldSettings(
        "microbatch", {MICRO: None, STEPS: None},
        lambda recipe: [
            (MICRO, recipe.layout.microbatch), (STEPS, recipe.layout.microbatches(recipe.global_batch)),
        ],
    ),
    FieldSettings(
        "precision", {**dict.fromkeys(MIXED, False), "precision": "single"}, lambda _: [(HALF, True)],
        lambda values: "mixed" if True in map(values.get, MIXED) else choice(values, "precision", PRECISIONS),
    ),
    FieldSettings(
        "zero", {STAGE: 0}, lambda recipe: [(STAGE, recipe.layout.zero)],
        lambda values: choice(values, STAGE, {str(zero): zero for zero in DEEPSPEED.zeros}),
    ),
    FieldSettings("sequence", {"sequence": None}, lambda recipe: [("sequence", recipe.sequence)]),
    *map(_by_script, ("tp", "cp", "ep", "etp", "pp", "sequence_parallel")),
    FieldSettings(
        "cp_kind", {"cp_kind": "a2a"},
        lambda recipe: [("cp_kind", recipe.layout.cp_kind)] * (recipe.layout.cp > 1),
        lambda values: cp_kind_of(str(values["cp_kind"])) if integer(values, "cp") > 1 else Layout().cp_kind,
    ),
    FieldSettings(
        "blocks", {"blocks": None}, lambda recipe: [("blocks", shown(recipe.blocks))] * (recipe.layout.pp > 1)
    ),
    FieldSettings(
        "load", {"load": None},
        lambda recipe: [("load", recipe.layout.load)] * (recipe.layout.load != usual_load(recipe.model)),
    ),
    FieldSettings("recompute", {"recompute": "none", "recomputed": None, INTERVAL: 0}, _recompute),
)  # fmt: skip
"""Settings of the batch and the layout, in the order in which they are written."""
DEFAULTS: Settings = {name: usual for field in FIELDS for name, usual in field.usual.items()}
IN_FILE = {*BOTH.values(), STEPS, *MIXED, INTERVAL}
OPTIONS = (*(name for name in DEFAULTS if name not in IN_FILE), "global_batch", "microbatch", "zero")
"""Names of what the training script sets, as an option has them."""
READ = {*IN_FILE, GRADIENTS, OVERLAP}
"""Settings of a file that reading a recipe handles; `tables/deepspeed.yaml` lists the others."""


def emit_deepspeed(recipe: Recipe, stack: Stack) -> Emitted:
    """Write the DeepSpeed configuration of a recipe on a stack; PhazeError if DeepSpeed cannot run it.

    The result lists the settings that the script must make, and the differences from the plan.
    """
    recipe.check(DEEPSPEED)
    bytes_each = _gradient_bytes(recipe.layout, "fp32" if stack.gradient_bytes == 4 else "bf16")
    # Plans have no learning rate, and 0.001 is the default of AdamW.
    differences = ["optimizer: a rate of 0.001 unless its params say another"]
    if bytes_each != stack.gradient_bytes:
        differences.append(f"bytes of a gradient: {bytes_each} instead of {stack.gradient_bytes}")
    pairs = list(write_fields(FIELDS, recipe))
    in_file = [*((name, value) for name, value in pairs if name not in OPTIONS), *_settings(recipe, stack)]
    by_script = (f"{name} {shown(value)}" for name, value in pairs if name in OPTIONS)
    text = json.dumps(_nested(in_file), indent=2) + "\n"
    user_settings = (f"model {recipe.model.name}", *unsettable_fields(recipe.model), *by_script)
    files = {"deepspeed.json": text}
    return Emitted(f"DeepSpeed {DEEPSPEED.version}", files, tuple(differences), user_settings)


def _gradient_bytes(layout: Layout, accumulated: str) -> int:
    """Bytes per accumulated gradient.

    Without ZeRO they are the bytes of a weight (`_do_optimizer_sanity_check`), or four in a pipeline
    (`BF16_Optimizer`).
    """
    if layout.zero:
        return max(BYTES[accumulated], layout.bytes_per_element)
    return 4 if layout.pp > 1 else layout.bytes_per_element


def _settings(recipe: Recipe, stack: Stack) -> Iterator[tuple[str, Plain]]:
    """Yield settings of the software, and those that DeepSpeed needs."""
    accumulated = "fp32" if stack.gradient_bytes == 4 else "bf16"
    yield GRADIENTS, accumulated if recipe.layout.zero else "bf16"
    yield "communication_data_type", accumulated
    yield "gradient_clipping", 1.0
    yield from (("optimizer.type", "AdamW"), ("optimizer.params", {}))
    yield OVERLAP, "dp" in stack.overlap
    yield from (("zero_optimization.reduce_scatter", True), ("zero_optimization.contiguous_gradients", True))
    if any(recipe.recomputed) and recipe.recomputed == recipe.blocks:
        yield "activation_checkpointing.partition_activations", False
        yield "activation_checkpointing.cpu_checkpointing", False


def _nested(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    """Sections with the settings whose names have a dot."""
    nested: dict[str, Plain] = {}
    for name, value in pairs:
        section, dot, key = name.partition(".")
        if dot:
            cast(dict[str, Plain], nested.setdefault(section, {}))[key] = value
        else:
            nested[name] = value
    return nested


def read_deepspeed(
    text: str, model: Model, devices: int, options: Settings, routed: Load = NATURAL
) -> tuple[Recipe, tuple[str, ...]]:
    """Recipe of a run on `devices` devices, and its harmless settings; `options` are set by the script.

    `routed` is the expert load if the script sets none.
    Raises PhazeError for a value that is invalid or not priced, and for a layout that DeepSpeed cannot run.
    """
    file_settings, other = _read_settings(text), settings_of("deepspeed")
    settings = {**DEFAULTS, **_with_options(file_settings, options)}
    load = usual_load(model, routed) if settings["load"] is None else load_of(str(settings["load"]))
    replica = Layout(**read_fields(FIELDS, settings), load=load)
    if devices % replica.devices:
        raise PhazeError(f"devices: must be a multiple of tp * cp * pp {replica.devices}, got {devices}")
    microbatch, batch = _batch(settings, devices // replica.devices)
    blocks = _blocks(settings, model, replica.pp)
    recompute, recomputed = _recomputed(settings, blocks, replica.pp)
    layout = replace(replica, dp=devices // replica.devices, microbatch=microbatch, recompute=recompute)
    sequence = model.usual_sequence if settings["sequence"] is None else integer(settings, "sequence")
    recipe = Recipe(model, sequence, batch, layout, "1f1b", blocks, recomputed)
    recipe.check(DEEPSPEED)
    return recipe, tuple(name for name in file_settings if other.subject(name) is not None)


def deepspeed_software(text: str, recipe: Recipe, stack: Stack) -> Software:
    """Training software set by a file's settings; those that are not modelled are named."""
    settings = {OVERLAP: AUTO, GRADIENTS: AUTO, **_read_settings(text)}
    # overlap_comm is true by default with ZeRO 3 alone.
    overlaps = recipe.layout.zero == 3 if settings[OVERLAP] == AUTO else settings[OVERLAP] is True
    kinds = [kind for kind in stack.overlap if kind != "dp"]
    accumulated = choice(settings, GRADIENTS, {name: name for name in BYTES})
    update = {
        "overlap": (*["dp"] * overlaps, *kinds),
        "gradient_bytes": _gradient_bytes(recipe.layout, accumulated),
    }
    unmodelled = tuple(settings_of("deepspeed").named(settings))
    return Software(stack.model_copy(update=update), unmodelled=unmodelled)


def _read_settings(text: str) -> dict[str, object]:
    """Settings of a file by name, without those that are left to another program; PhazeError if unknown."""
    other = settings_of("deepspeed")
    settings = other.present(settings_of_sections(parse_json(text, "settings")))
    whole_sections = {name.partition(".")[0] for name in (*READ, *other.names) if "." in name}
    wrong = next((name for name in settings if name in whole_sections), None)
    if wrong is not None:
        raise PhazeError(f"{wrong}: must be a section with settings, got {short(settings[wrong])}")
    other.check(settings, READ, READ)
    return settings


def _with_options(settings: Settings, options: Settings) -> dict[str, object]:
    """Settings of file and script; PhazeError if they differ, or if neither sets a required one."""
    known_settings = {name: value for name, value in settings.items() if value != AUTO}
    keys = {**{name: (key,) for name, key in BOTH.items()}, "precision": MIXED}
    for name, value in options.items():
        file_key = next((key for key in keys.get(name, ()) if key in known_settings), None)
        if file_key is not None and str(known_settings[file_key]) != str(value):
            raise PhazeError(
                f"--layout: {name} is set by the file, {file_key} {short(known_settings[file_key])}, got "
                f"{value}"
            )
    for name in ("zero", "precision"):
        auto_key = next((key for key in keys[name] if settings.get(key) == AUTO), None)
        if auto_key is not None and name not in options:
            raise PhazeError(
                f"{auto_key}: is set by the training script, got {AUTO}", f"pass it as --layout {name}=…"
            )
    in_file = {name: known_settings[key] for name, key in BOTH.items() if known_settings.get(key)}
    as_in_file = {BOTH[name]: value for name, value in options.items() if name in BOTH}
    return {**in_file, **known_settings, **options, **as_in_file}


def _batch(settings: Settings, dp: int) -> tuple[int, int]:
    """Samples of a microbatch and of a step; DeepSpeed derives missing ones from the others."""
    total, microbatch, steps = (
        None if settings[name] is None else integer(settings, name) for name in (TRAIN, MICRO, STEPS)
    )
    if total is None and microbatch is None:
        raise PhazeError(
            f"{TRAIN}: must be given, or {MICRO}, as a number",
            "pass what the training script sets, such as --layout microbatch=1,global_batch=256",
        )
    # DeepSpeed derives what is missing from the other two (`_set_batch_related_parameters`).
    samples = microbatch or max(1, (total or 0) // (dp * (steps or 1)))
    step = total or samples * dp * (steps or 1)
    if step % (samples * dp) or (steps and step != samples * dp * steps):
        product = f"{MICRO} {samples} * {STEPS}{f' {steps}' if steps else ''} * {dp} replicas"
        raise PhazeError(
            f"{TRAIN}: must be {product}, got {step}",
            "widths that the file does not hold are 1: pass them, such as --layout pp=2,cp=2",
        )
    return samples, step


def _blocks(settings: Settings, model: Model, pp: int) -> tuple[int, ...]:
    """Blocks per stage, from the script or else equal; layers of multi-token prediction are on the last."""
    if settings["blocks"] is not None:
        return counts_of("blocks", str(settings["blocks"]))
    if model.layers % pp:
        raise PhazeError(
            f"blocks: must be given where pp {pp} does not divide the {model.layers} layers",
            "pass them per stage, such as --layout 'blocks=8 9*2 6'",
        )
    return (*(model.layers // pp,) * (pp - 1), model.layers // pp + model.mtp)


def _recomputed(settings: Settings, blocks: tuple[int, ...], pp: int) -> tuple[str, tuple[int, ...]]:
    """Recompute option, and fully recomputed blocks per stage."""
    every = pp > 1 and str(settings[INTERVAL]) != "0"
    recompute = recompute_of("full" if every else str(settings["recompute"]))
    if settings["recomputed"] is not None:
        return recompute, counts_of("recomputed", str(settings["recomputed"]))
    return recompute, blocks if recompute == "full" else (0,) * len(blocks)
