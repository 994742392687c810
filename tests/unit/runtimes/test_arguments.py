"""Arguments of Megatron-LM in YAML and in its log mean the same as its flags."""

import json

import pytest

from phaze.base.errors import PhazeError
from phaze.runtimes.megatron_flags import megatron_software, read_megatron, sets_devices
from phaze.spec.systems import load_stack

FLAGS = """
torchrun --nproc-per-node 16 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 --bf16 --swiglu
    --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 --disable-bias-linear
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel --vocab-size 128256
    --untie-embeddings-and-output-weights --normalization RMSNorm --position-embedding-type rope
    --hidden-dropout 0.0 --attention-dropout 0.0 --use-distributed-optimizer --overlap-grad-reduce
    --overlap-param-gather --recompute-granularity selective --recompute-modules core_attn
"""
ARGUMENTS: dict[str, object] = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32,
    "group_query_attention": True, "num_query_groups": 8, "seq_length": 4096, "bf16": True, "swiglu": True,
    "max_position_embeddings": 4096, "micro_batch_size": 1, "global_batch_size": 128,
    "add_bias_linear": False, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2,
    "sequence_parallel": True, "vocab_size": 128256, "untie_embeddings_and_output_weights": True,
    "normalization": "RMSNorm", "position_embedding_type": "rope", "hidden_dropout": 0.0,
    "attention_dropout": 0.0, "use_distributed_optimizer": True, "overlap_grad_reduce": True,
    "overlap_param_gather": True, "recompute_granularity": "selective", "recompute_modules": ["core_attn"],
}  # fmt: skip
LOGGED: dict[str, object] = {
    "attention_backend": "AttnBackend.auto", "async_save": None, "attention_sink_k": 0,
    "bert_binary_head": True, "bert_embedder_type": "megatron", "bias_gelu_fusion": True,
    "context_parallel_size": 1, "consumed_train_samples": 0, "cp_comm_type": ["p2p"],
    "cpu_offloading_num_layers": 0, "data_parallel_size": 4, "data_path": ["data/x"], "ddp_bucket_size": None,
    "encoder_num_layers": 32, "encoder_seq_length": 4096, "expert_tensor_parallel_size": 2, "fp16": False,
    "fp8": None, "fp8_recipe": "delayed", "gradient_accumulation_fusion": True, "hybrid_layer_pattern": None,
    "img_h": 224, "kv_lora_rank": 32, "log_interval": 5, "make_vocab_size_divisible_by": 128,
    "moe_layer_freq": 1, "moe_router_load_balancing_type": "aux_loss", "moe_router_topk": 2,
    "moe_shared_expert_intermediate_size": None, "num_experts": None, "optimizer": "adam",
    "overlap_p2p_comm": True, "padded_vocab_size": 128256, "params_dtype": "torch.bfloat16", "rank": 0,
    "softmax_type": "vanilla", "tp_comm_bulk_dgrad": True, "tp_comm_overlap": False,
    "virtual_pipeline_model_parallel_size": None, "vocab_extra_ids": 0, "wandb_project": "",
    "window_size": None, "world_size": 16,
    "inference_dynamic_batching_prefix_caching_coordinator_policy": "load_balanced",
}  # fmt: skip
"""Arguments that a log lists although no flag has set them."""


