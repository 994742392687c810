"""Megatron-LM flags of model fields that do not affect step time.

Without these flags Megatron-LM would train another model: its default rotary base is 10,000, and its router
scores by softmax. Published fields that no flag sets, or only to another value, are listed for the user to
set. Sources are `megatron/training/arguments.py` and `MLATransformerConfig` of Megatron-Core 0.16.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phaze.base.printed import short
from phaze.spec.model import Model
from phaze.spec.plain import Plain

Flag = tuple[str, ...]
Fields = Mapping[str, Plain]
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
"""Published names of the epsilon that norms add to the variance; the first present name is used."""
NUMBERS = {
    **dict.fromkeys(reversed(EPSILONS), "--norm-epsilon"),
    "partial_rotary_factor": "--rotary-percent", "initializer_range": "--init-method-std",
    "init_std": "--init-method-std", "router_aux_loss_coef": "--moe-aux-loss-coeff",
    "aux_loss_alpha": "--moe-aux-loss-coeff", "router_jitter_noise": "--moe-input-jitter-eps",
    "swiglu_limit": "--activation-func-clamp-value",
}  # fmt: skip
"""Flags that take the value of a published field unchanged."""
BASE = ("--rotary-base", "--norm-epsilon")
"""Flag that all models with rotary positions need (rotary base), and flag that all need (norm epsilon)."""
YARN: Fields = {"beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 4096}
"""YaRN parameters that `MLATransformerConfig` fixes, for which there are no flags."""
LLAMA3: Fields = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
"""Parameters that `--use-rope-scaling` fixes, in addition to its factor."""
ROTARY_PARTS = ("rope_theta", "partial_rotary_factor")
"""Fields that newer configurations store in `rope_parameters`."""
SCORES = "--moe-router-score-function"
"""Flag of the function that turns router outputs into scores."""
UNTIMED_FLAGS = frozenset(
    (
        *NUMBERS.values(), *BASE, "--rotary-interleaved", "--use-rope-scaling", "--rope-scaling-factor",
        "--rotary-scaling-factor", "--mscale", "--mscale-all-dim", "--rope-type",
        "--rotary-seq-len-interpolation-factor", "--moe-router-topk-scaling-factor",
        SCORES, "--moe-router-pre-softmax",
    )
)  # fmt: skip
"""Flags that may be written for fields that do not affect time; none changes the price."""
_SCALES = {"mscale": "--mscale", "mscale_all_dim": "--mscale-all-dim"}


def untimed_flags(model: Model) -> tuple[list[Flag], tuple[str, ...]]:
    """Flags of model fields that do not affect time, and fields with no flag, such as `swiglu_alpha 1.7`."""
    fields = _flat_rotary(model.untimed)
    flags: dict[str, Flag] = {}
    unset: list[str] = []
    for name, value in fields.items():
        field_flags = _flags(name, value, fields, model)
        if field_flags is None:
            unset.append(f"{name} {short(value)}")
        else:
            # Several fields may give one flag: the first published one is kept.
            flags = {flag[0]: flag for flag in field_flags} | flags
    return list(flags.values()), (*unset, *_unsettable(model, flags))


def unsettable_fields(model: Model) -> tuple[str, ...]:
    """Model properties that do not affect time, as text, for runtimes that can set none of them."""
    flags, _ = untimed_flags(model)
    fields = [f"{name} {short(value)}" for name, value in model.untimed.items()]
    return (*fields, *_unsettable(model, {flag[0]: flag for flag in flags}))


def _unsettable(model: Model, flags: Mapping[str, Flag]) -> tuple[str, ...]:
    """Rotary base and norm epsilon, if the model needs them but its spec does not give them."""
    rotary = model.positions == "rotary" and not any("rope" in name for name in model.untimed)
    return (*["rotary base"] * rotary, *["norm epsilon"] * ("--norm-epsilon" not in flags))


def _flat_rotary(untimed: Fields) -> dict[str, Plain]:
    """Published fields, with `rope_parameters` flattened to the form of earlier configurations."""
    parts = untimed.get("rope_parameters")
    if not isinstance(parts, dict) or any(isinstance(value, dict) for value in parts.values()):
        return dict(untimed)
    rotary = {name: parts[name] for name in ROTARY_PARTS if name in parts}
    scaling = {name: value for name, value in parts.items() if name not in ROTARY_PARTS}
    others = {name: value for name, value in untimed.items() if name != "rope_parameters"}
    return {**others, **rotary, "rope_scaling": scaling}


def _flags(name: str, value: Plain, fields: Fields, model: Model) -> list[Flag] | None:
    """Flags for a published field; empty if it is Megatron-LM's default, None if no flag can set it."""
    if name in NUMBERS and _is_number(value):
        return [(NUMBERS[name], str(value))]
    if name in _FIELD_FLAGS:
        return _FIELD_FLAGS[name](value, fields, model)
    return [] if value in (False, 0) else None


