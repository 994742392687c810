"""What stays in SRAM: the strategies of PALM's text, and its Algorithm 1 as printed."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.cost.memory import update_bytes
from phaze.layout import Zero
from phaze.tiles.chip import Tile
from phaze.tiles.operators import Linear, Share, Transformer, shares
from phaze.tiles.tile import (
    Access,
    Sizes,
    Strategy,
    Training,
    allocate,
    backward_access,
    forward_access,
    held,
    sizes,
    stationary,
    update_access,
)
from tests.oracles.algorithm_1 import differences, printed, reasons

OP = Sizes(weights=40, gradients=40, optimizer=240, inputs=30, outputs=20)
SHARE = Linear(4, 8, 16, 32).share((2, 1, 1, 1))
amounts = st.integers(1, 400)


@pytest.mark.parametrize(
    ("sram_bytes", "strategy", "forward", "backward"),
    [
        # Weights, states and gradients take 320 bytes, input and output 50.
        (370, "S_WSG_ACT", Access(), Access()),
        (369, "S_WSG", Access(30, 20), Access(2 * 20 + 30, 30)),
        (50, "S_ACT", Access(40), Access(40 + 40, 40)),
        # The weights stay in two parts, for each of which all inputs pass. Backward, so they do for all
        # outputs, and the gradient of the weights in two parts, for each of which inputs pass again.
        (25, "S_PTY", Access(40 + 2 * 30, 20), Access(40 + 2 * 20 + 20 + 2 * 30 + 40, 30 + 40)),
    ],
)
def test_every_strategy_has_its_traffic(
    sram_bytes: float, strategy: Strategy, forward: Access, backward: Access
) -> None:
    assert allocate(*held([OP], Training()), sram_bytes) == strategy
    assert forward_access(strategy, OP, sram_bytes) == forward
    assert backward_access(strategy, OP, sram_bytes) == backward


def test_inputs_stay_under_the_penalty_where_they_are_no_smaller_than_weights() -> None:
    op = Sizes(weights=30, gradients=30, optimizer=0, inputs=30, outputs=60)
    assert stationary(op.inputs, op.weights) == "input"
    assert forward_access("S_PTY", op, 8) == Access(30 + 4 * 30, 60)
    # The output is the larger one backward; sums of the gradient pass once for each part of the input.
    assert backward_access("S_PTY", op, 8) == Access(60 + 8 * 30 + 60 + 30 + 4 * 30, 30 + 4 * 30)


def test_operands_may_pass_once() -> None:
    """As in the first version of the authors' program: no operand passes for each part of another."""
    for op in (OP, Sizes(weights=30, gradients=30, optimizer=0, inputs=30, outputs=60)):
        found = forward_access("S_PTY", op, inf)
        assert found == Access(op.inputs + op.weights, op.outputs)
        back = backward_access("S_PTY", op, inf)
        assert back.write_bytes == op.inputs + op.gradients
        assert back.read_bytes == op.outputs + op.weights + op.inputs + op.outputs + op.gradients
    tile = Tile(64, 64, 1e9, 1e6, inf)
    assert tile.part_bytes == 1e6
    assert replace(tile, fetched_once=True).part_bytes == inf


@given(amounts, amounts, amounts, st.integers(1, 400), st.integers(1, 400))
@settings(derandomize=True, max_examples=100)
def test_traffic_counts_every_part_by_hand(w: int, x: int, y: int, small: int, more: int) -> None:
    """The penalty walked part by part, and no less traffic in less SRAM."""
    op = Sizes(w, w, 0, x, y)
    stays, passes = (x, w) if x >= w else (w, x)
    moved, left = 0.0, float(stays)
    while left > 0:
        part = min(left, small)
        moved += part + passes
        left -= part
    assert forward_access("S_PTY", op, small) == Access(moved, y)
    for each in (forward_access, backward_access):
        assert each("S_PTY", op, small).total_bytes >= each("S_PTY", op, small + more).total_bytes
        assert each("S_PTY", op, small).total_bytes >= each("S_ACT", op, small).total_bytes


