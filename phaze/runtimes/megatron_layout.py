"""Table of Megatron-LM's layout flags, which both writes and reads the flags of a recipe.

Without a flag, Megatron-LM's default holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf, prod

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.layout import (
    BALANCED,
    CP_KINDS,
    LEVELS,
    MODULES,
    OFFLOADED_MODULES,
    Compute,
    CpKind,
    Load,
    Offload,
    Optimizer,
    Recompute,
    load_of,
    offload_of,
    recompute_of,
)
from phaze.runtimes.flags import Flags, one_value, whole_number, word_of
from phaze.runtimes.layout_string import equal_counts, layout_string
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_model import is_hybrid
from phaze.runtimes.megatron_software import GROUP
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.shared_rules import expert_widths
from phaze.spec.model import Model

TP, CP, PP = (f"--{name}-parallel-size" for name in ("tensor-model", "context", "pipeline-model"))
EP, ETP = "--expert-model-parallel-size", "--expert-tensor-parallel-size"
SEQUENCE, MICROBATCH, BATCH = "--seq-length", "--micro-batch-size", "--global-batch-size"
SEQUENCE_PARALLEL = "--sequence-parallel"
LAYOUT, VIRTUAL = "--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank"
CP_KIND, SIZES_OF_LEVELS = "--cp-comm-type", "--hierarchical-context-parallel-sizes"
"""Exchange method of context parallelism, and its sizes: ranks that exchange heads, groups of ranks."""
OPTIMIZER, FSDP, STRATEGY = (
    "--use-distributed-optimizer", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
)  # fmt: skip
SHARDED = ("no_shard", "optim", "optim_grads", "optim_grads_params")
"""Megatron-FSDP's sharding strategies, by ZeRO stage."""
WITH_FSDP = ((FSDP,), (OPTIMIZER,), ("--no-gradient-accumulation-fusion",), ("--ckpt-format", "fsdp_dtensor"))
"""Flags that Megatron-FSDP needs in addition to its sharding strategy (its user guide)."""
GRANULARITY, METHOD, RECOMPUTED_LAYERS, RECOMPUTED_MODULES = (
    f"--recompute-{name}" for name in ("granularity", "method", "num-layers", "modules")
)
INSTANCES = "--num-distributed-optimizer-instances"
FINE, OFFLOADED_PARTS = "--fine-grained-activation-offloading", "--offload-modules"
OFFLOADED_LAYERS, OFFLOADED_STATES = "--cpu-offloading-num-layers", "--offload-optimizer-states"
ALGORITHM, MOMENTUM, SMALLER = "--optimizer", "--sgd-momentum", "--use-precision-aware-optimizer"
MOMENTS = ("--exp-avg-dtype", "--exp-avg-sq-dtype")
"""Flags of the formats of Adam's two moments, which `SMALLER` allows."""
CAPACITY, PADDED = "--moe-expert-capacity-factor", "--moe-pad-expert-input-to-capacity"
FORCED = "--moe-router-force-load-balancing"
MIXED = ("--bf16", "--fp16", "--fp8-format", "--fp4-format")
"""Flags of mixed precision; without any of them weights are in single precision."""
PRECISIONS: dict[Compute, tuple[tuple[str, str], ...]] = {
    "fp8": (("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")),
    "fp8-cs": (("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "fp8-block": (("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
"""Flags that select each compute format: its number format and its scaling recipe."""

FlagValues = Iterable[tuple[str, ...]]
"""Flags to write, with their values."""


@dataclass(frozen=True)
class FieldFlags:
    """Flags for one field of a recipe or its layout, with functions that write and read the flags."""

    field: str
    flags: tuple[str, ...]
    """All flags that set the field, the most informative first."""
    write: Callable[[Recipe], FlagValues]
    """Function that returns the flags of a recipe."""
    read: Callable[[Flags, Model], object] | None = None
    """Function that reads the layout field from flags; None if the field depends on other fields."""
    shown: str = ""
    """Flag to show for the field in messages, if not the first one."""

    @property
    def name(self) -> str:
        """Name of the field in messages about flags."""
        return f"{self.field} ({self.shown})" if self.shown else self.flags[0]


def _width(field: str, flag: str) -> FieldFlags:
    """Table entry for the flag of a parallel width of dense layers, which is 1 without the flag."""

    def write(recipe: Recipe) -> FlagValues:
        yield flag, str(getattr(recipe.layout, field))

    return FieldFlags(field, (flag,), write, lambda flags, _: whole_number(flags, flag, 1))


def _expert_width(field: str, flag: str) -> FieldFlags:
    """Table entry for the flag of an expert-parallel width, written only for models with experts."""
    dense = _width(field, flag)

    def read(flags: Flags, model: Model) -> object:
        # Without its flag Megatron-LM's expert tensor parallelism has the width of the dense layers, tp.
        usual = expert_widths(model, whole_number(flags, TP, 1), 1)[field]
        return whole_number(flags, flag, usual) if model.experts or field == "ep" else usual

    return FieldFlags(
        field, (flag,), lambda recipe: dense.write(recipe) if recipe.model.experts else (), read
    )


def _number(field: str, flag: str, value: Callable[[Recipe], int]) -> FieldFlags:
    """Table entry for a flag with an integer value that is always written."""
    return FieldFlags(field, (flag,), lambda recipe: [(flag, str(value(recipe)))])


def _write_cp_kind(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    layout, inner = recipe.layout, recipe.layout.heads_ranks
    if layout.cp > 1:
        yield CP_KIND, layout.cp_kind.partition(":")[0]
        if layout.cp_kind not in CP_KINDS:
            yield SIZES_OF_LEVELS, str(inner), str(layout.cp // inner)


def _cp_kind(flags: Flags, _: Model) -> CpKind:
    """Exchange method of context parallelism, read from flags; Megatron-LM's default is p2p."""
    cp = whole_number(flags, CP, 1)
    if cp == 1:
        return MEGATRON.cp_kinds[0]
    exchange = word_of(flags, CP_KIND, {kind: kind for kind in (*CP_KINDS, LEVELS)}, "p2p")
    if exchange != LEVELS:
        return exchange
    text = " ".join(flags.get(SIZES_OF_LEVELS, ()))
    sizes = text.strip("[]").replace(",", " ").split()  # a log lists them in brackets
    if len(sizes) != 2 or not all(size.isdecimal() for size in sizes) or prod(map(int, sizes)) != cp:
        raise PhazeError(f"{SIZES_OF_LEVELS}: must be two numbers with product {cp}, got {text}")
    return f"{LEVELS}:{sizes[0]}"


def _write_stages(recipe: Recipe) -> FlagValues:
    staged = recipe.layout.pp > 1 and not is_hybrid(recipe.model)
    return [(LAYOUT, layout_string(recipe.blocks, recipe.model.mtp))] * staged


def _write_zero(recipe: Recipe) -> FlagValues:
    zero = recipe.layout.zero
    return (*WITH_FSDP, (STRATEGY, SHARDED[zero])) if zero > 1 else [(OPTIMIZER,)] * zero


def _zero(flags: Flags, _: Model) -> int:
    if FSDP not in flags:
        return int(OPTIMIZER in flags)
    return int(word_of(flags, STRATEGY, {str(zero): word for zero, word in enumerate(SHARDED)}, "0"))


def _write_recompute(recipe: Recipe) -> FlagValues:
    most = max(recipe.recomputed)
    modules = [module for module in MODULES if module in recipe.layout.modules]
    if modules or recipe.layout.recompute == "selective":
        return (GRANULARITY, "selective"), (RECOMPUTED_MODULES, *(modules or ["core_attn"]))
    # `uniform` with 1 recomputes every block by itself; `block` takes the first ones of each stage.
    method, layers = ("uniform", 1) if recipe.recomputed == recipe.blocks else ("block", most)
    return ((GRANULARITY, "full"), (METHOD, method), (RECOMPUTED_LAYERS, str(layers))) if most else ()


def recomputed(flags: Flags, blocks: tuple[int, ...], mtp: int) -> tuple[Recompute, tuple[int, ...]]:
    """Recompute option of a run, and number of fully recomputed blocks per virtual stage, read from flags."""
    none = (0,) * len(blocks)
    selective = "--recompute-activations" in flags
    if GRANULARITY not in flags:
        return ("selective" if selective else "none"), none
    if word_of(flags, GRANULARITY, {"full": "full", "selective": "selective"}) == "selective":
        modules = flags.get(RECOMPUTED_MODULES, ("core_attn",))
        try:
            return "selective" if modules == ("core_attn",) else recompute_of("+".join(modules)), none
        except PhazeError as error:
            raise PhazeError(f"{RECOMPUTED_MODULES}: {error}") from error
    method = word_of(flags, METHOD, {"uniform": "uniform", "block": "block"})
    count = whole_number(flags, RECOMPUTED_LAYERS)
    if method == "uniform" and count > 1:
        raise PhazeError(f"{RECOMPUTED_LAYERS}: must be 1 with uniform recomputation, got {count}")
    return "full", blocks if method == "uniform" else equal_counts(blocks, mtp, count)


def _write_offload(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    offloaded = recipe.layout.offloaded
    modules = [module for module in OFFLOADED_MODULES if module in offloaded.modules]
    if modules:
        yield from ((FINE,), (OFFLOADED_PARTS, *modules))
    if offloaded.layers:
        yield from (("--cpu-offloading",), (OFFLOADED_LAYERS, str(offloaded.layers)))
    if offloaded.optimizer:
        yield (OFFLOADED_STATES,)


def _offload(flags: Flags, _: Model) -> Offload:
    layers = whole_number(flags, OFFLOADED_LAYERS, 0)
    words = [*flags.get(OFFLOADED_PARTS, ())] if FINE in flags else []
    words += [f"layers:{layers}"] * bool(layers) + ["optimizer"] * (OFFLOADED_STATES in flags)
    try:
        return offload_of("+".join(words) or "none")
    except PhazeError as error:
        raise PhazeError(f"{OFFLOADED_PARTS}: {error}") from error


def _write_optimizer(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    algorithm, _, moments = recipe.layout.optimizer.partition("-")
    if algorithm == "sgd":
        yield from ((ALGORITHM, "sgd"), *[(MOMENTUM, "0")] * (moments != "momentum"))
    elif moments:
        yield from ((SMALLER,), *((flag, moments) for flag in MOMENTS))


def _optimizer(flags: Flags, _: Model) -> Optimizer:
    # Other optimizers are named as not modelled, and priced as Adam.
    if flags.get(ALGORITHM) == ("sgd",):
        # Megatron-LM's default is a momentum of 0.9; none has no state.
        return "sgd" if MOMENTUM in flags and not one_value(flags, MOMENTUM).strip("0.") else "sgd-momentum"
    if SMALLER not in flags:
        return "adam"
    formats: dict[str, Optimizer] = {"fp32": "adam", "bf16": "adam-bf16", "fp8": "adam-fp8"}
    first, second = (word_of(flags, flag, {name: name for name in formats}, "fp32") for flag in MOMENTS)
    if first != second:
        raise PhazeError(f"{MOMENTS[1]}: must be that of {MOMENTS[0]}, {first}, got {second}")
    return formats[first]


def _compute(flags: Flags, _: Model) -> Compute:
    """Operand format of the GEMMs with block weights, read from flags."""
    # Defaults are those of Megatron-LM's `--fp4-recipe` and `--fp8-recipe`.
    for bits, usual in (("--fp4", "nvfp4"), ("--fp8", "delayed")):
        if f"{bits}-format" in flags:
            recipe = one_value(flags, f"{bits}-recipe") if f"{bits}-recipe" in flags else None
            words = {word: ours for ours, (_, (flag, word)) in PRECISIONS.items() if flag == f"{bits}-recipe"}
            if (recipe or usual) not in words:
                raise PhazeError(f"{bits}-recipe: must be one of {', '.join(words)}, got {short(recipe)}")
            return words[recipe or usual]
    return "bf16"


def forced_load(flags: Flags) -> Load | None:
    """Expert load that flags force: the capacity factor with padding, or balanced; None without such."""
    if CAPACITY not in flags or PADDED not in flags:
        return BALANCED if FORCED in flags else None
    text = one_value(flags, CAPACITY)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < inf:
        raise PhazeError(f"{CAPACITY}: must be a number > 0, got {short(text)}")
    # Loads have no exponent.
    return load_of(f"{value:f}")


OF_BATCH = (
    _number("sequence", SEQUENCE, lambda recipe: recipe.sequence),
    FieldFlags(
        "microbatch", (MICROBATCH,), lambda recipe: [(MICROBATCH, str(recipe.layout.microbatch))],
        lambda flags, _: whole_number(flags, MICROBATCH),
    ),
    _number("global_batch", BATCH, lambda recipe: recipe.global_batch),
    FieldFlags(
        "precision", MIXED, lambda _: [("--bf16",)],
        lambda flags, _: "mixed" if flags.keys() & {*MIXED} else "single", "--bf16",
    ),
    FieldFlags(
        "compute", ("--fp8-format", "--fp8-recipe", "--fp4-format", "--fp4-recipe"),
        lambda recipe: PRECISIONS.get(recipe.layout.compute, ()), _compute, "--fp8-format, --fp4-format",
    ),
)  # fmt: skip
"""Flags of the batch and the precision, in the order in which they are written."""
OF_LAYOUT = (
    _width("tp", TP),
    _width("cp", CP),
    _width("pp", PP),
    _expert_width("ep", EP),
    _expert_width("etp", ETP),
    FieldFlags("cp_kind", (CP_KIND, SIZES_OF_LEVELS), _write_cp_kind, _cp_kind),
    FieldFlags("stages", (LAYOUT,), _write_stages),
    FieldFlags(
        "microbatch_group", (GROUP,),
        lambda recipe: [(GROUP, str(recipe.microbatch_group))]
        * (recipe.microbatch_group != recipe.layout.pp),
    ),
    FieldFlags("vp", (VIRTUAL,), lambda _: ()),
    FieldFlags(
        "sequence_parallel", (SEQUENCE_PARALLEL,),
        lambda recipe: [(SEQUENCE_PARALLEL,)] * recipe.layout.sequence_parallel,
        lambda flags, _: SEQUENCE_PARALLEL in flags and whole_number(flags, TP, 1) > 1,
    ),
    FieldFlags(
        "zero", (OPTIMIZER, STRATEGY, *(flag for flag, *_ in WITH_FSDP)), _write_zero, _zero,
        f"{OPTIMIZER}, FSDP",
    ),
    FieldFlags(
        "replicate", (INSTANCES,),
        lambda recipe: [(INSTANCES, str(recipe.layout.replicate))] * (recipe.layout.replicate > 1),
        lambda flags, _: whole_number(flags, INSTANCES, 1),
    ),
    FieldFlags(
        "recompute", (GRANULARITY, METHOD, RECOMPUTED_LAYERS, RECOMPUTED_MODULES, "--recompute-activations"),
        _write_recompute, None, GRANULARITY,
    ),
    FieldFlags(
        "offload", (OFFLOADED_PARTS, FINE, "--cpu-offloading", OFFLOADED_LAYERS, OFFLOADED_STATES),
        _write_offload, _offload, OFFLOADED_PARTS,
    ),
    FieldFlags("optimizer", (SMALLER, *MOMENTS, MOMENTUM), _write_optimizer, _optimizer),
    FieldFlags("load", (CAPACITY, PADDED, FORCED), lambda _: ()),
)  # fmt: skip
"""Flags of the layout, in the order in which they are written."""
FIELDS = (*OF_BATCH, *OF_LAYOUT)


def written(fields: Iterable[FieldFlags], recipe: Recipe) -> Iterator[tuple[str, ...]]:
    """Yield the flags of a recipe for the given fields."""
    for field in fields:
        yield from field.write(recipe)


def read_fields(flags: Flags, model: Model) -> dict[str, object]:
    """Read the layout fields from flags, except vp, dp and recompute, which depend on other fields."""
    return {field.field: field.read(flags, model) for field in FIELDS if field.read is not None}
