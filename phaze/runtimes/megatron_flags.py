"""Megatron-LM flags of a recipe (`pretrain_gpt.py`), and the recipe of such flags.

Without a flag, Megatron-LM's default holds. Flags that affect the price are read. Flags that would change the
price but are not modelled raise an error that names them (`UNPRICED`). All other flags are returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import gcd, inf, lcm, prod
from typing import cast

from phaze.base.errors import PhazeError
from phaze.layout import (
    BALANCED,
    CP_KINDS,
    LEVELS,
    MODULES,
    OFFLOADED_MODULES,
    Compute,
    CpKind,
    Layout,
    Load,
    Offload,
    Offloaded,
    Recompute,
    Zero,
    load_of,
    offload_of,
    recompute_of,
)
from phaze.pipeline.schedules.interleaved import is_group
from phaze.runtimes.flags import Emitted, Flags, one_value, parse_flags, print_flags, whole_number, word_of
from phaze.runtimes.layout_string import blocks_of, layout_string
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_model import HYBRID, MODEL_FLAGS, MODEL_NAMES, is_hybrid, model_flags, read_model
from phaze.runtimes.megatron_software import (
    GROUP,
    IMPLEMENTATION,
    SLICES,
    SOFTWARE,
    UNMODELLED,
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
from phaze.runtimes.untimed import UNTIMED_FLAGS, untimed_flags
from phaze.spec.model import Model
from phaze.spec.plain import short
from phaze.spec.system import Stack

WIDTHS = {
    "tp": "--tensor-model-parallel-size", "cp": "--context-parallel-size",
    "pp": "--pipeline-model-parallel-size",
}  # fmt: skip
EXPERT_WIDTHS = {"ep": "--expert-model-parallel-size", "etp": "--expert-tensor-parallel-size"}
CP_KIND = "--cp-comm-type"
"""Exchange kind of context-parallel ranks, for all layers."""
SIZES_OF_LEVELS = "--hierarchical-context-parallel-sizes"
"""Ranks that exchange heads, and the number of such groups in the ring."""
MODULES_AGAIN = "--recompute-modules"
LAYOUT = "--pipeline-model-parallel-layout"
VIRTUAL, EACH = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
STRATEGY = "--data-parallel-sharding-strategy"
SHARDED: dict[int, str] = {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
"""Strategies of Megatron-FSDP by ZeRO stage."""
FSDP = (
    ("--use-megatron-fsdp",), ("--use-distributed-optimizer",), ("--no-gradient-accumulation-fusion",),
    ("--ckpt-format", "fsdp_dtensor"),
)  # fmt: skip
"""Flags that Megatron-FSDP needs in addition to its strategy (its user guide)."""
OFFLOADED = {
    "fine": "--fine-grained-activation-offloading", "modules": "--offload-modules",
    "layers": "--cpu-offloading-num-layers", "optimizer": "--offload-optimizer-states",
}  # fmt: skip
"""Flags that offload activations and states to host memory."""
UNPRICED = (
    "--use-torch-fsdp2", "--cpu-offloading-weights", "--optimizer-cpu-offload", "--moe-layer-recompute",
    "--fp4-param-gather", "--perform-rl-step", "--encoder-num-layers", "--img-h",
)  # fmt: skip
"""Flags that change the price, or the training itself, and that no recipe can express."""
PRECISIONS: dict[Compute, tuple[tuple[str, str], ...]] = {
    "fp8": (("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")),
    "fp8-cs": (("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "fp8-block": (("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
"""Flags of each compute format: its number format and its scaling recipe."""
CAPACITY, PADDED = "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity"
MIXED = {"--bf16", "--fp16", "--fp8-format", "--fp4-format"}
"""Flags without which weights are in single precision."""
FIRST, LAST = "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"
COUNTED = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
"""Flags that count the embedding and the loss as one layer each in the pipeline split."""
CONNECTIONS = re.compile(r"\bCUDA_DEVICE_MAX_CONNECTIONS=['\"]?(\w+)")
"""Assignment of the variable in a command or a comment."""


def emit_megatron(recipe: Recipe, stack: Stack | None = None, *, blackwell: bool = False) -> Emitted:
    """Megatron-LM flags of a recipe and of a software stack.

    Raises PhazeError for a recipe that Megatron-Core cannot run. Megatron-LM has one recompute count for all
    virtual stages: the smallest that recomputes at least the recipe's blocks on each stage. The result lists
    every difference from the plan, and the settings that no flag covers.
    """
    recipe.check(MEGATRON)
    if recipe.model.lora:
        raise PhazeError("model.lora: Megatron-LM trains whole models, Megatron-Bridge has LoRA")
    untimed, elsewhere = untimed_flags(recipe.model)
    flags = [
        *model_flags(recipe.model, recipe.sequence, recipe.blocks),
        *untimed,
        *_batch_flags(recipe),
        *_layout_flags(recipe),
        *software_flags(recipe, stack),
    ]
    text = print_flags(flags)
    beyond = (
        *recipe.beyond(read_megatron(text, recipe.layout.devices, recipe.model.name)[0]),
        *_not_hidden(recipe, stack),
    )
    program = "pretrain_mamba.py" if is_hybrid(recipe.model) else "pretrain_gpt.py"
    header = [
        f"# {program}, Megatron-Core {MEGATRON.version}",
        f"# {recipe.model.name} on {recipe.layout.devices} devices",
        *(f"# {HYBRID[0]} with bars is of later versions" for _ in [0] if is_hybrid(recipe.model)),
        *(f"# Unlike the plan, {sentence}" for sentence in beyond),
        *(f"# Set this yourself: {name}" for name in elsewhere),
        *(
            f"# Environment: {CONNECTIONS_NAME}={value}"
            for value in connections_for(recipe.layout, blackwell)
        ),
    ]
    files = {"megatron.txt": "\n".join([*header, text])}
    return Emitted(f"Megatron-Core {MEGATRON.version}", files, beyond, elsewhere)


def _not_hidden(recipe: Recipe, stack: Stack | None) -> Iterator[str]:
    """Message if the stack overlaps tensor-parallel collectives and Megatron-LM cannot."""
    hides = stack is not None and "tp" in stack.overlap
    if hides and refused_overlap(recipe.layout, hides) is not None:
        yield "collectives of tensor-parallel ranks: exposed, not overlapped, without sequence_parallel"


def _batch_flags(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    yield "--seq-length", str(recipe.sequence)
    yield "--micro-batch-size", str(recipe.layout.microbatch)
    yield "--global-batch-size", str(recipe.global_batch)
    yield ("--bf16",)
    yield from PRECISIONS.get(recipe.layout.compute, ())
    yield IMPLEMENTATION, "transformer_engine"


def _layout_flags(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    layout = recipe.layout
    for field, flag in WIDTHS.items():
        yield flag, str(getattr(layout, field))
    if recipe.model.experts:
        yield from ((flag, str(getattr(layout, field))) for field, flag in EXPERT_WIDTHS.items())
    if layout.cp > 1:
        inner = layout.heads_ranks
        yield CP_KIND, layout.cp_kind.partition(":")[0]
        if layout.cp_kind not in CP_KINDS:
            yield SIZES_OF_LEVELS, str(inner), str(layout.cp // inner)
    if layout.pp > 1 and not is_hybrid(recipe.model):
        yield LAYOUT, layout_string(recipe.blocks, recipe.model.mtp)
    if recipe.microbatch_group != layout.pp:
        yield GROUP, str(recipe.microbatch_group)
    if layout.sequence_parallel:
        yield ("--sequence-parallel",)
    if layout.zero == 1:
        yield ("--use-distributed-optimizer",)
    elif layout.zero:
        yield from (*FSDP, (STRATEGY, SHARDED[layout.zero]))
    yield from _recompute_flags(recipe)
    yield from _offload_flags(layout.offloaded)


def _offload_flags(offloaded: Offloaded) -> Iterator[tuple[str, ...]]:
    modules = [module for module in OFFLOADED_MODULES if module in offloaded.modules]
    if modules:
        yield from ((OFFLOADED["fine"],), (OFFLOADED["modules"], *modules))
    if offloaded.layers:
        yield from (("--cpu-offloading",), (OFFLOADED["layers"], str(offloaded.layers)))
    if offloaded.optimizer:
        yield (OFFLOADED["optimizer"],)


def _recompute_flags(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    most = max(recipe.recomputed)
    modules = [module for module in MODULES if module in recipe.layout.modules]
    if modules or recipe.layout.recompute == "selective":
        yield from (("--recompute-granularity", "selective"), (MODULES_AGAIN, *(modules or ["core_attn"])))
    elif most and recipe.recomputed == recipe.blocks:
        yield from _full("uniform", 1)
    elif most:
        yield from _full("block", most)


def _full(method: str, layers: int) -> tuple[tuple[str, ...], ...]:
    return (
        ("--recompute-granularity", "full"),
        ("--recompute-method", method),
        ("--recompute-num-layers", str(layers)),
    )


def read_megatron(
    text: str, devices: int | None = None, name: str = "megatron", words: int | None = None
) -> tuple[Recipe, tuple[str, ...]]:
    """Recipe of flags, and the flags that are not priced.

    Megatron has no flag for the device count. Unless `devices` is given, it is torchrun's `--nnodes` ×
    `--nproc-per-node`, or else the fewest that the layout allows. `words` is the vocabulary size if no flag
    has it. Raises PhazeError for a flag that is missing, invalid or not priced, and for a layout that
    Megatron-Core cannot run.
    """
    flags = parse_flags(text)
    refused = next((flag for flag in UNPRICED if flag in flags), None)
    if refused is not None:
        raise PhazeError(
            f"{refused}: is not modelled, got {short(' '.join(flags[refused])) if flags[refused] else 'it'}"
        )
    model, stages = read_model(flags, name, words)
    widths = {field: whole_number(flags, flag, 1) for field, flag in WIDTHS.items()}
    blocks = _stages(stages, widths["pp"]) if stages else _blocks(flags, model, widths["pp"])
    recompute, recomputed = _recomputed(flags, blocks)
    ep = whole_number(flags, EXPERT_WIDTHS["ep"], 1)
    etp = whole_number(flags, EXPERT_WIDTHS["etp"], widths["tp"]) if model.experts else 1
    layout = Layout(
        tp=widths["tp"],
        cp=widths["cp"],
        pp=widths["pp"],
        vp=len(blocks) // widths["pp"],
        ep=ep,
        etp=etp,
        cp_kind=_cp_kind(flags),
        dp=_replicas(flags, devices, widths, ep * etp),
        microbatch=whole_number(flags, "--micro-batch-size"),
        sequence_parallel="--sequence-parallel" in flags and widths["tp"] > 1,
        zero=_zero(flags),
        recompute=recompute,
        precision="mixed" if MIXED & flags.keys() else "single",
        compute=_compute(flags),
        load=_load(flags),
        offload=_offload(flags),
    )
    batch = whole_number(flags, "--global-batch-size", layout.microbatch * layout.dp)
    schedule = "interleaved" if layout.vp > 1 else "1f1b"
    recipe = Recipe(model, whole_number(flags, "--seq-length"), batch, layout, schedule, blocks, recomputed)
    recipe.check(MEGATRON)
    _check_launch(text, flags, recipe)
    return recipe, tuple(flag for flag in flags if flag not in READ)


def megatron_software(text: str, recipe: Recipe, stack: Stack) -> Software:
    """Training software of a recipe's flags; the stack supplies the settings that flags do not cover."""
    return read_software(parse_flags(text), recipe, stack)


