"""Operators cut into parts: PALM's Table III, and products worked out part by part."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.tiles.operators import (
    Communication,
    Convolution,
    Degrees,
    Linear,
    Operator,
    Pool,
    Share,
    Transformer,
    axes,
    communication_size,
    shares,
)

LINEAR = Linear(8, 16, 32, 64)

powers = st.sampled_from([1, 2, 4])


def volumes(found: tuple[Share, ...], phase: str) -> list[tuple[float, str, int]]:
    return [
        (some.elements, some.axis, some.width)
        for share in found
        for some in share.communications
        if some.phase == phase
    ]


@given(powers, powers, powers, powers)
@settings(derandomize=True, max_examples=30)
def test_a_linear_operator_has_the_row_of_table_iii(b: int, m: int, n: int, k: int) -> None:
    share = LINEAR.share((b, m, n, k))
    rows = {
        "forward": [(8 * 16 * 32 / (b * m * n), "k", k)],
        "backward": [(8 * 16 * 64 / (b * m * k), "n", n)],
        "update": [(32 * 64 / (n * k), "b", b), (32 * 64 / (n * k), "m", m)],
    }
    assert share.flops == 2 * 8 * 16 * 32 * 64 / (b * m * n * k)
    for phase, row in rows.items():
        assert volumes((share,), phase) == [some for some in row if some[2] > 1]
    assert {some.kind for some in share.communications} <= {"all_reduce"}


@given(powers, powers, powers, powers)
@settings(derandomize=True, max_examples=30)
def test_a_convolution_has_the_row_of_table_iii(b: int, c: int, i: int, k: int) -> None:
    """Stride 1, for which the table's H and W are those of input and output."""
    share = Convolution(8, 12, 10, 16, 3, 5, 32).share((b, c, i, k))
    rows = {
        "forward": [(8 * 12 * 10 * 32 / (b * i * k), "c", c)],
        "backward": [(8 * 12 * 10 * 16 / (b * i * c), "k", k)],
        "update": [(3 * 5 * 16 * 32 / (c * k), "b", b), (3 * 5 * 16 * 32 / (c * k), "i", i)],
    }
    assert share.flops == 2 * 8 * 12 * 10 * 3 * 5 * 16 * 32 / (b * c * i * k)
    for phase, row in rows.items():
        assert volumes((share,), phase) == [some for some in row if some[2] > 1]


def test_a_stride_shrinks_the_output_of_a_convolution() -> None:
    share = Convolution(4, 7, 9, 3, 3, 3, 8, stride=2).share((1, 1, 1, 1))
    assert share.outputs == 4 * 4 * 5 * 8
    assert share.inputs == 4 * 7 * 9 * 3
    assert share.products[0].flops == share.flops


