"""Only adapters have gradients and states, and backward passes compute no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.machines import load_machine
from phaze.plan.plan import Stage
from phaze.plan.pricing.lowering import Lowering, ModelTraining
from phaze.spec.models import load_transformer, parse_model
from phaze.workload.models import library_workload

MODEL = load_transformer("llama-3.1-8b", "test").model_copy(update={"layers": 2})
RANK, TOKENS = 16, 4096
LORA = MODEL.model_copy(update={"lora": RANK})
ENDS = [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 14336), (4096, 14336), (14336, 4096)]
"""Inputs and outputs of the matrices of a block of Llama-3.1-8B."""
ADAPTERS = RANK * sum(sum(ends) for ends in ENDS)
"""Trained parameters of a block."""


def test_products_are_those_of_adapters_and_of_gradients_that_pass_frozen_weights() -> None:
    """2 FLOPs per parameter and token forward and for the activation gradient; for the weight gradient only
    of adapters: 4 N + 6 A in total, instead of 6 N in full training.
    """
    whole, part = (library_workload(model, TOKENS, Layout()) for model in (MODEL, LORA))
    block, own = whole.layer("block"), part.layer("block")
    matrices = sum(wide * high for wide, high in ENDS)
    assert (own.trained, own.frozen) == (ADAPTERS, block.parameters)
    assert own.forward.tensor_flops - block.forward.tensor_flops == 2 * TOKENS * ADAPTERS
    more = 4 * ADAPTERS - 2 * matrices
    assert own.backward.tensor_flops - block.backward.tensor_flops == TOKENS * more
    head, own_head = whole.layer("head"), part.layer("head")
    assert 2 * own_head.backward.tensor_flops == head.backward.tensor_flops
    assert part.layer("embedding").trained == own_head.trained == 0


def test_a_slice_adapts_its_share_of_every_matrix() -> None:
    """Of a column-sharded matrix B is sharded, of a row-sharded one A (Hu et al. 2022, Section 4.1)."""
    tp = 4
    by_rows = {3, 6}
    found = library_workload(LORA, TOKENS, Layout(tp=tp, sequence_parallel=True)).layer("block")
    cut = [(tp, 1) if place in by_rows else (1, tp) for place in range(len(ENDS))]
    shares = [wide // a + high // b for (wide, high), (a, b) in zip(ENDS, cut, strict=True)]
    assert found.trained == RANK * sum(shares)


def stage_of(lora: bool, layout: Layout) -> Stage:
    training = ModelTraining(LORA if lora else MODEL, TOKENS, 16, flash_attention=True)
    machine = load_machine("h100", stack="megatron-core-2024", devices=8)
    return Lowering(training, machine).stage(range(MODEL.layers + 2), layout)


def test_states_are_those_of_adapters() -> None:
    """Two bytes per weight, and 16 more per trained weight with fp32 gradients; ZeRO 3 shards all of them."""
    trained, frozen = MODEL.layers * ADAPTERS, MODEL.parameters
    for zero, held in ((0, (2, 18)), (1, (2, 6 + 12 / 8)), (3, (2 / 8, 18 / 8))):
        stage = stage_of(True, Layout(dp=8, zero=zero))  # type: ignore[arg-type]
        assert stage.fixed_bytes == pytest.approx(held[0] * frozen + held[1] * trained)
        assert stage.gradient_bytes == pytest.approx(4 * trained)
        whole = stage_of(False, Layout(dp=8, zero=zero))  # type: ignore[arg-type]
        assert stage.update_bytes == pytest.approx(whole.update_bytes * trained / frozen)


def test_only_what_changed_is_gathered_after_an_update() -> None:
    layout = Layout(dp=8, zero=1)
    stage = stage_of(True, layout)
    assert stage.weight_bytes - stage.frozen_bytes == 2 * MODEL.layers * ADAPTERS
    assert stage.exchanged_bytes == stage.gradient_bytes
    assert stage_of(False, layout).frozen_bytes == 0
    assert replace(stage, gradient_bytes=None).exchanged_bytes == stage.weight_bytes


def test_a_step_is_shorter_and_needs_the_room_of_weights_and_activations() -> None:
    layout = Layout(dp=8, zero=1, microbatch=1)
    part, whole = stage_of(True, layout), stage_of(False, layout)
    assert whole.forward_s < part.forward_s
    assert part.backward_s < whole.backward_s
    assert part.forward_s + part.backward_s < whole.forward_s + whole.backward_s
    products, trained = LORA.products_per_token, LORA.trained_products_per_token
    assert 3 * products(TOKENS, causal=True) > trained(TOKENS, causal=True)


def test_adapters_are_a_setting_of_training_and_beside_no_experts() -> None:
    spec = MODEL.model_dump(exclude_none=True)
    with pytest.raises(PhazeError, match="lora: is a training option"):
        parse_model({**spec, "lora": RANK}, "mine.yaml")
    assert parse_model({**spec, "lora": None}, "a study's own") == MODEL
    experts = load_transformer("mixtral-8x7b", "test").model_dump(exclude_none=True)
    with pytest.raises(PhazeError, match="lora 16 must not be given for a model with experts"):
        type(MODEL).parse({**experts, "lora": RANK}, "mixtral")
