"""What is written for a runtime is accepted by its own classes, where its packages are installed."""

import copy

import pytest

from phaze.runtimes.flags import Flags, parse_flags
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_flags import emit_megatron
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.runtimes.torchtitan_config import emit_torchtitan, modules
from tests.unit.runtimes.recipes import drawn

pytestmark = pytest.mark.filterwarnings("ignore")  # of their libraries
NUMBER = 100
SIZES = (
    "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size", "num_layers",
    "hidden_size", "ffn_hidden_size", "num_query_groups", "num_attention_heads", "recompute_num_layers",
)  # fmt: skip
WORDS = ("pipeline_model_parallel_layout", "normalization", "recompute_granularity", "recompute_method")


def config_fields(flags: Flags) -> dict[str, object]:
    """Fields of Megatron-Core's configuration, as Megatron-LM makes them of flags."""
    said = {flag[2:].replace("-", "_"): values for flag, values in flags.items()}
    found: dict[str, object] = {field: int(said[field][0]) for field in SIZES if field in said}
    found |= {field: said[field][0] for field in WORDS if field in said}
    found |= {"recompute_modules": list(said["recompute_modules"])} if "recompute_modules" in said else {}
    return found | {"sequence_parallel": "sequence_parallel" in said, "bf16": True}


def test_megatron_core_takes_the_flags() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    transformer = pytest.importorskip("megatron.core.transformer", reason="megatron-core is not installed")
    enums = pytest.importorskip("megatron.core.transformer.enums", reason="megatron-core is not installed")
    for recipe in drawn(MEGATRON, NUMBER):
        fields = config_fields(parse_flags(emit_megatron(recipe).files["megatron.txt"]))
        precision = {"params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16}
        config = transformer.TransformerConfig(**fields, **precision)
        if recipe.layout.pp > 1:
            held, pp = config.pipeline_model_parallel_layout.layout, recipe.layout.pp
            stages = [held[q % pp][q // pp] for q in range(recipe.layout.stages)]
            assert tuple(stage.count(enums.LayerType.decoder) for stage in stages) == recipe.blocks
            assert (config.virtual_pipeline_model_parallel_size or 1) == recipe.layout.vp


def test_torchtitan_takes_the_configuration() -> None:
    llama = pytest.importorskip("torchtitan.models.llama3", reason="torchtitan is not installed")
    registry = pytest.importorskip(
        "torchtitan.models.llama3.config_registry", reason="torchtitan is not installed"
    )
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims", reason="torchtitan is not installed")
    for recipe in drawn(TORCHTITAN, NUMBER):
        size = recipe.model.name.removeprefix("llama-3.1-").upper()
        if size not in llama.llama3_configs:
            continue
        scope: dict[str, object] = {}
        exec(emit_torchtitan(recipe).files["plan.py"], scope)
        config = registry.llama3_8b()
        config.model_spec = llama.model_registry(size)
        config = scope["planned"](copy.deepcopy(config))  # type: ignore[operator]
        config.__post_init__()
        config.parallelism.__post_init__()
        config.model_spec.model.update_from_config(config=config)
        found = dims.ParallelDims.from_config(config.parallelism, recipe.layout.devices)
        assert found.dp_replicate * found.dp_shard == recipe.layout.dp
        if recipe.layout.pp > 1:
            assert config.parallelism.module_fqns_per_model_part == modules(recipe.blocks)
