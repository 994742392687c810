"""Write a model as Megatron-LM flags, and read such flags as a model.

By default every block is attention followed by a feed-forward network or experts. Lists per layer select the
blocks with experts, a window or a delta rule. A model whose blocks are each a single part, such as Mamba-2,
is a hybrid: its pattern has one letter per block and bars between stages.

The vocabulary size follows from a flag, or from the tokenizer that flags name.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from pathlib import PurePosixPath

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.runtimes.flags import Flags, one_value, share, whole_number, word_of
from phaze.spec.blocks import Balancing
from phaze.spec.model import Model
from phaze.spec.pattern import MIXERS, MOST_BLOCKS, pattern_of, period_of, words_of

VOCAB_SIZE, VOCAB_FILE, MERGE_FILE = "--vocab-size", "--vocab-file", "--merge-file"
TOKENIZER, TOKENIZER_MODEL, EXTRA_IDS = "--tokenizer-type", "--tokenizer-model", "--vocab-extra-ids"
FILES = (VOCAB_FILE, MERGE_FILE, TOKENIZER_MODEL)
"""Flags of files, of which a part of the name may tell the vocabulary."""
PADDED_TO, PADDED_SIZE = "--make-vocab-size-divisible-by", "--padded-vocab-size"
VOCABULARY_FLAGS = (
    PADDED_SIZE, VOCAB_SIZE, VOCAB_FILE, MERGE_FILE, TOKENIZER, TOKENIZER_MODEL, EXTRA_IDS, PADDED_TO,
)  # fmt: skip
GPT2, CASED, UNCASED = 50257, 28996, 30522
TOKENIZERS = {"gpt2bpetokenizer": GPT2, "bertwordpiececase": CASED, "bertwordpiecelowercase": UNCASED}
"""Vocabulary sizes of the tokenizer types that imply one."""
VOCABULARIES = (
    ("nemotron_2_256k", 256000), ("multimixv8.gpt4o_nc_sd.500000.128k", 131072), ("nemotron-3", 131072),
    ("nemotron-h", 131072), ("llama-3", 128256), ("llama3", 128256), ("llama-4", 202048),
    ("llama-2", 32000), ("llama2", 32000), ("mixtral", 32000), ("mistral-7b", 32000), ("qwen3.5", 248320),
    ("qwen3", 151936), ("qwen2", 151936), ("deepseek-v3", 129280), ("deepseek-v2", 102400),
    ("deepseek-r1", 129280), ("kimi-k2", 163840), ("gpt-oss", 201088), ("glm-4.5", 151552),
    ("minimax-m2", 200064), ("gpt2", GPT2),
)  # fmt: skip
"""Vocabulary sizes by a substring of the tokenizer's path or name; the first match is used.

