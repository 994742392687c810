"""Compute, SRAM contents and traffic of one tile: PALM's strategies, and its Algorithm 1 as printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.cost.memory import update_bytes
from phaze.cost.network.mesh import TileGrid, Wires
from phaze.spec.rows import Gemm
from phaze.spec.tiled import Tile
from phaze.tiles.chip import Chip
from phaze.tiles.operators import Linear, Pool, TileShare, TransformerLayer, shares
from phaze.tiles.tile import (
    Access,
    SramStrategy,
    TileBytes,
    TileExecution,
    allocate,
    backward_access,
    backward_s,
    forward_access,
    forward_s,
    held_bytes,
    inference_s,
    product_s,
    tile_bytes,
    update_access,
)

TILE = Tile(clock_hz=1.0, pe_x=8, pe_y=16, sram_bytes=1e6)
OP = TileBytes(weights=40, gradients=40, optimizer=240, inputs=30, outputs=20)
(SHARE,) = Linear(4, 8, 16, 32).shares((2, 1, 1, 1))
INFERENCE = TileExecution(training=False)
ADAM = TileExecution()
amounts = st.integers(1, 400)
dimensions = st.integers(1, 60)


@given(dimensions, dimensions, dimensions, st.integers(1, 5))
def test_an_array_takes_the_cycles_of_scale_sim(m: int, k: int, n: int, count: int) -> None:
    """SCALE-Sim 3.0, as in `cost.mapper.arrays`: (2 R + C + m − 2) ⌈k/R⌉ ⌈n/C⌉ − 1, the faster dataflow."""
    weight = (16 + 16 + m - 2) * ceil(k / 8) * ceil(n / 16) * count - 1
    inputs = (16 + 16 + n - 2) * ceil(k / 8) * ceil(m / 16) * count - 1
    assert product_s(TILE, Gemm(count, m, k, n), 2) == min(weight, inputs)


def test_sram_moves_operands_once_for_each_fold() -> None:
    """Weight stationary: inputs for each of 2 folds across, sums written and read between 4 folds down."""
    words = 100 * 32 * 2 + 32 * 32 + 100 * 32 * (2 * 4 - 1)
    slow = TILE.model_copy(update={"sram_bandwidth_bytes_per_s": 4.0})
    assert product_s(slow, Gemm(1, 100, 32, 32), 2) == words * 2 / 4


def test_training_runs_at_the_peak() -> None:
    assert forward_s(TILE, SHARE, 2) == SHARE.flops / TILE.flops
    assert backward_s(TILE, SHARE, 2) == 2 * SHARE.flops / TILE.flops


def test_a_pool_runs_on_lanes_or_at_the_peak_without_any() -> None:
    (share,) = Pool(4, 16, 8, window=2, stride=1).shares((1, 1, 1, 1))
    assert inference_s(TILE, share, 2) == share.flops / TILE.flops
    assert inference_s(TILE.model_copy(update={"lanes": 16}), share, 2) == share.flops / 16


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
    sram_bytes: float, strategy: SramStrategy, forward: Access, backward: Access
) -> None:
    assert allocate(*held_bytes([OP], TileExecution(), OP.inputs), sram_bytes) == strategy
    assert forward_access(strategy, OP, sram_bytes) == forward
    assert backward_access(strategy, OP, sram_bytes) == backward


def test_inputs_stay_under_the_penalty_where_they_are_no_smaller_than_weights() -> None:
    op = TileBytes(weights=30, gradients=30, optimizer=0, inputs=30, outputs=60)
    assert forward_access("S_PTY", op, 8) == Access(30 + 4 * 30, 60)
    # The output is the larger one backward; sums of the gradient pass once for each part of the input.
    assert backward_access("S_PTY", op, 8) == Access(60 + 8 * 30 + 60 + 30 + 4 * 30, 30 + 4 * 30)


def test_operands_may_pass_once() -> None:
    """As in the first version of the authors' program: no operand is fetched again per part of the other."""
    for op in (OP, TileBytes(weights=30, gradients=30, optimizer=0, inputs=30, outputs=60)):
        assert forward_access("S_PTY", op, inf) == Access(op.inputs + op.weights, op.outputs)
        back = backward_access("S_PTY", op, inf)
        assert back.write_bytes == op.inputs + op.gradients
        assert back.read_bytes == op.outputs + op.weights + op.inputs + op.outputs + op.gradients
    chip = Chip("chip", TileGrid(1, 1), TILE, Wires(1e9))
    assert chip.part_bytes == 1e6
    assert replace(chip, fetched_once=True).part_bytes == inf