def says_devices(text: str) -> bool:
    """True if flags give the number of devices."""
    return "--nproc-per-node" in parse_flags(text)


def _check_launch(text: str, flags: Flags, recipe: Recipe) -> None:
    """Raise PhazeError for combinations of flags and environment that Megatron-LM rejects."""
    layout, count = recipe.layout, recipe.layout.microbatches(recipe.global_batch)
    found = refused_overlap(layout, SLICES in flags)
    size = whole_number(flags, GROUP, layout.pp)
    if recipe.schedule == "interleaved" and not is_group(count, layout.pp, size):
        found = (
            f"{GROUP} must leave no group of fewer than pp {layout.pp} of {count} microbatches, got {size}"
        )
    given = CONNECTIONS.findall(text)
    if found is None and given:
        found = refused_connections(layout, given[-1])
    if found is not None:
        raise PhazeError(f"{MEGATRON.name}: {found}")


def _replicas(flags: Flags, devices: int | None, widths: dict[str, int], experts: int) -> int:
    """Number of replicas; without a device count, the fewest into which the expert ranks fold."""
    slices = widths["tp"] * widths["cp"] * widths["pp"]
    if devices is None and "--nproc-per-node" not in flags:
        fewest = experts // gcd(experts, widths["tp"] * widths["cp"])
        return lcm(fewest, whole_number(flags, "--num-distributed-optimizer-instances", 1))
    count = devices or whole_number(flags, "--nnodes", 1) * whole_number(flags, "--nproc-per-node")
    if count % slices:
        raise PhazeError(f"devices: must be a multiple of tp * cp * pp {slices}, got {count}")
    return count // slices