def test_a_product_of_activations_moves_no_weights() -> None:
    op = Sizes(0, 0, 0, 60, 20)
    assert forward_access("S_PTY", op, 10) == Access(60, 20)
    assert backward_access("S_PTY", op, 10) == Access(2 * 20 + 60, 60)
    assert forward_access("S_ACT", op, 10) == backward_access("S_ACT", op, 10) == Access()


def test_inference_holds_neither_gradients_nor_states_nor_earlier_activations() -> None:
    found = [sizes(share, Training(backward=False)) for share in shares(Transformer(4, 64, 32, 4), (1,) * 4)]
    wsg, activations = held(found, Training(backward=False))
    assert wsg == 2 * 12 * 64**2
    assert activations == max(op.inputs + op.outputs for op in found)
    assert update_access("S_PTY", SHARE, Training(backward=False)) == Access()


def test_activations_of_microbatches_in_flight_are_held() -> None:
    ops = [Sizes(1, 1, 0, 10, 20), Sizes(1, 1, 0, 20, 30)]
    assert held(ops, Training()) == (4, 60)
    assert held(ops, Training(in_flight=3)) == (4, 180)
    assert held(ops, Training(in_flight=3, recompute=True)) == (4, 60 + 2 * 10)
    assert held([], Training()) == (0, 0)


@pytest.mark.parametrize(
    ("zero", "wanted"), [(0, (2, 2, 12)), (1, (2, 2, 6)), (2, (2, 1, 6)), (3, (1, 1, 6))]
)
def test_zero_divides_states_then_gradients_then_weights(zero: Zero, wanted: tuple[int, int, int]) -> None:
    """Adam with mixed precision, over two replicas."""
    op = sizes(SHARE, Training(zero=zero))
    assert (op.weights, op.gradients, op.optimizer) == tuple(16 * 32 * each for each in wanted)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["half", "mixed", "single"])
@pytest.mark.parametrize("optimizer", ["sgd", "sgd-momentum", "adam"])
@pytest.mark.parametrize("states", [False, True])
def test_an_update_moves_what_the_optimizer_needs(
    zero: Zero, precision: str, optimizer: str, states: bool
) -> None:
    training = Training(True, optimizer, precision, zero, states=states)  # type: ignore[arg-type]
    moved = update_access("S_PTY", SHARE, training)
    total = update_bytes(16 * 32, training.optimizer, training.precision, zero, 2, states=states)
    assert moved.total_bytes == total
    master = 16 * 32 * (2 if precision == "half" else 4) / (2 if zero else 1)
    assert min(moved.read_bytes, moved.write_bytes) >= master
    if not states:
        assert moved == Access(master, master), "PALM: full-precision weights are loaded and stored back"


def test_an_update_reads_gradients_and_writes_weights() -> None:
    """Adam: master weights and two states both ways; mixed precision stores weights of 2 bytes as well."""
    assert update_access("S_ACT", SHARE, Training()) == Access(512 * (12 + 2), 512 * (12 + 2))
    single = update_access("S_ACT", SHARE, Training(precision="single"))
    assert single == Access(512 * (12 + 4), 512 * 12)


@pytest.mark.parametrize("strategy", ["S_WSG_ACT", "S_WSG"])
def test_an_update_in_sram_moves_nothing(strategy: Strategy) -> None:
    assert update_access(strategy, SHARE, Training()) == Access()


def test_what_has_no_weights_is_not_updated() -> None:
    assert update_access("S_PTY", Share("attention", 1, (), 0, 1, 1), Training()) == Access()


