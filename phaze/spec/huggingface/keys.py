"""Translation of a model family's published fields into fields of a model spec.

A published field that affects time or memory becomes a field of the spec. A field that affects neither is
ignored. Some fields would affect them, but only one of their values is modelled. Any other field is an error,
since it may cost anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from phaze.base.errors import PhazeError
from phaze.base.nearest import did_you_mean
from phaze.base.printed import short
from phaze.spec.noun import mistakes
from phaze.spec.plain import Plain
from phaze.spec.values import Flag, Label, PositiveInt, Seed, Share

# fmt: off
BOOKKEEPING = frozenset({
    "classifier_dropout", "ep_size", "experts_per_token", "head_dim", "language", "license",
    "max_position_embeddings", "n_ctx", "n_shared_experts", "num_key_value_heads", "num_logits_to_keep",
    "output_past", "output_router_logits", "pretraining_tp", "qk_head_dim", "sliding_window",
    "summary_activation", "summary_first_dropout", "summary_hidden_size", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "use_mamba_kernels", "vocab_type",
})
# fmt: on
"""Ignored fields of some families that do not affect training: outputs, files, redundant sizes."""
PLAIN_ACTIVATIONS = frozenset({"gelu", "relu", "relu2", "silu", "swish"})
"""Published activations with the same name in a spec; all others are approximations of equal cost."""
# fmt: off
BASE = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_experts_implementation", "_experts_implementation_internal", "_name_or_path", "architectures",
    "attn_implementation", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "cls_token_id", "cross_attention_hidden_size", "custom_pipelines",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "encoder_no_repeat_ngram_size", "eos_token_id", "experts_implementation",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "id2label", "is_decoder", "is_encoder_decoder", "keys_to_ignore_at_inference",
    "label2id", "length_penalty", "max_length", "max_new_tokens", "min_length", "min_new_tokens",
    "model_type", "name_or_path", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores", "pad_token_id",
    "prefix", "problem_type", "quantization_config", "remove_invalid_values", "renormalize_logits",
    "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id", "suppress_tokens",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tie_last_hidden_states",
    "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p",
    "unk_token_id", "use_bfloat16", "use_cache", "use_return_dict",
})
"""Fields of every `transformers` configuration (`PreTrainedConfig`, and fields that older versions wrote for
it and `GenerationConfig`). None changes the training of a decoder."""
COSTLESS = frozenset({
    "attn_logit_softcapping", "aux_loss_alpha", "classifier_dropout", "ep_size", "final_logit_softcapping",
    "index_share_for_mtp_iteration", "indexer_rope_interleave", "init_std", "initial_context_length",
    "initializer_factor",
    "initializer_range", "language", "layer_norm_eps", "layer_norm_epsilon", "license", "n_ctx",
    "norm_topk_prob", "num_logits_to_keep", "output_gate_type", "output_past", "output_router_logits",
    "partial_rotary_factor",
    "pretraining_tp", "query_pre_attn_scalar", "reorder_and_upcast_attn", "rms_norm_eps", "rope_interleave",
    "rope_local_base_freq", "rope_parameters", "rope_scaling", "rope_theta", "rotary_dim",
    "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise", "scale_attn_by_inverse_layer_idx",
    "scoring_func", "seq_aux", "summary_activation", "summary_first_dropout", "summary_hidden_size",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "swiglu_alpha", "swiglu_limit",
    "topk_method", "vocab_type",
})
# fmt: on
"""Fields of any family that affect neither the work nor the memory of training."""
NAMES = {
    "hybrid_override_pattern": ("hybrid_layer_pattern",),
    "layers_block_type": ("layer_types",),
    "moe_num_experts": ("num_experts", "num_local_experts"),
    "n_embd": ("hidden_size",),
    "n_group": ("num_expert_group",),
    "n_head": ("num_attention_heads",),
    "n_layer": ("num_hidden_layers",),
    "n_positions": ("max_position_embeddings",),
    "n_routed_experts": ("num_experts", "num_local_experts"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "attention_bias": ("use_qkv_bias",),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_local_experts": ("num_experts", "n_routed_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "num_experts_per_token", "experts_per_token"),
    "num_nextn_predict_layers": ("num_mtp_layers", "mtp_num_layers", "mtp_num_hidden_layers"),
    "mtp_num_hidden_layers": ("num_mtp_layers", "num_nextn_predict_layers"),
    "num_shared_experts": ("n_shared_experts",),
    "sliding_window_pattern": ("_sliding_window_pattern",),
}
"""Alternative names of published fields in other configurations of the same family (`attribute_map` of
`transformers`, whose `save_pretrained` writes its own names)."""
LISTS = ("layer_types", "layers_block_type", "mlp_layer_types", "hybrid_override_pattern")
"""Published lists or strings with an item per layer, which imply the number of layers if no field gives
it."""
NEEDED = (
    "experts.count", "experts.per_token", "experts.width", "mamba.heads", "mamba.head_size", "mamba.state",
)  # fmt: skip
"""Fields that a model part requires where the part is optional in a family."""
ALIKE = 0.86
"""Similarity from which an unknown field counts as a known one that is misspelt, even if it is off."""
OVERRIDES = "per_layer_config"
"""Published field with overrides for individual layers, by layer number (`transformers` 5.24)."""
_ACTIVATIONS = {"relu": "relu", "relu2": "relu2", "silu": "silu", "swish": "silu"}
"""Activation in a spec for each published one; all others are GELU variants, computed by table lookup."""
Config = dict[str, Plain]
Scalar: TypeAlias = str | int | float | bool | None
FIXED: Config = {"add_cross_attention": False, "pruned_heads": {}}
"""Published fields that would change the work, with the only value that is modelled."""
_Activation = Literal[
    "gelu", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "relu", "relu2", "silu", "swish",
    "xielu",
]  # fmt: skip
_VALIDATORS: dict[str, Callable[[object], object]] = {
    "size": TypeAdapter(PositiveInt).validate_python,
    "count": TypeAdapter(Seed).validate_python,
    "sizes": TypeAdapter(list[Seed]).validate_python,
    "word": TypeAdapter(Label).validate_python,
    "words": TypeAdapter(list[Label]).validate_python,
    "flag": TypeAdapter(Flag).validate_python,
    "share": TypeAdapter(Share).validate_python,
    "activation": TypeAdapter(_Activation).validate_python,
    "pattern": TypeAdapter(Label | list[Label]).validate_python,
    "turns": TypeAdapter(PositiveInt | Label).validate_python,
    "end": TypeAdapter(Seed | Literal[-1]).validate_python,
    "overrides": TypeAdapter(dict[str, dict[str, Scalar]]).validate_python,
}
"""Validator of each kind of field."""
_NOTHING: Config = {"flag": False, "count": 0, "share": 0.0, "overrides": {}}
"""False or zero value of each kind of field that allows one; for other kinds it means an absent field."""


def scales_rotary(config: Mapping[str, Plain]) -> bool:
    """True if rotary embeddings are multiplied by a factor: YaRN, unless its two factors are equal."""
    parts = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(parts, dict):
        return False
    alike = "mscale" in parts and parts["mscale"] == parts.get("mscale_all_dim")
    return "yarn" in (parts.get("rope_type"), parts.get("type")) and not alike


def _has_biases(spec: Config, _config: Config) -> Plain:
    return spec.get("attention_bias", True)


def _has_norms(spec: Config, _config: Config) -> Plain:
    return spec.get("qk_norm") not in (None, "none")


def _shared_width(spec: Config, _config: Config) -> Plain:
    parts = spec.get("experts")
    return parts.get("shared_width", 0) if isinstance(parts, dict) else 0


def _head_size(spec: Config, _config: Config) -> Plain:
    hidden, heads = spec.get("hidden"), spec.get("heads")
    assert isinstance(hidden, int)
    assert isinstance(heads, int)
    return spec.get("head_size") or hidden // heads


def _only_attention(spec: Config, config: Config) -> Plain:
    """List of ones, one per layer, if all layers have full attention."""
    plain = not any(part in str(spec.get("pattern")) for part in ("window", "chunk", "mamba", "delta"))
    layers = spec["layers"]
    assert isinstance(layers, int)
    return [1] * layers if plain else config.get("layer_types")


def _unless_windowed(key: str) -> Callable[[Config, Config], Plain]:
    """The value of a field that only windows use, whatever it is, if the model has none."""
    return lambda spec, config: (
        None if spec.get("window") or config.get("use_sliding_window") else config[key]
    )


STATED: dict[str, Callable[[Config, Config], Plain]] = {
    "attention_bias": _has_biases,
    "attention_head_dim": _head_size,
    "attn_type_list": _only_attention,
    "head_dim": _head_size,
    "max_window_layers": _unless_windowed("max_window_layers"),
    "mlp_bias": lambda spec, _: spec.get("feed_forward_bias", True),
    "moe_shared_expert_intermediate_size": _shared_width,
    "num_nextn_predict_layers": lambda spec, _: spec.get("mtp", 0),
    "qk_layernorm": _has_norms,
    "qk_norm": _has_norms,
    "qkv_bias": _has_biases,
    "shared_expert_intermediate_size": _shared_width,
    "sliding_window": _unless_windowed("sliding_window"),
    "use_qk_norm": _has_norms,
    "use_qkv_bias": _has_biases,
}
"""Value of a published field that follows from the fields of the spec and of the configuration. A family that
does not read the field allows this value only."""


@dataclass(frozen=True)
class Key:
    """Published field, with the rule that converts its value to a field of the spec."""

    published: str
    kind: str
    """'size' (whole number > 0), 'count' (>= 0), 'flag', 'share' (0 <= p < 1), 'activation', 'word', a list
    of 'sizes' or 'words', a 'pattern' (a string or a list of names), 'turns' (a size or a string), an 'end'
    (a count, or -1 for the last), or the 'overrides' of layers."""
    default: Plain | Callable[[Config], Plain] = None
    """Value if the field is absent or null, as in the family's code; None: the field is required."""


