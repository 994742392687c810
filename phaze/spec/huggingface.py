"""Published Hugging Face configurations (`config.json`) in the words of a model spec.

Every field of a published file is one of four: it says something that costs time or memory and becomes a
field of the spec; it costs neither and is ignored; it would cost, but only one value of it is modelled; or
it is unknown, which is an error, since an unknown field may cost anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import TypeAdapter, ValidationError

from phaze.base.errors import PhazeError
from phaze.spec.noun import describe
from phaze.spec.plain import Plain
from phaze.spec.values import Flag, PositiveInt, Share

Config = dict[str, Plain]

# fmt: off
_COSTLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "architectures", "attn_implementation", "auto_map", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "classifier_dropout", "cls_token_id", "decoder_start_token_id", "diversity_penalty",
    "do_sample", "dtype", "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "id2label", "init_std", "initializer_factor", "initializer_range",
    "keys_to_ignore_at_inference", "label2id", "language", "layer_norm_eps", "layer_norm_epsilon",
    "length_penalty", "license", "max_length", "min_length", "model_type", "n_ctx",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "pad_token_id", "prefix",
    "pretraining_tp", "problem_type", "reorder_and_upcast_attn", "repetition_penalty", "return_dict",
    "return_dict_in_generate", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
    "scale_attn_by_inverse_layer_idx", "sep_token_id", "summary_activation", "summary_first_dropout",
    "summary_hidden_size", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "suppress_tokens", "task_specific_params", "temperature", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers_version", "typical_p", "unk_token_id", "use_bfloat16",
    "use_cache", "use_return_dict", "vocab_type",
})
# fmt: on
"""Fields of any family that change neither the work nor the memory of training."""

_FIXED: Config = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}
"""Fields that would change the work, with the one value that is modelled."""

_ACTIVATIONS = {"relu": "relu", "silu": "silu", "swish": "silu"}
"""Published activations and what they cost as; others are forms of GELU, looked up in a table."""

_Activation = Literal[
    "gelu", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "relu", "silu", "swish"
]
_KINDS: dict[str, TypeAdapter[int] | TypeAdapter[bool] | TypeAdapter[float] | TypeAdapter[_Activation]] = {
    "size": TypeAdapter(PositiveInt),
    "flag": TypeAdapter(Flag),
    "share": TypeAdapter(Share),
    "activation": TypeAdapter(_Activation),
}


@dataclass(frozen=True)
class _Key:
    """A published field that becomes a field of the spec."""

    published: str
    kind: str
    """'size' (whole number > 0), 'flag', 'share' (0 <= p < 1) or 'activation'."""
    default: Plain | Callable[[Config], Plain] = None
    """Value where the field is absent or null, as the family's code has it; None means that it must be
    given."""


@dataclass(frozen=True)
class _Family:
    """How one published family is translated."""

    keys: dict[str, _Key]
    """Field of the spec -> published field."""
    constants: Config
    """Fields of the spec that are the same for the whole family."""
    costless: frozenset[str] = frozenset()
    fixed: tuple[tuple[str, Plain], ...] = ()


_GPT2 = _Family(
    keys={
        "layers": _Key("n_layer", "size"),
        "hidden": _Key("n_embd", "size"),
        "heads": _Key("n_head", "size"),
        "feed_forward": _Key("n_inner", "size", lambda c: 4 * cast(int, c["n_embd"])),
        "vocabulary": _Key("vocab_size", "size"),
        "position_count": _Key("n_positions", "size"),
        "activation": _Key("activation_function", "activation", "gelu_new"),
        "residual_dropout": _Key("resid_pdrop", "share", 0.1),
        "attention_dropout": _Key("attn_pdrop", "share", 0.1),
        "embedding_dropout": _Key("embd_pdrop", "share", 0.1),
        "tied_embeddings": _Key("tie_word_embeddings", "flag", True),
    },
    constants={"fused_qkv": True},
    fixed=(("scale_attn_weights", True), ("is_decoder", False)),
)

_OPT = _Family(
    keys={
        "layers": _Key("num_hidden_layers", "size"),
        "hidden": _Key("hidden_size", "size"),
        "heads": _Key("num_attention_heads", "size"),
        "feed_forward": _Key("ffn_dim", "size"),
        "vocabulary": _Key("vocab_size", "size"),
        "embedding_width": _Key("word_embed_proj_dim", "size", lambda c: c.get("hidden_size")),
        "position_count": _Key("max_position_embeddings", "size"),
        "activation": _Key("activation_function", "activation", "relu"),
        "residual_dropout": _Key("dropout", "share", 0.1),
        "attention_dropout": _Key("attention_dropout", "share", 0.0),
        "attention_bias": _Key("enable_bias", "flag", True),
        "feed_forward_bias": _Key("enable_bias", "flag", True),
        "tied_embeddings": _Key("tie_word_embeddings", "flag", True),
    },
    constants={"position_offset": 2},
    costless=frozenset({"activation_dropout", "do_layer_norm_before", "_remove_final_layer_norm"}),
    fixed=(("layer_norm_elementwise_affine", True), ("layerdrop", 0.0), ("is_decoder", False)),
)

_BERT = _Family(
    keys={
        "layers": _Key("num_hidden_layers", "size"),
        "hidden": _Key("hidden_size", "size"),
        "heads": _Key("num_attention_heads", "size"),
        "feed_forward": _Key("intermediate_size", "size"),
        "vocabulary": _Key("vocab_size", "size"),
        "position_count": _Key("max_position_embeddings", "size"),
        "token_types": _Key("type_vocab_size", "size", 2),
        "activation": _Key("hidden_act", "activation", "gelu"),
        "residual_dropout": _Key("hidden_dropout_prob", "share", 0.1),
        "embedding_dropout": _Key("hidden_dropout_prob", "share", 0.1),
        "attention_dropout": _Key("attention_probs_dropout_prob", "share", 0.1),
        "tied_embeddings": _Key("tie_word_embeddings", "flag", True),
    },
    constants={
        "norm_position": "post",
        "embedding_norm": True,
        "final_norm": False,
        "causal": False,
        "head": "masked-lm",
        "pooler": True,
    },
    fixed=(("position_embedding_type", "absolute"), ("is_decoder", False)),
)

_LLAMA = _Family(
    keys={
        "layers": _Key("num_hidden_layers", "size"),
        "hidden": _Key("hidden_size", "size"),
        "heads": _Key("num_attention_heads", "size"),
        "key_value_heads": _Key("num_key_value_heads", "size", lambda c: c.get("num_attention_heads")),
        "head_size": _Key("head_dim", "size", lambda c: c.get("head_dim")),
        "feed_forward": _Key("intermediate_size", "size"),
        "vocabulary": _Key("vocab_size", "size"),
        "position_count": _Key("max_position_embeddings", "size", 2048),
        "activation": _Key("hidden_act", "activation", "silu"),
        "attention_dropout": _Key("attention_dropout", "share", 0.0),
        "attention_bias": _Key("attention_bias", "flag", False),
        "feed_forward_bias": _Key("mlp_bias", "flag", False),
        "tied_embeddings": _Key("tie_word_embeddings", "flag", False),
    },
    constants={"positions": "rotary", "gated": True, "norm": "rms_norm"},
    fixed=(("is_decoder", False), ("partial_rotary_factor", 1.0)),
)

_FAMILIES = {"bert": _BERT, "gpt2": _GPT2, "llama": _LLAMA, "opt": _OPT}


def translate(config: Plain, source: str) -> Config:
    """Fields of a model spec for a published configuration; errors name the published key."""
    if not isinstance(config, dict):
        raise PhazeError(f"{source}: must hold a JSON object with model_type, got {type(config).__name__}")
    family = _family(config, source)
    _refuse_unknown(config, family, source)
    fields = {field: _value(config, key, source) for field, key in family.keys.items()}
    fields |= family.constants
    if family is _OPT:
        fields |= _opt_norms(config, source)
        if fields["embedding_width"] == fields["hidden"]:
            fields["embedding_width"] = None
    return {field: value for field, value in fields.items() if value is not None}


def _family(config: Config, source: str) -> _Family:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise PhazeError(f"{source}: model_type: must be one of {', '.join(_FAMILIES)}, got {kind!r}")
    return _FAMILIES[kind]


def _refuse_unknown(config: Config, family: _Family, source: str) -> None:
    """Raise PhazeError for a field that is not known, or that is known and not modelled with its value."""
    fixed = _FIXED | dict(family.fixed)
    known = {key.published for key in family.keys.values()} | _COSTLESS | family.costless | set(fixed)
    for key, value in config.items():
        if key not in known:
            raise PhazeError(
                f"{source}: {key}: is not a known key of model_type {config['model_type']!r}, got {value!r}"
            )
        if key in fixed and value is not None and value != fixed[key]:
            raise PhazeError(f"{source}: {key}: only {fixed[key]!r} is modelled, got {value!r}")


def _value(config: Config, key: _Key, source: str) -> Plain:
    value = config.get(key.published)
    if value is None:
        value = key.default(config) if callable(key.default) else key.default
        if value is None and not callable(key.default):
            raise PhazeError(f"{source}: {key.published}: must be given, it is a {key.kind}")
    if value is None:
        return None
    try:
        _KINDS[key.kind].validate_python(value)
    except ValidationError as error:
        raise PhazeError(describe(error, f"{source}: {key.published}")) from error
    return _ACTIVATIONS.get(str(value), "gelu") if key.kind == "activation" else value


def _opt_norms(config: Config, source: str) -> Config:
    """Places where OPT normalises: a final norm belongs to pre-norm models only."""
    before = _value(config, _Key("do_layer_norm_before", "flag", True), source)
    removed = _value(config, _Key("_remove_final_layer_norm", "flag", False), source)
    return {"norm_position": "pre" if before else "post", "final_norm": bool(before and not removed)}


def describes_model(config: Plain) -> bool:
    """Whether what a JSON file holds is a published configuration."""
    return isinstance(config, dict) and "model_type" in config
