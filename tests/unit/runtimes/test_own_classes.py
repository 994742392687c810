"""Files written for a runtime are accepted by its own classes, if its packages are installed."""

import json
import re
from itertools import chain
from types import SimpleNamespace

import pytest

from phaze.layout import Layout
from phaze.runtimes.bridge import emit_bridge, settings
from phaze.runtimes.deepspeed import DEEPSPEED
from phaze.runtimes.deepspeed_config import emit_deepspeed
from phaze.runtimes.flags import Flags, parse_flags
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_flags import emit_megatron
from phaze.runtimes.megatron_model import is_hybrid
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import emit_torchtitan, modules
from phaze.spec.models import load_transformer
from phaze.spec.system import Stack
from tests.unit.runtimes.recipes import DENSE, OF_TODAY, drawn, small

pytestmark = pytest.mark.filterwarnings("ignore")  # of their libraries
NUMBER = 100
SIZES = (
    "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size", "num_layers",
    "expert_model_parallel_size", "expert_tensor_parallel_size", "hidden_size", "ffn_hidden_size",
    "num_query_groups", "num_attention_heads", "kv_channels", "recompute_num_layers", "mtp_num_layers",
    "num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
    "moe_router_num_groups", "moe_router_group_topk", "q_lora_rank", "kv_lora_rank", "qk_head_dim",
    "qk_pos_emb_head_dim", "v_head_dim", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk",
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim",
)  # fmt: skip
WORDS = (
    "pipeline_model_parallel_layout", "normalization", "recompute_granularity", "recompute_method",
    "experimental_attention_variant", "softmax_type", "fp8_format", "fp8_recipe", "fp4_format", "fp4_recipe",
    "cp_comm_type", "moe_token_dispatcher_type",
)  # fmt: skip
LISTS = ("moe_layer_freq", "window_attn_skip_freq", "linear_attention_freq")
SWITCHES = (
    "sequence_parallel", "qk_layernorm", "attention_output_gate", "moe_shared_expert_gate", "add_qkv_bias",
    "moe_grouped_gemm", "moe_enable_deepep",
)  # fmt: skip
NUMBERS = {"bf16", "fp8", "fp8_recipe", "fp4", "fp4_recipe"}
RENAMED = {"num_experts": "num_moe_experts", "fp8_format": "fp8", "fp4_format": "fp4"}


def config_fields(flags: Flags) -> dict[str, object]:
    """Fields of Megatron-Core's configuration, as Megatron-LM derives them from flags."""
    words = {flag[2:].replace("-", "_"): values for flag, values in flags.items()}
    fields: dict[str, object] = {
        RENAMED.get(field, field): int(words[field][0]) for field in SIZES if field in words
    }
    fields |= {RENAMED.get(field, field): words[field][0] for field in WORDS if field in words}
    fields |= {field: eval(words[field][0], {}) for field in LISTS if field in words}
    fields |= {"window_size": eval(words["window_size"][0], {})} if "window_size" in words else {}
    fields |= {"recompute_modules": list(words["recompute_modules"])} if "recompute_modules" in words else {}
    fields |= {field: field in words for field in SWITCHES}
    fields |= {"gated_linear_unit": "swiglu" in words, "add_bias_linear": "disable_bias_linear" not in words}
    return fields | {"bf16": True}


