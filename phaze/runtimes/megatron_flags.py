"""Flags of Megatron-LM's `pretrain_gpt.py` for a recipe, and the recipe of such flags.

What both sides leave open is what Megatron-LM does without a flag. Read are the flags that say what is
priced; of the others those that would change the price are refused by name (`UNPRICED`), and the rest is
handed back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import cast

from phaze.base.errors import PhazeError
from phaze.layout import (
    CP_KINDS,
    LEVELS,
    MODULES,
    OFFLOADED_MODULES,
    CpKind,
    Layout,
    Offload,
    Offloaded,
    Recompute,
    Zero,
    offload_of,
    recompute_of,
)
from phaze.runtimes.flags import Emitted, Flags, one_value, parse_flags, print_flags, whole_number
from phaze.runtimes.layout_string import blocks_of, layout_string
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.recipe import Recipe
from phaze.spec.model import Model
from phaze.spec.plain import short

SIZES = {
    "layers": "--num-layers", "hidden": "--hidden-size", "feed_forward": "--ffn-hidden-size",
    "heads": "--num-attention-heads", "vocabulary": "--vocab-size",
    "position_count": "--max-position-embeddings",
}  # fmt: skip
"""Sizes of a model that are always said."""
POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
NORMS = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}
WIDTHS = {
    "tp": "--tensor-model-parallel-size", "cp": "--context-parallel-size",
    "pp": "--pipeline-model-parallel-size",
}  # fmt: skip
EXPERTS = {"ep": "--expert-model-parallel-size", "etp": "--expert-tensor-parallel-size"}
CP_KIND = "--cp-comm-type"
"""How context-parallel ranks exchange keys and values, for all layers."""
SIZES_OF_LEVELS = "--hierarchical-context-parallel-sizes"
"""Ranks that exchange heads, and groups of them that pass keys and values around."""
MODULES_AGAIN = "--recompute-modules"
LAYOUT = "--pipeline-model-parallel-layout"
VIRTUAL, EACH = "--num-virtual-stages-per-pipeline-rank", "--num-layers-per-virtual-pipeline-stage"
STRATEGY = "--data-parallel-sharding-strategy"
SHARDED: dict[int, str] = {0: "no_shard", 1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
"""Strategies of Megatron-FSDP by ZeRO's stage."""
FSDP = (
    ("--use-megatron-fsdp",), ("--use-distributed-optimizer",), ("--no-gradient-accumulation-fusion",),
    ("--ckpt-format", "fsdp_dtensor"),
)  # fmt: skip
"""Flags that Megatron-FSDP needs beside its strategy (its user guide)."""
OFFLOADED = {
    "fine": "--fine-grained-activation-offloading", "modules": "--offload-modules",
    "layers": "--cpu-offloading-num-layers", "optimizer": "--offload-optimizer-states",
}  # fmt: skip
"""Activations and states that wait in the host's memory."""
UNPRICED = (
    "--num-experts", "--multi-latent-attention", "--mtp-num-layers", "--fp8-format", "--fp8", "--fp4-format",
    "--hybrid-layer-pattern", "--hybrid-override-pattern", "--use-torch-fsdp2",
    "--cpu-offloading-weights", "--optimizer-cpu-offload",
    "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers", "--window-size",
    "--squared-relu",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split", "--qk-layernorm",
    "--microbatch-group-size-per-virtual-pipeline-stage", "--num-distributed-optimizer-instances",
)  # fmt: skip
"""Flags that change the price, and that no recipe has a word for."""
WRITTEN = ("--transformer-impl", "--attention-backend", "--bf16", "--tokenizer-type")
"""Flags that are written for every recipe: kernels of Transformer Engine, in mixed precision."""