They are `vocab_size` of the models' published configurations, or of the tokenizer's file.
"""
SIZES = {"hidden": "--hidden-size", "heads": "--num-attention-heads", "vocabulary": "--vocab-size"}
"""Flags of model sizes that are always written, by model field."""
LAYERS, FEED_FORWARD, MAX_POSITIONS = "--num-layers", "--ffn-hidden-size", "--max-position-embeddings"
POSITIONS = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
NORMS = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}
EXPERTS = {
    "count": "--num-experts", "per_token": "--moe-router-topk", "width": "--moe-ffn-hidden-size",
    "shared_width": "--moe-shared-expert-intermediate-size", "latent_width": "--moe-latent-size",
    "groups": "--moe-router-num-groups", "top_groups": "--moe-router-group-topk",
}  # fmt: skip
LATENT = {
    "query_rank": "--q-lora-rank", "kv_rank": "--kv-lora-rank", "nope_size": "--qk-head-dim",
    "rope_size": "--qk-pos-emb-head-dim", "value_size": "--v-head-dim",
}  # fmt: skip
INDEX = {"heads": "--dsa-indexer-n-heads", "head_size": "--dsa-indexer-head-dim", "top": "--dsa-indexer-topk"}
DELTA = {
    "key_heads": "--linear-num-key-heads", "value_heads": "--linear-num-value-heads",
    "key_size": "--linear-key-head-dim", "value_size": "--linear-value-head-dim",
    "conv": "--linear-conv-kernel-dim",
}  # fmt: skip
MAMBA = {
    "heads": "--mamba-num-heads", "head_size": "--mamba-head-dim", "state": "--mamba-state-dim",
    "groups": "--mamba-num-groups",
}  # fmt: skip
USUAL = {
    "--moe-router-topk": 2, "--moe-shared-expert-intermediate-size": 0, "--moe-router-num-groups": 1,
    "--moe-router-group-topk": 1, "--kv-lora-rank": 32, "--qk-head-dim": 128, "--qk-pos-emb-head-dim": 64,
    "--v-head-dim": 128, "--linear-num-key-heads": 16, "--linear-num-value-heads": 32,
    "--linear-key-head-dim": 128, "--linear-value-head-dim": 128, "--linear-conv-kernel-dim": 4,
    "--mamba-head-dim": 64, "--mamba-state-dim": 128, "--mamba-num-groups": 8,
}  # fmt: skip
"""Megatron-LM's default sizes by flag; sizes without a default are absent unless their flag is given."""
VARIANT, SPARSE, LINEAR = "--experimental-attention-variant", "dsa", "gated_delta_net"
BLOCKS_WITH = {
    "experts": "--moe-layer-freq", "window": "--window-attn-skip-freq", "delta": "--linear-attention-freq",
}  # fmt: skip
"""Flags that select the blocks with a given part, as a list of ones and zeros or as a frequency."""
HAS_PART: dict[str, Callable[[int, int], bool]] = {
    "experts": lambda place, every: place % every == 0,
    "window": lambda place, every: (place + 1) % every != 0,
    "delta": lambda place, every: (place + 1) % every != 0,
}
"""Predicates of block index and frequency: True if the block contains the part."""
WINDOW = "--window-size"
HYBRID = ("--hybrid-layer-pattern", "--hybrid-override-pattern")
"""Flags of a hybrid's block-letter pattern: the current name and the earlier one."""
LETTERS = {"mamba": "M", "attention": "*", "dense": "-", "experts": "E", "delta": "G"}
MTP_LAYERS = "--mtp-num-layers"
SWITCHES = {
    "gated": "--swiglu", "qk_norm": "--qk-layernorm", "attention_gate": "--attention-output-gate",
    "latent": "--multi-latent-attention", "shared_gate": "--moe-shared-expert-gate",
    "untied": "--untie-embeddings-and-output-weights", "unbiased": "--disable-bias-linear",
    "qkv_bias": "--add-qkv-bias", "squared": "--squared-relu", "grouped": "--group-query-attention",
    "rotary": "--use-rotary-position-embeddings", "scaled_rotary": "--no-rope-fusion",
}  # fmt: skip
SINKS = ("--softmax-type", "learnable")
GROUPED = "--moe-grouped-gemm"
BALANCING, BIASES = "--moe-router-load-balancing-type", "--moe-router-enable-expert-bias"
BALANCINGS: dict[Balancing, tuple[tuple[str, ...], ...]] = {
    "loss": (), "biases": ((BIASES,),), "none": ((BALANCING, "none"),),
}  # fmt: skip
"""Flags by the method by which training balances the router."""
CLAMP = "--activation-func-clamp-value"
"""Flag that clamps the projections of gated experts; `untimed` writes it from a published field."""
MODEL_FLAGS = frozenset(
    (
        *SIZES.values(), *EXPERTS.values(), *LATENT.values(), *INDEX.values(), *DELTA.values(),
        *MAMBA.values(), *BLOCKS_WITH.values(), *SWITCHES.values(), *HYBRID, LAYERS, FEED_FORWARD,
        MAX_POSITIONS, VARIANT, WINDOW, MTP_LAYERS, SINKS[0], "--kv-channels", "--num-query-groups",
        BALANCING, BIASES,
        "--normalization", "--position-embedding-type", "--hidden-dropout", "--attention-dropout", "--spec",
        "--bert-no-binary-head", *VOCABULARY_FLAGS,
    )
)  # fmt: skip
"""All flags that a model determines."""
MODEL_NAMES = {
    **SIZES, "layers": LAYERS, "feed_forward": FEED_FORWARD, "position_count": MAX_POSITIONS,
    "mtp": MTP_LAYERS,
    "positions": "--position-embedding-type", "norm": "--normalization", "kv_heads": "--num-query-groups",
    "head_width": "--kv-channels", "residual_dropout": "--hidden-dropout",
    "embedding_dropout": "--hidden-dropout", "attention_dropout": "--attention-dropout",
    "gated": SWITCHES["gated"], "qk_norm": SWITCHES["qk_norm"], "sinks": SINKS[0],
    "attention_gate": SWITCHES["attention_gate"], "scaled_rotary": SWITCHES["scaled_rotary"],
    "tied_embeddings": f"tied_embeddings ({SWITCHES['untied']})",
    "attention_bias": f"attention_bias ({SWITCHES['unbiased']})",
    "feed_forward_bias": f"feed_forward_bias ({SWITCHES['unbiased']})", "window.size": WINDOW,
    **{f"experts.{field}": flag for field, flag in EXPERTS.items()}, "experts.balancing": BALANCING,
    **{f"latent.{field}": flag for field, flag in LATENT.items()},
    **{f"latent.index.{field}": flag for field, flag in INDEX.items()},
    **{f"delta.{field}": flag for field, flag in DELTA.items()},
    **{f"mamba.{field}": flag for field, flag in MAMBA.items()},
}  # fmt: skip
"""Flag that sets each model field."""