def no_default(_: Config) -> None:
    """Default value (None) of an optional field."""


def count_listed_layers(config: Config) -> int | None:
    """Number of layers in a configuration that lists its layers without giving their number."""
    lists = (config.get(name) for name in LISTS)
    return next((len(words) for words in lists if isinstance(words, list | str) and words), None)


@dataclass(frozen=True)
class Family:
    """Translation rules for one published model family."""

    keys: dict[str, Key]
    """Published field for each field of the spec; a dot leads to a nested field, such as experts.count."""
    constants: Config
    """Fields of the spec that have the same value in the whole family."""
    costless: frozenset[str] = frozenset()
    fixed: tuple[tuple[str, Plain], ...] = ()
    extra_keys: tuple[Key, ...] = ()
    """Published fields that only `arrange` reads."""
    arrange: Callable[[Config, Config], Config] | None = None
    """Function of the fields read so far and the values of `extra_keys`, by published name;
    returns all fields."""

    def translate(self, config: Config, source: str) -> Config:
        """Translate a published configuration into spec fields; PhazeError names the invalid key."""
        config = self._renamed(config, source)
        self._refuse_unknown(config, source)
        fields: Config = {}
        for field, key in self.keys.items():
            set_field(fields, field, read(config, key, source))
        for field, value in self.constants.items():
            set_field(fields, field, value)
        if self.arrange is not None:
            extras = {key.published: read(config, key, source) for key in self.extra_keys}
            try:
                fields = self.arrange(fields, extras)
            except ValueError as error:
                raise PhazeError(f"{source}: {error}") from error
        self._refuse_contradictions(fields, config, source)
        experts = fields.get("experts")
        if isinstance(experts, dict) and experts.get("groups") in (None, 1):
            experts.pop("top_groups", None)  # a single group leaves no choice
        self._refuse_gaps(fields, source)
        fields["untimed"] = self._untimed(config) or None
        fields["scaled_rotary"] = ("latent" not in fields and scales_rotary(config)) or None
        return {field: value for field, value in fields.items() if value is not None}

    def _refuse_contradictions(self, spec: Config, config: Config, source: str) -> None:
        """Raise PhazeError for a field that this family does not read and that contradicts it."""
        for key in (config.keys() & STATED.keys()) - self._known_keys:
            value, only = config[key], STATED[key](spec, config)
            if value not in (None, only) and (value or only is True):
                raise PhazeError(
                    f"{source}: {key}: only {short(only)} is modelled for model_type "
                    f"{config['model_type']!r} of these sizes, got {short(value)}"
                )

    def _refuse_gaps(self, fields: Config, source: str) -> None:
        """Raise PhazeError if an optional model part lacks a size that it requires."""
        for field in NEEDED:
            part, _, size = field.partition(".")
            inner = fields.get(part)
            if field in self.keys and isinstance(inner, dict) and inner.get(size) is None:
                raise PhazeError(
                    f"{source}: {self.keys[field].published}: must be given: some layers have {part}"
                )

    def _untimed(self, config: Config) -> Config:
        """Published fields that affect learning but not training time."""
        ignored = (COSTLESS | self.costless) - self._read_keys - BOOKKEEPING
        fields = {key: value for key, value in config.items() if key in ignored and value is not None}
        names = {key.published for key in self.keys.values() if key.kind == "activation"}
        activations = {name: config[name] for name in names if config.get(name) is not None}
        return fields | {name: word for name, word in activations.items() if word not in PLAIN_ACTIVATIONS}

    @property
    def _read_keys(self) -> set[str]:
        return {key.published for key in (*self.keys.values(), *self.extra_keys)}

    @property
    def _known_keys(self) -> set[str]:
        """Fields that this family reads, or that have no effect."""
        fixed = FIXED.keys() | dict(self.fixed).keys()
        return {*self._read_keys, *BASE, *COSTLESS, *self.costless, *fixed, OVERRIDES}

    def _renamed(self, config: Config, source: str) -> Config:
        """Rename fields to this family's names; PhazeError if two names of a field conflict."""
        read_keys = self._read_keys
        others = {
            other: name for name in read_keys for other in NAMES.get(name, ()) if other not in read_keys
        }
        renamed = {key: value for key, value in config.items() if key not in others}
        for other, name in others.items():
            value = config.get(other)
            if value and renamed.get(name) and value != renamed[name]:
                raise PhazeError(
                    f"{source}: {other}: is an alias of {name} and must have the same value, "
                    f"{short(renamed[name])}, got {short(value)}"
                )
            if other in config and not renamed.get(name):
                renamed[name] = value
        return renamed

    def _refuse_unknown(self, config: Config, source: str) -> None:
        """Raise PhazeError for an unknown field or a value that is not modelled.

        A value that is false, zero or null means that the model lacks the feature.
        """
        fixed, read_keys = FIXED | dict(self.fixed), self._read_keys
        known_keys = self._known_keys | STATED.keys()
        for key, value in config.items():
            if key not in known_keys and (
                value or (value is not None and get_close_matches(key, read_keys | fixed.keys(), 1, ALIKE))
            ):
                raise PhazeError(
                    f"{source}: {key}: is not a known key of model_type {config['model_type']!r}, "
                    f"got {short(value)}",
                    did_you_mean(key, known_keys, "the table of its family"),
                )
            on = value or (key in fixed and fixed[key] is True and value is not None)
            if on and key in fixed and key not in read_keys and value != fixed[key]:
                raise PhazeError(f"{source}: {key}: only {fixed[key]!r} is modelled, got {short(value)}")
        if OVERRIDES not in read_keys:
            self._refuse_overrides(config, source)

    def _refuse_overrides(self, config: Config, source: str) -> None:
        """Raise PhazeError if a per-layer override changes a field that affects time or memory."""
        layers = read(config, Key(OVERRIDES, "overrides", no_default), source)
        for layer, fields in layers.items() if isinstance(layers, dict) else ():
            for key, value in fields.items() if isinstance(fields, dict) else ():
                if value and key not in BASE | COSTLESS | self.costless and value != config.get(key):
                    raise PhazeError(
                        f"{source}: {OVERRIDES}.{layer}.{key}: must be the same in all layers for "
                        f"model_type {config['model_type']!r}, got {short(value)}"
                    )