def log(arguments: dict[str, object]) -> str:
    """Log of a run, which lists its arguments as `_print_args` does."""
    lines = (f"0:   {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items())
    head, end = "-" * 24 + " arguments " + "-" * 24, "-" * 20 + " end of arguments " + "-" * 21
    return "\n".join(("using world size: 16", f"0: {head}", *lines, f"0: {end}", "0: num_layers ... 7", ""))


def yaml(arguments: dict[str, object], indent: str = "") -> str:
    """Mapping of YAML with arguments."""
    lines = (f"{indent}{name}: {json.dumps(value)}\n" for name, value in arguments.items())
    return "".join(lines)


def test_a_log_lists_what_the_flags_say() -> None:
    text = log({**LOGGED, **ARGUMENTS})
    recipe, unread = read_megatron(text)
    stack = load_stack("megatron-core")
    assert recipe == read_megatron(FLAGS)[0]
    assert {"--log-interval", "--data-path", "--off.attention-sink-k"} < {*unread}
    assert "--async-save" not in unread
    assert megatron_software(text, recipe, stack) == megatron_software(FLAGS, recipe, stack)
    assert sets_devices(text)


def test_values_of_a_log_are_those_of_flags() -> None:
    experts = {
        "num_experts": 8, "moe_layer_freq": "[0, 1] * 16", "expert_tensor_parallel_size": 1,
        "expert_model_parallel_size": 4, "context_parallel_size": 4, "cp_comm_type": ["a2a+p2p"],
        "hierarchical_context_parallel_sizes": [2, 2], "world_size": 16, "recompute_granularity": "selective",
        "recompute_modules": ["moe_act", "layernorm"], "fp8": "hybrid", "fp8_recipe": "tensorwise",
    }  # fmt: skip
    recipe = read_megatron(log({**LOGGED, **ARGUMENTS, **experts, "moe_layer_freq": [0, 1] * 16}))[0]
    assert recipe.model.experts is not None
    assert recipe.model.expert_layers == 16
    assert recipe.layout.cp_kind == "a2a+p2p:2"
    assert recipe.layout.recompute == "moe_act+layernorm"
    assert recipe.layout.compute == "fp8-cs"


def test_what_a_log_sets_and_nobody_knows_is_refused() -> None:
    with pytest.raises(PhazeError, match="--fp8-weight-cache: is unknown"):
        read_megatron(log({**LOGGED, **ARGUMENTS, "fp8_weight_cache": True}))
    named = {"optimizer": "muon", "gradient_accumulation_fusion": False, "masked_softmax_fusion": False}
    text = log({**LOGGED, **ARGUMENTS, **named})
    software = megatron_software(text, read_megatron(text)[0], load_stack("megatron-core"))
    assert software.unmodelled == ("--no-masked-softmax-fusion", "--optimizer muon")
    assert not software.stack.fused_gradients


FORMS = {
    "flags": lambda: (
        "MODEL_ARGS:\n"
        + "".join(f"  {line}\n" for line in _flag_lines())
        + "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nTEST_TYPE: regular\n"
    ),
    "overrides": lambda: (
        "exp_name: ${NAME:x}\nmodules:\n  pre_trainer:\n    overrides:\n"
        + yaml({**ARGUMENTS, "seq_length": "${SEQ:4096}", "lr": 1e-4, "save": None}, " " * 6)
    ),
    "alone": lambda: "# arguments\n" + yaml(ARGUMENTS),
}
"""Forms of YAML that are read."""


def _flag_lines() -> list[str]:
    words = FLAGS.split("pretrain_gpt.py")[1].replace("\n", " ").split("--")[1:]
    return [
        f"--{name}: {value or 'true'}" for name, _, value in (word.strip().partition(" ") for word in words)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_yaml_is_read_as_flags(form: str) -> None:
    text = FORMS[form]()
    assert read_megatron(text, 16)[0] == read_megatron(FLAGS)[0]
    assert read_megatron(text)[0].layout.dp == 1


def test_lists_of_yaml_are_several_words() -> None:
    text = "MODEL_ARGS:\n" + "".join(f"  {line}\n" for line in _flag_lines() if "modules" not in line)
    recipe = read_megatron(f'{text}  --recompute-modules: "[mlp layernorm]"\n')[0]
    assert recipe.layout.recompute == "layernorm+mlp"
    recipe = read_megatron(f"{text}  --recompute-modules: [mlp, layernorm]\n")[0]
    assert recipe.layout.recompute == "layernorm+mlp"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MODEL_ARGS:\n  --tp: 1\n  --tp: 2\n", "is not valid YAML: MODEL_ARGS: key '--tp' is given twice"),
        ("model:\n  num_layers: 2\ntrain:\n  bf16: true\n", "must have flags .* got 'model, train'; pass"),
        ("modules:\n  pre_trainer:\n    config: a.yaml\n    overrides:\n      bf16: true\n",
         "modules.pre_trainer: takes settings from other files, config: a.yaml; write these"),
        ("modules:\n  post_trainer:\n    overrides: {}\n", "must have flags with values, got 'modules'"),
        ("num_layrs: 32\nmicro_batch_size: 1\n", "--num-layrs: is unknown; did you mean --num-layers"),
        ("MODEL_ARGS:\n  --num-layers: $N\n  --micro-batch-size: 1\n", "--num-layers: '[$]N' is not set"),
    ],
)  # fmt: skip
def test_yaml_of_another_form_is_named(text: str, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        read_megatron(text)
