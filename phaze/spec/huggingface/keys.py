"""How a family's published fields become fields of a model spec.

Every field of a published file is one of four: it says something that costs time or memory and becomes a
field of the spec; it costs neither and is ignored; it would cost, but only one value of it is modelled; or
it is unknown, which is an error, since an unknown field may cost anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from phaze.base.errors import PhazeError
from phaze.spec.huggingface.untimed import untimed
from phaze.spec.noun import describe
from phaze.spec.plain import Plain
from phaze.spec.values import Flag, Label, PositiveInt, Seed, Share

Config = dict[str, Plain]

# fmt: off
COSTLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "architectures", "attn_implementation", "attn_logit_softcapping", "auto_map", "aux_loss_alpha",
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "classifier_dropout", "cls_token_id",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "encoder_no_repeat_ngram_size", "eos_token_id", "ep_size", "exponential_decay_length_penalty",
    "final_logit_softcapping", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id",
    "gradient_checkpointing", "id2label", "indexer_rope_interleave", "init_std", "initial_context_length",
    "initializer_factor", "initializer_range", "keys_to_ignore_at_inference", "label2id", "language",
    "layer_norm_eps", "layer_norm_epsilon", "length_penalty", "license", "max_length", "min_length",
    "model_type", "n_ctx", "no_repeat_ngram_size", "norm_topk_prob", "num_beam_groups", "num_beams",
    "num_labels", "num_logits_to_keep", "num_return_sequences", "output_attentions", "output_hidden_states",
    "output_past", "output_router_logits", "output_scores", "pad_token_id", "partial_rotary_factor",
    "prefix", "pretraining_tp", "problem_type", "quantization_config", "query_pre_attn_scalar",
    "reorder_and_upcast_attn", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "rms_norm_eps", "rope_interleave", "rope_local_base_freq", "rope_parameters", "rope_scaling",
    "rope_theta", "rotary_dim", "routed_scaling_factor", "router_aux_loss_coef", "router_jitter_noise",
    "scale_attn_by_inverse_layer_idx", "scoring_func", "sep_token_id", "seq_aux", "summary_activation",
    "summary_first_dropout", "summary_hidden_size", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "suppress_tokens", "swiglu_limit", "task_specific_params", "temperature",
    "tokenizer_class", "top_k", "top_p", "topk_method", "torch_dtype", "torchscript",
    "transformers_version", "typical_p", "unk_token_id", "use_bfloat16", "use_cache", "use_return_dict",
    "vocab_type",
})
# fmt: on
"""Fields of any family that change neither the work nor the memory of training."""

FIXED: Config = {
    "add_cross_attention": False,
    "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None,
    "is_encoder_decoder": False,
    "pruned_heads": {},
    "tie_encoder_decoder": False,
}
"""Fields that would change the work, with the one value that is modelled."""

_ACTIVATIONS = {"relu": "relu", "relu2": "relu2", "silu": "silu", "swish": "silu"}
"""Published activations and what they cost as; others are forms of GELU, looked up in a table."""

_Activation = Literal[
    "gelu", "gelu_fast", "gelu_new", "gelu_python", "gelu_pytorch_tanh", "relu", "relu2", "silu", "swish"
]
_Adapter: TypeAlias = (
    TypeAdapter[int]
    | TypeAdapter[bool]
    | TypeAdapter[float]
    | TypeAdapter[str]
    | TypeAdapter[_Activation]
    | TypeAdapter[list[int]]
    | TypeAdapter[list[str]]
)
_KINDS: dict[str, _Adapter] = {
    "size": TypeAdapter(PositiveInt),
    "count": TypeAdapter(Seed),
    "sizes": TypeAdapter(list[Seed]),
    "word": TypeAdapter(Label),
    "words": TypeAdapter(list[Label]),
    "flag": TypeAdapter(Flag),
    "share": TypeAdapter(Share),
    "activation": TypeAdapter(_Activation),
}


@dataclass(frozen=True)
class Key:
    """A published field that becomes a field of the spec."""

    published: str
    kind: str
    """'size' (whole number > 0), 'count' (>= 0), 'flag', 'share' (0 <= p < 1), 'activation', 'word', or a
    list of 'sizes' or 'words'."""
    default: Plain | Callable[[Config], Plain] = None
    """Value where the field is absent or null, as the family's code has it; None means that it must be
    given."""


def none(_: Config) -> None:
    """No value, for a field that may be absent."""


@dataclass(frozen=True)
class Family:
    """How one published family is translated."""

    keys: dict[str, Key]
    """Field of the spec -> published field; a dot leads to a field of a part, as experts.count."""
    constants: Config
    """Fields of the spec that are the same for the whole family."""
    costless: frozenset[str] = frozenset()
    fixed: tuple[tuple[str, Plain], ...] = ()
    also: tuple[Key, ...] = ()
    """Fields that `arrange` reads."""
    arrange: Callable[[Config, Config], Config] | None = None
    """Fields of the spec from those found by now, and from the values of `also` by their published names."""

    def fields(self, config: Config, source: str) -> Config:
        """Fields of the spec for a published configuration; PhazeError naming the key that is wrong."""
        self._refuse_unknown(config, source)
        found: Config = {}
        for field, key in self.keys.items():
            set_field(found, field, read(config, key, source))
        for field, value in self.constants.items():
            set_field(found, field, value)
        if self.arrange is not None:
            found = self.arrange(found, {key.published: read(config, key, source) for key in self.also})
        found["untimed"] = self._untimed(config) or None
        return {field: value for field, value in found.items() if value is not None}

    def _untimed(self, config: Config) -> Config:
        """Published fields that change what is learnt, and no time."""
        used = {key.published for key in (*self.keys.values(), *self.also)}
        names = (key.published for key in self.keys.values() if key.kind == "activation")
        return untimed(config, (COSTLESS | self.costless) - used, frozenset(names))

    def _refuse_unknown(self, config: Config, source: str) -> None:
        """Raise PhazeError for a field that is not known, or not modelled with its value."""
        fixed = FIXED | dict(self.fixed)
        used = {key.published for key in (*self.keys.values(), *self.also)}
        known = used | COSTLESS | self.costless | set(fixed)
        for key, value in config.items():
            if key not in known:
                raise PhazeError(
                    f"{source}: {key}: is not a known key of model_type {config['model_type']!r}, "
                    f"got {value!r}"
                )
            if key in fixed and key not in used and value is not None and value != fixed[key]:
                raise PhazeError(f"{source}: {key}: only {fixed[key]!r} is modelled, got {value!r}")


def set_field(fields: Config, name: str, value: Plain) -> None:
    """Set a field, or with a dot that of a part; a part without values is none."""
    part, _, own = name.partition(".")
    if not own:
        fields[name] = value
    elif value is not None:
        inner = fields.setdefault(part, {})
        assert isinstance(inner, dict)
        set_field(inner, own, value)


def read(config: Config, key: Key, source: str) -> Plain:
    """Value of a published field, or its default; PhazeError where it is wrong or missing."""
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
