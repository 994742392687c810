"""Cycles of one tile, beside those that SCALE-Sim counts."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.tiles.chip import Tile
from phaze.tiles.operators import Linear, Pool, Product, Transformer
from phaze.tiles.tile import Rate, Work, backward_work, forward_work, product_work

TILE = Tile(8, 16, 1.0, 1e6, inf)
WEIGHT = replace(TILE, dataflows=("weight",))

sizes = st.integers(1, 60)


@given(sizes, sizes, sizes, st.integers(1, 5))
@settings(derandomize=True, max_examples=50)
def test_one_array_takes_the_cycles_of_scale_sim(m: int, k: int, n: int, count: int) -> None:
    """SCALE-Sim 3.0, as in `cost.mapper.arrays`: (2 R + C + m − 2) ⌈k/R⌉ ⌈n/C⌉ − 1 and its like."""
    product = Product(m, k, n, count)
    folds = {
        "weight": (m, 2 * 8, ceil(k / 8) * ceil(n / 16)),
        "input": (n, 2 * 8, ceil(k / 8) * ceil(m / 16)),
        "output": (k, 8, ceil(m / 8) * ceil(n / 16)),
    }
    wanted = {}
    for name, (stream, rows, each) in folds.items():
        wanted[name] = (rows + 16 + stream - 2) * each * count - 1
        one = replace(TILE, dataflows=(name,))  # type: ignore[arg-type]
        found = product_work(one, product, 2)
        assert (found.compute_s, found.sram_s) == (wanted[name], 0.0)
    every = replace(TILE, dataflows=("weight", "input", "output"))
    assert product_work(every, product, 2).compute_s == min(wanted.values())


@given(sizes, sizes, sizes, st.integers(1, 3), st.integers(1, 6))
@settings(derandomize=True, max_examples=50)
def test_more_arrays_are_never_slower_nor_faster_than_the_peak(
    m: int, k: int, n: int, count: int, arrays: int
) -> None:
    product = Product(m, k, n, count)
    times = [product_work(replace(TILE, arrays=a), product, 2).compute_s for a in (arrays, arrays + 1)]
    assert times[1] <= times[0]
    assert times[0] >= product.flops / replace(TILE, arrays=arrays).peak_flops_per_s * (1 - 1e-12)


def test_arrays_share_folds_and_then_the_stream() -> None:
    """Eight folds of 8 × 16 and 100 rows that stream through each."""
    product = Product(100, 32, 32)
    for arrays, stream, each in ((1, 100, 8), (3, 100, 3), (8, 100, 1), (16, 50, 1), (24, 34, 1)):
        cycles = (2 * 8 + 16 + stream - 2) * each - 1
        assert product_work(replace(WEIGHT, arrays=arrays), product, 2).compute_s == cycles


def test_sram_moves_operands_once_for_each_fold() -> None:
    """Weight stationary: inputs for each of 2 folds across, sums written and read between 4 folds down."""
    words = 100 * 32 * 2 + 32 * 32 + 100 * 32 * (2 * 4 - 1)
    slow = replace(WEIGHT, sram_bandwidth_bytes_per_s=4.0)
    assert product_work(slow, Product(100, 32, 32), 2).sram_s == words * 2 / 4
    assert product_work(slow, Product(100, 32, 32), 2).busy_s == words * 2 / 4


def test_the_dataflow_that_is_done_first_is_taken() -> None:
    tile = replace(TILE, sram_bandwidth_bytes_per_s=64.0)
    product = Product(1000, 8, 16)
    options = [product_work(replace(tile, dataflows=(name,)), product, 2) for name in ("weight", "input")]  # type: ignore[arg-type]
    assert product_work(tile, product, 2) == min(options, key=lambda work: work.busy_s)


def test_a_backward_pass_is_two_products() -> None:
    share = Linear(4, 8, 16, 32).share((1, 1, 1, 1))
    both = [product_work(TILE, some, 2) for some in (Product(32, 16, 32), Product(16, 32, 32))]
    assert backward_work(TILE, share, 2) == both[0] + both[1]
    assert forward_work(TILE, share, 2) == product_work(TILE, Product(32, 32, 16), 2)
    peak = TILE.peak_flops_per_s
    assert forward_work(TILE, share, 2, "peak") == Work(share.flops / peak)
    assert backward_work(TILE, share, 2, "peak") == Work(2 * share.flops / peak)


def test_a_pool_runs_on_lanes_or_at_the_peak_without_any() -> None:
    share = Pool(4, 8, 8, 16, 2, 2).share((1, 1, 1, 1))
    assert forward_work(TILE, share, 2).busy_s == share.flops / TILE.peak_flops_per_s
    lanes = replace(TILE, lanes=16)
    assert forward_work(lanes, share, 2).busy_s == share.flops / 16
    assert backward_work(lanes, share, 2, "peak").busy_s == share.flops / 16


@pytest.mark.parametrize("work", [Work(2, 1), Work(1, 2)])
def test_a_tile_is_busy_until_the_slower_part_is_done(work: Work) -> None:
    assert work.busy_s == 2


def test_fused_attention_works_scores_out_again() -> None:
    apart = Transformer(4, 32, 16, 4).shares((1, 1, 1, 1))
    fused = Transformer(4, 32, 16, 4, fused=True).shares((1, 1, 1, 1))[1]
    for rate in get_args(Rate):
        scores, values = (backward_work(TILE, share, 2, rate).busy_s for share in apart[1:3])
        again = forward_work(TILE, apart[1], 2, rate).busy_s
        assert backward_work(TILE, fused, 2, rate).busy_s == pytest.approx(scores + values + again)
