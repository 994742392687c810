"""Convolutions as matrix multiplications, and convolutional networks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.models import load_model
from phaze.spec.vision import Vision
from phaze.workload.families.vision import ConvolutionShape
from phaze.workload.lower.backward import backward_pass
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import fuse
from phaze.workload.models import build_graph
from phaze.workload.operators import LayerPass
from phaze.workload.primitives import INPUT, ModelGraph
from tests.unit.workload.examples import SPECS, VISION, forward_flops


def model_of_images(name: str) -> Vision:
    model = load_model(SPECS / f"{name}.yaml")
    assert isinstance(model, Vision)
    return model


def network_of(name: str, microbatch: int = 1) -> ModelGraph:
    return build_graph(model_of_images(name), 1, Layout(microbatch=microbatch), 2)


def flops(graph: LayerPass) -> int:
    return sum(part.tensor_flops for operator in graph.operators for part in operator.parts)


def unroll(x: np.ndarray, window: int, stride: int) -> np.ndarray:
    """Return the patches of maps (B, C, I, I) that windows see, one a row, with zeros around the maps."""
    out, before = -(-x.shape[2] // stride), (window - 1) // 2
    room = np.pad(x, [(0, 0), (0, 0), (before, window), (before, window)])
    rows = [
        room[b, :, r * stride : r * stride + window, c * stride : c * stride + window].ravel()
        for b in range(len(x))
        for r in range(out)
        for c in range(out)
    ]
    return np.array(rows)


@given(
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([1, 3, 5, 7]),
    st.integers(1, 3),
)
def test_a_convolution_is_the_product_of_its_unrolled_input(
    samples: int, channels: int, size: int, kernels: int, window: int, stride: int
) -> None:
    """Rows, columns and additional elements are those of the unrolled matrix itself."""
    conv = ConvolutionShape(samples, channels, size, kernels, window=window, stride=stride)
    x = np.arange(samples * channels * size**2, dtype=float).reshape(samples, channels, size, size)
    matrix = unroll(x, window, stride)
    gemm = conv.gemm
    assert matrix.shape == (gemm.m, gemm.k)
    assert gemm.unrolled == max(0, matrix.size - x.size)
    assert conv.parameters == gemm.k * gemm.n
    assert gemm.left_gradient().unrolled == gemm.right_gradient().unrolled == gemm.unrolled


@pytest.mark.parametrize("name", VISION)
@pytest.mark.parametrize("microbatch", [1, 3])
def test_operators_take_the_flops_of_the_spec(name: str, microbatch: int) -> None:
    """The sum over the operators of all layers equals the closed form of the spec."""
    whole = network_of(name, microbatch).unroll()
    model = model_of_images(name)
    assert forward_flops(whole) == 2 * microbatch * model.multiply_accumulates


@pytest.mark.parametrize("name", VISION)
@pytest.mark.parametrize("form", ["paired", "split"])
def test_the_backward_pass_takes_two_products_but_of_the_image(name: str, form: str) -> None:
    """Training takes the FLOPs of the spec, in both forms of the backward pass."""
    whole = network_of(name).unroll()
    groups = fuse(whole)
    backward = backward_pass(whole, groups, 2, "split" if form == "split" else "paired")
    total = flops(forward_pass(whole, groups, 2)) + flops(backward)
    assert total == model_of_images(name).flops_per_token(1).needed


@pytest.mark.parametrize("name", VISION)
def test_layers_hand_on_what_the_next_ones_get(name: str) -> None:
    """The output of a run is the input of the next one; or its parts, if that one reads several."""
    network = network_of(name, 2)
    layers = {layer.name: layer for layer in network.layers}
    outputs = [layers[run.layer].output_elements for run in network.runs]
    for q, run in enumerate(network.runs[1:], start=1):
        sources = run.reads or (q - 1,)
        assert layers[run.layer].input_elements == sum(outputs[source] for source in sources)


@pytest.mark.parametrize("name", VISION)
def test_unrolled_operators_are_those_of_the_layers(name: str) -> None:
    """Every operator occurs as often as its layer, with a unique name, in topological order."""
    network = network_of(name)
    counts = dict.fromkeys((layer.name for layer in network.layers), 0)
    for run in network.runs:
        counts[run.layer] += run.count
    whole = network.unroll()
    names = [p.name for p in whole.primitives]
    assert len(set(names)) == len(names)
    pieces = sum(counts[x.name] for x in network.layers if x.primitives[0].name == "stages")
    assert len(names) == sum(counts[x.name] * len(x.primitives) for x in network.layers) - pieces
    for index, primitive in enumerate(whole.primitives):
        assert all(INPUT <= tensor.source < index for tensor in primitive.inputs)


@pytest.mark.parametrize("name", VISION)
def test_one_gradient_comes_back_to_every_operator(name: str) -> None:
    """Tensors with several readers are forked, also across layers."""
    whole = network_of(name).unroll()
    for primitive, readers in zip(whole.primitives, whole.readers, strict=True):
        sizes = [tensor.elements for _, tensor in readers if tensor.gradient]
        if primitive.kind == "split":
            assert sum(sizes) == primitive.elements
        else:
            assert (len(sizes) > 1) == (primitive.kind == "fork")
            assert all(size == primitive.elements for size in sizes if primitive.kind != "log_softmax")


def test_resnet_50_has_53_convolutions_and_as_many_norms() -> None:
    """He et al. 2016, Table 1: 49 on the main path and four shortcuts, then the classifier."""
    kinds = [p.kind for p in network_of("resnet-50").unroll().primitives]
    assert kinds.count("matmul") == 53 + 1
    assert kinds.count("batch_norm") == 53
    assert kinds.count("relu") == 49
    assert kinds.count("add") == 16


def test_the_layers_of_resnet_50_are_a_chain() -> None:
    """Stem, four stages with a different first block, head."""
    network = network_of("resnet-50")
    assert [(run.layer, run.count) for run in network.runs] == [
        ("stem", 1),
        ("stage-1-first", 1),
        ("stage-1", 2),
        ("stage-2-first", 1),
        ("stage-2", 3),
        ("stage-3-first", 1),
        ("stage-3", 5),
        ("stage-4-first", 1),
        ("stage-4", 2),
        ("head", 1),
    ]


def test_the_pyramid_reads_the_last_block_of_every_stage() -> None:
    """The decoder's four inputs are a quarter to a thirty-second of the image wide."""
    whole = network_of("semantic-fpn").unroll()
    lateral = [p for p in whole.primitives if ".lateral_" in p.name and p.kind == "matmul"]
    assert [p.inputs[0].elements for p in lateral] == [c * s**2 for c, s in zip(
        (256, 512, 1024, 2048), (128, 64, 32, 16), strict=True)]  # fmt: skip
    makers = [whole.primitives[whole.primitives[p.inputs[0].source].inputs[0].source] for p in lateral[:3]]
    assert [p.name for p in makers] == [
        "stage-1-2.block_relu",
        "stage-2-3.block_relu",
        "stage-3-5.block_relu",
    ]


