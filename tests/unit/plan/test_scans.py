"""Kernels of scans: products on the vector lanes, and what the backward pass runs again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.cost.kernels import kernels_of
from phaze.layout import Layout
from phaze.plan.layers.costs import layer_costs
from phaze.plan.layers.kernels import recomputed_in_scans, scan_products_s, without_fused_scans
from phaze.plan.machines import device_of, load_machine
from phaze.spec.model import Model
from phaze.spec.models import load_transformer
from phaze.spec.scans import Mamba
from phaze.workload.models import library_workload
from phaze.workload.workload import Layer

HYBRID = load_transformer("nemotron-3-nano-30b-a3b", "test")
MEASURED = {"a100-selene": 102.5e12, "h200": 239.2e12, "gb200": 360.4e12}
"""FLOP/s at which Mamba-2 of 1.4B parameters trains (state-spaces/mamba, issue 904)."""
SAMPLES, SEQUENCE = 4, 4096


def mamba_layer(model: Model, layout: Layout, sequence: int) -> Layer:
    """Return the first layer of a model that has a scan."""
    layers = library_workload(model, sequence, layout).layers
    return next(layer for layer in layers if any("scan" in o.regions for o in layer.forward.operators))


def mamba_model() -> Model:
    """Return the model of the issue: 48 Mamba-2 layers of width 2,048 with the defaults of mamba_ssm."""
    mixer = Mamba(heads=64, head_size=64, state=128, groups=1, chunk=256)
    return Model(
        name="mamba2-1.4b", layers=48, hidden=2048, heads=32, pattern="mamba*48", mamba=mixer,
        vocabulary=50288, position_count=0, positions="none", activation="silu", gated=False, norm="rms_norm",
        attention_bias=False, feed_forward_bias=False, tied_embeddings=True,
    )  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize(("system", "flops_per_s"), MEASURED.items())
def test_a_mamba_model_trains_as_fast_as_measured(system: str, flops_per_s: float) -> None:
    """Within 12 % on three generations, by six FLOPs a parameter and token; nothing is fitted to it."""
    model, tokens = mamba_model(), SAMPLES * SEQUENCE
    workload = library_workload(model, SEQUENCE, Layout(microbatch=SAMPLES))
    costs = layer_costs(workload, load_machine(system, stack="fsdp2"), flash=True)
    passes_s = {name: (cost.forward_s + cost.backward_s).sum() for name, cost in costs.items()}
    step_s = model.layers * passes_s["mamba"] + passes_s["head"] + passes_s["embedding"]
    assert step_s == pytest.approx(6 * 1.344e9 * tokens / flops_per_s, rel=0.12)


def test_products_of_a_scan_take_the_time_of_the_lanes() -> None:
    """Per head and token: half a chunk of scores, and a product into the state and out of it."""
    mixer, device = HYBRID.mamba, device_of(load_machine("h100"))
    assert mixer is not None
    tokens, layer = 4096, mamba_layer(HYBRID, Layout(), 4096)
    lanes_s = sum(
        scan_products_s(operator, kernel, device)
        for operator in layer.forward.operators
        for kernel in kernels_of(operator)
    )
    per_head = mixer.head_size * (mixer.chunk / 2 + 2 * mixer.state)
    products = tokens * (mixer.heads * per_head + mixer.groups * mixer.chunk * mixer.state)
    per_s = device.num_vc * device.lanes * device.clock_hz * device.sustained_clock
    assert lanes_s == pytest.approx(products / per_s)


def test_the_backward_pass_computes_states_again_but_no_outputs() -> None:
    layer = mamba_layer(HYBRID, Layout(), 4096)
    names = {operator.name for operator in recomputed_in_scans(layer)}
    assert {"convolution", "scan_scores", "scan_states", "scan_recur"} <= names
    assert not {"scan_within", "scan_across"} & names
    kernels = {operator.name for operator in without_fused_scans(layer.forward.operators)}
    assert "convolution" in kernels
    assert not {"convolution_silu", "scan_decay"} & kernels


def test_twice_the_bandwidth_does_not_halve_a_scan() -> None:
    """Its products are bound by the lanes: faster memory alone gains less."""
    layer = mamba_layer(HYBRID, Layout(), 4096)
    machine = load_machine("gb300", stack="megatron-bridge")
    device = device_of(machine)
    faster = machine.with_device(
        device.model_copy(update={"hbm_bandwidth_bytes_per_s": 2 * device.hbm_bandwidth_bytes_per_s})
    )
    workload = replace(library_workload(HYBRID, 4096, Layout()), layers=(layer,))
    before_s, after_s = (
        layer_costs(workload, each, flash=True)[layer.name].backward_s.sum() for each in (machine, faster)
    )
    assert after_s > 0.75 * before_s
