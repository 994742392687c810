"""Placement of stages, and groups of tiles along the axes of operators."""

from __future__ import annotations

import itertools
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import TileGrid
from phaze.tiles.operators import TileAxis
from phaze.tiles.placement import Placed, axis_groups, line, own, s_shaped

WAFER = TileGrid(20, 16)


def gap(grid: TileGrid, a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return min(grid.distance(x, y) for x in a for y in b)


def spread(grid: TileGrid, tiles: tuple[int, ...]) -> int:
    return max(grid.distance(x, y) for x in tiles for y in tiles)


GRID = TileGrid(12, 12)
AXES: tuple[TileAxis, ...] = ("b", "m", "n", "k")

sides = st.sampled_from([1, 2, 3, 4, 6])


def cut(size: int, seed: int) -> dict[TileAxis, int]:
    """Return degrees whose product is a size."""
    degrees = dict.fromkeys(AXES, 1)
    factor = 2
    while size > 1:
        while size % factor == 0:
            degrees[AXES[seed % 4]] *= factor
            size, seed = size // factor, seed // 4
        factor += 1
    return degrees


@given(sides, sides, st.integers(0, 2**16), st.sampled_from(["near", "far"]))
@settings(max_examples=30)
def test_groups_along_an_axis_part_the_tiles_and_cross_those_of_others_once(
    rows: int, columns: int, seed: int, placed: str
) -> None:
    tiles = s_shaped(GRID, rows, columns)[-1]
    axes = cut(rows * columns, seed)
    found = axis_groups(GRID, tiles, axes, placed)  # type: ignore[arg-type]
    for axis, width in axes.items():
        assert {len(group) for group in found[axis]} == {width}
        assert sorted(itertools.chain(*found[axis])) == sorted(tiles)
    for a, b in itertools.combinations(AXES, 2):
        for one, other in itertools.product(found[a], found[b]):
            assert len(set(one) & set(other)) <= 1


@pytest.mark.parametrize("stages", [line(WAFER, 20), s_shaped(WAFER, 4, 4)])
def test_the_groups_of_a_transformer_are_near_or_far(stages: tuple[tuple[int, ...], ...]) -> None:
    """PALM, Figure 8: comm1 and comm2."""
    for tensor in (1, 2, 4, 8, 16):
        degrees: dict[TileAxis, int] = {"d": 16 // tensor, "t": tensor}
        ways: tuple[Placed, ...] = ("near", "far")
        near, far = (axis_groups(WAFER, stages[2], degrees, way)["t"] for way in ways)
        assert {len(group) for group in (*near, *far)} == {tensor}
        assert max(spread(WAFER, group) for group in near) <= max(spread(WAFER, group) for group in far)


def test_four_near_tiles_of_a_block_are_a_square_and_far_ones_its_corners() -> None:
    near, far = (
        axis_groups(TileGrid(4, 4), range(16), {"d": 4, "t": 4}, way)["t"] for way in ("near", "far")
    )  # type: ignore[arg-type]
    assert {0, 1, 4, 5} in map(set, near)
    assert {0, 2, 8, 10} in map(set, far)


def test_blocks_lie_inside_blocks() -> None:
    found = axis_groups(TileGrid(6, 6), range(36), {"b": 3, "m": 2, "n": 3, "k": 2})
    pairs = {frozenset(group) for group in found["k"]}
    assert all(abs(a - b) in (1, 6) for a, b in (tuple(pair) for pair in pairs))


def test_a_group_that_is_no_rectangle_is_cut_row_by_row() -> None:
    grid = TileGrid(3, 3)
    found = axis_groups(grid, [0, 1, 2, 3, 4, 6], {"d": 3, "t": 2})
    assert [set(group) for group in found["t"]] == [{0, 1}, {2, 4}, {3, 6}]


def test_rings_pass_on_to_neighbours() -> None:
    grid = TileGrid(4, 4)
    (ring,) = axis_groups(grid, range(16), {"d": 1, "t": 16})["t"]
    assert all(b in grid.neighbours(a) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))


def test_the_order_in_which_tiles_are_named_changes_nothing() -> None:
    axes: dict[TileAxis, int] = {"d": 4, "t": 4}
    assert axis_groups(TileGrid(4, 4), range(16), axes) == axis_groups(
        TileGrid(4, 4), range(15, -1, -1), axes
    )


def test_degrees_must_be_the_tiles_of_the_group() -> None:
    with pytest.raises(PhazeError, match="d 2 × t 4 must be the 16 tiles of the group"):
        axis_groups(TileGrid(4, 4), range(16), {"d": 2, "t": 4})
    assert prod(cut(36, 5).values()) == 36


def test_in_line_stages_are_rows_and_s_shaped_they_are_blocks() -> None:
    """PALM, V.B.2: 20 stages on 5 × 4 tiles of 4 × 4 cores; consecutive stages are neighbours in both."""
    rows, blocks = line(WAFER, 20), s_shaped(WAFER, 4, 4)
    for stages in (rows, blocks):
        assert len(stages) == 20
        assert sorted(tile for stage in stages for tile in stage) == list(range(320))
        assert all(gap(WAFER, a, b) == 1 for a, b in itertools.pairwise(stages))
    assert {spread(WAFER, stage) for stage in rows} == {15}
    assert {spread(WAFER, stage) for stage in blocks} == {6}


def test_a_row_may_have_several_stages_or_a_stage_several_rows() -> None:
    assert line(TileGrid(2, 4), 4) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert line(TileGrid(4, 2), 2) == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_users_mapping_is_kept() -> None:
    assert own(TileGrid(2, 2), [[3, 0], [1]]) == ((3, 0), (1,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: line(WAFER, 0), "stages must be from 1 to 320, the tiles of the system, got 0"),
        (lambda: line(TileGrid(4, 6), 25), "stages must be from 1 to 24"),
        (lambda: s_shaped(WAFER, 3, 4), "must fill 20 × 16"),
        (lambda: own(TileGrid(2, 2), [[0], [0]]), "tile 0 must have one stage, got 0 and 1"),
        (lambda: own(TileGrid(2, 2), [[0], []]), "stage 1 must have at least one tile"),
        (lambda: own(TileGrid(2, 2), [[4]]), "stage 0: a tile must be from 0 to 3"),
    ],
)
def test_what_cannot_be_mapped_is_refused(make: object, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        make()  # type: ignore[operator]
