"""Write a recipe as Megatron-LM flags (`pretrain_gpt.py`), and read such flags as a recipe.

Without a flag, Megatron-LM's default holds. Flags that affect the price are read. `tables/megatron.yaml`
lists all others: those that change what is trained raise an error, those that change neither time nor memory
are returned.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.layout import NATURAL, Layout, Load
from phaze.pipeline.schedules.interleaved import is_group
from phaze.runtimes.flags import (
    Emitted,
    Flags,
    comments,
    load_comment,
    one_value,
    parse_flags,
    print_flags,
    read_load,
    refuse_unexpanded,
    whole_number,
)
from phaze.runtimes.layout_string import blocks_of
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_layout import (
    BATCH,
    FIELDS,
    LAYOUT,
    OF_BATCH,
    OF_LAYOUT,
    PP,
    SEQUENCE,
    VIRTUAL,
    forced_load,
    read_fields,
    recomputed,
    written,
)
from phaze.runtimes.megatron_model import (
    BIASES,
    FILES,
    HYBRID,
    MODEL_FLAGS,
    MODEL_NAMES,
    is_hybrid,
    model_flags,
    read_model,
)
from phaze.runtimes.megatron_software import (
    GROUP,
    IMPLEMENTATION,
    PAIRED,
    SLICES,
    SOFTWARE,
    Software,
    read_software,
    software_flags,
)
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import (
    CONNECTIONS_NAME,
    connections_for,
    refused_connections,
    refused_overlap,
)
from phaze.runtimes.settings import OtherSettings, settings_of
from phaze.runtimes.untimed import SCORES, UNTIMED_FLAGS, untimed_flags
from phaze.spec.model import Model
from phaze.spec.system import Stack

LOGGED = re.compile(
    r"^.*?-{3,} arguments -{3,}[^\n]*\n(.*?)(?:-{3,} end of arguments|\Z)", re.DOTALL | re.MULTILINE
)
LINE = re.compile(r"([A-Za-z_]\w*) (?:\.+|(?<=\w{48} )) ?(.*)")
"""Line of the log: dots fill a name to 48 characters."""
YAML = re.compile(r"\s*(?:#[^\n]*\n\s*|---\s*\n\s*)*(?:--)?[A-Za-z_][\w-]*:(?:\s|\Z)")
DEFAULT = re.compile(r"\$\{\w+:([^{}]*)\}")
"""Value of a variable in Primus' YAML, with its default."""
SEVERAL = re.compile(r"\[?((?<=\[)[^\[\],]+(?=\])|\d+(?: \d+)+)\]?")
"""Text of several words: in brackets without commas, or numbers."""
OPPOSITE = "not "
OFF = "--off."
"""Section of arguments that nobody knows and that are off."""
UNSET: tuple[object, ...] = (None, [], "None", "", "0")
"""Values of arguments that are not set, in the log."""
LAYERS_PER_STAGE = "--num-layers-per-virtual-pipeline-stage"
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
COUNTED = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
"""Flags that count the embedding and the loss as one layer each in the pipeline split."""
CONNECTIONS = re.compile(r"\bCUDA_DEVICE_MAX_CONNECTIONS(?:=|: *)['\"]?(\w+)")
"""Pattern of an assignment to CUDA_DEVICE_MAX_CONNECTIONS, in a command, a comment or YAML."""
READ = frozenset(
    (
        *MODEL_FLAGS, *(flag for field in FIELDS for flag in field.flags), *SOFTWARE, *COUNTED,
        *UNTIMED_FLAGS, LAYERS_PER_STAGE, FIRST, LAST, "--nnodes", "--nproc-per-node",
    )
)  # fmt: skip
"""Flags that reading a recipe handles; `tables/megatron.yaml` lists the others."""
SIZES = frozenset(flag for field in FIELDS for flag in field.flags)
"""Flags of the layout and the batch."""
NAMES: dict[str, str] = {
    **{f"model.{field}": flag for field, flag in MODEL_NAMES.items()},
    # A load that a flag forces is no plan's: it trains on random choices.
    **{field.field: field.name for field in FIELDS if field.field != "load"},
}
"""Flag that sets each recipe field."""


