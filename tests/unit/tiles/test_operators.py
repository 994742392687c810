"""Sharded operators: PALM's Table III, and products computed part by part."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.models import load_model_named
from phaze.spec.vision import ResNet
from phaze.tiles.operators import (
    AXES,
    Degrees,
    Linear,
    Pool,
    Reduction,
    TileOperator,
    TileShare,
    TransformerLayer,
    communication_size,
    operators_of,
    shares,
)
from phaze.workload.families.vision import ConvolutionShape

LINEAR = Linear(8, 16, 32, 64)

powers = st.sampled_from([1, 2, 4])


def flops(share: TileShare) -> float:
    """Return the FLOPs of a tile's product."""
    product = share.product
    return 2.0 * product.batch * product.m * product.k * product.n if product else 0.0


def volumes(found: tuple[TileShare, ...], phase: str) -> list[tuple[float, str, int]]:
    return [
        (some.elements, some.axis, some.width)
        for share in found
        for some in share.reductions
        if some.phase == phase
    ]


@given(powers, powers, powers, powers)
@settings(max_examples=15)
def test_a_linear_operator_has_the_row_of_table_iii(b: int, m: int, n: int, k: int) -> None:
    share = LINEAR.shares((b, m, n, k))[0]
    rows = {
        "forward": [(8 * 16 * 32 / (b * m * n), "k", k)],
        "backward": [(8 * 16 * 64 / (b * m * k), "n", n)],
        "update": [(32 * 64 / (n * k), "b", b), (32 * 64 / (n * k), "m", m)],
    }
    assert share.flops == 2 * 8 * 16 * 32 * 64 / (b * m * n * k)
    for phase, row in rows.items():
        assert volumes((share,), phase) == [some for some in row if some[2] > 1]


@given(powers, powers, powers, powers)
@settings(max_examples=15)
def test_a_convolution_has_the_row_of_table_iii(b: int, c: int, i: int, k: int) -> None:
    """Stride 1, so that the table's H and W are those of input and output."""
    (share,) = shares(ConvolutionShape(8, 16, 12, 32, window=3), (b, c, i, k))
    rows = {
        "forward": [(8 * 12 * 12 * 32 / (b * i * k), "c", c)],
        "backward": [(8 * 12 * 12 * 16 / (b * i * c), "k", k)],
        "update": [(3 * 3 * 16 * 32 / (c * k), "b", b), (3 * 3 * 16 * 32 / (c * k), "i", i)],
    }
    assert share.flops == 2 * 8 * 12 * 12 * 3 * 3 * 16 * 32 / (b * c * i * k)
    for phase, row in rows.items():
        assert volumes((share,), phase) == [some for some in row if some[2] > 1]


def test_a_stride_shrinks_the_output_of_a_convolution() -> None:
    (share,) = shares(ConvolutionShape(4, 3, 9, 8, window=3, stride=2), (1, 1, 1, 1))
    assert share.outputs == 4 * 5 * 5 * 8
    assert share.inputs == 4 * 9 * 9 * 3
    assert share.product is not None
    assert flops(share) == share.flops


def test_a_pool_exchanges_nothing() -> None:
    share = Pool(8, 16, 12, window=2, stride=2).shares((2, 4, 2, 1))[0]
    assert share.reductions == ()
    assert share.weights == 0
    assert share.flops == 2 * 8 * 6 * 6 * 2 * 2 * 16 / 16


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
@settings(max_examples=12)
def test_a_transformer_is_the_sum_of_its_products(d: int, t: int) -> None:
    """Table III: FLOPs, (2 B S H/N_d, N_m) forward and backward, (12 H²/N_m, N_d) in the update."""
    batch, hidden, sequence = 8, 64, 32
    found = shares(TransformerLayer(batch, hidden, sequence, 4), (d, t, 1, 1))
    flops = 24 * batch * sequence * hidden**2 + 4 * batch * sequence**2 * hidden
    assert sum(share.flops for share in found) == flops / (d * t)
    for phase in ("forward", "backward"):
        elements = [some[0] for some in volumes(found, phase)]
        assert sum(elements) == (2 * batch * sequence * hidden / d if t > 1 else 0)
        assert {some[1:] for some in volumes(found, phase)} <= {("t", t)}
    elements = [some[0] for some in volumes(found, "update")]
    assert sum(elements) == (12 * hidden**2 / t if d > 1 else 0)
    assert {some[1:] for some in volumes(found, "update")} <= {("d", d)}