def set_field(fields: Config, name: str, value: Plain) -> None:
    """Set a field; a dot in its name leads to a nested field, which is set only if the value is not None."""
    part, _, nested = name.partition(".")
    if not nested:
        fields[name] = value
    elif value is not None:
        inner = fields.setdefault(part, {})
        assert isinstance(inner, dict)
        set_field(inner, nested, value)


def read(config: Config, key: Key, source: str) -> Plain:
    """Read a published field, or its default if absent; PhazeError if it is invalid or missing."""
    value = config.get(key.published)
    if isinstance(value, list) and key.kind == "size" and value and value == value[:1] * len(value):
        value = value[0]  # one number per layer, all equal
    if not value:
        value = None if value is None else _NOTHING.get(key.kind)
    if value is None:
        value = key.default(config) if callable(key.default) else key.default
    if value is None:
        if key.default in (None, count_listed_layers):
            got = config.get(key.published)
            raise PhazeError(
                f"{source}: {key.published}: must be given, it is a {key.kind}"
                + (f", got {short(got)}" if got is not None else "")
            )
        return None
    try:
        _VALIDATORS[key.kind](value)
    except ValidationError as error:
        raise mistakes(error, f"{source}: {key.published}") from error
    return _ACTIVATIONS.get(str(value), "gelu") if key.kind == "activation" else value
