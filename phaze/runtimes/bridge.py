"""Write a recipe as overrides of a Megatron-Bridge configuration.

Megatron-Bridge takes the model from its own recipes (`megatron.bridge.recipes`). The changes are
Megatron-LM's flags for batch, layout and software stack, as fields of `ConfigContainer`. A field without its
flag is set to Megatron-LM's default, because recipes of Megatron-Bridge have other defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from phaze.runtimes.flags import Emitted, Flags, comments, parse_flags
from phaze.runtimes.megatron_flags import emit_megatron
from phaze.runtimes.megatron_layout import ALGORITHM, LAYOUT, MOMENTUM, OFFLOADED_PARTS, SMALLER, STRATEGY
from phaze.runtimes.megatron_model import MODEL_FLAGS, is_hybrid
from phaze.runtimes.megatron_software import GROUP
from phaze.runtimes.recipe import Recipe, shown
from phaze.runtimes.untimed import UNTIMED_FLAGS
from phaze.spec.plain import Plain
from phaze.spec.system import Stack

VERSION = "0.3.1"
WITHOUT: dict[str, tuple[Plain, tuple[str, ...]]] = {
    "--seq-length": (None, ("model.seq_length", "dataset.seq_length")),
    "--micro-batch-size": (None, ("train.micro_batch_size",)),
    "--global-batch-size": (None, ("train.global_batch_size",)),
    "--tensor-model-parallel-size": (1, ("model.tensor_model_parallel_size",)),
    "--context-parallel-size": (1, ("model.context_parallel_size",)),
    "--cp-comm-type": (None, ("model.cp_comm_type",)),
    "--hierarchical-context-parallel-sizes": (None, ("model.hierarchical_context_parallel_sizes",)),
    "--sequence-parallel": (False, ("model.sequence_parallel",)),
    "--pipeline-model-parallel-size": (1, ("model.pipeline_model_parallel_size",)),
    LAYOUT: (None, ("model.pipeline_model_parallel_layout",)),
    GROUP: (None, ("model.microbatch_group_size_per_vp_stage",)),
    "--expert-model-parallel-size": (1, ("model.expert_model_parallel_size",)),
    "--moe-router-force-load-balancing": (False, ("model.moe_router_force_load_balancing",)),
    "--expert-tensor-parallel-size": (None, ("model.expert_tensor_parallel_size",)),
    "--use-distributed-optimizer": (
        False,
        ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    ),
    "--use-megatron-fsdp": (False, ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp")),
    STRATEGY: ("no_shard", ("ddp.data_parallel_sharding_strategy",)),
    "--no-gradient-accumulation-fusion": (True, ("model.gradient_accumulation_fusion",)),
    "--ckpt-format": ("torch_dist", ("checkpoint.ckpt_format",)),
    "--recompute-granularity": (None, ("model.recompute_granularity",)),
    "--recompute-method": (None, ("model.recompute_method",)),
    "--recompute-num-layers": (None, ("model.recompute_num_layers",)),
    "--recompute-modules": (None, ("model.recompute_modules",)),
    "--fine-grained-activation-offloading": (False, ("model.fine_grained_activation_offloading",)),
    OFFLOADED_PARTS: (None, ("model.offload_modules",)),
    "--cpu-offloading": (False, ("model.cpu_offloading",)),
    "--cpu-offloading-num-layers": (0, ("model.cpu_offloading_num_layers",)),
    "--overlap-grad-reduce": (False, ("ddp.overlap_grad_reduce",)),
    "--overlap-param-gather": (False, ("ddp.overlap_param_gather",)),
    "--cross-entropy-loss-fusion": (False, ("model.cross_entropy_loss_fusion",)),
    "--no-bias-swiglu-fusion": (True, ("model.bias_activation_fusion",)),
}
"""Configuration fields set by each flag, and Megatron-LM's default for an absent flag."""
PRECISION = {
    "--fp8-format": "fp8", "--fp8-recipe": "fp8_recipe", "--fp4-format": "fp4", "--fp4-recipe": "fp4_recipe",
    "--grad-reduce-in-bf16": "grad_reduce_in_fp32",
}  # fmt: skip
"""Fields of `MixedPrecisionConfig` that override `bf16_mixed`, by flag."""
OVERLAP = {
    "--tp-comm-overlap": "tp_comm_overlap",
    "--overlap-grad-reduce": "overlap_grad_reduce",
    "--overlap-param-gather": "overlap_param_gather",
    "--overlap-moe-expert-parallel-comm": "overlap_moe_expert_parallel_comm",
}
"""Fields of `CommOverlapConfig`, false if their flag is absent.

Megatron-Bridge applies the data-parallel ones only with a distributed optimizer.
"""
SERIAL = "--no-overlap-p2p-communication"
EXPERTS = {
    "--moe-token-dispatcher-type": "model.moe_token_dispatcher_type",
    "--moe-grouped-gemm": "model.moe_grouped_gemm",
}
DEEPEP = "--moe-enable-deepep"
UNTIMED = {
    "--norm-epsilon": "model.layernorm_epsilon", "--rotary-base": "model.rotary_base",
    "--rotary-percent": "model.rotary_percent", "--rotary-interleaved": "model.rotary_interleaved",
    "--init-method-std": "model.init_method_std", "--moe-aux-loss-coeff": "model.moe_aux_loss_coeff",
    "--moe-input-jitter-eps": "model.moe_input_jitter_eps",
    "--moe-router-load-balancing-type": "model.moe_router_load_balancing_type",
    "--moe-router-score-function": "model.moe_router_score_function",
    "--moe-router-pre-softmax": "model.moe_router_pre_softmax",
    "--moe-router-topk-scaling-factor": "model.moe_router_topk_scaling_factor",
    "--moe-router-enable-expert-bias": "model.moe_router_enable_expert_bias",
}  # fmt: skip
"""Fields of `TransformerConfig` and `GPTModelProvider` that do not affect time, by flag.

Other such flags have different names in recipes and are listed as settings of the user.
"""
LISTS = ("--recompute-modules", OFFLOADED_PARTS, "--hierarchical-context-parallel-sizes")
KEPT = ("--bf16", "--transformer-impl", "--attention-backend", "--no-rope-fusion")
"""Flags that need no field, because Megatron-Bridge always behaves that way."""
OPTIMIZERS = {
    ALGORITHM: "optimizer.optimizer", MOMENTUM: "optimizer.sgd_momentum",
    SMALLER: "optimizer.use_precision_aware_optimizer",
}  # fmt: skip
SMALLER_MOMENTS = {"--exp-avg-dtype": "exp_avg_dtype", "--exp-avg-sq-dtype": "exp_avg_sq_dtype"}
"""Fields of `OptimizerConfig` with the formats of Adam's moments, by flag; `SMALLER` allows them."""
DTYPES = {"bf16": "torch.bfloat16", "fp8": "torch.uint8"}
"""PyTorch types of formats, as Megatron-LM maps them (`validate_args`)."""
READ = {
    *WITHOUT,
    *OPTIMIZERS,
    *SMALLER_MOMENTS,
    *PRECISION,
    *OVERLAP,
    SERIAL,
    *EXPERTS,
    DEEPEP,
    *KEPT,
    *MODEL_FLAGS,
    *UNTIMED_FLAGS,
}
LORA = "LoRA"
REPEATED = ("# Environment:", "# Expert load:")
"""Comments of the flags that are written here as well."""


