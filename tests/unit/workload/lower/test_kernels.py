"""Kernels of a machine with libraries, and sequence parallelism."""

from __future__ import annotations

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.workload.lower.sharding import slice_model
from phaze.workload.models import library_workload
from phaze.workload.workload import Direction, Layer, Workload
from tests.unit.workload.examples import model_of, slice_of


def kernels(*, sequence_parallel: bool = False) -> Workload:
    layout = Layout(tp=2, sequence_parallel=sequence_parallel)
    return library_workload(model_of("megatron-gpt-2.5b"), 1024, layout)


def block(*, sequence_parallel: bool = False) -> Layer:
    return kernels(sequence_parallel=sequence_parallel).layer("block")


def collectives(layer: Layer, direction: Direction) -> list[str]:
    return [collective.kind for collective in layer.collectives(direction)]


def test_a_megatron_block_has_the_kernels_of_megatron() -> None:
    """Narayanan et al., SC 2021, Section 4.2: elementwise work is fused, products are separate."""
    assert [operator.name for operator in block().forward.operators if operator.parts] == [
        "attention_norm",
        "qkv",
        "qkv_bias",
        "scores",
        "scores_scale+scores_mask+softmax",
        "softmax_dropout",
        "context",
        "attention_out",
        "attention_out_all_reduce",
        "attention_out_bias+attention_dropout+attention_add",
        "feed_forward_norm",
        "feed_forward_in",
        "feed_forward_in_bias+gelu",
        "feed_forward_out",
        "feed_forward_out_all_reduce",
        "feed_forward_out_bias+feed_forward_dropout+feed_forward_add",
    ]


def test_a_kernel_is_a_product_or_has_none() -> None:
    for layer in kernels().layers:
        operators = (*layer.forward.operators, *layer.backward.operators)
        cores = {operator.core for operator in operators if operator.parts}
        assert cores <= {"tensor", "vector", "network"}


def test_sequence_parallelism_replaces_every_all_reduce_by_its_two_halves() -> None:
    """Korthikanti et al. 2023, Figure 6."""
    plain, cut = block(), block(sequence_parallel=True)
    assert collectives(plain, "forward") == ["all_reduce"] * 2
    assert collectives(plain, "backward") == ["all_reduce"] * 2
    assert sorted(collectives(cut, "forward")) == ["all_gather"] * 2 + ["reduce_scatter"] * 2
    assert sorted(collectives(cut, "backward")) == ["all_gather"] * 2 + ["reduce_scatter"] * 2


def test_sequence_parallelism_cuts_what_is_not_cut_by_heads() -> None:
    """Of 10 + 24/t + 5as/(ht), the 10 becomes 10/t (Korthikanti et al. 2023, Equation 4)."""
    part = slice_of("megatron-gpt-2.5b", 2)
    tensor = part.hidden_elements
    assert block().activation_bytes - block(sequence_parallel=True).activation_bytes == 10 * tensor // 2
    assert block(sequence_parallel=True).input_bytes * 2 == block().input_bytes


def test_the_attention_core_keeps_five_bytes_a_score() -> None:
    """Selective recomputation saves 5as/h of a block (Korthikanti et al. 2023, Section 5)."""
    part = slice_of("megatron-gpt-2.5b", 2)
    assert block().attention_bytes == 5 * part.model.heads // 2 * part.sequence**2 * part.microbatch
    assert [operator.name for operator in block().attention("backward")] == [
        f"{operator.name}.backward" for operator in reversed(block().attention("forward"))
    ]


def test_parallel_sequences_must_be_divisible() -> None:
    with pytest.raises(PhazeError, match="tensor: 2 must divide the sequence 1023"):
        slice_model(model_of("megatron-gpt-2.5b"), 1023, Layout(tp=2, sequence_parallel=True), 2)
