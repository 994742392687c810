"""Words between HBM and the global buffer: the exact minimum over all tilings and loop orders.

The global buffer has its own tiles, which need not contain the cores' tiles (a non-inclusive hierarchy).
Every product of a batch is separate. In each loop order the words depend on the tiles of two dimensions only,
so a tile is one word wide in the third. For every number of tiles in one dimension, the best tile in the
other is the largest that fits.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_nested
from phaze.cost.mapper.arrays import INNER_K, INNER_M, INNER_N, buffer_words, ceil_div


def hbm_words(shapes: Ints, glb_words: Ints) -> Floats:
    """Words to and from HBM, (S, G), for shapes (S, 4) and capacities in words (G,)."""
    found = np.full((len(shapes), len(glb_words)), np.inf)
    _hbm_words(shapes, glb_words, found)
    return found


@njit
def _hbm_words(shapes: Ints, glb_words: Ints, found: Floats) -> None:
    """Fill `found` (S, G) with the fewest words."""
    for s in range(len(shapes)):
        batch, m, k, n = shapes[s, 0], shapes[s, 1], shapes[s, 2], shapes[s, 3]
        for g in range(len(glb_words)):
            for inner in (INNER_M, INNER_K, INNER_N):
                found[s, g] = _fewest(found[s, g], inner, m, k, n, glb_words[g])
            found[s, g] *= batch


@njit_nested
def _fewest(fewest: float, inner: int, m: int, k: int, n: int, capacity: int) -> float:
    """Fewest words with a given innermost loop, or `fewest` if that is less.

    Tile counts are enumerated until their lower bound alone reaches `fewest`.
    """
    left, right, result = float(m) * k, float(k) * n, float(m) * n
    size = m if inner == INNER_N else n
    tile = size
    while tile > 0:
        count = ceil_div(size, tile)
        if buffer_words(inner, left, right, result, count if inner == INNER_N else 1, 1, count) >= fewest:
            break
        tile = ceil_div(size, count)
        other = _largest(inner, tile, capacity)
        if other > 0:
            am = ceil_div(m, other) if inner == INNER_K else count
            ak = 1 if inner == INNER_K else ceil_div(k, other)
            fewest = min(fewest, buffer_words(inner, left, right, result, am, ak, count))
        tile -= 1
    return fewest


@njit_nested
def _largest(inner: int, tile: int, capacity: int) -> int:
    """Largest tile that fits in the other dimension; 0 if none fits."""
    if inner == INNER_K:
        return max(0, (capacity - 2 * tile) // (2 + tile))
    return max(0, (capacity - tile) // (2 * (tile + 1)))
