"""Operators cut by degrees: PALM's Table III to the byte, and the fastest degrees by enumeration."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.spec.models import load_model_named
from phaze.tiles.chains import ModelChain
from phaze.tiles.chip import load_tiled_machine
from phaze.tiles.degrees import UncutOperator, check_names, degrees_of, fastest_degrees
from phaze.tiles.lowering import Cut, model_layers
from phaze.tiles.operators import CutOperator, Degrees, shares
from phaze.tiles.tile import backward_s, forward_s

CHIP = load_tiled_machine("wafer").chip
TILES = Layout(dp=16)
BATCH, TOKENS, HIDDEN = 8, 512, 768


def layer(name: str, degrees: dict[str, Degrees], number: int = 1, sequence: int = TOKENS) -> Cut:
    chain = ModelChain(load_model_named(name), sequence, tuple(degrees.items()))
    return chain.cut(CHIP, range(number, number + 1), BATCH, TILES, 1)


def operator(cut: Cut, name: str) -> tuple[CutOperator, Degrees]:
    return next((o, d) for o, d in cut if isinstance(o, CutOperator) and o.name == name)


@pytest.mark.parametrize("degrees", [(2, 2, 2, 2), (4, 4, 1, 1)])
def test_a_product_on_16_tiles_has_the_volumes_of_table_iii(degrees: Degrees) -> None:
    """(BMN/bmn, k); (BMK/bmk, n); (NK/nk, b) and (NK/nk, m), in 16 bits, of GPT-2's second matrix."""
    b, m, n, k = degrees
    columns, depth = HIDDEN, 4 * HIDDEN
    cut, given = operator(layer("gpt2", {"feed_forward_out": degrees}), "feed_forward_out")
    (share,) = shares(cut, given)
    assert given == degrees
    assert share.flops == 2 * BATCH * TOKENS * columns * depth / 16
    weights = columns * depth / (n * k) + (share.weights - columns * depth / (n * k))
    rows = [
        ("forward", "k", k, BATCH * TOKENS * columns / (b * m * n)),
        ("backward", "n", n, BATCH * TOKENS * depth / (b * m * k)),
        ("update", "b", b, weights),
        ("update", "m", m, weights),
    ]
    assert weights - columns * depth / (n * k) in (0, columns / n), "a bias has a share of its own"
    found = [(r.phase, r.axis, r.width, 2 * r.elements) for r in share.reductions]
    assert found == [(phase, axis, width, 2 * size) for phase, axis, width, size in rows if width > 1]


def test_a_convolution_is_cut_along_channels_and_kernels() -> None:
    """Table III: (BHWK/bik, c); (BHWC/bic, k); (RSCK/ck, b) and (RSCK/ck, i)."""
    cut, _ = operator(layer("resnet-50", {"spatial": (2, 2, 2, 2)}, sequence=1), "spatial")
    (share,) = shares(cut, (2, 2, 2, 2))
    window, width, pixels = 9, 64, 56 * 56
    assert share.weights == window * width * width / 4
    assert share.flops == 2 * BATCH * pixels * window * width * width / 16
    found = [(r.phase, r.axis, r.width, r.elements) for r in share.reductions]
    assert found == [
        ("forward", "c", 2, BATCH * pixels * width / 8),
        ("backward", "k", 2, BATCH * pixels * width / 8),
        ("update", "b", 2, share.weights),
        ("update", "i", 2, share.weights),
    ]


@pytest.mark.parametrize(
    "name", ["gpt2", "llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3", "resnet-50", "swin-l"]
)
def test_any_degrees_leave_the_work_of_the_model(name: str) -> None:
    """FLOPs of all tiles are those of the layer, and weights of all distinct parts those of the model."""
    model = load_model_named(name)
    sequence = min(TOKENS, model.usual_sequence)
    chain = ModelChain(model, sequence, ())
    whole = model_layers(model, sequence, Layout(microbatch=BATCH))
    for number in (0, 1, 2, 3, chain.count - 2, chain.count - 1):
        cut = chain.cut(CHIP, range(number, number + 1), BATCH, TILES, 1)
        operators = whole.layers[whole.order[number]].operators
        for (part, degrees), original in zip(cut, operators, strict=True):
            (share,) = shares(part, degrees)
            assert share.flops * 16 == pytest.approx(original.share.flops)
            # Replicas hold the same weights; tiles that sum over k all add the bias.
            product = original.product
            biases = original.parameters - product.parameters if product else 0
            weights = original.parameters + biases * (degrees[3] - 1)
            assert share.weights * 16 / share.replicas == pytest.approx(weights)