def vocabulary(flags: Flags, default: int | None = None) -> int:
    """Vocabulary size, padded as the flags require; `default` is the size if no flag sets it.

    Raises PhazeError if flags have neither the size nor a known tokenizer name.
    """
    # Without the flag, Megatron-LM's default padding (128 * tp) is left to the price.
    words = _vocabulary_size(flags, default) + (whole_number(flags, EXTRA_IDS) if EXTRA_IDS in flags else 0)
    multiple = whole_number(flags, PADDED_TO, 1) * whole_number(flags, "--tensor-model-parallel-size", 1)
    return -(-words // multiple) * multiple if PADDED_TO in flags else words


def _vocabulary_size(flags: Flags, default: int | None) -> int:
    size = next((flag for flag in (PADDED_SIZE, VOCAB_SIZE) if flag in flags), None)
    if size is not None:
        return whole_number(flags, size)
    if default is not None:
        return default
    kind = one_value(flags, TOKENIZER).lower() if TOKENIZER in flags else ""
    # Tokenizers are published with their models, so that a part of the path tells the size.
    paths = " ".join((*flags.get(TOKENIZER_MODEL, ()), *flags.get(VOCAB_FILE, ()))).lower()
    file = PurePosixPath(one_value(flags, VOCAB_FILE)).name.lower() if VOCAB_FILE in flags else ""
    if kind in TOKENIZERS:
        return TOKENIZERS[kind]
    if not kind and file.endswith("vocab.txt"):
        return CASED if "cased" in file.replace("uncased", "") else UNCASED
    if not kind and file == "vocab.json" and MERGE_FILE in flags:
        return GPT2
    known_size = next((size for name, size in VOCABULARIES if name in paths), None)
    if known_size is None:
        raise PhazeError(
            f"{VOCAB_SIZE}: must be given, or --vocab N of `phaze read`: the tokenizer is missing or its "
            "vocabulary unknown"
        )
    return known_size


def is_hybrid(model: Model) -> bool:
    """True for a hybrid model of Megatron-LM, whose blocks are single parts with one letter each."""
    return model.mamba is not None or any(
        len(words_of(kind)) == 1 for kind, _ in model.runs if model.pattern is not None
    )


def model_flags(model: Model, sequence: int, blocks: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield the flags of a model, for a sequence length in tokens and the blocks per virtual stage.

    Raises PhazeError for a hybrid with blocks that have no letter.
    """
    if is_hybrid(model):
        yield HYBRID[0], hybrid_pattern(model, blocks)
        yield "--spec", "megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"
    else:
        yield LAYERS, str(model.layers)
    for field, flag in SIZES.items():
        yield flag, str(getattr(model, field))
    yield FEED_FORWARD, str(model.feed_forward or (model.experts.width if model.experts else 1))
    # Megatron-LM rejects sequences longer than its positions, also of rotary ones.
    yield MAX_POSITIONS, str(max(model.position_count, sequence))
    yield "--position-embedding-type", POSITIONS.get(model.positions, "learned_absolute")
    yield "--normalization", NORMS[model.norm]
    yield "--hidden-dropout", str(model.residual_dropout)
    yield "--attention-dropout", str(model.attention_dropout)
    gated = model.gated if model.feed_forward or not model.experts else model.experts.gated
    output_bias = model.attention_bias if model.output_bias is None else model.output_bias
    switches = {
        "gated": gated,
        "squared": model.activation == "relu2",
        "unbiased": not (model.feed_forward_bias and model.feed_forward) and not output_bias,
        "untied": not model.tied_embeddings,
    }
    yield from ((SWITCHES[name],) for name, on in switches.items() if on)
    if switches["unbiased"] and model.attention_bias:
        yield (SWITCHES["qkv_bias"],)
    yield from _attention_flags(model)
    yield from _kind_flags(model)
    if model.mtp and not is_hybrid(model):
        yield MTP_LAYERS, str(model.mtp)


def _attention_flags(model: Model) -> Iterator[tuple[str, ...]]:
    if model.head_size is not None:
        yield "--kv-channels", str(model.head_size)
    if model.kv_heads != model.heads:
        yield from (((SWITCHES["grouped"]),), ("--num-query-groups", str(model.kv_heads)))
    if model.qk_norm != "none" or model.latent:  # norms of the latent attention's low-rank projections
        yield (SWITCHES["qk_norm"],)
    if model.attention_gate:
        yield (SWITCHES["attention_gate"],)
    if model.sinks:
        yield SINKS
    if model.scaled_rotary:
        yield (SWITCHES["scaled_rotary"],)
    if model.latent:
        yield (SWITCHES["latent"],)
        yield from _size_flags(model.latent, LATENT)
        if model.latent.index:
            yield from ((VARIANT, SPARSE), (SWITCHES["scaled_rotary"],))
            yield from _size_flags(model.latent.index, INDEX)


def _kind_flags(model: Model) -> Iterator[tuple[str, ...]]:
    if model.experts:
        yield from _size_flags(model.experts, EXPERTS)
        if model.experts.shared_gate:
            yield (SWITCHES["shared_gate"],)
        yield from BALANCINGS[model.experts.balancing]
        yield (GROUPED,)
    if model.window:
        yield WINDOW, f"{model.window.size - 1},0"  # the flag counts earlier tokens without the current one
    if model.delta:
        yield from ((VARIANT, LINEAR), *_size_flags(model.delta, DELTA))
    if model.mamba:
        yield from _size_flags(model.mamba, MAMBA)
    if model.pattern is not None and not is_hybrid(model):
        kinds = _kinds(model)
        for word, flag in BLOCKS_WITH.items():
            if any(word in kind for kind in kinds):
                yield flag, _list_of([word in kind for kind in kinds])


def _size_flags(part: object, flags: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield flags for the sizes of a model part that differ from their defaults."""
    for field, flag in flags.items():
        value = getattr(part, field)
        if value is not None and value != USUAL.get(flag):
            yield flag, str(value)


def _kinds(model: Model) -> list[tuple[str, ...]]:
    """Names of the parts (mixer and networks) of every block."""
    return [words_of(kind) for kind, count in model.runs for _ in range(count)]


def hybrid_pattern(model: Model, blocks: Sequence[int]) -> str:
    """Block-letter pattern of a hybrid model, with bars between virtual stages.

    Layers of multi-token prediction follow after slashes.
    """
    kinds = _kinds(model)
    wrong = next((kind for kind in kinds if len(kind) != 1 or kind[0] not in LETTERS), None)
    if wrong is not None:
        raise PhazeError(
            f"{HYBRID[0]}: every block must be one of {', '.join(LETTERS)}, got {'-'.join(wrong)}"
        )
    letters = "".join(LETTERS[kind[0]] for kind in kinds)
    stage_blocks = [*blocks[:-1], blocks[-1] - model.mtp]
    ends = [0, *accumulate(stage_blocks)]
    stages = "|".join(letters[start:end] for start, end in pairwise(ends))
    mtp_kinds = "".join(LETTERS[word] for word in words_of(model.mtp_kind))
    return stages + f"/{mtp_kinds}" * model.mtp


def _list_of(values: Sequence[bool]) -> str:
    """Write booleans as a list expression: the shortest period, run-length encoded and repeated."""
    size = period_of(values)
    runs = [(value, len(list(run))) for value, run in groupby(values[:size])]
    text = "+".join(f"[{int(value)}]*{count}" for value, count in runs)
    return text if size == len(values) else f"({text})*{len(values) // size}"


def read_model(flags: Flags, name: str, words: int | None = None) -> tuple[Model, tuple[int, ...] | None]:
    """Read a model from flags with Megatron-LM's defaults, and a hybrid's blocks per virtual stage.

    A BERT vocabulary makes the model a BERT.
    """
    kinds, mtp, mtp_kind, stages = _read_kinds(flags)
    parts = {word for kind in kinds for word in kind.split("-")}
    hidden, heads = (whole_number(flags, SIZES[field]) for field in ("hidden", "heads"))
    gated, dropout = SWITCHES["gated"] in flags, share(flags, "--hidden-dropout", "0.1")
    groups = whole_number(flags, "--num-query-groups", heads) if SWITCHES["grouped"] in flags else heads
    positions = word_of(flags, "--position-embedding-type", POSITIONS, "learned")
    rotary = positions == "rotary" or SWITCHES["rotary"] in flags
    biases = SWITCHES["unbiased"] not in flags
    # Default of `validate_args`: 4 h, with SwiGLU two thirds of it in multiples of 64.
    wide = whole_number(flags, FEED_FORWARD, 64 * (8 * hidden // 3 // 64) if gated else 4 * hidden)
    longest = whole_number(flags, MAX_POSITIONS)
    fields = {
        "name": name,
        "layers": len(kinds),
        "hidden": hidden,
        "heads": heads,
        "key_value_heads": groups if groups != heads else None,
        "head_size": whole_number(flags, "--kv-channels") if "--kv-channels" in flags else None,
        "feed_forward": wide if "dense" in parts else 0,
        "vocabulary": vocabulary(flags, words),
        "pattern": None if set(kinds) in ({"attention-dense"}, {"attention-experts"}) else pattern_of(kinds),
        "mtp": mtp,
        "mtp_pattern": mtp_kind if mtp_kind != kinds[-1] else None,
        "positions": "rotary" if rotary else positions,
        "scaled_rotary": rotary and SWITCHES["latent"] not in flags and SWITCHES["scaled_rotary"] in flags,
        "position_count": longest if rotary or positions != "none" else 0,
        "activation": "silu" if gated else "relu2" if SWITCHES["squared"] in flags else "gelu",
        "gated": gated,
        "norm": word_of(flags, "--normalization", NORMS, "layer_norm"),
        "attention_bias": biases or SWITCHES["qkv_bias"] in flags,
        "output_bias": biases if SWITCHES["qkv_bias"] in flags else None,
        "qk_norm": "heads" if SWITCHES["qk_norm"] in flags and SWITCHES["latent"] not in flags else "none",
        "attention_gate": SWITCHES["attention_gate"] in flags,
        "sinks": flags.get(SINKS[0]) == SINKS[1:],
        "feed_forward_bias": biases,
        "fused_qkv": groups == heads and not gated,
        "tied_embeddings": SWITCHES["untied"] not in flags,
        "residual_dropout": dropout,
        "embedding_dropout": dropout,
        "attention_dropout": share(flags, "--attention-dropout", "0.1"),
        **_read_parts(flags, parts, wide),
        **_bert_fields(flags),
    }
    return Model.parse({key: value for key, value in fields.items() if value is not None}, "flags"), stages


def _bert_fields(flags: Flags) -> dict[str, object]:
    """Model fields in which BERT differs from GPT: masked tokens, next-sentence loss (`pretrain_bert.py`).

    Empty unless a flag, the tokenizer type or the name of the vocabulary's file is BERT's.
    """
    kind, file = (" ".join(flags.get(flag, ())).lower() for flag in (TOKENIZER, VOCAB_FILE))
    is_word_piece = kind.startswith("bertwordpiece") or (not kind and file.endswith("vocab.txt"))
    if not is_word_piece and not any(flag.startswith("--bert-") for flag in flags):
        return {}
    pooler = "--bert-no-binary-head" not in flags
    return {"causal": False, "head": "masked-lm", "token_types": 2, "pooler": pooler}


def _read_parts(flags: Flags, parts: set[str], wide: int) -> dict[str, object]:
    """Read the fields of a model's optional parts from flags: latent attention, and the parts in `parts`.

    Experts are as wide as dense feed-forward networks unless a flag sets their width.
    """
    fields: dict[str, object] = {}
    if SWITCHES["latent"] in flags:
        index = {"index": _sizes(flags, INDEX)} if flags.get(VARIANT) == (SPARSE,) else {}
        fields["latent"] = _sizes(flags, LATENT) | index
    if "experts" in parts:
        fields["experts"] = _sizes(flags, EXPERTS, {"width": wide}) | {
            "gated": SWITCHES["gated"] in flags,
            "bias": SWITCHES["unbiased"] not in flags,
            "shared_gate": SWITCHES["shared_gate"] in flags,
            "balancing": _balancing(flags),
            "clamped": CLAMP in flags and SWITCHES["unbiased"] not in flags,  # as GPT-OSS
        }
    if "window" in parts:
        fields["window"] = {"size": _window(flags)}
    if "delta" in parts:
        fields["delta"] = _sizes(flags, DELTA)
    if "mamba" in parts:
        # Megatron-Core's Mamba expands the hidden size by 2.
        size = whole_number(flags, MAMBA["head_size"], USUAL[MAMBA["head_size"]])
        fields["mamba"] = _sizes(flags, MAMBA, {"heads": 2 * whole_number(flags, SIZES["hidden"]) // size})
    return fields


def _sizes(flags: Flags, names: dict[str, str], usual: dict[str, int] | None = None) -> dict[str, object]:
    """Read the sizes of a model part; sizes with neither a flag nor a default are omitted."""
    usual = {field: USUAL[flag] for field, flag in names.items() if flag in USUAL} | (usual or {})
    present = {field: flag for field, flag in names.items() if flag in flags or usual.get(field)}
    return {field: whole_number(flags, flag, usual.get(field)) for field, flag in present.items()}


def _read_kinds(flags: Flags) -> tuple[list[str], int, str | None, tuple[int, ...] | None]:
    """Read every block's kind, the number and kind of further layers, and the pipeline split.

    Further layers predict several tokens. Only the flags of a hybrid have their kind and the split.
    """
    hybrid = next((flag for flag in HYBRID if flag in flags), None)
    if hybrid is not None:
        return _read_hybrid(hybrid, one_value(flags, hybrid))
    layers = whole_number(flags, LAYERS)
    mtp = whole_number(flags, MTP_LAYERS) if MTP_LAYERS in flags else 0
    present = {
        "experts": EXPERTS["count"] in flags,
        "window": WINDOW in flags,
        "delta": flags.get(VARIANT) == (LINEAR,),
    }
    none = [False] * layers
    has = {word: _blocks_with(flags, word, layers) if on else none for word, on in present.items()}
    mixers = [
        next((word for word in MIXERS if word in has and has[word][at]), "attention") for at in range(layers)
    ]
    networks = ["experts" if has_experts else "dense" for has_experts in has["experts"]]
    return ["-".join(pair) for pair in zip(mixers, networks, strict=True)], mtp, None, None


def _read_hybrid(flag: str, text: str) -> tuple[list[str], int, str | None, tuple[int, ...]]:
    """Parse a hybrid pattern: block kinds, number and kind of further layers, blocks per stage."""
    main, *further = text.split("/")
    words = {letter: word for word, letter in LETTERS.items()}
    letters = main.replace("|", "")
    valid = letters and not set(letters + "".join(further)) - set(words)
    if not valid or "" in further or len(set(further)) > 1:
        raise PhazeError(
            f"{flag}: must be letters {', '.join(words)} with | between stages, after / those of a layer of "
            f"multi-token prediction, the same for each, got {short(text)}"
        )
    stage_blocks = [len(stage) for stage in main.split("|")]
    stage_blocks[-1] += len(further)
    mtp_kind = "-".join(words[letter] for letter in further[0]) if further else None
    return [words[letter] for letter in letters], len(further), mtp_kind, tuple(stage_blocks)


def _blocks_with(flags: Flags, word: str, layers: int) -> list[bool]:
    """Mask of the blocks that contain a part, set by a default, a frequency or a list."""
    flag = BLOCKS_WITH[word]
    text = one_value(flags, flag) if flag in flags else ""
    if not text or text.isdecimal():
        # Without a flag all blocks have the part: a frequency beyond the last block skips none.
        every = whole_number(flags, flag) if text else 1 if word == "experts" else layers + 1
        return [HAS_PART[word](place, every) for place in range(layers)]
    try:
        values = _list(ast.parse(text.replace(" ", ""), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise PhazeError(f"{flag}: must be a number or a list of 0 and 1, got {short(text)}") from error
    if len(values) != layers:
        raise PhazeError(f"{flag}: must have {layers} entries, one per layer, got {len(values)}")
    return values


def _list(node: ast.AST) -> list[bool]:
    """Evaluate a list expression of ones, zeros, sums and multiples; ValueError for any other expression."""
    match node:
        case ast.List(entries):
            constants = [entry.value for entry in entries if isinstance(entry, ast.Constant)]
            if len(constants) == len(entries) and all(value in (0, 1) for value in constants):
                return [bool(value) for value in constants]
        case ast.BinOp(left, ast.Add(), right):
            return _list(left) + _list(right)
        case ast.BinOp(left, ast.Mult(), ast.Constant(int(times))) if 0 <= times <= MOST_BLOCKS:
            values = _list(left)
            if len(values) * times <= MOST_BLOCKS:
                return values * times
    raise ValueError


def _balancing(flags: Flags) -> Balancing:
    """Method by which training balances the router, read from flags."""
    if BIASES in flags:
        return "biases"
    return "none" if flags.get(BALANCING) == ("none",) else "loss"


def _window(flags: Flags) -> int:
    """Attention window read from flags: number of tokens to which a token attends, including itself."""
    text = " ".join(flags[WINDOW]).strip("()")
    before, _, after = (part.strip() for part in text.replace(" ", ",").replace(",,", ",").partition(","))
    if not before.isdecimal() or after not in ("0", "-1"):
        raise PhazeError(
            f"{WINDOW}: must be the tokens before a token and 0 after it, such as 127,0, got {short(text)}"
        )
    return int(before[:9]) + 1
