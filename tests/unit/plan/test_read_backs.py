"""Waits for the host between two read-backs of token counts, against a host and a device step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from phaze.layout import Compute, Layout
from phaze.plan.layers.kernels import NO_ATTENTION, Unfused
from phaze.plan.layers.launches import Launched, host_s, segment_s
from phaze.plan.machines import device_of, load_machine
from phaze.spec.models import load_transformer
from phaze.workload.models import library_workload
from phaze.workload.operators import Operator
from phaze.workload.workload import Direction

MACHINE = load_machine("h100", stack="megatron-bridge")
LAYOUT = Layout(ep=8, dp=8)


def operators(way: Direction = "forward", layout: Layout = LAYOUT) -> tuple[Operator, ...]:
    workload = library_workload(load_transformer("qwen3-30b-a3b", "test"), 4096, layout)
    return next(layer for layer in workload.layers if layer.name == "block").pass_of(way).operators


def launched(
    dispatch: Literal["rows", "tokens"], way: Direction = "forward", layout: Layout = LAYOUT
) -> Launched:
    stack = MACHINE.stack.model_copy(update={"dispatch": dispatch})
    return Launched(operators(way, layout), layout, stack, device_of(MACHINE), NO_ATTENTION, Unfused(0.0, 0))


def simulated_s(launch_s: np.ndarray, device_s: np.ndarray, layers: int) -> float:
    """Time of the last of equal layers, whose host waits at each end until the device is done."""
    host, device, ended = 0.0, 0.0, 0.0
    for _ in range(layers):
        ended = device
        host = max(host, device)  # the read-back
        for launch, kernel in zip(launch_s, device_s, strict=True):
            host += launch
            device = max(device, host) + kernel
    return device - ended


def test_a_segment_takes_what_a_host_and_a_device_take_step_by_step() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        launch_s, device_s = random.exponential(size=(2, random.integers(1, 12)))
        device_s *= random.choice([0.1, 1.0, 10.0])
        assert segment_s(launch_s, device_s) == pytest.approx(simulated_s(launch_s, device_s, 4))


def test_all_to_all_reads_counts_before_dispatch_and_kernels_that_send_tokens_once_after_it() -> None:
    (rows,), (tokens,) = launched("rows").read_backs, launched("tokens").read_backs
    assert tokens == rows + 1
    assert any(part.axis == "ep" for part in operators()[rows].parts)
    assert launched("rows", "backward").read_backs == []
    captured = launched("rows").stack.model_copy(update={"cuda_graphs": ("full",)})
    assert launched("rows")._replace(stack=captured).read_backs == []
    alone = launched("rows", layout=Layout(dp=8))
    (only,) = alone.read_backs
    assert alone.operators[only].name == "experts_in"


def test_an_activation_with_clamps_waits_for_the_product_before_it() -> None:
    workload = library_workload(load_transformer("gpt-oss-120b", "test"), 4096, LAYOUT)
    layer = next(layer for layer in workload.layers if layer.name == "attention-experts")
    passes = launched("rows")._replace(operators=layer.forward.operators)
    counts, clamp = passes.read_backs
    assert counts < clamp
    assert "experts_in_clamp" in passes.operators[clamp].name
    fused = passes.stack.model_copy(update={"clamp_bytes": (0.0, 0.0)})
    assert passes._replace(stack=fused).read_backs == [counts]


def test_the_device_waits_for_a_slow_host_and_not_for_a_fast_one() -> None:
    """The host of a backward pass runs ahead, so that all its launches and all kernels count."""
    for way in ("forward", "backward"):
        passes = launched("rows", way)
        device_s = np.full(len(passes.operators), 1e-4)
        total_s = float(device_s.sum())
        assert passes.waited_s(device_s, total_s) >= max(passes.total_s() - total_s, 0.0)
        instant = passes.stack.model_copy(update={"launch_s": 0.0, "expert_launch_s": 0.0})
        fast = replace(MACHINE, stack=instant)
        no_loop = device_of(fast).model_copy(update={"experts": {}})
        assert passes._replace(stack=instant, device=no_loop).waited_s(device_s, total_s) == 0.0
        hours = passes.stack.model_copy(update={"launch_s": 1.0})
        slow = passes._replace(stack=hours)
        assert slow.waited_s(device_s, total_s) == pytest.approx(slow.total_s() - total_s, rel=1e-4)


@pytest.mark.parametrize(("compute", "calls"), [("bf16", 1), ("fp8-cs", 2)])
def test_a_call_takes_its_time_for_every_expert_and_another_for_their_casts(
    compute: Compute, calls: int
) -> None:
    stack = MACHINE.stack.model_copy(update={"launch_s": 1.0, "expert_launch_s": 0.01})
    product = next(operator for operator in operators() if operator.name == "experts_in")
    no_loop = device_of(MACHINE).model_copy(update={"experts": {}})
    (seconds,) = host_s((product,), (compute,), stack, no_loop)
    # Sixteen experts; without a measured loop each of their GEMMs takes a launch.
    assert seconds == pytest.approx(calls * (1.0 + 16 * 0.01) + 16 * 1.0)
