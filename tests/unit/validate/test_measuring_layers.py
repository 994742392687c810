"""Layers of a model timed with PyTorch: the work that they do, and the file that `plan --layers` reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from phaze.base.errors import PhazeError
from phaze.formulas.piper.timings import read_timings
from phaze.layout import Layout
from phaze.spec.model import Model
from phaze.spec.models import load_transformer
from phaze.workload.models import build_graph
from phaze.workload.primitives import LayerGraph
from tests.commands import assert_refused, invoke, invoke_json

if TYPE_CHECKING:
    from phaze.validate.measuring_layers import LayerProgram

ASKED = "--gpus 2xH100 --sequence 64 --global-batch 4"
SIZES = {"hidden": 64, "heads": 4, "layers": 2, "vocabulary": 512}
FAMILIES: dict[str, dict[str, object]] = {
    "gpt2": {"feed_forward": 256},
    "bert-large": {"feed_forward": 256},
    "llama-3.1-8b": {"feed_forward": 128, "key_value_heads": 2},
    "mixtral-8x7b": {"experts": {"count": 8, "per_token": 2, "width": 128}, "key_value_heads": 2},
}
LAYOUTS = (
    Layout(), Layout(tp=2), Layout(tp=2, sequence_parallel=True), Layout(tp=2, ep=2, sequence_parallel=True),
)  # fmt: skip


def layers_of(name: str, layout: Layout) -> tuple[LayerGraph, ...]:
    published = load_transformer(name, name).model_dump(exclude_none=True)
    small = Model.parse({**published, **SIZES, **FAMILIES[name]}, name)
    if small.experts is None:
        layout = replace(layout, ep=1)
    elif layout.sequence_parallel and layout.ep == 1:
        layout = replace(layout, etp=2)
    return build_graph(small, 32, layout, 2).layers


def program(layer: LayerGraph) -> LayerProgram:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from phaze.validate.measuring_layers import LayerProgram

    return LayerProgram(layer, torch.device("cpu"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_multiplies_as_much_as_its_graph(name: str) -> None:
    """FLOPs by PyTorch's own counter, which leaves fused attention out on a CPU.

    A product has 2 b m k n forward, and twice as many backward.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.utils.flop_counter import FlopCounterMode

    for layout in LAYOUTS:
        for layer in layers_of(name, layout):
            run = program(layer)
            gemms = [p.gemm for p in layer.primitives if p.gemm is not None and not p.attention]
            needed = sum(2 * gemm.batch * gemm.m * gemm.k * gemm.n for gemm in gemms)
            with FlopCounterMode(display=False) as forward:
                ends = run.forward()
            assert forward.get_total_flops() == needed
            with FlopCounterMode(display=False) as backward:
                torch.autograd.grad(
                    ends, run.leaves, [torch.ones_like(end) for end in ends], allow_unused=True
                )
            assert backward.get_total_flops() == 2 * needed


@pytest.mark.parametrize("name", ["bert-large", "llama-3.1-8b"])
def test_fused_attention_is_that_of_the_sizes_in_the_graph(name: str) -> None:
    """Softmax of the scaled scores, with a mask where the model is causal, written out."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    (layer,) = (layer for layer in layers_of(name, Layout()) if layer.name == "block")
    number = next(
        n for n, p in enumerate(layer.primitives) if p.attention and p.kind == "matmul" and not p.scores
    )
    run = program(layer)
    torch.manual_seed(58)
    shared = 2 if name == "llama-3.1-8b" else 4
    query, key, value = (torch.randn(1, heads, 32, 16) for heads in (4, shared, shared))
    step = run.steps[number]
    assert step is not None
    found = step(*(tensor.flatten() for tensor in (query, key, value)))
    key, value = (tensor.repeat_interleave(4 // shared, 1) for tensor in (key, value))
    scores = query @ key.transpose(2, 3) / 4
    if name == "llama-3.1-8b":
        scores = scores + torch.full((32, 32), -torch.inf).triu(1)
    torch.testing.assert_close(found, scores.softmax(-1) @ value)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_layer_has_the_weights_of_its_graph_and_sends_what_collectives_need(name: str) -> None:
    for layout in LAYOUTS:
        for layer in layers_of(name, layout):
            run = program(layer)
            received = sum(tensor.numel() for tensor in run.received.values())
            weights = sum(tensor.numel() for tensor in run.leaves) - received
            assert weights == sum(primitive.parameters for primitive in layer.primitives)
            sent = sum(
                tensor.elements
                for primitive in layer.primitives
                if primitive.traits.role == "network"
                for tensor in primitive.inputs
            )
            assert sum(end.numel() for end in run.forward()) >= max(sent, layer.output_elements)


def test_a_scan_is_refused_by_its_name() -> None:
    model = load_transformer("nemotron-3-nano-30b-a3b", "x")
    scans = next(layer for layer in build_graph(model, 128, Layout(), 2).layers if layer.name == "mamba")
    with pytest.raises(PhazeError, match=r"layer mamba: .*: cannot be timed: .*--write-layers` by hand"):
        program(scans)


def test_measured_layers_are_planned_with(model: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    layers, rows = tmp_path / "layers.csv", tmp_path / "rows.csv"
    said = invoke(f"measure --layers {model} {ASKED} -o", layers).stdout
    answer = invoke_json(f"plan {model} {ASKED} --planners --layers {layers} --write-layers", rows)
    measured = read_timings(layers)
    assert f"{len(measured)} configurations of layers timed on " in said
    assert read_timings(rows) == measured
    assert all(row.forward_s > 0 and row.backward_s > 0 for row in measured)
    assert {row.t for row in measured} == {1, 2}
    assert {row.kind for row in measured} == {"whole", "tensor", "sequence"}
    full = {row.recompute: row for row in measured if (row.layer, row.t, row.microbatch) == ("block", 1, 1)}
    # All of the forward pass runs again, and stored activations are counted from the graph.
    assert full["full"].backward_s == pytest.approx(
        full["none"].backward_s + full["none"].forward_s, rel=0.01
    )
    assert full["full"].stash_bytes < full["none"].stash_bytes
    (piper,) = (row for row in answer["planners"] if row["planner"] == "piper")
    assert piper["stages"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--layers gpt2", "measure: --layers needs --gpus, the cluster to plan for; such as --gpus 64xH100"),
        ("--gpus 2xH100", "measure: --gpus needs --layers"),
        ("--layers gpt2 --links --gpus 2xH100", "measure: --layers and --links exclude each other"),
    ],
)
def test_options_of_layers_are_refused_without_each_other(options: str, message: str, tmp_path: Path) -> None:
    assert_refused(message, f"measure {options} -o", tmp_path / "layers.csv")