def emit_bridge(recipe: Recipe, stack: Stack | None = None, *, blackwell: bool = False) -> Emitted:
    """Write overrides for a Megatron-Bridge configuration; PhazeError if Megatron-Core cannot run the layout.

    The result lists the differences from the plan, as for Megatron-LM's flags, and the settings without a
    field.
    """
    # Adapters are an object of Megatron-Bridge (`config.peft`); Megatron-LM's flags have none.
    without_lora = replace(recipe, model=recipe.model.model_copy(update={"lora": None}))
    megatron = emit_megatron(without_lora, stack, blackwell=blackwell)
    flags = parse_flags(megatron.files["megatron.txt"])
    differences = (
        # The model comes from a recipe of Megatron-Bridge, whatever flags could say of it.
        *(sentence for sentence in megatron.differences if not sentence.startswith("model.")),
        *(f"{flag[2:]}: Megatron-Bridge has no such field" for flag in flags if flag not in READ),
    )
    # These flags stand for fields whose names differ among Megatron-Bridge's model providers.
    untimed = [" ".join((flag[2:], *flags[flag])) for flag in flags if flag in UNTIMED_FLAGS - UNTIMED.keys()]
    user_settings = [f"model {recipe.model.name}", *megatron.user_settings, *untimed]
    if is_hybrid(recipe.model) and recipe.layout.pp > 1:
        user_settings.append(f"blocks {shown(recipe.blocks)}")
    title = f"Megatron-Bridge {VERSION}, {recipe.model.name} on {recipe.layout.devices} devices"
    header = [
        *comments(title, differences=differences, user_settings=user_settings),
        *(line for line in megatron.files["megatron.txt"].splitlines() if line.startswith(REPEATED)),
    ]
    files = {"plan.py": "\n".join([*header, *_lines(recipe, flags)])}
    return Emitted(f"Megatron-Bridge {VERSION}", files, differences, tuple(user_settings))