def test_megatron_core_takes_the_flags() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    transformer = pytest.importorskip("megatron.core.transformer", reason="megatron-core is not installed")
    enums = pytest.importorskip("megatron.core.transformer.enums", reason="megatron-core is not installed")
    of_today = [case for case in OF_TODAY if not is_hybrid(load_transformer(case[0], "test"))]
    for recipe in chain(drawn(MEGATRON, NUMBER), drawn(MEGATRON, 20, of_today)):
        flags = parse_flags(emit_megatron(recipe).files["megatron.txt"])
        dtypes = {"params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16}
        latent = "--multi-latent-attention" in flags
        kind = transformer.MLATransformerConfig if latent else transformer.TransformerConfig
        config = kind(**config_fields(flags), **dtypes)
        if recipe.layout.pp > 1:
            parts, pp = config.pipeline_model_parallel_layout.layout, recipe.layout.pp
            stages = [parts[q % pp][q // pp] for q in range(recipe.layout.stages)]
            counts = [
                stage.count(enums.LayerType.decoder) + stage.count(enums.LayerType.mtp) for stage in stages
            ]
            assert tuple(counts) == recipe.blocks
            assert (config.virtual_pipeline_model_parallel_size or 1) == recipe.layout.vp


REGISTERED = (
    ("llama-3.1-8b", 64, 512, "llama3_8b", "8B"), ("llama-3.1-405b", 1024, 2048, "llama3_8b", "405B"),
    ("qwen3-30b-a3b", 64, 512, "qwen3_30b_a3b", "30B-A3B"),
    ("deepseek-v3", 256, 2048, "deepseek_v3_671b", "671B"),
)  # fmt: skip
"""Models with device counts and batch sizes; a torchtitan configuration, and its model names."""


@pytest.mark.parametrize(("name", "devices", "batch", "trainer", "size"), REGISTERED)
def test_torchtitan_takes_the_configuration(
    name: str, devices: int, batch: int, trainer: str, size: str
) -> None:
    module = f"torchtitan.models.{re.sub('_[0-9].*', '', trainer)}"
    models, registry, dims = (
        pytest.importorskip(name, reason="torchtitan is not installed")
        for name in (module, f"{module}.config_registry", "torchtitan.distributed.parallel_dims")
    )
    for recipe in drawn(TORCHTITAN, NUMBER // 2, ((name, devices, batch),)):
        scope: dict[str, object] = {}
        exec(emit_torchtitan(recipe).files["plan.py"], scope)
        config = getattr(registry, trainer)()
        extra = {"num_mtp_layers": recipe.model.mtp} if recipe.model.mtp else {}
        config.model_spec = models.model_registry(size, **extra)
        config = scope["planned"](config)  # type: ignore[operator]
        config.__post_init__()
        config.parallelism.__post_init__()
        config.model_spec.model.update_from_config(config=config)
        parallel = dims.ParallelDims.from_config(config.parallelism, recipe.layout.devices)
        assert parallel.dp_replicate * parallel.dp_shard == recipe.layout.dp
        assert len(config.model_spec.model.layers) == recipe.model.layers
        if recipe.layout.pp > 1:
            assert config.parallelism.module_fqns_per_model_part == modules(recipe.blocks)


def test_pytorch_takes_the_passes_of_a_schedule_by_file() -> None:
    schedules = pytest.importorskip(
        "torch.distributed.pipelining.schedules", reason="PyTorch is not installed"
    )
    for layout, blocks in ((Layout(pp=3, dp=4), (2, 2, 2)), (Layout(pp=6, dp=2), (1,) * 6)):
        recipe = small(layout, "zb-h1", blocks)
        rows = emit_torchtitan(recipe).files["schedule.csv"].splitlines()
        passes = {
            rank: [schedules._Action.from_str(cell) for cell in row.split(",")]
            for rank, row in enumerate(rows)
        }
        count = layout.microbatches(recipe.global_batch)
        schedules._validate_schedule(passes, layout.pp, layout.stages, count)
        owner = {stage: stage for stage in range(layout.pp)}
        lowered = schedules._add_send_recv(passes, owner.__getitem__, layout.pp)
        schedules._simulate_comms_compute(lowered, owner.__getitem__, layout.pp)


class Ranks:
    """Rank groups that a script passes to DeepSpeed."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def get_data_parallel_world_size(self) -> int:
        return self.layout.dp


def test_deepspeed_takes_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config", reason="DeepSpeed is not installed")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)
    for recipe in drawn(DEEPSPEED, NUMBER):
        sections = json.loads(emit_deepspeed(recipe, Stack()).files["deepspeed.json"])
        read = config.DeepSpeedConfig(sections, Ranks(recipe.layout))
        assert read.zero_config.stage == recipe.layout.zero
        assert read.train_batch_size == recipe.global_batch
        assert read.gradient_accumulation_steps == recipe.layout.microbatches(recipe.global_batch)


def test_megatron_bridge_takes_the_changes() -> None:
    reason = "Megatron-Bridge is not installed"
    bridge, providers, config_of, core, optimizers = (
        pytest.importorskip(name, reason=reason)
        for name in (
            "megatron.bridge.training.config", "megatron.bridge.models.gpt_provider",
            "megatron.bridge.training.mixed_precision", "megatron.core.distributed",
            "megatron.core.optimizer",
        )
    )  # fmt: skip
    models = (*DENSE, ("qwen3-30b-a3b", 64, 512))
    for recipe in drawn(MEGATRON, NUMBER // 2, models, ("bf16", "mxfp8")):
        flags = parse_flags(emit_megatron(recipe).files["megatron.txt"])
        fields = config_fields(flags)
        changed = {name.removeprefix("model.") for name in settings(recipe, flags)}
        config = SimpleNamespace(
            model=providers.GPTModelProvider(
                **{key: fields[key] for key in fields.keys() - changed - NUMBERS}
            ),
            ddp=core.DistributedDataParallelConfig(),
            optimizer=optimizers.OptimizerConfig(),
            dist=bridge.DistributedInitConfig(),
            train=bridge.TrainingConfig(train_iters=1),
            dataset=SimpleNamespace(seq_length=0),
            checkpoint=bridge.CheckpointConfig(),
        )
        for name in settings(recipe, flags):
            part, field = name.split(".")
            assert hasattr(getattr(config, part), field), name
        scope: dict[str, object] = {}
        exec(emit_bridge(recipe, Stack(overlap=("dp", "tp"))).files["plan.py"], scope)
        scope["planned"](config)  # type: ignore[operator]
        config.mixed_precision.finalize()
        config_of.update_config_with_precision_overrides(config.mixed_precision, config.model)
        config.model.finalize()
        config.comm_overlap.finalize()
        config.comm_overlap.data_parallel_size = recipe.layout.dp
        config.comm_overlap.setup(config.model, config.optimizer, config.ddp)
        replicas = recipe.layout.dp * recipe.layout.cp > 1
        assert config.ddp.overlap_grad_reduce == replicas
        assert config.model.pipeline_model_parallel_size == recipe.layout.pp
        assert (config.model.virtual_pipeline_model_parallel_size or 1) == recipe.layout.vp