def _is_number(value: Plain) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rotary_scaling(value: Plain, _: Fields, model: Model) -> list[Flag] | None:
    """Flags that extend rotary positions beyond the original training length; None if no flag can."""
    if not isinstance(value, dict):
        return None
    kind = str(value.get("rope_type", value.get("type", "default")))
    parameters = {name: parameter for name, parameter in value.items() if name not in ("rope_type", "type")}
    if kind == "default":
        return [] if not parameters else None
    # Without a factor, its default None fails as well.
    if not all(map(_is_number, {"factor": None, **parameters}.values())):
        return None
    factor = str(parameters.pop("factor", None))
    if kind == "linear" and not model.latent and not parameters:
        return [("--rotary-seq-len-interpolation-factor", factor.removesuffix(".0"))]
    if kind == "llama3" and not model.latent and parameters == LLAMA3:
        return [("--use-rope-scaling",), ("--rope-scaling-factor", factor)]
    scales = [(flag, str(parameters.pop(name))) for name, flag in _SCALES.items() if name in parameters]
    if kind == "yarn" and model.latent and {**YARN, **parameters} == YARN:
        return [("--rope-type", "yarn"), ("--rotary-scaling-factor", factor), *scales]
    return None


def _interleaved(value: Plain, _: Fields, model: Model) -> list[Flag] | None:
    """Flag for interleaved rotary positions; latent attention always interleaves."""
    if model.latent:
        return [] if value else None
    return [("--rotary-interleaved",)] if value else []


def _score_factor(value: Plain, fields: Fields, _: Model) -> list[Flag] | None:
    """Flag for the factor by which router scores are scaled.

    Megatron-LM applies it only to scores that softmax has not normalised after top-k.
    """
    if value == 1:
        return []
    free = fields.get("scoring_func") == "sigmoid" or fields.get("norm_topk_prob") is False
    return [("--moe-router-topk-scaling-factor", str(value))] if free and _is_number(value) else None


def _normalised(value: Plain, fields: Fields, _: Model) -> list[Flag] | None:
    """Flag for unnormalised router scores; Megatron-LM normalises top-k scores unless softmax comes first."""
    if value is True:
        return []
    return None if fields.get("scoring_func") == "sigmoid" else [("--moe-router-pre-softmax",)]


def _method(value: Plain, _: Fields, model: Model) -> list[Flag] | None:
    """No flag for a top-k method that `experts.balancing` expresses; expert groups have flags."""
    # noaux_tc balances experts by a bias of the router instead of a loss (DeepSeek-V3).
    biased = model.experts is not None and model.experts.balancing == "biases"
    return [] if value in ("greedy", "group_limited_greedy", *["noaux_tc"] * biased) else None


_FIELD_FLAGS: Mapping[str, Callable[[Plain, Fields, Model], list[Flag] | None]] = {
    # Megatron-LM requires an integer.
    "rope_theta": lambda value, *_: (
        [("--rotary-base", f"{value:.0f}")]
        if isinstance(value, int | float) and float(value).is_integer()
        else None
    ),
    "rope_scaling": _rotary_scaling,
    "rope_interleave": _interleaved,
    "scoring_func": lambda value, *_: [(SCORES, value)] if value in ("softmax", "sigmoid") else None,
    "routed_scaling_factor": _score_factor,
    "norm_topk_prob": _normalised,
    "topk_method": _method,
    "use_routing_bias": lambda value, _, model: (
        [] if bool(value) == (model.experts is not None and model.experts.balancing == "biases") else None
    ),
    "seq_aux": lambda value, *_: [("--moe-router-load-balancing-type", "seq_aux_loss")] if value else [],
    # These follow from the model's dimensions or are Megatron-LM's defaults.
    "hidden_dropout": lambda *_: [],
    "expand": lambda *_: [],
    "mamba_hidden_act": lambda value, *_: [] if value == "silu" else None,
}