def test_only_shifted_windows_are_masked() -> None:
    """A stage with a single window has no shift."""
    whole = network_of("swin-l").unroll()
    names = [p.name for p in whole.primitives if p.kind == "mask"]
    assert names == [
        "stage-1.shifted_scores_mask",
        "stage-2.shifted_scores_mask",
        *(f"stage-3-{i}.shifted_scores_mask" for i in range(1, 10)),
    ]


def test_a_batch_norm_reads_its_input_twice() -> None:
    """Means and variances of all samples are needed before any element can be normalised."""
    layer = network_of("resnet-50").layers[0]
    (norm,) = (o for o in forward_pass(layer, fuse(layer), 2).operators if o.name == "stem_norm")
    elements = 64 * 112**2
    assert [p.streamed_bytes for p in norm.parts] == [2 * (3 * elements + 2 * 64)]


def test_pooling_keeps_a_place_for_each_of_its_outputs() -> None:
    """The backward pass of max pooling needs the position of the largest pixel."""
    layer = network_of("resnet-50").layers[0]
    (made,) = (o for o in forward_pass(layer, fuse(layer), 2).operators if "stem_pool" in o.name)
    assert made.name == "stem_relu+stem_pool"
    assert made.stashed_bytes == 2 * 64 * 112**2 + 64 * 56**2
    assert sum(p.elements for p in made.parts) == 64 * 112**2 + 9 * 64 * 56**2


@pytest.mark.parametrize("name", VISION)
def test_an_image_is_not_cut_along_its_sequence(name: str) -> None:
    with pytest.raises(PhazeError, match=f"model {name}: cp: 2 must be 1, a sample is one image"):
        build_graph(model_of_images(name), 1, Layout(cp=2), 2)


def test_a_block_of_resnet_50_by_hand() -> None:
    """An identity block of the second stage: 1 × 1, 3 × 3 and 1 × 1 on maps of 28 × 28."""
    layers = {layer.name: layer for layer in network_of("resnet-50").layers}
    assert forward_flops(layers["stage-2"]) == 2 * 28**2 * (512 * 128 + 9 * 128 * 128 + 128 * 512)
