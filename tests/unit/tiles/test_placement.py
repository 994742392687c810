"""Which tiles form groups along the axes of operators."""

from __future__ import annotations

import itertools
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid
from phaze.tiles.operators import Axis
from phaze.tiles.placement import axis_groups, s_shaped
from tests.oracles.chips import groups

GRID = Grid(12, 12)
AXES: tuple[Axis, ...] = ("b", "m", "n", "k")

sides = st.sampled_from([1, 2, 3, 4, 6])


def cut(size: int, seed: int) -> dict[Axis, int]:
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
@settings(derandomize=True, max_examples=60)
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


@pytest.mark.parametrize("placed", ["near", "far"])
@pytest.mark.parametrize("tensor", [1, 2, 4, 8, 16])
def test_a_transformer_has_the_groups_of_the_network_level(placed: str, tensor: int) -> None:
    """PALM, Figure 8: comm1 and comm2."""
    grid = Grid(8, 8)
    tiles = s_shaped(grid, 4, 4)[1]
    axes: dict[Axis, int] = {"d": 16 // tensor, "t": tensor}
    found = axis_groups(grid, tiles, axes, placed)  # type: ignore[arg-type]
    wanted = groups(grid, tiles, tensor, placed)  # type: ignore[arg-type]
    for axis, there in zip(("t", "d"), wanted, strict=True):
        mine = found[axis]  # type: ignore[index]
        assert {frozenset(group) for group in mine} == {frozenset(group) for group in there}


def test_blocks_lie_inside_blocks() -> None:
    found = axis_groups(Grid(6, 6), range(36), {"b": 3, "m": 2, "n": 3, "k": 2})
    pairs = {frozenset(group) for group in found["k"]}
    assert all(abs(a - b) in (1, 6) for a, b in (tuple(pair) for pair in pairs))


def test_a_group_that_is_no_rectangle_is_cut_row_by_row() -> None:
    grid = Grid(3, 3)
    found = axis_groups(grid, [0, 1, 2, 3, 4, 6], {"d": 3, "t": 2})
    assert [set(group) for group in found["t"]] == [{0, 1}, {2, 4}, {3, 6}]


def test_rings_pass_on_to_neighbours() -> None:
    grid = Grid(4, 4)
    (ring,) = axis_groups(grid, range(16), {"d": 1, "t": 16})["t"]
    assert all(b in grid.neighbours(a) for a, b in zip(ring, (*ring[1:], ring[0]), strict=True))


def test_the_order_in_which_tiles_are_named_changes_nothing() -> None:
    axes: dict[Axis, int] = {"d": 4, "t": 4}
    assert axis_groups(Grid(4, 4), range(16), axes) == axis_groups(Grid(4, 4), range(15, -1, -1), axes)


def test_degrees_must_be_the_tiles_of_the_group() -> None:
    with pytest.raises(PhazeError, match="d 2 × t 4 must be the 16 tiles of the group"):
        axis_groups(Grid(4, 4), range(16), {"d": 2, "t": 4})
    with pytest.raises(PhazeError, match="must be one of near, far, got close"):
        axis_groups(Grid(4, 4), range(16), {"d": 4, "t": 4}, "close")  # type: ignore[arg-type]
    assert prod(cut(36, 5).values()) == 36