@given(amounts, amounts, amounts, st.integers(1, 400), st.integers(1, 400))
def test_traffic_counts_every_part_by_hand(w: int, x: int, y: int, small: int, more: int) -> None:
    """The penalty counted part by part, and no less traffic with less SRAM."""
    op = TileBytes(w, w, 0, x, y)
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
    op = TileBytes(0, 0, 0, 60, 20)
    assert forward_access("S_PTY", op, 10) == Access(60, 20)
    assert backward_access("S_PTY", op, 10) == Access(2 * 20 + 60, 60)
    assert forward_access("S_ACT", op, 10) == backward_access("S_ACT", op, 10) == Access()


def test_training_holds_what_adam_with_mixed_precision_needs() -> None:
    found = tile_bytes(SHARE, TileExecution())
    assert (found.weights, found.gradients, found.optimizer) == (16 * 32 * 2, 16 * 32 * 2, 16 * 32 * 12)
    kept = [found, found._replace(inputs=7.0)]
    wsg, activations = held_bytes(kept, TileExecution(in_flight=3), found.inputs)
    assert wsg == 2 * 16 * 16 * 32
    assert activations == 3 * found.inputs + 7 + found.outputs, "recomputation keeps what enters the stage"


def test_inference_holds_neither_gradients_nor_states_nor_earlier_activations() -> None:
    found = [tile_bytes(share, INFERENCE) for share in shares(TransformerLayer(4, 64, 32, 4), (1,) * 4)]
    wsg, activations = held_bytes(found, INFERENCE, 0.0)
    assert wsg == 2 * 12 * 64**2
    assert activations == max(op.inputs + op.outputs for op in found)


def test_an_update_moves_what_adam_with_mixed_precision_needs() -> None:
    """Master weights and two states in both directions; gradients are read and 2-byte weights written."""
    assert update_access("S_ACT", SHARE, ADAM) == Access(512 * (12 + 2), 512 * (12 + 2))
    assert update_access("S_PTY", SHARE, ADAM).total_bytes == update_bytes(512, "adam", "mixed", 0, 2)
    assert update_access("S_WSG", SHARE, ADAM) == update_access("S_WSG_ACT", SHARE, ADAM) == Access()
    assert update_access("S_PTY", TileShare(1, None, 0, 1, 1), ADAM) == Access()


def printed(operators: Sequence[TileBytes], sram_bytes: float) -> list[tuple[str, float]]:
    """Return strategy and Op_Fd_Access_Size of every operator by PALM's Algorithm 1, line by line."""
    weights, wsg = (sum(sizes) for sizes in zip(*((op.weights, op.wsg) for op in operators), strict=True))
    found = []
    for op in operators:
        of_weights = ceil(op.weights / sram_bytes) * op.inputs
        of_output = ceil(op.outputs / sram_bytes) * op.weights
        if weights <= sram_bytes:
            found.append(("activation_stream", op.inputs + op.outputs))
        elif wsg <= sram_bytes:
            found.append(("weight_stream", op.weights))
        elif of_weights < of_output:
            found.append(("weight_stationary", of_weights + op.outputs))
        else:
            found.append(("input_stationary", of_output + op.outputs))
    return found


def test_algorithm_1_as_printed_is_another() -> None:
    """Its last branch does not count the operand that stays; in the text ACT decides, and there nothing
    does.
    """
    assert printed([TileBytes(8, 8, 48, 20, 30)], 10) == [("activation_stream", 20 + 30)]
    weight = TileBytes(16, 16, 96, 8, 64)
    assert printed([weight], 10) == [("weight_stationary", 2 * 8 + 64)]
    assert forward_access("S_PTY", weight, 10).total_bytes == 16 + 2 * 8 + 64
    assert printed([TileBytes(16, 16, 96, 64, 8)], 10) == [("input_stationary", 1 * 16 + 8)]
    small, large = TileBytes(4, 4, 0, 10, 10), TileBytes(4, 4, 0, 1000, 10)
    for second, text in ((small, "S_WSG_ACT"), (large, "S_WSG")):
        assert [name for name, _ in printed([small, second], 10)] == ["activation_stream"] * 2
        assert allocate(*held_bytes([small, second], TileExecution(), small.inputs), 60) == text


@given(st.lists(st.tuples(*[amounts] * 5), min_size=1, max_size=4), st.integers(1, 3000))
def test_the_second_branch_of_algorithm_1_is_never_taken(
    ops: list[tuple[int, int, int, int, int]], sram_bytes: int
) -> None:
    """It asks if weights, states and gradients fit, after weights alone did not."""
    assert "weight_stream" not in [name for name, _ in printed([TileBytes(*op) for op in ops], sram_bytes)]
