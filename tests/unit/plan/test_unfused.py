"""Expert kernels that a stack launches one by one, and passes that dispatchers add or save."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from phaze.base.units import GIB
from phaze.cost.kernels import KERNEL_LIMITS
from phaze.layout import Compute, Layout
from phaze.plan.layers.costs import LayerCost, layer_costs
from phaze.plan.layers.experts import row_traffic, run_alone
from phaze.plan.layers.kernels import Unfused, unfused
from phaze.plan.machines import device_of, load_machine
from phaze.spec.huggingface.keys import scales_rotary
from phaze.spec.models import load_transformer
from phaze.spec.system import Stack
from phaze.spec.systems import load_device, load_stack
from phaze.workload.models import library_workload
from phaze.workload.operators import Operator
from phaze.workload.workload import Direction, Layer, Workload

HBM, HOST = KERNEL_LIMITS.index("hbm"), KERNEL_LIMITS.index("host")
LAYOUT = Layout(ep=8, dp=8)
ROWS = 4096 * 4
"""Dispatched tokens of a rank: tokens times experts per token, which dispatch leaves unchanged."""
MACHINE = load_machine("h100", stack="megatron-bridge-alltoall")
PERMUTED = [(6, 5120, 0.5008), (8, 7168, 0.5008), (6, 5120, 0.5108), (8, 7168, 0.5108)]
"""Experts per token, width, and the share of bandwidth that permutation reaches in both directions."""
NONE = Stack(name="none", experts="each")
OURS = Stack(name="ours", experts="each", expert_bias_bytes=(12, 16), clamp_bytes=(6, 14))


@cache
def workload() -> Workload:
    return library_workload(load_transformer("gpt-oss-120b", "test"), 4096, LAYOUT)


def layer() -> Layer:
    return next(one for one in workload().layers if one.name == "attention-experts")


def operators(way: Direction) -> tuple[Operator, ...]:
    return layer().pass_of(way).operators


def cost(**changes: object) -> LayerCost:
    machine = replace(MACHINE, stack=MACHINE.stack.model_copy(update=changes))
    return layer_costs(workload(), machine, flash=True)["attention-experts"]


def test_a_stack_with_fused_kernels_has_no_others() -> None:
    for way in ("forward", "backward"):
        assert unfused(operators(way), replace(LAYOUT, compute="fp8-cs"), NONE) == Unfused(0.0, 0)  # type: ignore[arg-type]


def test_biases_and_clamps_move_bytes_of_rows_and_start_kernels_for_each_expert() -> None:
    wide = 2880  # of the model, and of an expert
    forward, backward = (
        unfused(operators("forward"), LAYOUT, OURS),
        unfused(operators("backward"), LAYOUT, OURS),
    )
    assert forward == Unfused(ROWS * wide * (12 + 6), 2 * 16 + 3)
    assert backward == Unfused(ROWS * wide * (16 + 14), 6 * 16 + 3)


@pytest.mark.parametrize(
    ("compute", "dispatch", "times"), [("bf16", "rows", 0), ("mxfp8", "tokens", 0), ("mxfp8", "rows", 2)]
)
def test_rows_are_padded_in_lower_precision_where_the_dispatcher_does_not(
    compute: Compute, dispatch: str, times: int
) -> None:
    stack = NONE.model_copy(update={"padding_bytes": 4.0, "dispatch": dispatch})
    for way in ("forward", "backward"):
        found = unfused(operators(way), replace(LAYOUT, compute=compute), stack)  # type: ignore[arg-type]
        assert found == Unfused(times * 4.0 * ROWS * 2880, times)


def test_kernels_of_the_router_are_started_unless_a_graph_captures_them() -> None:
    """Forward three operators of the router are counted already; backward its two products and two others."""
    stack = NONE.model_copy(update={"router_kernels": (31, 14)})
    launches = [unfused(operators(way), LAYOUT, stack).launches for way in ("forward", "backward")]
    assert launches == [31 - 3, 14 - 4]
    captured = stack.model_copy(update={"cuda_graphs": ("moe_router",)})
    assert [unfused(operators(way), LAYOUT, captured).launches for way in ("forward", "backward")] == [0, 0]


@pytest.mark.parametrize("microbatch", [1, 2])
def test_scans_of_several_samples_copy_what_tokens_come_first_in(microbatch: int) -> None:
    """Nemotron-3-Nano: 64 heads of dimension 64, 8 groups of a state of 128; a gate, values, two states and
    a step of each head go in, values come out.
    """
    layout = Layout(microbatch=microbatch)
    model = library_workload(load_transformer("nemotron-3-nano-30b-a3b", "test"), 1024, layout)
    mamba = next(layer for layer in model.layers if layer.forward_in(frozenset({"scan"})))
    tokens, inner = 1024 * microbatch, 64 * 64
    copied = tokens * ((2 * inner + 2 * 8 * 128 + 64) + inner) if microbatch > 1 else 0
    first = NONE.model_copy(update={"sequence_first": True})
    for way in ("forward", "backward"):
        own = mamba.pass_of(way).operators  # type: ignore[arg-type]
        assert unfused(own, layout, first) == Unfused(4.0 * copied, 2 * (microbatch > 1))
        captured = first.model_copy(update={"cuda_graphs": ("mamba",)})
        assert unfused(own, layout, captured) == Unfused(4.0 * copied, 0)
        assert unfused(own, layout, NONE) == Unfused(0.0, 0)


def test_rotary_embeddings_with_a_factor_take_steps() -> None:
    """GPT-OSS with YaRN: 64 query heads and 8 key heads of dimension 64, 4,096 tokens."""
    stack = NONE.model_copy(update={"rotary_bytes": (20.0, 30.0)})
    elements = 4096 * (64 + 8) * 64
    assert unfused(operators("forward"), LAYOUT, stack) == Unfused(20.0 * elements, 2 * 11)
    assert unfused(operators("backward"), LAYOUT, stack) == Unfused(30.0 * elements, 2 * 8)
    captured = stack.model_copy(update={"cuda_graphs": ("attn",)})
    assert unfused(operators("forward"), LAYOUT, captured).launches == 0


@pytest.mark.parametrize(
    ("name", "scaled"), [("gpt-oss-20b", True), ("deepseek-v3", False), ("llama-3.1-8b", False)]
)
def test_yarn_has_a_factor_that_fused_kernels_do_not_know_but_for_latent_attention(
    name: str, *, scaled: bool
) -> None:
    assert load_transformer(name, "test").scaled_rotary == scaled


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_yarn_has_no_factor_where_its_two_scales_are_equal(key: str) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0}
    assert scales_rotary({key: yarn})
    assert not scales_rotary({key: {**yarn, "mscale": 1.0, "mscale_all_dim": 1.0}})
    assert not scales_rotary({key: {"rope_type": "llama3", "factor": 8.0}})
    assert not scales_rotary({})


def test_bytes_take_the_time_of_the_memory_and_starts_that_of_the_host() -> None:
    before, after = cost(expert_bias_bytes=(0, 0), clamp_bytes=(0, 0)), cost(expert_bias_bytes=(12, 16))
    added = after.forward_s[HBM] - before.forward_s[HBM]
    more_s = ROWS * 2880 * (12 + 6) / MACHINE.hbm_bytes_per_s
    assert added == pytest.approx(more_s)
    # With clamps in both the host waits as often; it launches the kernels of biases, and their bytes may add.
    before, after = cost(expert_bias_bytes=(0, 0)), cost(expert_bias_bytes=(12, 16))
    started_s = float(after.forward_s.sum() - before.forward_s.sum())
    launched_s = 32 * MACHINE.stack.launch_s
    assert launched_s <= started_s <= launched_s + ROWS * 2880 * 12 / MACHINE.hbm_bytes_per_s


def test_the_activation_of_experts_with_biases_runs_forward_again() -> None:
    """Products add their biases, so only the activation remains of the kernel."""
    again = cost().again_s("moe_act")
    assert again[HBM] > 0
    assert again.sum() < 0.2 * cost().forward_s.sum()


def test_dispatchers_that_send_a_token_once_neither_copy_it_for_each_expert_nor_sum_its_rows() -> None:
    rows, tokens = (
        NONE.model_copy(update={"dispatch": "rows"}),
        NONE.model_copy(update={"dispatch": "tokens"}),
    )
    for way in ("forward", "backward"):
        every = operators(way)  # type: ignore[arg-type]
        assert run_alone(every, LAYOUT, rows) == every
        gone = {one.name.removesuffix(".backward") for one in every} - {
            one.name.removesuffix(".backward") for one in run_alone(every, LAYOUT, tokens)
        }
        assert gone == {"experts_dispatch", "experts_combine"}
        assert run_alone(every, Layout(dp=8), tokens) == every


def test_passes_over_rows_are_as_slow_as_measured_ones() -> None:
    device = device_of(MACHINE)
    passes = device.experts["grouped"]["bf16"].passes
    assert passes is not None
    stack = MACHINE.stack.model_copy(update={"permuted": 2.0})
    factors = {one.name: row_traffic(one, stack, device) for one in operators("forward")}
    slow = device.sustained_hbm / passes
    assert factors["experts_sort"] == factors["experts_dispatch"] / 2 == pytest.approx(slow)
    assert np.array([factors["experts_norm"], factors["attention_norm"]]).tolist() == [1.0, 1.0]
    assert row_traffic(operators("forward")[0], stack, device.model_copy(update={"experts": {}})) == 1.0


def test_copies_of_tokens_and_the_loss_take_what_kernels_of_transformer_engine_do_on_a_b200() -> None:
    """SimuMax, configs/system/b200_bf16_ceperm.json: shares of 8,000 GiB/s, for the bytes counted by its
    benchmark (test_ce_permute_efficiency.py), for DeepSeek-V2 and V3 with 4,096 tokens.
    """
    device, stack = load_device("b200"), load_stack("megatron-core")
    passes = device.experts["grouped"]["bf16"].passes
    assert passes is not None
    tokens, peak = 4096, 8000 * GIB
    measured_s = sum(2 * tokens * h * (2 + 6 * k) / (share * peak) for k, h, share in PERMUTED)
    moved = sum(2 * 2 * tokens * h * (1 + k) for k, h, _ in PERMUTED)
    priced_s = stack.permuted * moved / (passes * device.hbm_bandwidth_bytes_per_s)
    assert priced_s == pytest.approx(measured_s, rel=0.02)
    logit_s = 8 / (0.2795 * peak)
    priced_s = stack.loss * 8 / (device.sustained_hbm * device.hbm_bandwidth_bytes_per_s)
    assert priced_s == pytest.approx(logit_s, rel=0.02)