def test_the_search_finds_the_fastest_degrees_of_all() -> None:
    model = load_model_named("gpt2")
    layers = model_layers(model, TOKENS, Layout(microbatch=BATCH))
    everything = {d for d in product((1, 2, 4, 8, 16), repeat=4) if prod(d) == 16}
    assert set(degrees_of(16, 4)) == everything
    for original in layers.layers[layers.order[1]].operators:
        if original.gemm is None:
            continue
        whole = UncutOperator(original, BATCH, False)

        def seconds(degrees: Degrees, whole: UncutOperator = whole) -> float:
            share = whole.cut(degrees).share
            sent = sum(
                {"forward": 1, "backward": 1, "update": 1 / 20}[r.phase]
                * (2 * (r.width - 1) * (r.elements * 2 / r.width / CHIP.wires.bandwidth_bytes_per_s
                                        + CHIP.wires.latency_s))
                for r in share.reductions
            )  # fmt: skip
            return forward_s(CHIP.tile, share, 2) + backward_s(CHIP.tile, share, 2) + sent

        fastest = fastest_degrees(CHIP, 16, whole, 20)
        assert seconds(fastest) == pytest.approx(min(map(seconds, filter(whole.fits, everything))))


def test_an_operator_smaller_than_the_group_is_refused() -> None:
    chain = ModelChain(load_model_named("gpt2"), TOKENS, ())
    with pytest.raises(PhazeError, match="cannot be cut into 4099 parts"):
        chain.cut(CHIP, range(1, 2), 1, Layout(dp=4099), 1)


def whole_operator(name: str) -> UncutOperator:
    layers = model_layers(load_model_named("gpt2"), TOKENS, Layout(microbatch=BATCH))
    operators = layers.layers[layers.order[1]].operators
    return next(u for u in (UncutOperator(o, BATCH, False) for o in operators) if u.name == name)


@pytest.mark.parametrize("degrees", [(1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2), (2, 1, 1, 1), (2, 4, 8, 1)])
def test_each_stored_operand_of_a_product_of_activations_is_cut_as_it_is_read(degrees: Degrees) -> None:
    """Queries are cut by (b, m, k), keys by (b, n, k); both are stored as they are read."""
    uncut = whole_operator("scores")
    b, m, n, k = degrees
    operand = BATCH * TOKENS * HIDDEN
    share = uncut.cut(degrees).share
    assert share.inputs == operand / (b * m * k) + operand / (b * n * k)
    assert share.stored == share.inputs


@pytest.mark.parametrize("degrees", [(1, 2, 1, 1), (1, 1, 2, 1), (1, 1, 1, 2)])
def test_what_follows_a_product_is_stored_as_its_output_is_cut(degrees: Degrees) -> None:
    """GELU stores its input, (b, m, n), next to the rows of the product, (b, m, k)."""
    uncut = whole_operator("feed_forward_in")
    b, m, n, k = degrees
    rows, outputs = BATCH * TOKENS * HIDDEN, BATCH * TOKENS * 4 * HIDDEN
    assert uncut.cut(degrees).share.stored == rows / (b * m * k) + outputs / (b * m * n)


def test_an_unknown_operator_is_answered_with_all_operators_the_nearest_first() -> None:
    layers = model_layers(load_model_named("gpt2"), TOKENS, Layout(microbatch=BATCH)).layers.values()
    names = {UncutOperator(o, BATCH, False).name for layer in layers for o in layer.operators}
    with pytest.raises(PhazeError, match="degrees: qvk: must be an operator of the model: qkv, ") as error:
        check_names({"qvk": (1, 1, 1, 1)}, layers, "tiled")
    assert set(str(error.value).rpartition(": ")[2].split(", ")) == names
