"""Bytes saved by a stack's joined products and fused gates, in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.layout import Layout
from phaze.plan.layers.costs import layer_costs
from phaze.plan.machines import load_machine
from phaze.plan.plan import Machine
from phaze.workload.models import library_workload
from tests.unit.workload.examples import MODELS

SEQUENCE, HALF = 8192, 2
MACHINE = load_machine("h100", stack="megatron-core")


def with_stack(**changes: bool) -> Machine:
    return replace(MACHINE, stack=MACHINE.stack.model_copy(update=changes))


def pass_s(name: str, block: str, machine: Machine, layout: Layout) -> tuple[float, float]:
    """Seconds of the forward and the backward pass of a block, without host overhead."""
    cost = layer_costs(library_workload(MODELS[name], SEQUENCE, layout), machine, flash=True)[block]
    return float(cost.forward_s[:-1].sum()), float(cost.backward_s[:-1].sum())


@pytest.mark.parametrize(
    ("name", "sums", "kernels"),
    [("llama-3.1-8b", 6 + 8, 2), ("qwen3-30b-a3b", 8, 1)],
    ids=["gated and qkv", "qkv alone"],
)
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2, sequence_parallel=True)])
def test_joined_products_do_not_sum_gradients_of_their_input(
    name: str, sums: int, kernels: int, layout: Layout
) -> None:
    """6 bytes per element for two products, 8 for three, and a kernel start each."""
    apart, joined = (pass_s(name, "block", with_stack(joined_products=one), layout) for one in (False, True))
    elements = SEQUENCE * MODELS[name].hidden
    saved_s = sums * elements / MACHINE.hbm_bytes_per_s
    assert joined[0] == apart[0]
    assert apart[1] - joined[1] == pytest.approx(saved_s + kernels * start_s(), rel=0.02)


def start_s() -> float:
    """Start of a kernel on the device."""
    return float(MACHINE.device.kernel_s)


def test_a_fused_gate_moves_its_first_factor_neither_way() -> None:
    stacks = (with_stack(fused_gate=fused) for fused in (False, True))
    apart, fused = (pass_s("llama-3.1-8b", "block", stack, Layout()) for stack in stacks)
    saved_s = HALF * SEQUENCE * 14336 / MACHINE.hbm_bytes_per_s
    assert apart[0] - fused[0] == pytest.approx(saved_s, rel=0.02)
    assert apart[1] - fused[1] == pytest.approx(saved_s, rel=0.02)


def test_sums_stay_for_other_readers_of_the_input() -> None:
    """Router and dispatch of a mixture read the input of its shared experts, whose two products are one."""
    stacks = (with_stack(joined_products=joined) for joined in (False, True))
    apart, joined = (pass_s("deepseek-v3", "attention-experts", stack, Layout(ep=256)) for stack in stacks)
    elements = SEQUENCE * MODELS["deepseek-v3"].hidden
    assert apart[1] - joined[1] == pytest.approx(HALF * elements / MACHINE.hbm_bytes_per_s, rel=0.02)
