"""Write a recipe as Megatron-LM flags (`pretrain_gpt.py`), and read such flags as a recipe.

Without a flag, Megatron-LM's default holds. Flags that affect the price are read. `tables/megatron.yaml`
lists all others: those that change what is trained raise an error, those that change neither time nor memory
are returned.
"""

from __future__ import annotations

import re
from typing import Any

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.pipeline.schedules.interleaved import is_group
from phaze.runtimes.arguments import arguments_of
from phaze.runtimes.flags import (
    Emitted,
    Flags,
    comments,
    load_comment,
    one_value,
    parse_flags,
    print_flags,
    refuse_unexpanded,
    whole_number,
    written_load,
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
    read_fields,
    recomputed,
    written,
)
from phaze.runtimes.megatron_model import (
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
from phaze.runtimes.settings import settings_of
from phaze.runtimes.untimed import UNTIMED_FLAGS, untimed_flags
from phaze.spec.model import Model
from phaze.spec.system import Stack

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
    **{field.field: field.name for field in FIELDS},
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
    flags = [
        *model_flags(recipe.model, recipe.sequence, recipe.blocks),
        *untimed,
        *written(OF_BATCH, recipe),
        (IMPLEMENTATION, "transformer_engine"),
        *written(OF_LAYOUT, recipe),
        *software_flags(recipe, stack),
    ]
    text = "\n".join([*load_comment(recipe.layout), print_flags(flags)])
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
) -> tuple[Recipe, tuple[str, ...]]:
    """Read Megatron-LM flags as a recipe, and return the flags that are not priced.

    Megatron has no flag for the device count. Unless `devices` is given, it is torchrun's `--nnodes` ×
    `--nproc-per-node`, or else the fewest that the layout allows. `words` is the vocabulary size if no flag
    has it. `blackwell` is true for devices of this generation or later. Raises PhazeError for a flag that is
    missing, invalid or not priced, and for a layout that Megatron-Core cannot run.
    """
    recipe, flags = _recipe(text, devices, name, words), _flags(text)
    recipe.check(MEGATRON)
    _check_launch(text, flags, recipe, blackwell)
    return recipe, tuple(flag for flag in flags if settings_of("megatron").subject(flag) is not None)


def _flags(text: str) -> Flags:
    """Flags of a command, a script, a log or a YAML file, under their present names."""
    other = settings_of("megatron")
    listed = arguments_of(text, READ, other)
    return other.present(parse_flags(text) if listed is None else listed)


def _recipe(text: str, devices: int | None, name: str, words: int | None = None) -> Recipe:
    """Recipe that flags describe, whether Megatron-Core can run it or not."""
    flags, other = _flags(text), settings_of("megatron")
    other.check(flags, READ, SIZES)
    refuse_unexpanded(flags, other, FILES)
    model, stages = read_model(flags, name, words)
    layout_fields: dict[str, Any] = read_fields(flags, model) | written_load(text)
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
