"""Products in lower precision: faster, with operands that are cast and saved in fewer bytes."""

from dataclasses import replace

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.experts import expert_speed
from phaze.cost.kernels import KERNEL_LIMITS
from phaze.layout import COMPUTES, OPERAND_BYTES, Layout
from phaze.plan.layers.activations import multiplies_weights
from phaze.plan.layers.costs import kernel_times, layer_costs
from phaze.plan.machines import device_of, load_machine
from phaze.spec.models import load_transformer
from phaze.spec.system import Stack
from phaze.workload.models import library_workload
from phaze.workload.operators import Part

MODEL = load_transformer("llama-3.1-8b", "test")
COMPUTE = KERNEL_LIMITS.index("compute")


def _block(compute: str, system: str = "b200") -> tuple[float, float, float]:
    layout = replace(Layout.of_key("tp1-b1"), compute=compute)  # type: ignore[arg-type]
    workload = library_workload(MODEL, 8192, layout)
    block = layer_costs(workload, load_machine(system), flash=True)["block"]
    return float(block.forward_s[COMPUTE]), float(block.forward_s.sum()), block.kept_bytes("none")[0]


def test_a_product_takes_its_time_over_the_rate_of_its_precision() -> None:
    """If bound by the arrays, a long sum takes its FLOPs over the reached share of the precision's peak."""
    machine = load_machine("b200").of_size(1)
    product = (Part("matmul", "forward", 1, 16384, 65536, 16384),)
    times = kernel_times(machine, 2)
    assert machine.device is not None
    peak = machine.device.peak_flops_per_s * machine.device.sustained_clock
    for word in ("bf16", "mxfp8", "nvfp4"):
        speed = machine.device.products[word]
        least = 2.0 * 16384**2 * 65536 / peak / speed.times / speed.reached
        least /= machine.device.in_steps.get(word, 1.0)
        assert least < times.of([product], [word])[0, COMPUTE] < 1.03 * least


def test_attention_stays_in_half_precision() -> None:
    """A block in eight bits is faster, but by less than the full factor."""
    plain, faster = _block("bf16")[0], _block("mxfp8")[0]
    speed = load_machine("b200").device.products["mxfp8"]  # type: ignore[union-attr]
    assert plain / speed.times < faster < plain


def test_operands_are_kept_in_their_own_bytes() -> None:
    """For a Llama block the inputs of four products: outputs of two norms, attention and the gate."""
    kept = {word: _block(word)[2] for word in ("bf16", "mxfp8")}
    operands = 8192 * (3 * 4096 + 14336)
    assert kept["bf16"] - kept["mxfp8"] == pytest.approx(operands * (2 - OPERAND_BYTES["mxfp8"]))


def test_a_device_refuses_a_precision_that_it_has_not() -> None:
    """The message lists the supported precisions."""
    with pytest.raises(PhazeError, match="h100-80gb multiplies bf16, fp8, fp8-cs, fp8-block, got nvfp4"):
        _block("nvfp4", "h100")


def test_a_key_says_the_precision() -> None:
    """Every precision but half precision."""
    for word in COMPUTES:
        layout = Layout(tp=2, microbatch=4, compute=word)
        assert Layout.of_key(layout.key) == layout
        assert (word in layout.key) == (word != "bf16")
    assert OPERAND_BYTES.keys() == set(COMPUTES)


def test_experts_that_are_started_one_by_one_keep_the_host_busy() -> None:
    """Then a forward pass waits for the host, which reads back the tokens of each expert.

    A backward pass knows them: it waits only if all kernels together are shorter than their launches.
    """
    machine = load_machine("h100", stack="megatron-bridge", devices=16)
    model = load_transformer("qwen3-30b-a3b", "test")
    workload = library_workload(model, 4096, Layout(ep=16, dp=16))
    times = {}
    assert machine.device is not None
    same = {"experts": {"each": machine.device.experts["each"], "grouped": machine.device.experts["each"]}}
    machine = replace(machine, device=machine.device.model_copy(update=same))
    cases = [
        ("grouped", machine.stack.launch_s),
        ("each", machine.stack.launch_s),
        ("grouped", 1.0),
        ("each", 1.0),
    ]
    for experts, launch_s in cases:
        stack = machine.stack.model_copy(update={"experts": experts, "launch_s": launch_s})
        block = layer_costs(workload, replace(machine, stack=stack), flash=True)["block"]
        times[experts, launch_s] = np.stack([block.forward_s, block.backward_s])
    host = KERNEL_LIMITS.index("host")
    grouped, each, slow, slowest = (times[case] for case in cases)
    assert (grouped[:, host] == 0.0).all()
    assert each[0, host] > 0.0
    assert each[1, host] == 0.0
    assert np.delete(each, host, 1) == pytest.approx(np.delete(grouped, host, 1))
    # Three products of 8 local experts with two gradients each: every expert adds its part of the call.
    speed = expert_speed(device_of(machine), "each", "bf16")
    assert speed is not None
    each_s = speed.expert_s + machine.stack.expert_launch_s
    assert slowest[1].sum() - slow[1].sum() == pytest.approx(3 * 2 * 8 * each_s, rel=1e-6)


def test_a_fused_activation_of_experts_takes_no_time_of_its_own() -> None:
    """All other work takes as long as with one kernel for all experts."""
    machine = load_machine("h100", stack="torchtitan", devices=16)
    workload = library_workload(load_transformer("qwen3-30b-a3b", "test"), 4096, Layout(ep=16, dp=16))
    found = {}
    for experts in ("grouped", "fused"):
        stack = machine.stack.model_copy(update={"experts": experts, "launch_s": 0.0})
        block = layer_costs(workload, replace(machine, stack=stack), flash=True)["block"]
        found[experts] = block.forward_s - (block.regions_s(frozenset({"moe_act"})))
    assert found["fused"] == pytest.approx(found["grouped"])
    assert block.regions_s(frozenset({"moe_act"})).sum() == 0.0


def test_the_old_name_of_how_experts_are_started_is_refused_with_the_new() -> None:
    with pytest.raises(PhazeError, match="each_expert: was renamed"):
        Stack.parse({"each_expert": True}, "stack")


def test_routers_logits_and_scans_stay_in_half_precision() -> None:
    """In both passes; other products with weights do not."""
    wide = {"router", "logits"}
    for name in ("deepseek-v3", "nemotron-3-nano-30b-a3b"):
        workload = library_workload(load_transformer(name, "test"), 4096, Layout(compute="mxfp8"))
        for layer in workload.layers:
            for one in (*layer.forward.operators, *layer.backward.operators):
                own = one.core == "tensor" and not one.attention
                stays = one.name.split(".")[0].split("+")[0] in wide or "scan" in one.regions
                assert multiplies_weights(one) == (own and not stays)
