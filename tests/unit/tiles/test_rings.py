"""Rings over groups of tiles, closed if possible."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from phaze.cost.network.mesh import TileGrid
from phaze.tiles.placement import Ring, ring, snake


def neighbours_all_round(grid: TileGrid, found: Ring) -> bool:
    return set(hops(grid, found)) <= {1}


def hops(grid: TileGrid, found: Ring) -> list[int]:
    order = found.order
    return [grid.distance(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)]


def rings_exist(grid: TileGrid, tiles: list[int]) -> bool:
    """Return whether any order of the tiles is a ring of neighbours."""
    first, *rest = tiles
    return any(neighbours_all_round(grid, Ring((first, *order), True)) for order in permutations(rest))


def test_a_rectangle_forms_a_ring_if_a_side_is_even() -> None:
    grid = TileGrid(10, 11)
    for rows, columns in product(range(2, 9), repeat=2):
        tiles = [grid.tile(1 + row, 2 + column) for row in range(rows) for column in range(columns)]
        found = ring(grid, tiles)
        assert sorted(found.order) == tiles
        assert found.closed == (rows % 2 == 0 or columns % 2 == 0) == neighbours_all_round(grid, found)


def test_rings_are_found_exactly_where_there_are_some() -> None:
    grid = TileGrid(3, 3)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        tiles = sorted(rng.choice(9, rng.integers(3, 8), replace=False).tolist())
        found = ring(grid, tiles)
        assert sorted(found.order) == tiles
        assert found.closed == rings_exist(grid, tiles) == neighbours_all_round(grid, found)


@pytest.mark.parametrize("extra", range(4))
def test_a_thirteenth_tile_breaks_a_ring_of_twelve(extra: int) -> None:
    """All but the last tile of a path are next to their successor; the last has a long way back."""
    grid = TileGrid(4, 4)
    found = ring(grid, [*range(12), 12 + extra])
    gaps = hops(grid, found)
    assert ring(grid, range(12)).closed
    assert not found.closed
    assert set(gaps[:-1]) == {1}
    assert gaps[-1] > 1


@pytest.mark.parametrize("extra", [[(8, 3), (8, 4)], [(8, 3), (8, 4), (8, 8), (8, 9)], [(8, 3), (8, 5)]])
def test_pairs_of_tiles_beside_a_rectangle_join_its_ring(extra: list[tuple[int, int]]) -> None:
    """80 tiles and pairs of neighbours; two separate tiles with one neighbour each cannot."""
    grid = TileGrid(10, 10)
    found = ring(grid, [*range(80), *(grid.tile(*place) for place in extra)])
    together = extra[0][1] + 1 == extra[1][1]
    assert found.closed == together == neighbours_all_round(grid, found)


def test_rows_of_a_torus_are_rings() -> None:
    assert ring(TileGrid(3, 5, wrap=True), range(5, 10)).closed
    assert not ring(TileGrid(3, 5), range(5, 10)).closed


def test_tiles_apart_go_row_by_row_every_other_backward() -> None:
    grid = TileGrid(3, 4)
    found = ring(grid, [0, 3, 4, 7, 8, 11])
    assert found == Ring((0, 3, 7, 4, 8, 11), False)
    assert snake(grid, range(12)) == (0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11)


def test_one_and_two_tiles_are_rings_if_they_are_neighbours() -> None:
    grid = TileGrid(2, 3)
    assert ring(grid, [4]) == Ring((4,), True)
    assert ring(grid, [1, 4]) == Ring((1, 4), True)
    assert ring(grid, [0, 5]) == Ring((0, 5), False)