def test_equation_6_is_what_a_transformer_all_reduces_in_16_bits() -> None:
    """PALM, Equation (6), with N_d = N/N_m."""
    for tensor in (2, 4, 8):
        found = shares(TransformerLayer(16, 256, 128, 16), (16 // tensor, tensor, 1, 1))
        elements = sum(some.elements for share in found for some in share.reductions)
        assert 2 * elements == communication_size(16, 128, 256, Layout(tp=tensor, dp=16 // tensor))


@given(st.tuples(powers, powers, powers, powers), st.integers(0, 2**31))
@settings(max_examples=20)
def test_reducing_over_the_axes_of_table_iii_gives_the_whole_products(degrees: Degrees, seed: int) -> None:
    """Every tile multiplies its parts; the table's reductions complete the product, with the right sizes."""
    rng = np.random.default_rng(seed)
    x, w, dy = (rng.integers(-3, 4, shape).astype(float) for shape in ((4, 4, 8), (4, 8), (4, 4, 4)))
    share = Linear(4, 4, 4, 8).shares(degrees)[0]
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    for position in itertools.product(*(range(degree) for degree in degrees)):
        b, m, n, k = (
            slice(at * size // degree, (at + 1) * size // degree)
            for at, size, degree in zip(position, (4, 4, 4, 8), degrees, strict=True)
        )
        mine = x[b, m, k], w[n, k], dy[b, m, n]
        assert [part.size for part in mine] == [share.inputs, share.weights, share.outputs]
        # Adding what all tiles have is the all-reduce over the axes that a tensor does not have.
        y[b, m, n] += mine[0] @ mine[1].T
        dx[b, m, k] += mine[2] @ mine[1]
        dw[n, k] += np.einsum("bmn,bmk->nk", mine[2], mine[0])
    np.testing.assert_array_equal(y, x @ w.T)
    np.testing.assert_array_equal(dx, dy @ w)
    np.testing.assert_array_equal(dw, np.einsum("bmn,bmk->nk", dy, x))
    assert {some.axis for some in share.reductions} == {
        a for a, d in zip("bmnk", degrees, strict=True) if d > 1
    }


@pytest.mark.parametrize(
    ("operator", "degrees"),
    [
        (LINEAR, (2, 4, 2, 4)),
        (ConvolutionShape(8, 16, 12, 32, window=3), (4, 2, 4, 2)),
        (Pool(8, 16, 12, window=2, stride=1), (4, 4, 2, 1)),
        (TransformerLayer(8, 64, 32, 8), (4, 4, 1, 1)),
    ],
)
def test_tiles_together_do_the_whole_operator(operator: TileOperator, degrees: Degrees) -> None:
    alone = shares(operator, (1, 1, 1, 1))
    tiles = prod(degrees)
    for one, share in zip(alone, shares(operator, degrees), strict=True):
        assert share.flops * tiles == one.flops
        assert share.weights * tiles == one.weights * share.replicas
        assert flops(share) * tiles == flops(one)
    assert alone[0].reductions == ()
    assert prod(degrees[: len(AXES[type(operator)])]) == tiles


def test_a_tile_with_more_than_its_share_decides_the_product() -> None:
    share = Linear(5, 7, 9, 11).shares((2, 1, 4, 1))[0]
    assert share.flops == 2 * 5 * 7 * 9 * 11 / 8
    assert flops(share) == 2 * (3 * 7) * 3 * 11


def test_attention_has_no_weights_but_two_inputs() -> None:
    _, scores, values, *_ = shares(TransformerLayer(8, 64, 32, 8), (2, 4, 1, 1))
    assert scores.weights == values.weights == 0
    assert scores.inputs == 2 * 8 * 32 * 64 / 8
    assert scores.outputs == 8 * 8 * 32 * 32 / 8
    assert scores.product is not None
    assert scores.product.batch == 8
    assert scores.reductions == values.reductions == ()


def test_the_second_gradient_of_a_product_of_activations_is_reduced_at_once() -> None:
    share = Linear(4, 8, 8, 8, weighted=False).shares((2, 2, 2, 1))[0]
    assert share.reductions == (
        Reduction("backward", "n", 2, 4 * 8 * 8 / 4),
        Reduction("backward", "m", 2, 4 * 8 * 8 / 4),
    )


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(PhazeError, match="degree N_m must be from 1 to 4, got 8"):
        shares(TransformerLayer(8, 64, 32, 4), (1, 8, 1, 1))
    with pytest.raises(PhazeError, match="degree k must be from 1 to 1, got 2"):
        shares(Pool(8, 16, 12, window=2, stride=1), (1, 1, 1, 2))
    with pytest.raises(PhazeError, match="heads must divide hidden 64, got 7"):
        TransformerLayer(8, 64, 32, 7)


WHOLE = (1, 1, 1, 1)


@pytest.mark.parametrize(("name", "parameters"), [("resnet-50", 25_557_032), ("resnet-152", 60_192_808)])
def test_a_residual_network_has_the_work_that_is_published(name: str, parameters: int) -> None:
    """Multiply-accumulates, and TorchVision's weights of convolutions and the last layer; map sizes match."""
    model = load_model_named(name)
    assert isinstance(model, ResNet)
    operators = operators_of(model, 3)
    parts = [share for each in operators if not isinstance(each, Pool) for share in shares(each, WHOLE)]
    assert sum(share.flops for share in parts) == 2 * 3 * model.multiply_accumulates
    convolutions = [each for each in operators if isinstance(each, ConvolutionShape)]
    scales = 2 * sum(each.kernels for each in convolutions)
    assert sum(share.weights for share in parts) == parameters - scales - model.classes
    inside = [(a, b) for a, b in itertools.pairwise(convolutions[1:]) if b.window == 3 or a.window == 3]
    for before, after in inside:
        assert (before.out_size, before.kernels) == (after.size, after.channels)


def test_a_transformer_has_the_work_of_table_iii() -> None:
    """24 B S H² + 4 B S² H for each of twelve blocks of BERT-base."""
    operators = operators_of(load_model_named("bert-base"), 2, 128)
    parts = [share for each in operators for share in shares(each, WHOLE)]
    batch, sequence, hidden = 2, 128, 768
    block = 24 * batch * sequence * hidden**2 + 4 * batch * sequence**2 * hidden
    assert sum(share.flops for share in parts) == 12 * block
    assert sum(share.weights for share in parts) == 12 * 12 * hidden**2


def test_what_palm_has_no_operator_for_is_refused() -> None:
    for name in ("llama2-7b", "swin-l"):
        with pytest.raises(PhazeError, match=f"model {name}"):
            operators_of(load_model_named(name), 1, 128)