def emit_megatron(recipe: Recipe) -> Emitted:
    """Flags of a recipe; raises PhazeError for one that Megatron-Core cannot run.

    Recomputation is one number for all virtual stages: the least with which none of them recomputes fewer
    blocks than the recipe says. What differs is named.
    """
    recipe.check(MEGATRON)
    text = print_flags([*_model_flags(recipe.model), *_batch_flags(recipe), *_layout_flags(recipe)])
    said, _ = read_megatron(text, recipe.layout.devices, recipe.model.name)
    header = f"# Megatron-Core {MEGATRON.version}, {recipe.model.name} on {recipe.layout.devices} devices\n"
    return Emitted(f"Megatron-Core {MEGATRON.version}", {"megatron.txt": header + text}, recipe.beyond(said))


def _model_flags(model: Model) -> Iterator[tuple[str, ...]]:
    for field, flag in SIZES.items():
        yield flag, str(getattr(model, field) or 1)
    yield "--tokenizer-type", "NullTokenizer"
    if model.head_size is not None:
        yield "--kv-channels", str(model.head_size)
    if model.kv_heads != model.heads:
        yield from (("--group-query-attention",), ("--num-query-groups", str(model.kv_heads)))
    yield "--position-embedding-type", POSITIONS.get(model.positions, "learned_absolute")
    yield "--normalization", NORMS[model.norm]
    if model.gated:
        yield ("--swiglu",)
    if not (model.attention_bias or model.feed_forward_bias):
        yield ("--disable-bias-linear",)
    if not model.tied_embeddings:
        yield ("--untie-embeddings-and-output-weights",)
    yield "--hidden-dropout", str(model.residual_dropout)
    yield "--attention-dropout", str(model.attention_dropout)


