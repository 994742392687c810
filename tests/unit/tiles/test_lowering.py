"""Models on tiles: their FLOPs and parameters are those of `phaze model`, however they are cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaze.layout import Layout
from phaze.spec.files import FOLDER
from phaze.spec.model import Model
from phaze.spec.models import AnyModel, load_model, load_model_named
from phaze.spec.tiled_study import TiledPoint
from phaze.tiles.chains import ModelChain
from phaze.tiles.chip import load_tiled_machine
from phaze.tiles.lowering import Cut, ModelLayers, model_layers
from phaze.tiles.on_tiles import simulate_point
from phaze.tiles.operators import CutOperator, shares

TRACED = Path(__file__).parents[3] / "tests" / "data" / "traced"
SAMPLES = 15
"""Samples whose tokens divide evenly among the experts of every model."""
REPLICATED = ("router", "query_down", "key_value_down")
"""Products that every tensor-parallel rank computes whole (Megatron-Core)."""
MODELS = sorted(path.stem for path in (FOLDER / "models").glob("*.yaml"))
CHIP = load_tiled_machine("wafer").chip
OTHER_FLOPS = {
    # Heads that `phaze model` leaves out: the matrix before the head, the pooler and the next sentence.
    "bert-24": 2e-8, "bert-32": 3e-6, "bert-36": 1e-8, "bert-48": 1e-8, "bert-base": 6e-3, "bert-large": 3e-3,
    "megatron-bert": 3e-3,
    # Lengths of windows, chunks of scans and keys of indexers are means there, and whole numbers here.
    "gpt-oss-20b": 3e-3, "gpt-oss-120b": 3e-3, "deepseek-v3.2": 7e-3, "glm-5": 4e-3,
    "nemotron-3-nano-30b-a3b": 3e-3, "qwen3.5-35b-a3b": 6e-3,
}  # fmt: skip
"""Models whose FLOPs differ from the closed form, with the largest relative difference."""
HEADS = ("bert-24", "bert-36", "bert-48", "bert-base", "bert-large", "megatron-bert")
"""Models with parameters in heads that `phaze model` does not count."""


def tokens_of(model: AnyModel) -> int:
    return min(model.usual_sequence, 1024)


def flops_of(layers: ModelLayers) -> float:
    return sum(o.share.flops for name in layers.order for o in layers.layers[name].operators)


def parameters_of(layers: ModelLayers) -> int:
    """Return the parameters, without the head's copy of a tied embedding."""
    primitives = (p for name in layers.order for o in layers.layers[name].operators for p in o.primitives)
    return sum(primitive.parameters for primitive in primitives if primitive.group != "tied")


@pytest.mark.parametrize("name", MODELS)
def test_operators_have_the_flops_and_parameters_of_the_model(name: str) -> None:
    model = load_model_named(name)
    tokens = tokens_of(model)
    layers = model_layers(model, tokens, Layout(microbatch=SAMPLES))
    if isinstance(model, Model):
        forward = 2 * tokens * SAMPLES * model.products_per_token(tokens, causal=model.causal)
        assert flops_of(layers) == pytest.approx(forward, rel=OTHER_FLOPS.get(name, 1e-12), abs=0)
        if name not in HEADS:
            assert parameters_of(layers) == model.parameters + model.mtp_parameters
    # Forward and backward together: the needed FLOPs of training, by the count of each family.
    passes = sum(ModelChain(model, tokens).loads)
    needed = tokens * model.flops_per_token(tokens).needed
    assert passes == pytest.approx(needed, rel=OTHER_FLOPS.get(name, 1e-12), abs=0)


def flops_by_product(cut: Cut, tiles: int) -> dict[str, float]:
    """Return the FLOPs of all tiles by the first operation of an operator, its product."""
    flops: dict[str, float] = {}
    for operator, degrees in cut:
        assert isinstance(operator, CutOperator)
        name = operator.name.split("+")[0]
        flops[name] = flops.get(name, 0.0) + sum(share.flops for share in shares(operator, degrees)) * tiles
    return {name: count for name, count in flops.items() if count}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2"])
@pytest.mark.parametrize(("tensor", "replicas", "experts"), [(1, 4, 1), (4, 2, 1), (2, 4, 4)])
def test_tiles_share_the_work_of_a_model_exactly(name: str, tensor: int, replicas: int, experts: int) -> None:
    model = load_model_named(name)
    assert isinstance(model, Model)
    chain = ModelChain(model, 512)
    layout = Layout(tp=tensor, dp=replicas, ep=experts if model.experts else 1)
    cut, whole = (
        flops_by_product(chain.cut(CHIP, range(1, 3), 60, given, 1), given.tp * given.dp)
        for given in (layout, Layout())
    )
    assert cut.keys() == whole.keys()
    for product, flops in whole.items():
        # Ranks that shard sequences share the tokens of the router as well.
        copies = tensor if product in REPLICATED and layout.ep == 1 else 1
        assert cut[product] == copies * flops


def test_dispatched_tokens_are_an_all_to_all_among_expert_ranks() -> None:
    """Each rank sends its rows, tokens × top-k × hidden elements, of which others hold the experts."""
    model = load_model_named("qwen3-30b-a3b")
    cut = ModelChain(model, 512).cut(CHIP, range(1, 2), 8, Layout(dp=8, ep=4), 1)
    found = [
        (reduction.phase, reduction.axis, reduction.width, reduction.elements)
        for operator, degrees in cut
        for share in shares(operator, degrees)
        for reduction in share.reductions
        if reduction.kind == "all_to_all"
    ]
    rows = 512 * 8 * 2048.0
    assert found == [(phase, "e", 4, rows) for _ in range(2) for phase in ("forward", "backward")]


@pytest.mark.parametrize("name", ["dense", "experts"])
def test_a_traced_module_runs_on_tiles(name: str) -> None:
    """FLOPs of its products in both passes, and a pipeline of its layers on four groups of tiles."""
    model = load_model(TRACED / f"{name}.json")
    point = TiledPoint.parse(
        {"system": "wafer", "model": name, "batch": 160, "show": "table", "stages": 4, "tensor": [1],
         "microbatches": [2], "zero": 1},
        name,
    )  # fmt: skip
    runs = simulate_point(name, point, model, CHIP)["tiled_runs"]
    tokens = 160 * model.usual_sequence
    needed = tokens * model.flops_per_token(model.usual_sequence).needed
    peak = CHIP.peak_flops_per_s * runs["time_s"][0]
    assert runs["model_share"][0] == pytest.approx(needed / peak, rel=1e-9)
