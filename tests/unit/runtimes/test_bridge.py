"""Changes for Megatron-Bridge agree with Megatron-LM's flags, and reset differing values of recipes."""

import ast
from dataclasses import replace

import pytest

from phaze.layout import Layout
from phaze.runtimes.bridge import emit_bridge
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.megatron_flags import emit_megatron
from phaze.spec.blocks import Experts
from phaze.spec.system import Stack
from tests.unit.runtimes.examples import SMALL
from tests.unit.runtimes.recipes import OF_TODAY, drawn, small

STACK = Stack(overlap=("dp", "tp", "pp", "ep"), gradient_bytes=4, dispatch="tokens")


def changes(text: str) -> dict[str, object]:
    """Values of the fields that a file of changes assigns; calls by their keywords."""
    values: dict[str, object] = {}
    for line in ast.walk(ast.parse(text)):
        if isinstance(line, ast.Assign):
            name = ast.unparse(line.targets[0]).removeprefix("config.")
            if isinstance(line.value, ast.Call):
                values |= {
                    f"{name}.{keyword.arg}": ast.literal_eval(keyword.value)
                    for keyword in line.value.keywords
                }
            else:
                values[name] = ast.literal_eval(line.value)
    return values


@pytest.mark.slow
def test_fields_are_those_of_the_layout_and_the_batch() -> None:
    for recipe in drawn(MEGATRON, 12, OF_TODAY, ("bf16", "mxfp8")):
        emitted, layout = emit_bridge(recipe, STACK), recipe.layout
        fields = changes(emitted.files["plan.py"])
        sizes = ("tensor_model", "context", "pipeline_model", "expert_model")
        widths = [fields[f"model.{name}_parallel_size"] for name in sizes]
        assert widths == [layout.tp, layout.cp, layout.pp, layout.ep]
        assert fields["model.virtual_pipeline_model_parallel_size"] == (layout.vp if layout.vp > 1 else None)
        assert fields["model.sequence_parallel"] == layout.sequence_parallel
        assert (fields["model.recompute_granularity"] is None) == (
            layout.recompute == "none" or (layout.recompute == "full" and not any(recipe.recomputed))
        )
        assert fields["train.global_batch_size"] == recipe.global_batch
        assert fields["dataset.seq_length"] == fields["model.seq_length"] == recipe.sequence
        assert fields["ddp.use_distributed_optimizer"] == (layout.zero >= 1)
        assert fields["ddp.use_megatron_fsdp"] == (layout.zero >= 2)
        assert fields.get("mixed_precision.fp8_recipe") == ("mxfp8" if layout.compute == "mxfp8" else None)
        stated = [
            difference
            for difference in emit_megatron(recipe, STACK).differences
            if not difference.startswith("model.")
        ]
        assert list(emitted.differences) == stated
        assert ("blocks" in " ".join(emitted.user_settings)) == (
            recipe.model.mamba is not None and layout.pp > 1
        )


def test_recipes_that_have_more_than_a_plan_lose_it() -> None:
    fields = changes(emit_bridge(small(Layout(dp=2), "1f1b", (6,)), Stack()).files["plan.py"])
    for name in (
        "recompute_granularity",
        "pipeline_model_parallel_layout",
        "cp_comm_type",
        "offload_modules",
    ):
        assert fields[f"model.{name}"] is None
    assert fields["ddp.data_parallel_sharding_strategy"] == "no_shard"
    assert fields["comm_overlap.overlap_grad_reduce"] is False
    assert fields["mixed_precision.grad_reduce_in_fp32"] is False
    assert fields["peft"] is None


def test_stacks_experts_and_lora_are_said() -> None:
    layout = Layout(tp=2, dp=2, ep=2, sequence_parallel=True, zero=1)
    experts = SMALL.model_copy(update={"experts": Experts(count=4, per_token=2, width=96)})
    fields = changes(
        emit_bridge(replace(small(layout, "1f1b", (6,)), model=experts), STACK).files["plan.py"]
    )  # fmt: skip
    assert fields["model.moe_token_dispatcher_type"] == "flex"
    assert fields["model.moe_flex_dispatcher_backend"] == "deepep"
    assert fields["comm_overlap.overlap_moe_expert_parallel_comm"] is True
    assert fields["comm_overlap.tp_comm_overlap"] is True
    assert "mixed_precision.grad_reduce_in_fp32" not in fields
    turns = replace(
        small(Layout(pp=2, vp=2), "interleaved", (2, 2, 1, 1)), model=SMALL.model_copy(update={"lora": 8})
    )
    adapted = changes(emit_bridge(turns, Stack()).files["plan.py"])
    assert adapted["peft.dim"] == 8
    assert (adapted["comm_overlap.overlap_p2p_comm"], adapted["comm_overlap.batch_p2p_comm"]) == (False, True)
    assert adapted["model.pipeline_model_parallel_layout"] == "Ett|tt|t|tL"


def test_states_that_wait_in_the_host_have_no_field() -> None:
    emitted = emit_bridge(small(Layout(dp=2, zero=1, offload="optimizer"), "1f1b", (6,)), Stack())
    assert emitted.differences == ("offload-optimizer-states: Megatron-Bridge has no such field",)