def _batch_flags(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    yield "--seq-length", str(recipe.sequence)
    yield "--micro-batch-size", str(recipe.layout.microbatch)
    yield "--global-batch-size", str(recipe.global_batch)
    yield ("--bf16",)
    yield "--transformer-impl", "transformer_engine"
    yield "--attention-backend", "flash"


def _layout_flags(recipe: Recipe) -> Iterator[tuple[str, ...]]:
    layout = recipe.layout
    for field, flag in WIDTHS.items():
        yield flag, str(getattr(layout, field))
    if recipe.model.experts:
        yield from ((flag, str(getattr(layout, field))) for field, flag in EXPERTS.items())
    if layout.cp > 1:
        inner = layout.heads_ranks
        yield CP_KIND, layout.cp_kind.partition(":")[0]
        if layout.cp_kind not in CP_KINDS:
            yield SIZES_OF_LEVELS, str(inner), str(layout.cp // inner)
    if layout.pp > 1:
        yield LAYOUT, layout_string(recipe.blocks, recipe.model.mtp)
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
    text: str, devices: int | None = None, name: str = "megatron"
) -> tuple[Recipe, tuple[str, ...]]:
    """Recipe of flags, and the flags of which nothing is priced.

    The number of devices is none of Megatron's flags: unless it is given, torchrun's `--nnodes` and
    `--nproc-per-node` say it. Raises PhazeError for a flag that is missing, has no such value or is not
    priced, and for what Megatron-Core cannot run.
    """
    flags = parse_flags(text)
    refused = next((flag for flag in UNPRICED if flag in flags), None)
    if refused is not None:
        raise PhazeError(
            f"{refused}: is not modelled, got {short(' '.join(flags[refused])) if flags[refused] else 'it'}"
        )
    model = _model(flags, name)
    widths = {field: whole_number(flags, flag, 1) for field, flag in WIDTHS.items()}
    blocks = _blocks(flags, model.layers, widths["pp"])
    recompute, recomputed = _recomputed(flags, blocks)
    count = devices or whole_number(flags, "--nnodes", 1) * whole_number(flags, "--nproc-per-node")
    slices = widths["tp"] * widths["cp"] * widths["pp"]
    if count % slices:
        raise PhazeError(f"devices: must be a multiple of tp * cp * pp {slices}, got {count}")
    layout = Layout(
        tp=widths["tp"],
        cp=widths["cp"],
        pp=widths["pp"],
        vp=len(blocks) // widths["pp"],
        ep=whole_number(flags, EXPERTS["ep"], 1),
        etp=whole_number(flags, EXPERTS["etp"], widths["tp"] if model.experts else 1),
        cp_kind=_cp_kind(flags),
        dp=count // slices,
        microbatch=whole_number(flags, "--micro-batch-size"),
        sequence_parallel="--sequence-parallel" in flags and widths["tp"] > 1,
        zero=_zero(flags),
        recompute=recompute,
        offload=_offload(flags),
    )
    batch = whole_number(flags, "--global-batch-size", layout.microbatch * layout.dp)
    schedule = "interleaved" if layout.vp > 1 else "1f1b"
    recipe = Recipe(model, whole_number(flags, "--seq-length"), batch, layout, schedule, blocks, recomputed)
    recipe.check(MEGATRON)
    return recipe, tuple(flag for flag in flags if flag not in READ)


def _model(flags: Flags, name: str) -> Model:
    """Model of flags, with Megatron-LM's defaults for those that are not given."""
    gated, heads = "--swiglu" in flags, whole_number(flags, "--num-attention-heads")
    hidden = whole_number(flags, "--hidden-size")
    groups = whole_number(flags, "--num-query-groups", heads) if "--group-query-attention" in flags else heads
    positions = _word(flags, "--position-embedding-type", POSITIONS, "learned")
    rotary = positions == "rotary" or "--use-rotary-position-embeddings" in flags
    dropout = _share(flags, "--hidden-dropout")
    biases = "--disable-bias-linear" not in flags
    usual = 64 * (8 * hidden // 3 // 64) if gated else 4 * hidden
    count = whole_number(flags, "--max-position-embeddings")
    fields = {
        "name": name,
        "layers": whole_number(flags, "--num-layers"),
        "hidden": hidden,
        "heads": heads,
        "key_value_heads": groups if groups != heads else None,
        "head_size": whole_number(flags, "--kv-channels") if "--kv-channels" in flags else None,
        "feed_forward": whole_number(flags, "--ffn-hidden-size", usual),
        "vocabulary": whole_number(flags, "--vocab-size"),
        "positions": "rotary" if rotary else positions,
        "position_count": count if rotary or positions != "none" else 0,
        "activation": "silu" if gated else "gelu",
        "gated": gated,
        "norm": _word(flags, "--normalization", NORMS, "layer_norm"),
        "attention_bias": biases,
        "feed_forward_bias": biases,
        "fused_qkv": groups == heads and not gated,
        "tied_embeddings": "--untie-embeddings-and-output-weights" not in flags,
        "residual_dropout": dropout,
        "embedding_dropout": dropout,
        "attention_dropout": _share(flags, "--attention-dropout"),
    }
    return Model.parse(fields, "flags")


def _word(flags: Flags, name: str, words: Mapping[str, str], otherwise: str | None = None) -> str:
    """Our word for the value of a flag; PhazeError for another value, and for none without a default."""
    if name not in flags and otherwise is not None:
        return otherwise
    value = one_value(flags, name)
    ours = {theirs: word for word, theirs in words.items()}
    if value not in ours:
        raise PhazeError(f"{name}: must be one of {', '.join(ours)}, got {short(value)}")
    return ours[value]


def _share(flags: Flags, name: str) -> float:
    """Dropout of a flag, Megatron-LM's 0.1 unless given."""
    text = one_value(flags, name) if name in flags else "0.1"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise PhazeError(f"{name}: must be a number >= 0 and < 1, got {short(text)}")
    return value


def _blocks(flags: Flags, layers: int, pp: int) -> tuple[int, ...]:
    """Blocks of every virtual stage: of the layout string, else as many on each."""
    if LAYOUT in flags:
        blocks = blocks_of(one_value(flags, LAYOUT))
        if len(blocks) % pp:
            raise PhazeError(f"{LAYOUT}: must have a multiple of pp {pp} stages, got {len(blocks)}")
        return blocks
    vp = whole_number(flags, VIRTUAL, 1)
    if EACH in flags:
        each = whole_number(flags, EACH)
        vp = layers // (pp * each) if layers % (pp * each) == 0 else 0
    if not vp or layers % (pp * vp):
        flag = EACH if EACH in flags else VIRTUAL if VIRTUAL in flags else WIDTHS["pp"]
        raise PhazeError(
            f"{flag}: must cut the {layers} layers into equal stages, got {one_value(flags, flag)}"
        )
    return (layers // (pp * vp),) * (pp * vp)


def _recomputed(flags: Flags, blocks: tuple[int, ...]) -> tuple[Recompute, tuple[int, ...]]:
    """What runs forward again, and blocks of every virtual stage that do so in full."""
    none = (0,) * len(blocks)
    selective = "--recompute-activations" in flags
    if "--recompute-granularity" not in flags:
        return ("selective" if selective else "none"), none
    if _word(flags, "--recompute-granularity", {"full": "full", "selective": "selective"}) == "selective":
        modules = flags.get(MODULES_AGAIN, ("core_attn",))
        try:
            return "selective" if modules == ("core_attn",) else recompute_of("+".join(modules)), none
        except PhazeError as error:
            raise PhazeError(f"{MODULES_AGAIN}: {error}") from error
    method = _word(flags, "--recompute-method", {"uniform": "uniform", "block": "block"})
    count = whole_number(flags, "--recompute-num-layers")
    if method == "uniform" and count > 1:
        raise PhazeError(f"--recompute-num-layers: must be 1 with uniform, got {count}")
    return "full", blocks if method == "uniform" else tuple(min(count, held) for held in blocks)


def _offload(flags: Flags) -> Offload:
    """What waits in the host's memory."""
    layers = whole_number(flags, OFFLOADED["layers"], 0) if OFFLOADED["layers"] in flags else 0
    words = [*flags.get(OFFLOADED["modules"], ())] if OFFLOADED["fine"] in flags else []
    words += [f"layers:{layers}"] * bool(layers) + ["optimizer"] * (OFFLOADED["optimizer"] in flags)
    try:
        return offload_of("+".join(words) or "none")
    except PhazeError as error:
        raise PhazeError(f"{OFFLOADED['modules']}: {error}") from error


def _cp_kind(flags: Flags) -> CpKind:
    """Exchange of context-parallel ranks; Megatron-LM's own is p2p."""
    if whole_number(flags, WIDTHS["cp"], 1) == 1:
        return MEGATRON.cp_kinds[0]
    found = _word(flags, CP_KIND, {kind: kind for kind in (*CP_KINDS, LEVELS)}, "p2p")
    if found != LEVELS:
        return found
    sizes = flags.get(SIZES_OF_LEVELS, ())
    cp = whole_number(flags, WIDTHS["cp"])
    if len(sizes) != 2 or not all(one.isdecimal() for one in sizes) or prod(map(int, sizes)) != cp:
        raise PhazeError(f"{SIZES_OF_LEVELS}: must be two numbers with product {cp}, got {' '.join(sizes)}")
    return f"{LEVELS}:{sizes[0]}"


def _zero(flags: Flags) -> Zero:
    """ZeRO's stage."""
    if "--use-megatron-fsdp" not in flags:
        return 1 if "--use-distributed-optimizer" in flags else 0
    stage = _word(flags, STRATEGY, {str(number): word for number, word in SHARDED.items()}, "0")
    return cast(Zero, int(stage))


READ = frozenset(
    (
        *SIZES.values(), *WIDTHS.values(), *EXPERTS.values(), CP_KIND, SIZES_OF_LEVELS, *WRITTEN,
        *(flag for flag, *_ in FSDP), LAYOUT, VIRTUAL, EACH, STRATEGY,
        "--nnodes", "--nproc-per-node", "--kv-channels", "--group-query-attention",
        "--num-query-groups", "--position-embedding-type", "--use-rotary-position-embeddings",
        "--normalization", "--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights",
        "--hidden-dropout", "--attention-dropout", "--seq-length", "--micro-batch-size",
        "--global-batch-size", "--sequence-parallel", "--recompute-granularity", "--recompute-method",
        "--recompute-num-layers", "--recompute-modules", "--recompute-activations", *OFFLOADED.values(),
        "--cpu-offloading",
    )
)  # fmt: skip
"""Flags that a recipe says."""
