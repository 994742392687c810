"""Kernels captured by CUDA graphs, which the host does not launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.cost.kernels import KERNEL_LIMITS
from phaze.layout import Layout
from phaze.plan.layers.captured import launched
from phaze.plan.layers.costs import layer_costs
from phaze.plan.machines import load_machine
from phaze.spec.models import load_transformer
from phaze.spec.system import Captured
from phaze.workload.models import library_workload
from phaze.workload.workload import Workload

HOST = KERNEL_LIMITS.index("host")


def experts() -> Workload:
    return library_workload(load_transformer("deepseek-v3", "test"), 4096, Layout(ep=8, dp=8))


def names(workload: Workload, graphs: tuple[Captured, ...]) -> set[str]:
    """Forward operators of the layer with experts that the host launches."""
    layers = [one.forward.operators for one in workload.layers]
    operators = next(own for own in layers if any(operator.name == "experts_in" for operator in own))
    return {
        operator.name
        for operator, by_host in zip(operators, launched(operators, graphs), strict=True)
        if by_host
    }


def test_without_graphs_the_host_launches_everything_and_with_a_full_one_nothing() -> None:
    workload = experts()
    for layer in workload.layers:
        for operators in (layer.forward.operators, layer.backward.operators):
            assert all(launched(operators, ()))
            assert not any(launched(operators, ("full",)))


def test_graphs_of_attention_and_router_leave_the_experts_to_the_host() -> None:
    left = names(experts(), ("attn", "moe_router", "moe_preprocess"))
    assert {"experts_in", "experts_out", "experts_sort", "experts_dispatch_all_to_all"} <= left
    assert not {"query_down", "attention_out", "attention_add", "router", "router_scores", "shared_in"} & left
    assert "experts_in" not in names(experts(), ("moe",))


def test_mamba_is_captured_with_its_norm_and_products() -> None:
    workload = library_workload(load_transformer("nemotron-3-nano-30b-a3b", "test"), 4096, Layout())
    scans = next(
        layer for layer in workload.layers if any("scan" in o.regions for o in layer.forward.operators)
    )
    operators = scans.forward.operators
    assert not any(launched(operators, ("mamba",)))
    assert all(launched(operators, ("attn",)))


@pytest.mark.parametrize("experts", ["grouped", "each"])
def test_the_host_takes_no_longer_the_more_is_captured(experts: str) -> None:
    machine = load_machine("h100", stack="megatron-bridge", devices=16)
    workload = library_workload(load_transformer("qwen3-30b-a3b", "test"), 4096, Layout(ep=16, dp=16))
    words: tuple[tuple[Captured, ...], ...] = ((), ("moe_router",), ("attn", "moe_router"), ("full",))
    times = []
    for graphs in words:
        own = {"cuda_graphs": graphs, "experts": experts, "launch_s": 1e-3}
        stack = machine.stack.model_copy(update=own)
        block = layer_costs(workload, replace(machine, stack=stack), flash=True)["block"]
        times.append(np.stack([block.forward_s, block.backward_s]))
    host = np.array([one[:, HOST] for one in times])
    assert (np.diff(host, axis=0) <= 0).all()
    assert (host[0] > host[-2]).all()
    assert (host[-1] == 0).all()
    rest = [np.delete(one, HOST, 1) for one in times]
    for one in rest[1:]:
        assert one == pytest.approx(rest[0])


def test_a_graph_of_attention_captures_its_fused_kernel() -> None:
    machine = load_machine("h100", stack="megatron-bridge", devices=8)
    workload = library_workload(load_transformer("llama-3.1-8b", "test"), 4096, Layout(dp=8))
    stack = machine.stack.model_copy(update={"cuda_graphs": ("attn", "mlp"), "launch_s": 1.0})
    block = layer_costs(workload, replace(machine, stack=stack), flash=True)["block"]
    assert block.forward_s[HOST] == block.backward_s[HOST] == 0
