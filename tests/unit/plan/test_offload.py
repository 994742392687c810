"""Offloaded activations and states: bytes, seconds on the host link, and runtimes that support it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout, Offloaded, offload_of
from phaze.plan.layers.costs import HOST, LayerCost, layer_costs
from phaze.plan.machines import device_of, load_machine
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import plan_of_run
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.spec.model import Model
from phaze.spec.models import load_transformer
from phaze.spec.training_plan import ChosenLayout
from phaze.workload.models import library_workload
from tests.unit.plan.test_experts import run_of

MACHINE = load_machine("h100", stack="megatron-core-2024")
MACHINE = replace(MACHINE, stack=MACHINE.stack.model_copy(update={"gradient_bytes": 2}))  # as in the runs
SEQUENCE = 4096
LLAMA, DEEPSEEK, QWEN = (
    load_transformer(name, "test") for name in ("llama-3.1-8b", "deepseek-v3", "qwen3-30b-a3b")
)


def cost_of(model: Model, kind: str) -> LayerCost:
    return layer_costs(library_workload(model, SEQUENCE, Layout()), MACHINE, flash=True)[kind]


def waiting(cost: LayerCost, word: str, recompute: str = "none") -> float:
    """Offloaded bytes per token."""
    return cost.waiting_bytes(recompute, Offloaded.of(word)) / SEQUENCE


def test_inputs_of_modules_wait_and_nothing_else() -> None:
    """Queries, keys and values; the input of the output matrix; norm and first products; statistics stay."""
    h, kv = LLAMA.hidden, LLAMA.kv_width
    block = cost_of(LLAMA, "block")
    assert waiting(block, "core_attn") == 2 * (h + 2 * kv)
    assert waiting(block, "core_attn+attn_proj") == 2 * (2 * h + 2 * kv)
    assert waiting(block, "qkv_linear") == 2 * 2 * h  # its norm is fused with it and keeps its input
    assert waiting(block, "attn_norm") == 0.0
    assert waiting(block, "qkv_linear", "full") == 0.0
    assert waiting(block, "layers:2", "full") == 2 * h  # a checkpoint: the input of the layer
    assert waiting(cost_of(LLAMA, "head"), "layers:2", "full") == 0.0
    sparse, experts = cost_of(QWEN, "block"), QWEN.experts
    assert experts is not None
    assert waiting(sparse, "expert_fc1") == 2 * experts.per_token * QWEN.hidden
    assert waiting(sparse, "mlp_norm") == 2 * QWEN.hidden
    gates = 2 * experts.per_token * (2 * experts.width)
    assert waiting(sparse, "moe_act") >= gates
    assert waiting(sparse, "moe_act", "moe_act") == gates  # what is made again is not sent
    assert waiting(cost_of(DEEPSEEK, DEEPSEEK.mtp_kind), "attn_norm+mlp_norm") == 2 * 2 * DEEPSEEK.hidden


def test_a_layer_that_waits_leaves_one_layer_on_its_way() -> None:
    block = cost_of(LLAMA, "block")
    kept, held = block.kept_bytes("none")
    for blocks, word, part in ((32, "layers:8", 0.25), (4, "layers:8", 1.0)):
        stays, at_work = block.kept_bytes("none", Offloaded.of(word), blocks)
        assert stays == pytest.approx((1 - part) * kept)
        assert at_work == held + kept


@pytest.mark.parametrize("share", [0.5, 1.0, 3.0])
def test_passes_wait_for_what_the_link_does_not_carry_beside_them(share: float) -> None:
    """A link on which a block's activations take `share` times its forward pass; the backward pass overlaps
    more, by its greater length.
    """
    block, word = cost_of(LLAMA, "block"), Offloaded.of("core_attn")
    forward_s, backward_s = float(block.forward_s.sum()), float(block.backward_s.sum())
    rate = block.waiting_bytes("none", word) / (share * forward_s)
    found = block.waited_s("none", word, 1, rate)
    assert found[0] == pytest.approx(max(share - 1, 0.0) * forward_s)
    assert found[1] == pytest.approx(max(share * forward_s - backward_s, 0.0))
    slow = replace(MACHINE, device=device_of(MACHINE).model_copy(update={"host_bandwidth_bytes_per_s": rate}))
    run = run_of("llama-3.1-8b", Layout(dp=8, zero=1))
    plain, sent = (
        plan_of_run(replace(run, layout=replace(run.layout, offload=one)), slow).stages[0]
        for one in ("none", "core_attn")
    )
    assert sent.forward_s - plain.forward_s == pytest.approx(LLAMA.layers * found[0], abs=1e-9)
    assert sent.backward_s - plain.backward_s == pytest.approx(LLAMA.layers * found[1], abs=1e-9)
    assert sent.spent_s[HOST] - plain.spent_s[HOST] == pytest.approx(LLAMA.layers * sum(found), abs=1e-9)


def test_states_of_the_optimizer_are_there_for_the_update_alone() -> None:
    """12 bytes per parameter return once per step before the update, over the link alone."""
    run = run_of("llama-3.1-8b", Layout(dp=8, zero=1))
    plain, away = (
        price(plan_of_run(replace(run, layout=replace(run.layout, offload=word)), MACHINE), MACHINE)
        for word in ("none", "optimizer")
    )
    states = 12 * LLAMA.parameters / 8
    stage, before = away.plan.stages[0], plain.plan.stages[0]
    assert before.fixed_bytes - stage.fixed_bytes == pytest.approx(states, rel=1e-3)
    rate = device_of(MACHINE).host_bandwidth_bytes_per_s
    assert away.time_s - plain.time_s == pytest.approx(states / rate, rel=1e-3)
    activations = stage.stash_bytes + stage.work_bytes
    assert float(away.peak_bytes[0]) == pytest.approx(stage.fixed_bytes + max(states, activations), rel=1e-3)


def test_words_are_put_in_order_or_refused() -> None:
    assert offload_of("optimizer+attn_proj+core_attn") == "core_attn+attn_proj+optimizer"
    refused = {"core": "got core", "layers:0": "got layers:0", "layers:2+core_attn": "not both"}
    for word, said in (refused | {"none+optimizer": "got none"}).items():
        with pytest.raises(PhazeError, match=said):
            offload_of(word)
    with pytest.raises(PhazeError, match="attn_proj\\+optimizer in order"):
        Layout(offload="optimizer+attn_proj").check()


@pytest.mark.parametrize(
    ("word", "changes", "legal"),
    [
        ("layers:20", {"dp": 8}, True),
        ("layers:20", {"pp": 2, "dp": 4}, False),
        ("layers:32", {"dp": 8}, False),
        ("layers:20", {"dp": 8, "recompute": "selective"}, False),
        ("core_attn", {"pp": 2, "dp": 4, "recompute": "layernorm"}, True),
        ("core_attn", {"dp": 8, "recompute": "full"}, False),
        ("attn_proj", {"dp": 8}, False),
        ("moe_act", {"dp": 8}, False),
        ("optimizer", {"dp": 8, "zero": 1}, True),
        ("optimizer", {"dp": 8, "zero": 3}, False),
    ],
)
def test_runtimes_say_what_they_offload(word: str, changes: dict[str, int], legal: bool) -> None:
    task = TrainingTask(LLAMA, SEQUENCE, 64, 8)
    layout = Layout(offload=word, **changes)  # type: ignore[arg-type]
    refused = MEGATRON.why_not(task, layout, "1f1b")
    assert (refused is None) == legal
    assert legal or f"got {word}" in str(refused)
    plain = replace(layout, zero=0, recompute="none")
    assert "offload must be one of none" in str(TORCHTITAN.why_not(task, plain, "1f1b"))


def test_a_plan_says_every_field_of_its_layout() -> None:
    """Except the precision, which is that of the question."""
    chosen = set(ChosenLayout.model_fields) - {"schedule", "pipeline_layout"}
    assert chosen == {field.name for field in fields(Layout)} - {"precision"}
