"""Where stages and groups lie."""

from __future__ import annotations

import itertools

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid
from phaze.tiles.placement import line, own, s_shaped
from tests.oracles.chips import groups

WAFER = Grid(20, 16)


def gap(grid: Grid, a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return min(grid.distance(x, y) for x in a for y in b)


def spread(grid: Grid, tiles: tuple[int, ...]) -> int:
    return max(grid.distance(x, y) for x in tiles for y in tiles)


def test_in_line_stages_are_rows_and_s_shaped_they_are_blocks() -> None:
    """PALM, V.B.2: 20 stages on 5 × 4 tiles of 4 × 4 cores; next stages are neighbours in both."""
    rows, blocks = line(WAFER, 20), s_shaped(WAFER, 4, 4)
    for stages in (rows, blocks):
        assert len(stages) == 20
        assert sorted(tile for stage in stages for tile in stage) == list(range(320))
        assert all(gap(WAFER, a, b) == 1 for a, b in itertools.pairwise(stages))
    assert {spread(WAFER, stage) for stage in rows} == {15}
    assert {spread(WAFER, stage) for stage in blocks} == {6}


def test_a_row_may_have_several_stages_or_a_stage_several_rows() -> None:
    assert line(Grid(2, 4), 4) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert line(Grid(4, 2), 2) == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize("tensor", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("stages", [line(WAFER, 20), s_shaped(WAFER, 4, 4)])
def test_groups_near_and_far_change_places(tensor: int, stages: tuple[tuple[int, ...], ...]) -> None:
    for tiles in stages[:3]:
        near, data = groups(WAFER, tiles, tensor)
        far, other = groups(WAFER, tiles, tensor, "far")
        for kind, size in ((near, tensor), (far, tensor), (data, 16 // tensor), (other, 16 // tensor)):
            assert {len(group) for group in kind} == {size}
            assert sorted(tile for group in kind for tile in group) == sorted(tiles)
        assert all(len(set(a) & set(b)) == 1 for a in near for b in data)
        assert max(spread(WAFER, group) for group in near) <= max(spread(WAFER, group) for group in far)


def test_four_near_tiles_of_a_block_are_a_square_and_far_ones_its_corners() -> None:
    grid = Grid(4, 4)
    near, _ = groups(grid, range(16), 4)
    far, _ = groups(grid, range(16), 4, "far")
    assert near[0] == (0, 1, 4, 5)
    assert far[0] == (0, 2, 8, 10)


def test_a_users_mapping_is_kept() -> None:
    assert own(Grid(2, 2), [[3, 0], [1]]) == ((3, 0), (1,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: line(WAFER, 3), "cannot place 3 stages"),
        (lambda: line(WAFER, 0), "cannot place 0 stages"),
        (lambda: line(Grid(4, 6), 6), "whole rows or an equal part"),
        (lambda: s_shaped(WAFER, 3, 4), "must fill 20 × 16"),
        (lambda: own(Grid(2, 2), [[0], [0]]), "tile 0 must have one stage, got 0 and 1"),
        (lambda: own(Grid(2, 2), [[0], []]), "stage 1 must have at least one tile"),
        (lambda: own(Grid(2, 2), [[4]]), "stage 0: a tile must be from 0 to 3"),
        (lambda: groups(WAFER, range(16), 3), "tensor must divide the 16 tiles"),
        (lambda: groups(Grid(3, 3), range(9), 3, "close"), "groups must be one of near, far"),  # type: ignore[arg-type]
        (lambda: groups(Grid(3, 3), [0, 1, 3], 3), "are a rectangle"),
        (lambda: groups(Grid(2, 3), range(6), 6, "near") and groups(Grid(1, 6), range(6), 4), "must divide"),
    ],
)
def test_what_cannot_be_mapped_is_refused(make: object, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        make()  # type: ignore[operator]
