"""Map matrix multiplications onto tensor cores: the fastest dataflow, tiling, loop order and split.

A multiplication of `batch` independent products (m × k) · (k × n) is split into equal parts along batch, rows
and columns: any number of parts up to 16, powers of two above. Cores take the parts. A core works on its part
tile by tile, with the tile in its L2 buffer. All cores share the global buffer, from which each fetches its
own copy of its operands. The time of a mapping is

    max(cycles of the array, words of all cores / words per cycle) + one filling / words per cycle,

with cycles and words as `mapper.arrays` defines them. Cores are fed one after the other (paper, Section 4),
so only one fill is exposed. For each of the three dataflows the search tries

    tiles in the array's two dimensions   those of `cost.mapper.tiles`
    the tile that streams                 the largest that fits the L2 buffer: a smaller one is never better
    loop orders                           all

The set of candidates does not depend on the buffer size, the bandwidth or the core count; a smaller buffer
only fits fewer of them. More of any resource is therefore never slower. A core count that is not a power of
two may also split one dimension by 3, 5 or 7 times a power of two, or take more parts than cores, in rounds.
Its result is never credited as better than the result of the next power of two.

Ties in time are broken by the fewest words to and from the global buffer, then by the fewest words between L2
and array, then by the fewest cycles of the array. The result therefore does not depend on the order of the
search (`cost.mapper.search`), which prunes by lower bounds.

The search ignores HBM and the size of the global buffer (see `mapper.hbm`), so designs can share its results.
"""

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.cost.mapper.parts import list_splits
from phaze.cost.mapper.search import CoreGroups, Tables, search_shape
from phaze.cost.mapper.splits import SplitSpace
from phaze.cost.mapper.tiles import MOST


class Cores(NamedTuple):
    """Tensor-core configurations with the global buffer that the cores share; arrays (C,)."""

    rows: Ints
    columns: Ints
    l2_words: Ints
    words_per_cycle: Floats
    number: Ints
    """Number of cores that share the global buffer."""


class MappedShapes(NamedTuple):
    """Cost of the fastest mapping of every shape on every core configuration, arrays (S, C)."""

    cycles: Floats
    """Cycles from the first word read from the global buffer to the last word written."""
    array_cycles: Floats
    """Cycles of the busiest array."""
    glb_words: Floats
    """Words between the global buffer and the cores, excluding `extra_words`."""
    l2_words: Floats
    """Words between L2 buffers and arrays."""


def map_shapes(shapes: Ints, extra_words: Floats, cores: Cores, *, preload: bool) -> MappedShapes:
    """Find the fastest mapping of every shape (S, 4: batch, m, k, n) on every core configuration.

    `extra_words` (S,) cross the edge of the global buffer in addition to the operands and share its
    bandwidth. If `preload`, arrays load the next stationary fold while the current one streams.
    """
    groups, space = _groups(cores, preload=preload)
    tables = _tables(space)
    found = np.empty((len(shapes), len(MappedShapes._fields), len(cores.number)))
    for s in np.lexsort(shapes.T):  # shapes of equal sizes share tiles; without shapes nothing is compiled
        batch, m, _, n = map(float, shapes[s])
        search_shape(batch * m * n, float(extra_words[s]), space.of(shapes[s]), groups, tables, found[s])
    return MappedShapes(*np.ascontiguousarray(found.swapaxes(0, 1)))


def _groups(cores: Cores, *, preload: bool) -> tuple[CoreGroups, SplitSpace]:
    """Group identical cores, and list the splits that their core counts allow."""
    keys = np.column_stack(cores[:4]).astype(float)
    groups, group_of = distinct_rows(keys)
    order = np.lexsort((cores.number, group_of))
    counts, count_of = np.unique(cores.number[order], return_inverse=True)
    units, unit_of = np.unique(groups[:, :2], return_inverse=True)
    buffers, buffer_of = np.unique(groups[:, 2], return_inverse=True)
    rows, ranges = list_splits(counts)
    parts, place = np.unique(np.insert(rows[:, 1:3], 1, 1, axis=1), return_inverse=True)
    places = place.reshape(-1, 3) + len(parts) * np.arange(3)
    return CoreGroups(
        groups=groups,
        places=np.column_stack([unit_of.reshape(-1, 2), buffer_of.ravel()]),
        bounds=np.searchsorted(group_of[order], np.arange(len(groups) + 1)),
        order=order,
        count_of=count_of.ravel(),
        ranges=ranges,
        preloads=preload,
    ), SplitSpace(rows, places, units, buffers)


def distinct_rows(table: Floats) -> tuple[Floats, Ints]:
    """Distinct rows of a table (R, F), and the index of each row among them, (R,).

    Equivalent to `numpy.unique` along an axis, ten times as fast.
    """
    order = np.lexsort(table.T[::-1])
    ordered = table[order]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    place = np.empty(len(table), dtype=np.int64)
    place[order] = np.cumsum(is_new) - 1
    return ordered[is_new], place


def _tables(space: SplitSpace) -> Tables:
    splits, number = 3 * len(space.rows), space.places.max() + 1
    return Tables(
        np.empty(splits),
        np.empty(splits + 1, dtype=np.int64),
        np.empty((len(space.units), number, MOST, 4)),
        np.zeros((len(space.units), number), dtype=np.int64),
    )
