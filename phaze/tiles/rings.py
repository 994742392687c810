"""Rings over a group of tiles: whether neighbours close one, else a path with a long way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid

STEPS = 200_000
"""Steps of the search for a ring before it is given up."""


@dataclass(frozen=True)
class Ring:
    """Tiles in the order in which they pass messages on."""

    order: tuple[int, ...]
    closed: bool
    """Whether all are neighbours of the next, the last of the first too."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every tile with the next."""
        return list(zip(self.order, (*self.order[1:], *self.order[:1]), strict=True))


def ring(grid: Grid, tiles: Sequence[int]) -> Ring:
    """Return a ring over tiles: around a rectangle with an even side, grown by pairs, or found by search.

    Where there is no ring of neighbours: a path of neighbours, whose last tile has a long way back to the
    first. Where there is no path either (or the search gives up): row by row, every other row backward.
    """
    chosen = _distinct(grid, tiles)
    if len(chosen) <= 2:
        return Ring(chosen, len(chosen) < 2 or chosen[1] in grid.neighbours(chosen[0]))
    found = _around_rectangle(grid, chosen) or _grown(grid, chosen) or _search(grid, chosen, True)
    if found:
        return Ring(found, True)
    return Ring(_search(grid, chosen, False) or snake(grid, chosen), False)


def snake(grid: Grid, tiles: Sequence[int]) -> tuple[int, ...]:
    """Return tiles row by row, every other row from right to left."""
    rows: dict[int, list[int]] = {}
    for tile in sorted(tiles):
        rows.setdefault(tile // grid.columns, []).append(tile)
    ordered = [rows[row] for row in sorted(rows)]
    return tuple(tile for k, row in enumerate(ordered) for tile in (row[::-1] if k % 2 else row))


def _distinct(grid: Grid, tiles: Sequence[int]) -> tuple[int, ...]:
    chosen = tuple(tiles)
    if not chosen or len(set(chosen)) < len(chosen) or not 0 <= min(chosen) <= max(chosen) < grid.tiles:
        raise PhazeError(f"ring: tiles must be different ones from 0 to {grid.tiles - 1}, got {list(tiles)}")
    return chosen


def _around_rectangle(grid: Grid, tiles: Sequence[int]) -> tuple[int, ...] | None:
    """Return a ring through all tiles of a rectangle with an even side: out by one line, back in a snake."""
    places = [grid.place(tile) for tile in tiles]
    top, left = min(row for row, _ in places), min(column for _, column in places)
    rows = max(row for row, _ in places) - top + 1
    columns = max(column for _, column in places) - left + 1
    if rows * columns != len(tiles) or min(rows, columns) < 2:
        return None
    if rows % 2 == 0:
        return tuple(grid.tile(top + row, left + column) for row, column in _comb(rows, columns))
    if columns % 2 == 0:
        return tuple(grid.tile(top + row, left + column) for column, row in _comb(columns, rows))
    return None


def _comb(even: int, other: int) -> list[tuple[int, int]]:
    """Return a ring over an even × other rectangle: a snake without the first column, back along that."""
    there = [
        (a, b) for a in range(even) for b in (range(1, other) if a % 2 == 0 else range(other - 1, 0, -1))
    ]
    return there + [(a, 0) for a in range(even - 1, -1, -1)]


def _grown(grid: Grid, tiles: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return a ring that begins with two neighbours and takes detours over two more until all are in it."""
    left = set(tiles[1:])
    second = next((other for other in grid.neighbours(tiles[0]) if other in left), None)
    if second is None or len(tiles) % 2:
        return None
    order = [tiles[0], second]
    left.discard(second)
    place = 0
    while place < len(order) and left:
        detour = _detour(grid, order[place], order[(place + 1) % len(order)], left)
        order[place + 1 : place + 1] = detour
        left.difference_update(detour)
        place += not detour
    return None if left else tuple(order)


def _detour(grid: Grid, a: int, b: int, free: set[int]) -> list[int]:
    """Return two free tiles on a way from a to its neighbour b, none if there are no such."""
    for first in grid.neighbours(a):
        for second in grid.neighbours(b):
            if first != second and {first, second} <= free and second in grid.neighbours(first):
                return [first, second]
    return []


def _search(grid: Grid, tiles: tuple[int, ...], closed: bool) -> tuple[int, ...] | None:
    """Return a Hamiltonian cycle or path among tiles, trying neighbours with the fewest ways on first."""
    inside = set(tiles)
    around = {tile: [other for other in grid.neighbours(tile) if other in inside] for tile in tiles}
    if not grid.wrap and _one_colour_too_many(grid, tiles, closed):
        return None
    starts = sorted(tiles, key=lambda tile: (len(around[tile]), tile))
    budget = [STEPS]
    for start in starts[:1] if closed else starts:
        path = _extend(around, [start], closed, budget)
        if path:
            return tuple(path)
    return None


def _one_colour_too_many(grid: Grid, tiles: Sequence[int], closed: bool) -> bool:
    """Return whether the tiles, coloured like a chess board, cannot alternate."""
    black = sum((row + column) % 2 for row, column in map(grid.place, tiles))
    return abs(len(tiles) - 2 * black) > (0 if closed else 1)


def _extend(
    around: dict[int, list[int]], path: list[int], closed: bool, budget: list[int]
) -> list[int] | None:
    """Return the path with all other tiles after it, depth first, None without any or beyond the budget."""
    used = set(path)
    ways = [iter(_next(around, path[-1], used))]
    while ways:
        if len(path) == len(around) and (not closed or path[0] in around[path[-1]]):
            return path
        budget[0] -= 1
        if budget[0] < 0:
            return None
        tile = next(ways[-1], None)
        if tile is None:
            ways.pop()
            used.discard(path.pop())
        else:
            path.append(tile)
            used.add(tile)
            ways.append(iter(_next(around, tile, used)))
    return None


def _next(around: dict[int, list[int]], tile: int, used: set[int]) -> list[int]:
    """Return the neighbours not yet used, those with the fewest ways on first (Warnsdorff)."""
    fresh = [other for other in around[tile] if other not in used]
    return sorted(fresh, key=lambda other: (sum(far not in used for far in around[other]), other))