def emit_megatron(recipe: Recipe, stack: Stack | None = None, *, blackwell: bool = False) -> Emitted:
    """Write the Megatron-LM flags of a recipe and of a software stack.

    Raises PhazeError for a recipe that Megatron-Core cannot run. Megatron-LM has one recompute count for all
    virtual stages: the smallest that recomputes at least the recipe's blocks on each stage. The result lists
    every difference from the plan, and the settings that no flag covers.
    """
    recipe.check(MEGATRON)
    if recipe.model.lora:
        raise PhazeError("model.lora: Megatron-LM does not train LoRA adapters; emit for bridge")
    untimed, user_settings = untimed_flags(recipe.model)
    of_model = [*model_flags(recipe.model, recipe.sequence, recipe.blocks), *untimed]
    # Megatron-Core refuses biases of experts without sigmoid scores, which some configurations do not state.
    if (BIASES,) in of_model and all(flag[0] != SCORES for flag in untimed):
        of_model.append((SCORES, "sigmoid"))
    flags = [
        *of_model,
        *written(OF_BATCH, recipe),
        (IMPLEMENTATION, "transformer_engine"),
        *written(OF_LAYOUT, recipe),
        *software_flags(recipe, stack),
    ]
    routed = (NATURAL, stack.load.expected if stack else NATURAL)
    text = "\n".join([*load_comment(recipe.layout, recipe.model, *routed), print_flags(flags)])
    # Flags are read back: this finds whatever they cannot express, without a list of cases.
    differences = recipe.differences(_recipe(text, recipe.layout.devices, recipe.model.name))
    paired = (PAIRED,) in flags
    program = "pretrain_mamba.py" if is_hybrid(recipe.model) else "pretrain_gpt.py"
    connections = connections_for(recipe.layout, blackwell, paired=paired)
    torch = "Needs PyTorch 2.6 or later: overlapped token dispatch hangs with earlier versions"
    header = [
        *comments(
            f"{program}, Megatron-Core {MEGATRON.version}",
            f"{recipe.model.name} on {recipe.layout.devices} devices",
            *[f"{HYBRID[0]} with bars is of later versions"] * is_hybrid(recipe.model),
            differences=differences,
            user_settings=user_settings,
        ),
        *comments(*(f"Environment: {CONNECTIONS_NAME}={value}" for value in connections), *[torch] * paired),
    ]
    files = {"megatron.txt": "\n".join([*header, text])}
    return Emitted(f"Megatron-Core {MEGATRON.version}", files, differences, user_settings)


def read_megatron(
    text: str,
    devices: int | None = None,
    name: str = "megatron",
    words: int | None = None,
    *,
    blackwell: bool = False,
    routed: Load = NATURAL,
) -> tuple[Recipe, tuple[str, ...]]:
    """Read Megatron-LM flags as a recipe, and return the flags that are not priced.

    Megatron has no flag for the device count. Unless `devices` is given, it is torchrun's `--nnodes` ×
    `--nproc-per-node`, or else the fewest that the layout allows. `words` is the vocabulary size if no flag
    has it. `blackwell` is true for devices of this generation or later. `routed` is the expert load if
    neither a flag nor a comment has it. Raises PhazeError for a flag that is
    missing, invalid or not priced, and for a layout that Megatron-Core cannot run.
    """
    recipe, flags = _recipe(text, devices, name, words, routed), _flags(text)
    recipe.check(MEGATRON)
    _check_launch(text, flags, recipe, blackwell)
    return recipe, tuple(flag for flag in flags if settings_of("megatron").subject(flag) is not None)


def _flags(text: str) -> Flags:
    """Flags of a command, a script, a log or a YAML file, under their present names."""
    other = settings_of("megatron")
    listed = arguments_of(text, READ, other)
    return other.present(parse_flags(text) if listed is None else listed)