def test_a_pool_exchanges_nothing() -> None:
    share = Pool(8, 12, 12, 16, 2, 2, stride=2).share((2, 4, 2, 1))
    assert share.communications == ()
    assert share.weights == 0
    assert share.flops == 2 * 8 * 6 * 6 * 2 * 2 * 16 / 16


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]))
@settings(derandomize=True, max_examples=12)
def test_a_transformer_is_the_sum_of_its_products(d: int, t: int) -> None:
    """Table III: FLOPs, (2 B S H/N_d, N_m) forward and backward, (12 H²/N_m, N_d) in the update."""
    batch, hidden, sequence = 8, 64, 32
    found = shares(Transformer(batch, hidden, sequence, 4), (d, t, 1, 1))
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
        found = shares(Transformer(16, 256, 128, 16), (16 // tensor, tensor, 1, 1))
        elements = sum(some.elements for share in found for some in share.communications)
        assert 2 * elements == communication_size(16, 128, 256, Layout(tp=tensor, dp=16 // tensor))


@given(st.tuples(powers, powers, powers, powers), st.integers(0, 2**31))
@settings(derandomize=True, max_examples=20)
def test_reducing_over_the_axes_of_table_iii_gives_the_whole_products(degrees: Degrees, seed: int) -> None:
    """Every tile multiplies its parts; what the table reduces is what is missing, and of that size."""
    rng = np.random.default_rng(seed)
    x, w, dy = (rng.integers(-3, 4, shape).astype(float) for shape in ((4, 4, 8), (4, 8), (4, 4, 4)))
    share = Linear(4, 4, 4, 8).share(degrees)
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
    assert {some.axis for some in share.communications} == {
        a for a, d in zip("bmnk", degrees, strict=True) if d > 1
    }


@pytest.mark.parametrize(
    ("operator", "degrees"),
    [
        (LINEAR, (2, 4, 2, 4)),
        (Convolution(8, 12, 12, 16, 3, 3, 32), (4, 2, 4, 2)),
        (Pool(8, 12, 12, 16, 2, 2), (4, 4, 2, 1)),
        (Transformer(8, 64, 32, 8), (4, 4, 1, 1)),
    ],
)
def test_tiles_together_do_the_whole_operator(operator: Operator, degrees: Degrees) -> None:
    alone = shares(operator, (1, 1, 1, 1))
    tiles = prod(degrees)
    for one, share in zip(alone, shares(operator, degrees), strict=True):
        assert share.flops * tiles == one.flops
        assert share.weights * tiles == one.weights * share.replicas
        assert sum(some.flops for some in share.products) * tiles == sum(some.flops for some in one.products)
    assert alone[0].communications == ()
    assert prod(axes(operator, degrees).values()) == tiles


def test_a_tile_with_more_than_its_share_decides_the_product() -> None:
    share = Linear(5, 7, 9, 11).share((2, 1, 4, 1))
    assert share.flops == 2 * 5 * 7 * 9 * 11 / 8
    assert share.products[0].flops == 2 * (3 * 7) * 3 * 11


def test_attention_has_no_weights_but_two_inputs() -> None:
    _, scores, values, *_ = shares(Transformer(8, 64, 32, 8), (2, 4, 1, 1))
    assert scores.weights == values.weights == 0
    assert scores.inputs == 2 * 8 * 32 * 64 / 8
    assert scores.outputs == 8 * 8 * 32 * 32 / 8
    assert scores.products[0].count == 8
    assert scores.communications == values.communications == ()


def test_fused_attention_keeps_no_scores() -> None:
    """FlashAttention: the same FLOPs forward; queries, keys and values in, and scores once more backward."""
    apart = shares(Transformer(8, 64, 32, 8), (2, 4, 1, 1))
    fused = shares(Transformer(8, 64, 32, 8, fused=True), (2, 4, 1, 1))
    assert [share.name for share in fused] == [
        f"transformer {part}" for part in ("qkv", "attention", "projection", "up", "down")
    ]
    attention = fused[1]
    assert attention.flops == apart[1].flops + apart[2].flops
    assert attention.inputs == 3 * 8 * 32 * 64 / 8
    assert attention.outputs == 8 * 32 * 64 / 8
    assert attention.again == apart[1].products
    assert sum(share.flops for share in fused) == sum(share.flops for share in apart)


def test_the_second_gradient_of_a_product_of_activations_is_reduced_at_once() -> None:
    share = Linear(4, 8, 8, 8, weighted=False).share((2, 2, 2, 1))
    assert share.communications == (
        Communication("backward", "n", 2, 4 * 8 * 8 / 4),
        Communication("backward", "m", 2, 4 * 8 * 8 / 4),
    )


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(PhazeError, match="degree N_m must be from 1 to 4, got 8"):
        shares(Transformer(8, 64, 32, 4), (1, 8, 1, 1))
    with pytest.raises(PhazeError, match="degree k must be from 1 to 1, got 2"):
        shares(Pool(8, 12, 12, 16, 2, 2), (1, 1, 1, 2))
    with pytest.raises(PhazeError, match="heads must divide hidden 64, got 7"):
        Transformer(8, 64, 32, 7)
    with pytest.raises(PhazeError, match="linear: n must be ≥ 1, got 0"):
        Linear(8, 16, 0, 4)
