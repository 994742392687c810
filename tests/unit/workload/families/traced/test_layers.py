"""Layers of traced models: extracted from a trace, written as a spec, and rebuilt for any microbatch."""

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.model import Model
from phaze.spec.models import load_model
from phaze.spec.settings import ExtractSettings
from phaze.spec.traced import Traced
from phaze.workload.families.traced.layers import described, layers_of, traced_graph
from phaze.workload.families.traced.trace import UNFUSED, count
from phaze.workload.families.traced.translate import Call, SeenTensor, Trace
from phaze.workload.models import build_graph, extract_workload, lower
from phaze.workload.workload import DIRECTIONS
from tests.unit.workload.examples import MODELS

SEQUENCE = 256


def seen(number: int, *shape: int, origin: str = "made") -> SeenTensor:
    return SeenTensor(number, shape, 4, origin)  # type: ignore[arg-type]


def chain(*paths: str) -> Trace:
    """A lookup, then products of these modules in sequence, with 4 tokens of width 8."""
    lookup = Call("words", "embedding", (seen(0, 16, 8, origin="parameter"),), (seen(1, 4, 8),))
    products = [
        Call(path, "mm", (seen(n, 4, 8), seen(n + 1, 8, 8, origin="parameter")), (seen(n + 2, 4, 8),))
        for n, path in zip(range(1, 2 * len(paths), 2), paths, strict=True)
    ]
    return Trace((lookup, *products), (2 * len(paths) + 1,), 0, 0, 0)


def test_blocks_are_the_members_of_a_list_of_modules() -> None:
    found = layers_of(chain("h.0.a", "h.0.b", "h.1.a", "h.1.b", "h.2.a", "head.0.out"))
    assert [(layer.name, len(layer.primitives)) for layer in found.layers] == [
        ("embedding", 1),
        ("block", 2),
        ("block-2", 1),
        ("head", 1),
    ]
    assert [(run.layer, run.count) for run in found.runs] == [
        ("embedding", 1),
        ("block", 2),
        ("block-2", 1),
        ("head", 1),
    ]
    assert [layer.input_elements for layer in found.layers] == [0, 32, 32, 32]


def test_what_is_no_chain_is_refused() -> None:
    with pytest.raises(PhazeError, match="no list of blocks"):
        layers_of(chain("a", "b"))
    with pytest.raises(PhazeError, match="not a chain: operators of different blocks alternate"):
        layers_of(chain("h.1.a", "h.0.a", "h.1.b"))


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "nemotron-3-nano-30b-a3b"])
def test_layers_of_a_family_as_a_spec_are_the_same_for_any_microbatch(name: str, tmp_path: Path) -> None:
    """Written, read, and rebuilt for three samples: FLOPs, parameters and activations of every layer."""
    model = MODELS[name]
    assert isinstance(model, Model)
    spec = described(build_graph(model, SEQUENCE, Layout(), 2), name, SEQUENCE)
    path = tmp_path / "traced.json"
    path.write_text(json.dumps({"kind": "traced", **spec.model_dump(exclude_defaults=True)}))
    again = load_model(path)
    assert again == spec
    layout = Layout(microbatch=3)
    own, family = (extract_workload(one, SEQUENCE, layout, UNFUSED) for one in (again, model))
    assert own.runs == family.runs
    for mine, theirs in zip(own.layers, family.layers, strict=True):
        for way in DIRECTIONS:
            assert mine.pass_of(way).tensor_flops == theirs.pass_of(way).tensor_flops
        assert mine.groups == theirs.groups
        assert (mine.input_bytes, mine.output_bytes) == (theirs.input_bytes, theirs.output_bytes)
        choices = sum(
            one.kept_bytes
            for layer in build_graph(model, SEQUENCE, layout, 2).layers
            for one in layer.primitives
            if layer.name == mine.name
        )  # beside tensors, of which PyTorch shows none
        assert mine.activation_bytes == theirs.activation_bytes - choices
    flops = again.flops_per_token(SEQUENCE)
    assert flops.needed == flops.paper
    masked = described(build_graph(model, SEQUENCE, Layout(), 2), name, SEQUENCE, causal=True)
    scans = model.mamba is not None  # whose products count by another rule
    if not scans:
        needed = model.flops_per_token(SEQUENCE).needed
        assert masked.flops_per_token(SEQUENCE).needed == pytest.approx(needed)
    assert flops.paper == pytest.approx(
        sum(extract_workload(again, SEQUENCE, Layout(), UNFUSED).tensor_flops(way) for way in DIRECTIONS)
        / SEQUENCE,
        rel=1e-3,
    )


def test_a_traced_model_is_whole_and_has_samples_of_one_length() -> None:
    spec = described(layers_of(chain("h.0.a", "h.1.a")), "small", 4)
    with pytest.raises(PhazeError, match="sequence: 8 must be 4, for which small was traced"):
        spec.check_sequence(8, "test")
    with pytest.raises(PhazeError, match="tensor: 2 must be 1: model small has no tensor parallelism"):
        build_graph(spec, 4, Layout(tp=2), 2)
    fields = spec.model_dump()
    fields["layers"][0]["operators"][0]["inputs"] = [{"source": 0, "elements": 1}]
    with pytest.raises(PhazeError, match="reads the result of a later operator"):
        Traced.parse(fields, "test")
    wrong = spec.layers[0].operators[0].model_copy(update={"kind": "cook"})
    layer = spec.layers[0].model_copy(update={"operators": (wrong,)})
    with pytest.raises(PhazeError, match="kind: must be one of"):
        traced_graph(spec.model_copy(update={"layers": (layer,)}), 1)


def test_layers_of_a_configuration_are_those_of_its_trace(tmp_path: Path) -> None:
    """For several samples PyTorch has copies that are not needed for one; products are equal."""
    for library in ("torch", "transformers"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    from phaze.spec.torch_module import load_torch_module
    from phaze.workload.families.traced.trace import trace
    from tests.unit.workload.families.traced.test_record import TINY

    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    module = load_torch_module(path, 32)
    one, three = (layers_of(trace(module, samples, run_code=False)) for samples in (1, 3))
    spec = described(one, "tiny", 32)
    assert traced_graph(spec, 1) == one
    settings = ExtractSettings(fusion=False)
    found, expected = (
        count(lower(graph, "tiny", Layout(microbatch=3), settings))
        for graph in (traced_graph(spec, 3), three)
    )
    assert found == expected
    assert [(run.layer, run.count) for run in one.runs] == [("embedding", 1), ("block", 2), ("head", 1)]