def test_algorithm_1_can_take_three_of_its_branches() -> None:
    """Line by line as printed, with one operator of each kind."""
    fits = Sizes(8, 8, 48, 20, 30)
    assert printed([fits], 10) == [("activation_stream", 20 + 30)]
    weight = Sizes(16, 16, 96, 8, 64)
    assert printed([weight], 10) == [("weight_stationary", ceil(16 / 10) * 8 + 64)]
    inputs = Sizes(16, 16, 96, 64, 8)
    assert printed([inputs], 10) == [("input_stationary", ceil(8 / 10) * 16 + 8)]


@given(
    st.lists(st.tuples(*[amounts] * 5), min_size=1, max_size=4),
    st.integers(1, 3000),
)
@settings(derandomize=True, max_examples=200)
def test_the_second_branch_of_algorithm_1_is_never_taken(
    ops: list[tuple[int, int, int, int, int]], sram_bytes: int
) -> None:
    assert "weight_stream" not in [name for name, _ in printed([Sizes(*op) for op in ops], sram_bytes)]


def test_algorithm_1_never_looks_at_activations_as_a_whole() -> None:
    """ACT decides in the text, and changes nothing as printed."""
    small, large = Sizes(4, 4, 0, 10, 10), Sizes(4, 4, 0, 1000, 10)
    assert [name for name, _ in printed([small, small], 10)] == [
        name for name, _ in printed([small, large], 10)
    ]
    assert allocate(*held([small, small], Training()), 60) == "S_WSG_ACT"
    assert allocate(*held([small, large], Training()), 60) == "S_WSG"


def test_both_ways_differ_over_sizes_for_every_reason_there_is() -> None:
    found = differences()
    reasons = {(some.printed, some.intended, some.why) for some in found}
    assert {(name, strategy) for name, strategy, why in reasons if not why} == {
        ("activation_stream", "S_WSG")
    }
    assert {(name, strategy) for name, strategy, why in reasons if why} == {
        ("activation_stream", "S_WSG_ACT"),
        ("activation_stream", "S_ACT"),
        ("activation_stream", "S_PTY"),
        ("weight_stationary", "S_ACT"),
        ("weight_stationary", "S_PTY"),
        ("input_stationary", "S_ACT"),
        ("input_stationary", "S_PTY"),
    }
    assert {why for _, strategy, why in reasons if strategy == "S_PTY" and why} == {
        "weights fit, but neither with states and gradients nor do activations",
        "the text compares ACT with W, the algorithm Φ₁ with Φ₂",
        "the operand that stays is not counted as printed",
    }
    assert all(some.printed_bytes < some.intended_bytes for some in found if "not counted" in some.why)


def test_inference_differs_where_all_fits_and_under_the_penalty_only() -> None:
    """Without gradients and states WSG is the weights, which is what the first branch asks."""
    found = differences(training=Training(backward=False))
    differ = {(some.printed, some.intended) for some in found if some.why}
    assert ("activation_stream", "S_WSG_ACT") in differ
    assert not differ & {("activation_stream", "S_ACT"), ("activation_stream", "S_PTY")}


def test_reasons_count_the_sizes_at_which_both_ways_differ() -> None:
    found = differences()
    rows = reasons(found)
    assert sum(row.sizes for row in rows) == sum(bool(some.why) for some in found) > len(found) / 2
    assert [row.sizes for row in rows] == sorted((row.sizes for row in rows), reverse=True)
    by_strategy = {row.intended: row for row in rows}
    assert by_strategy["S_WSG_ACT"].least == inf, "nothing moves, and activations stream as printed"
    assert all(row.most < 1 for row in rows if "not counted" in row.why)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "lion"}, "training: optimizer must be one of sgd, sgd-momentum, adam, got lion"),
        ({"precision": "fp8"}, "training: precision must be one of half, mixed, single, got fp8"),
        ({"zero": 4}, "training: zero must be one of 0, 1, 2, 3, got 4"),
        ({"in_flight": 0}, "training: in_flight must be ≥ 1, got 0"),
    ],
)
def test_training_that_is_not_known_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError, match=f"^{message}$"):
        replace(Training(), **change)  # type: ignore[arg-type]
