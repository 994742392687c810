"""Inference on tiles, and Table V of PALM."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Literal

import pytest

from phaze.base.errors import PhazeError
from phaze.tiles.chip import load_tiled_machine
from phaze.tiles.grayskull import CASES, MOST, Case, Row
from phaze.tiles.group import measure
from phaze.tiles.inference import (
    Family,
    Throughput,
    column_by_column,
    fastest,
    in_numbers,
    mode_of,
    throughput,
)
from phaze.tiles.operators import Linear
from phaze.tiles.steps import Program, Stage
from phaze.tiles.tile import Training
from tests.oracles.chips import slower

MACHINE = load_tiled_machine("grayskull")
STAGE = Stage((14, 15), ((Linear(4, 8, 16, 32), (2, 1, 1, 1)),))

# The fastest mapping of each case by the search over all, which `phaze.tiles.grayskull.table_v` takes.
BEST = (
    Family((12,), (3,), ("shared",)),
    Family((4,), (20,), ("shared",)),
    Family((1,), (40,), ("own",)),
    Family((6,), (5,), ("own",)),
    Family((1,), (20,), ("own",)),
)


def reached(case: Case, family: Family) -> Throughput:
    """Return what a few mappings of a case reach."""
    return fastest(MACHINE, case.operators(), case.numbers, family)


@cache
def row_of(i: int) -> Row:
    """Return a case with what its fastest mapping reaches."""
    return Row(CASES[i], reached(CASES[i], BEST[i]))


EVERY_CASE = pytest.mark.parametrize("i", range(len(CASES)), ids=[case.name for case in CASES])


def test_resnet_50_is_as_fast_as_published() -> None:
    """22,431 images per second with 8-bit integers, within a tenth; PALM has 23,033."""
    assert abs(row_of(0).error) < 0.1


def test_bert_base_lies_between_weights_fetched_once_and_by_every_replica() -> None:
    """2,830 sequences per second with 16 bits and 128 tokens; neither is within a fifth, and both say why."""
    shared, own = row_of(1), row_of(2)
    assert own.ours.samples_per_s < shared.case.published < shared.ours.samples_per_s
    assert shared.case.explanation
    assert own.case.explanation


def test_another_reading_of_bert_base_is_within_a_fifth_and_longer_sequences_are_slower() -> None:
    """The same figure with 8-bit integers and 384 tokens, and with the 512 that BERT takes at most."""
    assert abs(row_of(3).error) < 0.2
    assert CASES[4].reading == "8-bit integers, 512 tokens"
    assert row_of(4).ours.samples_per_s < row_of(3).ours.samples_per_s


@EVERY_CASE
def test_the_slowest_stage_or_tensor_sets_the_pace(i: int) -> None:
    """And nothing is faster than the arrays."""
    row = row_of(i)
    slowest = max(*row.ours.stage_s, *row.ours.send_s)
    assert row.ours.samples_per_s == pytest.approx(row.ours.mapped.microbatch / slowest)
    assert 0 < row.ours.utilisation < 1


@pytest.mark.parametrize("part", ["sram", "links", "dram"])
@EVERY_CASE
def test_halving_a_bandwidth_never_speeds_up(i: int, part: Literal["sram", "links", "dram"]) -> None:
    row = row_of(i)
    mapped = row.ours.mapped
    half = replace(mapped, chip=slower(mapped.chip, part))
    assert throughput(half, "tile-by-tile").samples_per_s <= row.ours.samples_per_s * (1 + 1e-9)


def test_formulas_bound_the_throughput_from_above() -> None:
    for row in map(row_of, range(len(CASES))):
        assert throughput(row.ours.mapped, "analytical").samples_per_s >= row.ours.samples_per_s * (1 - 1e-9)


def test_one_stage_takes_what_the_tile_level_says() -> None:
    """In the long run nothing comes on top of the forward pass of a single stage."""
    found = row_of(2).ours
    (stage,) = found.mapped.stages
    alone = measure(found.mapped.chip, stage, found.mapped.mode, "tile-by-tile").seconds("forward")
    assert found.samples_per_s == pytest.approx(found.mapped.microbatch / alone)


def test_a_row_says_its_mapping() -> None:
    assert row_of(0).mapping == "12 stages of 10 cores, microbatch 3, weights shared"
    assert row_of(2).mapping == "1 stage of 120 cores, microbatch 40, weights own"


def test_eight_bit_integers_have_their_own_arrays() -> None:
    half, small = in_numbers(MACHINE, "half"), in_numbers(MACHINE, "int8")
    assert small.tile.peak_flops_per_s == 4 * half.tile.peak_flops_per_s
    assert (small.tile.rows, small.tile.columns) == (32, 32)
    held = [sum(Program(half, STAGE, mode_of(numbers)).held_bytes) for numbers in ("half", "int8")]
    assert held[0] == 2 * held[1]


@pytest.mark.parametrize(("size", "backward"), [(1, True), (0, False)])
def test_other_elements_are_of_inference_only(size: int, backward: bool) -> None:
    with pytest.raises(PhazeError, match=f"element_bytes must be ≥ 1 and of inference, got {size}"):
        Training(backward=backward, element_bytes=size)


def test_tiles_that_follow_each_other_are_near() -> None:
    """Column by column, over the rows and the column that have no tiles."""
    order = column_by_column(MACHINE)
    assert sorted(order) == sorted(MACHINE.tiles)
    assert max(MACHINE.grid.distance(a, b) for a, b in pairwise(order)) <= 2


def test_a_family_without_a_mapping_is_refused() -> None:
    """Seven stages do not divide 120 cores."""
    with pytest.raises(PhazeError, match="system grayskull: none of the mappings"):
        reached(CASES[0], Family((7,), (1,)))


def test_all_cases_choose_from_the_same_mappings() -> None:
    """No case has a rule of its own, but for the one that leaves out shared weights."""
    assert [case.fetched for case in CASES].count(("own", "shared")) == len(CASES) - 1
    assert all(max(*family.stages, *family.microbatches) <= MOST for family in BEST)
