"""Full recomputation that ends before a block's last GEMM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.layout import Layout
from phaze.plan.layers.costs import layer_costs
from phaze.plan.machines import load_machine
from phaze.spec.models import load_transformer
from phaze.workload.models import library_workload


def test_recomputation_leaves_out_the_last_product_of_a_dense_block_alone() -> None:
    """A gated block's last GEMM is one of three equal ones of its feed-forward network."""
    machine, model = load_machine("h100", stack="torchtitan"), load_transformer("llama-3.1-8b", "test")
    workload = library_workload(model, 8192, Layout())
    early, whole = (
        layer_costs(workload, replace(machine, stack=stack), flash=True)
        for stack in (machine.stack, machine.stack.model_copy(update={"stops_early": False}))
    )
    block = workload.order[1]
    saved_s = whole[block].again_s("full").sum() - early[block].again_s("full").sum()
    flops = 2 * 8192 * model.hidden * model.feed_forward
    assert machine.device is not None
    device = machine.device
    peak = 2 * device.num_tc * device.pe_x * device.pe_y * device.clock_hz
    assert flops / peak < saved_s < 2 * flops / peak
    for recompute in ("none", "selective"):
        assert early[block].again_s(recompute).sum() == pytest.approx(whole[block].again_s(recompute).sum())
    assert (early[block].forward_s == whole[block].forward_s).all()


def test_experts_recompute_all_of_their_products() -> None:
    machine, model = load_machine("h100", stack="torchtitan"), load_transformer("mixtral-8x7b", "test")
    workload = library_workload(model, 4096, Layout(ep=8, dp=8))
    costs = layer_costs(workload, machine, flash=True)
    assert not any(cost.unused_s.any() for cost in costs.values() if cost.layer.groups.get("expert"))