def _stages(stages: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """Blocks per virtual stage of a hybrid model; an equal split if the pattern has no bars."""
    if len(stages) == 1 and pp > 1 and stages[0] % pp == 0:
        return (stages[0] // pp,) * pp
    if len(stages) % pp:
        raise PhazeError(f"hybrid layer pattern: must have a multiple of pp {pp} stages, got {len(stages)}")
    return stages


def _blocks(flags: Flags, model: Model, pp: int) -> tuple[int, ...]:
    """Blocks per virtual stage: of the layout string, else an equal split apart from ends set by flags.

    Layers of multi-token prediction are on the last stage.
    """
    if LAYOUT in flags:
        blocks = blocks_of(one_value(flags, LAYOUT))
        if len(blocks) % pp:
            raise PhazeError(f"{LAYOUT}: must have a multiple of pp {pp} stages, got {len(blocks)}")
        return blocks
    ends = {rank: whole_number(flags, flag) for rank, flag in ((0, FIRST), (pp - 1, LAST)) if flag in flags}
    counted = [flag in flags for flag in COUNTED]
    layers, ranks = model.layers + sum(counted) - sum(ends.values()), pp - len(ends)
    vp = whole_number(flags, VIRTUAL, 1)
    if EACH in flags:
        each = whole_number(flags, EACH)
        vp = layers // (ranks * each) if ranks and layers % (ranks * each) == 0 else 0
    if not vp or not ranks or layers % (ranks * vp) or any(count % vp for count in ends.values()):
        flag = next((flag for flag in (EACH, VIRTUAL, FIRST, LAST) if flag in flags), WIDTHS["pp"])
        raise PhazeError(
            f"{flag}: must cut the {model.layers} layers into equal stages, got {one_value(flags, flag)}"
        )
    held = [ends.get(rank, layers // ranks) // vp for rank in range(pp)] * vp
    held[0] -= counted[0]
    held[-1] += model.mtp - counted[1]
    return tuple(held)


def _compute(flags: Flags) -> Compute:
    """Operand format of the products with blocks' weights."""
    for bits in ("--fp4", "--fp8"):
        if f"{bits}-format" in flags:
            recipe = one_value(flags, f"{bits}-recipe") if f"{bits}-recipe" in flags else None
            usual = {"--fp4": "nvfp4", "--fp8": "delayed"}[bits]
            words = {said[1][1]: ours for ours, said in PRECISIONS.items() if said[1][0] == f"{bits}-recipe"}
            if (recipe or usual) not in words:
                raise PhazeError(f"{bits}-recipe: must be one of {', '.join(words)}, got {short(recipe)}")
            return words[recipe or usual]
    return "bf16"


def _load(flags: Flags) -> Load:
    """Expert load of the busiest rank: the capacity factor where tokens are padded to it."""
    if CAPACITY not in flags or PADDED not in flags:
        return BALANCED
    text = one_value(flags, CAPACITY)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise PhazeError(f"{CAPACITY}: must be a number > 0, got {short(text)}")
    return load_of(f"{value:f}")


def _recomputed(flags: Flags, blocks: tuple[int, ...]) -> tuple[Recompute, tuple[int, ...]]:
    """Recompute option, and fully recomputed blocks per virtual stage."""
    none = (0,) * len(blocks)
    selective = "--recompute-activations" in flags
    if "--recompute-granularity" not in flags:
        return ("selective" if selective else "none"), none
    if word_of(flags, "--recompute-granularity", {"full": "full", "selective": "selective"}) == "selective":
        modules = flags.get(MODULES_AGAIN, ("core_attn",))
        try:
            return "selective" if modules == ("core_attn",) else recompute_of("+".join(modules)), none
        except PhazeError as error:
            raise PhazeError(f"{MODULES_AGAIN}: {error}") from error
    method = word_of(flags, "--recompute-method", {"uniform": "uniform", "block": "block"})
    count = whole_number(flags, "--recompute-num-layers")
    if method == "uniform" and count > 1:
        raise PhazeError(f"--recompute-num-layers: must be 1 with uniform, got {count}")
    return "full", blocks if method == "uniform" else tuple(min(count, held) for held in blocks)


def _offload(flags: Flags) -> Offload:
    """Offload option."""
    layers = whole_number(flags, OFFLOADED["layers"], 0) if OFFLOADED["layers"] in flags else 0
    words = [*flags.get(OFFLOADED["modules"], ())] if OFFLOADED["fine"] in flags else []
    words += [f"layers:{layers}"] * bool(layers) + ["optimizer"] * (OFFLOADED["optimizer"] in flags)
    try:
        return offload_of("+".join(words) or "none")
    except PhazeError as error:
        raise PhazeError(f"{OFFLOADED['modules']}: {error}") from error


def _cp_kind(flags: Flags) -> CpKind:
    """Exchange kind of context-parallel ranks; Megatron-LM's default is p2p."""
    if whole_number(flags, WIDTHS["cp"], 1) == 1:
        return MEGATRON.cp_kinds[0]
    found = word_of(flags, CP_KIND, {kind: kind for kind in (*CP_KINDS, LEVELS)}, "p2p")
    if found != LEVELS:
        return found
    sizes = flags.get(SIZES_OF_LEVELS, ())
    cp = whole_number(flags, WIDTHS["cp"])
    if len(sizes) != 2 or not all(one.isdecimal() for one in sizes) or prod(map(int, sizes)) != cp:
        raise PhazeError(f"{SIZES_OF_LEVELS}: must be two numbers with product {cp}, got {' '.join(sizes)}")
    return f"{LEVELS}:{sizes[0]}"


def _zero(flags: Flags) -> Zero:
    """ZeRO stage."""
    if "--use-megatron-fsdp" not in flags:
        return 1 if "--use-distributed-optimizer" in flags else 0
    stage = word_of(flags, STRATEGY, {str(number): word for number, word in SHARDED.items()}, "0")
    return cast(Zero, int(stage))


READ = frozenset(
    (
        *MODEL_FLAGS, *WIDTHS.values(), *EXPERT_WIDTHS.values(), *MIXED, *SOFTWARE, *UNMODELLED, *COUNTED,
        *UNTIMED_FLAGS, *UNPRICED,
        *(flag for flag, *_ in FSDP), LAYOUT, VIRTUAL, EACH, STRATEGY, FIRST, LAST, CAPACITY, PADDED,
        CP_KIND, SIZES_OF_LEVELS, GROUP,
        *(flag for said in PRECISIONS.values() for flag, _ in said),
        "--nnodes", "--nproc-per-node", "--seq-length", "--micro-batch-size",
        "--global-batch-size", "--sequence-parallel", "--recompute-granularity", "--recompute-method",
        "--recompute-num-layers", MODULES_AGAIN, "--recompute-activations", *OFFLOADED.values(),
        "--cpu-offloading",
    )
)  # fmt: skip
"""Flags that a recipe or a software stack determines."""

NAMES: dict[str, str] = {
    **{f"model.{field}": flag for field, flag in MODEL_NAMES.items()},
    **WIDTHS, **EXPERT_WIDTHS, "vp": VIRTUAL, "stages": LAYOUT, "microbatch": "--micro-batch-size",
    "sequence": "--seq-length", "global_batch": "--global-batch-size", "cp_kind": CP_KIND, "load": CAPACITY,
    "sequence_parallel": "--sequence-parallel", "zero": "zero (--use-distributed-optimizer, FSDP)",
    "recompute": "recompute (--recompute-granularity)", "compute": "compute (--fp8-format, --fp4-format)",
    "offload": "offload (--offload-modules)",
}  # fmt: skip
"""Flags by the recipe fields that they set."""
