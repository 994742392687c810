"""Operator graphs of whole models, with times on a device."""

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.partition.profile import library_operators, profile_model
from phaze.spec.model import Model
from phaze.spec.models import load_model_named, parse_model
from phaze.spec.systems import load_cluster
from phaze.workload.models import build_graph
from phaze.workload.operator_graphs import OperatorGraph
from tests.unit.workload.examples import forward_flops

SYSTEM = "titan-v-ethernet"
SMALL = {
    "kind": "resnet",
    "name": "small",
    "image": 32,
    "classes": 10,
    "backbone": {"stem": 8, "blocks": [1, 2], "widths": [4, 8]},
}
GPT = {
    "name": "gpt", "layers": 3, "hidden": 32, "heads": 4, "feed_forward": 64, "vocabulary": 100,
    "position_count": 16, "residual_dropout": 0.1,
}  # fmt: skip


def small(microbatch: int = 2) -> OperatorGraph:
    return profile_model(parse_model(SMALL, "test"), microbatch, SYSTEM)


def test_operators_are_those_of_the_network_one_by_one() -> None:
    """Convolutions, norms, ReLU and sums are operators; a fork belongs to the operator before it."""
    names = small().names
    assert names[:7] == (
        "stem.stem",
        "stem.stem_norm",
        "stem.stem_relu",
        "stem.stem_pool",
        "stage-1-first.reduce",
        "stage-1-first.reduce_norm",
        "stage-1-first.reduce_relu",
    )
    assert names[-4:] == ("head.average_pool", "head.classifier", "head.log_softmax", "head.nll_loss")


def test_a_skip_connection_is_an_edge_with_the_bytes_of_its_maps() -> None:
    """The identity of the last block is an edge from the previous ReLU to its sum."""
    graph = small(microbatch=3)
    made, read = (graph.names.index(name) for name in ("stage-2-first.block_relu", "stage-2.block_add"))
    (edge,) = np.flatnonzero((graph.edges == (made, read)).all(axis=1))
    assert graph.edge_bytes[edge] == 4 * 3 * 32 * 4**2


@pytest.mark.parametrize(
    ("name", "microbatch", "operators", "parameters"),
    [("resnet-152", 64, 516, 60_192_808), ("swin-l", 32, 580, 196_532_476), ("bert-24", 4, 661, 364_876_615)],
)
def test_parmesans_models_have_hundreds_of_operators(
    name: str, microbatch: int, operators: int, parameters: int
) -> None:
    """All layers are unrolled; parameters are those counted by PyTorch, four bytes each."""
    graph = profile_model(load_model_named(name), microbatch, SYSTEM)
    assert len(graph.names) == operators
    assert graph.parameter_bytes.sum() == 4 * parameters
    assert len(graph.edges) == len(np.unique(graph.edges, axis=0))


def test_every_operator_leads_to_the_loss() -> None:
    """Every result is read, and only operators that read the input have no predecessor."""
    graph = small()
    sources, targets = graph.edges.T
    assert set(range(len(graph.names))) - set(sources) == {len(graph.names) - 1}
    assert set(range(len(graph.names))) - set(targets) == {0}


def test_no_product_beats_the_peak_of_the_device() -> None:
    """FLOPs over the time of the model are below 14.9e12 FLOP/s, and above a fifth of it."""
    model = load_model_named("resnet-152")
    graph = profile_model(model, 64, SYSTEM)
    flops = forward_flops(build_graph(model, 1, Layout(microbatch=64), 4).unroll())
    assert 0.2 * 14.9e12 < flops / graph.forward_s.sum() < 14.9e12
    assert 1.5 < graph.backward_s.sum() / graph.forward_s.sum() < 2.5


def test_resnet_50_trains_as_fast_as_nvidia_measured() -> None:
    """356 images/s in single precision on a V100 of 32 GB (NVIDIA DeepLearningExamples, ResNet50 v1.5 for
    PyTorch, container 21.03). No constant is fitted; loader and optimizer are not included.
    """
    graph = profile_model(load_model_named("resnet-50"), 128, "dgx1-ethernet")
    assert 128 / graph.compute_s.sum() == pytest.approx(356, rel=0.1)


def test_views_take_no_time_and_no_memory() -> None:
    """They are operators, as in a framework, but move no data."""
    graph = profile_model(Model.parse(GPT, "test"), 2, SYSTEM)
    views = [i for i, name in enumerate(graph.names) if name.endswith(("_reshape", "_transpose"))]
    assert len(views) == 3 * 8
    for values in (graph.forward_s, graph.backward_s, graph.forward_bytes):
        assert not values[views].any()
    assert (np.delete(graph.forward_s, views) > 0).all()