def _lines(recipe: Recipe, flags: Flags) -> Iterator[str]:
    """Yield the lines of a Python file that defines the function `planned`."""
    lora = recipe.model.lora
    yield from ["import torch", ""] * bool(flags.keys() & SMALLER_MOMENTS.keys())
    yield from [f"from megatron.bridge.peft.lora import {LORA}"] * bool(lora)
    yield "from megatron.bridge.training.comm_overlap import CommOverlapConfig"
    yield "from megatron.bridge.training.mixed_precision import get_mixed_precision_config"
    yield from ("", "", "def planned(config):")
    yield '    """A ConfigContainer of megatron.bridge.recipes, trained as planned."""'
    yield from (f"    config.{name} = {value!r}" for name, value in settings(recipe, flags).items())
    for flag, name in SMALLER_MOMENTS.items():
        if flag in flags:
            yield f"    config.optimizer.{name} = {DTYPES[flags[flag][0]]}"
    yield "    config.mixed_precision = get_mixed_precision_config('bf16_mixed')"
    for flag, name in PRECISION.items():
        if flag in flags:
            yield f"    config.mixed_precision.{name} = {_value(flag, flags, False)!r}"
    overlap = {name: flag in flags for flag, name in OVERLAP.items()}
    overlap |= {"overlap_p2p_comm": False, "batch_p2p_comm": True} if SERIAL in flags else {}
    arguments = ", ".join(f"{name}={value}" for name, value in overlap.items())
    yield f"    config.comm_overlap = CommOverlapConfig({arguments})"
    yield f"    config.peft = {f'{LORA}(dim={lora})' if lora else None}"
    yield from ("    return config", "")


def settings(recipe: Recipe, flags: Flags) -> Mapping[str, Plain]:
    """Values of the configuration fields for model, training and data parallelism."""
    values: dict[str, Plain] = {}
    for flag, (usual, names) in WITHOUT.items():
        values |= dict.fromkeys(names, _value(flag, flags, not usual) if flag in flags else usual)
    vp = recipe.layout.vp
    values["model.virtual_pipeline_model_parallel_size"] = vp if vp > 1 else None
    optional_fields = EXPERTS | OPTIMIZERS | UNTIMED
    values |= {name: _value(flag, flags, True) for flag, name in optional_fields.items() if flag in flags}
    if DEEPEP in flags:
        values["model.moe_flex_dispatcher_backend"] = "deepep"
    if "--overlap-moe-expert-parallel-comm" in flags:
        values["model.moe_shared_expert_overlap"] = False  # required by `CommOverlapConfig`
    return values


def _value(flag: str, flags: Flags, bare: bool) -> Plain:
    """Value of a flag: a list, a single value, or `bare` if the flag has no value."""
    values: list[Plain] = [_number(word) for word in flags[flag]]
    if flag in LISTS:
        return values
    return values[0] if values else bare


def _number(text: str) -> Plain:
    """Convert a text to a number if possible; otherwise return it unchanged."""
    if text.isdecimal():
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