def _recipe(
    text: str, devices: int | None, name: str, words: int | None = None, routed: Load = NATURAL
) -> Recipe:
    """Recipe that flags describe, whether Megatron-Core can run it or not."""
    flags, other = _flags(text), settings_of("megatron")
    other.check(flags, READ, SIZES)
    refuse_unexpanded(flags, other, FILES)
    model, stages = read_model(flags, name, words)
    layout_fields: dict[str, Any] = read_fields(flags, model)
    layout_fields["load"] = read_load(text, model, forced_load(flags), routed)
    pp = layout_fields["pp"]
    blocks = _stages(stages, pp) if stages else _blocks(flags, model, pp)
    # The split must be known before recompute and vp, which are per virtual stage.
    recompute, recomputed_blocks = recomputed(flags, blocks, model.mtp)
    dp = _replicas(flags, devices, Layout(**layout_fields))
    layout = Layout(**layout_fields, vp=len(blocks) // pp, dp=dp, recompute=recompute)
    batch = whole_number(flags, BATCH, layout.microbatch * layout.dp)
    schedule = "interleaved" if layout.vp > 1 else "1f1b"
    return Recipe(model, whole_number(flags, SEQUENCE), batch, layout, schedule, blocks, recomputed_blocks)


def megatron_software(text: str, recipe: Recipe, stack: Stack, *, blackwell: bool = False) -> Software:
    """Training software set by a recipe's flags; the stack supplies settings that flags do not cover."""
    return read_software(_flags(text), recipe, stack, _connections(text), blackwell=blackwell)


def _connections(text: str) -> str:
    """Value of the last assignment to CUDA_DEVICE_MAX_CONNECTIONS, empty if there is none."""
    return next(reversed(CONNECTIONS.findall(text)), "")


def sets_devices(text: str) -> bool:
    """True if the flags specify the number of devices."""
    return "--nproc-per-node" in _flags(text)


def _check_launch(text: str, flags: Flags, recipe: Recipe, blackwell: bool) -> None:
    """Raise PhazeError for combinations of flags and environment that Megatron-LM rejects."""
    layout, count = recipe.layout, recipe.layout.microbatches(recipe.global_batch)
    problem = refused_overlap(layout, SLICES in flags)
    size = whole_number(flags, GROUP, layout.pp)
    if recipe.schedule == "interleaved" and not is_group(count, layout.pp, size):
        problem = (
            f"{GROUP} must not leave a group of fewer than pp {layout.pp} of {count} microbatches, got {size}"
        )
    connections = _connections(text)
    if problem is None and connections:
        problem = refused_connections(layout, connections, blackwell, paired=PAIRED in flags)
    if problem is not None:
        raise PhazeError(f"{MEGATRON.name}: {problem}")


def _replicas(flags: Flags, devices: int | None, layout: Layout) -> int:
    """Number of replicas; if the device count is unknown, the fewest that the expert ranks allow."""
    slices = layout.tp * layout.cp * layout.pp
    if devices is None and "--nproc-per-node" not in flags:
        return layout.fewest_replicas
    count = devices or whole_number(flags, "--nnodes", 1) * whole_number(flags, "--nproc-per-node")
    if count % slices:
        raise PhazeError(f"devices: must be a multiple of tp * cp * pp {slices}, got {count}")
    return count // slices


def _stages(stages: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """Blocks per virtual stage of a hybrid model; an equal split if the pattern contains no bars."""
    if len(stages) == 1 and pp > 1 and stages[0] % pp == 0:
        return (stages[0] // pp,) * pp
    if len(stages) % pp:
        raise PhazeError(f"hybrid layer pattern: must have a multiple of pp {pp} stages, got {len(stages)}")
    return stages


def _blocks(flags: Flags, model: Model, pp: int) -> tuple[int, ...]:
    """Blocks per virtual stage: from the layout string, else an equal split with end stages set by flags.

    Layers of multi-token prediction are on the last stage.
    """
    if LAYOUT in flags:
        blocks = blocks_of(one_value(flags, LAYOUT))
        if len(blocks) % pp:
            raise PhazeError(f"{LAYOUT}: must have a multiple of pp {pp} stages, got {len(blocks)}")
        return blocks
    ends = {rank: whole_number(flags, flag) for rank, flag in ((0, FIRST), (pp - 1, LAST)) if flag in flags}
    counted = [flag in flags for flag in COUNTED]
    # Embedding and loss are counted as layers here, and taken from the end stages again below.
    layers, ranks = model.layers + sum(counted) - sum(ends.values()), pp - len(ends)
    vp = whole_number(flags, VIRTUAL, 1)
    if LAYERS_PER_STAGE in flags:
        per_stage = whole_number(flags, LAYERS_PER_STAGE)
        # 0: the number does not split the layers, which is refused below.
        vp = layers // (ranks * per_stage) if ranks and layers % (ranks * per_stage) == 0 else 0
    if not vp or not ranks or layers % (ranks * vp) or any(count % vp for count in ends.values()):
        flag = next((flag for flag in (LAYERS_PER_STAGE, VIRTUAL, FIRST, LAST) if flag in flags), PP)
        raise PhazeError(
            f"{flag}: must split the {model.layers} layers into equal stages, got {one_value(flags, flag)}"
        )
    stage_blocks = [ends.get(rank, layers // ranks) // vp for rank in range(pp)] * vp
    stage_blocks[0] -= counted[0]
    stage_blocks[-1] += model.mtp - counted[1]
    return tuple(stage_blocks)


def arguments_of(text: str, read: Collection[str], other: OtherSettings) -> Flags | None:
    """Flags of a log or a YAML file; None if a text is neither. PhazeError for YAML of another form.

    YAML is that of Megatron-LM's own tests (`MODEL_ARGS`), that of Primus (`modules.pre_trainer.overrides`),
    or a flat mapping. The log lists every argument, also those that are not set (`_print_args`).
    """
    known_flags = {*read, *other.names}
    logged = LOGGED.search(text)
    if logged is not None:
        lines = filter(None, map(LINE.search, logged[1].splitlines()))
        values = {line[1]: _logged(line[2].strip()) for line in lines}
        listed = {name: value for name, value in values.items() if name not in other.derived.split()}
        # A log lists unset arguments too; in YAML an empty list or a 0 has been written on purpose.
        return dict(_flags_of_arguments(listed, known_flags, other, UNSET))
    return (
        dict(_flags_of_arguments(_settings(text), known_flags, other, (None,))) if YAML.match(text) else None
    )


def _logged(text: str) -> object:
    """Value that the log has printed: a list, the name of a member of an enumeration, or a text."""
    if text.startswith("["):
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
    # Members of enumerations are printed with their class, such as `AttnBackend.flash`.
    return {"True": True, "False": False}.get(text, re.sub(r"^[A-Z]\w*\.(?=\w+$)", "", text))


def _settings(text: str) -> Mapping[str, object]:
    """Names and values of a YAML file; PhazeError for sections of another program."""
    from phaze.spec.strict_yaml import load

    try:
        loaded = load(DEFAULT.sub(r"\1", text))
    except ValueError as error:
        raise PhazeError(f"flags: is not valid YAML: {error}") from error
    section: object = loaded
    if isinstance(loaded, dict) and "MODEL_ARGS" in loaded:
        section = loaded["MODEL_ARGS"]
    elif isinstance(loaded, dict) and "modules" in loaded:
        section = _overrides(loaded["modules"])
    settings = section if isinstance(section, dict) else {}
    sections = [str(key) for key, value in settings.items() if isinstance(value, dict)]
    if sections or not settings:
        others = sections or (loaded if isinstance(loaded, dict) else ["none"])
        raise PhazeError(
            f"flags: YAML must have flags with values, got {short(', '.join(map(str, others)))}",
            "pass flags of Megatron-LM in MODEL_ARGS, in modules.pre_trainer.overrides or without a section",
        )
    return {str(key): value for key, value in settings.items()}


def _overrides(modules: object) -> object:
    """Settings in a file of Primus; PhazeError if it takes further ones from other files."""
    trainer = modules.get("pre_trainer") if isinstance(modules, dict) else None
    if not isinstance(trainer, dict):
        return None
    others = [f"{name}: {trainer[name]}" for name in ("config", "model") if trainer.get(name)]
    if others:
        raise PhazeError(
            f"modules.pre_trainer: takes settings from other files, {short(', '.join(others))[1:-1]}",
            "write these settings into overrides and leave the keys out, or pass the log, which lists all",
        )
    return trainer.get("overrides")


def _flags_of_arguments(
    arguments: Mapping[str, object],
    known_flags: Collection[str],
    other: OtherSettings,
    unset: tuple[object, ...],
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the flags of parsed arguments with their values; unknown flags that are off become `OFF`."""
    for name, value in arguments.items():
        flag, is_opposite = _flag_of_argument(name, known_flags, other)
        if flag not in known_flags and (value is False or value in unset):
            yield f"{OFF}{flag[2:]}", ()
        elif isinstance(value, bool) or value in ("true", "false"):
            if (value in (True, "true")) != is_opposite:
                yield flag, ()
        elif value not in unset:
            yield flag, tuple(_words(value))


def _flag_of_argument(name: str, known_flags: Collection[str], other: OtherSettings) -> tuple[str, bool]:
    """Flag of an argument, and whether the flag is set if the argument is false."""
    text = name.removeprefix("--").replace("-", "_")
    # Arguments that argparse gives another name (`dest`) than their flag has.
    if text in other.arguments:
        flag = other.arguments[text]
        return flag.removeprefix(OPPOSITE), flag.startswith(OPPOSITE)
    hyphened = text.replace("_", "-")
    # A flag that switches off stores its opposite under the name without the prefix.
    for prefix in ("--", "--no-", "--disable-"):
        if f"{prefix}{hyphened}" in known_flags:
            return f"{prefix}{hyphened}", prefix != "--"
    return f"--{hyphened}", False


def _words(value: object) -> list[str]:
    """Words of a flag's value, given as a list of texts or as numbers separated by spaces."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return " ".join(value).split()
    words = SEVERAL.fullmatch(str(value))
    return words[1].split() if words else [str(value)]