def test_memory_is_what_an_operator_adds() -> None:
    """A product adds its weights and its result; a dropout also a mask of one byte per element."""
    graph = profile_model(Model.parse(GPT, "test"), 2, SYSTEM)
    of = {name: i for i, name in enumerate(graph.names)}
    stream, query = 2 * 16 * 32, of["block-2.query"]
    assert graph.forward_bytes[query] == 4 * (32 * 32 + 32 + stream)
    assert graph.backward_bytes[query] == 4 * (2 * (32 * 32 + 32) + stream)
    assert graph.forward_bytes[of["block-2.attention_dropout"]] == 5 * stream
    assert graph.backward_bytes[of["block-2.attention_add"]] == 0


def test_a_sum_gives_no_gradient_of_the_image() -> None:
    """The backward pass of the first convolution has only the product for its weights."""
    graph = small()
    kernels = 8 * 3 * 49
    assert graph.backward_bytes[0] == 4 * 2 * kernels
    assert graph.backward_bytes[4] == 4 * (2 * 8 * 4 + 2 * 8 * 8**2)


def test_numbers_are_as_long_as_the_device_multiplies_them() -> None:
    """An A100's arrays multiply two-byte numbers; all sizes are halved."""
    model = parse_model(SMALL, "test")
    single, half = small(), profile_model(model, 2, "a100-selene")
    assert (single.parameter_bytes == 2 * half.parameter_bytes).all()
    assert (single.edge_bytes == 2 * half.edge_bytes).all()


def test_a_model_of_too_many_operators_is_refused() -> None:
    """A graph of them would not fit into memory."""
    with pytest.raises(PhazeError, match="operators, a graph may have 500,000"):
        profile_model(Model.parse({**GPT, "layers": 1_000_000}, "test"), 1, SYSTEM)


def test_twice_the_microbatch_has_twice_the_messages_and_the_same_parameters() -> None:
    """Edges grow with the samples; time grows less, as kernels use the device better."""
    one, two = small(8), small(16)
    assert one.names == two.names
    assert (two.edge_bytes[:-1] == 2 * one.edge_bytes[:-1]).all()
    assert (two.parameter_bytes == one.parameter_bytes).all()
    assert (two.forward_s >= one.forward_s).all()
    assert two.forward_s.sum() < 2 * one.forward_s.sum()


def test_a_bias_goes_with_its_product() -> None:
    """A library adds it while writing the result; a relative position bias is a separate operator."""
    whole = build_graph(load_model_named("swin-l"), 1, Layout(), 4).unroll()
    groups = library_operators(whole)
    found = {whole.primitives[g[0]].name: [whole.primitives[i].kind for i in g] for g in groups}
    assert found["embedding.patches"] == ["matmul", "bias"]
    assert found["stage-1.position_bias"] == ["bias"]
    assert found["stage-1.attention_add"] == ["add", "fork"]


def test_operators_belong_to_layers() -> None:
    """A layer is a block, which a partition by layers may not split."""
    graph = small()
    assert list(dict.fromkeys(graph.layers)) == ["stem", "stage-1-first", "stage-2-first", "stage-2", "head"]
    assert all(name.startswith(f"{layer}.") for name, layer in zip(graph.names, graph.layers, strict=True))


@pytest.mark.parametrize(
    ("microbatch", "system", "sequence", "message"),
    [
        (0, SYSTEM, None, "microbatch: must be > 0, got 0"),
        (1, SYSTEM, 7, "sequence: 7 must be 1"),
        (1, "no-such", None, "there is no system 'no-such'"),
    ],
)
def test_what_cannot_be_profiled_is_refused(
    microbatch: int, system: str, sequence: int | None, message: str
) -> None:
    """One message names the key, its value and what is allowed."""
    with pytest.raises(PhazeError, match=message):
        profile_model(load_model_named("resnet-50"), microbatch, system, sequence=sequence)


def test_a_factor_multiplies_the_times_of_computing_and_nothing_else() -> None:
    whole = small()
    half = profile_model(parse_model(SMALL, "test"), 2, SYSTEM, compute_factor=0.5)
    assert half.compute_s == pytest.approx(0.5 * whole.compute_s)
    assert (half.edge_bytes == whole.edge_bytes).all()
    assert (half.parameter_bytes == whole.parameter_bytes).all()


def test_parmesans_study_says_how_far_its_sensitivities_are_above_the_peak_of_a_titan_v() -> None:
    """SemanticFPN runs at half the peak: at half the time it is 7 % above the peak, at a quarter 2.1
    times.
    """
    model = load_model_named("semantic-fpn")
    graph = profile_model(model, 16, SYSTEM)
    forward = forward_flops(build_graph(model, model.usual_sequence, Layout(microbatch=16), 4).unroll())
    _, device = load_cluster(SYSTEM)
    peak = 2 * device.num_tc * device.pe_x * device.pe_y * device.clock_hz
    share = 3 * forward / graph.compute_s.sum() / peak
    assert share == pytest.approx(1.07 / 2, abs=0.003)
    assert 4 * share == pytest.approx(2.1, abs=0.05)
