"""Map matrix multiplications onto tensor cores: the fastest of all dataflows, tilings, loop orders and
distributions.

A multiplication of `batch` independent products (m × k) · (k × n) is divided into equal parts along batch,
rows and columns: up to 16 of any numbers, more by powers of two. Cores take the parts; a core works on its
part tile by tile, with the tile in its L2 buffer. All cores share the global buffer, from which each fetches
its own copy of what it needs. The time of a mapping is

    max(cycles of the array, words of all cores / words per cycle) + one filling / words per cycle,

with cycles and words as `mapper.arrays` defines them. Cores are fed one after the other (paper, Section 4),
so that only one of them is waited for. What the search tries, for each of the three dataflows:

    tiles in the array's two dimensions   those of `cost.mapper.tiles`
    the tile that streams                 the largest that fits the L2 buffer: a smaller one is never better
    loop orders                           all

Nothing that is tried depends on the buffer's size, its bandwidth or the number of cores, except that less
of it fits; so more of any of them is never slower. A number of cores that is no power of two may also divide
one dimension by 3, 5 or 7 times a power of two, or take more parts than there are cores, in rounds; it is
never credited with more than the next power of two.

Of equally fast mappings that with the fewest words to and from the global buffer is taken, then those between
L2 and array, then with the fewest cycles of the array; so what is found does not depend on the order of the
search (`cost.mapper.search`), which passes over what a lower bound shows not to be better.

The search knows nothing of HBM and the global buffer's size (see `mapper.hbm`), so that designs share it.
"""

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.cost.mapper.parts import list_divisions
from phaze.cost.mapper.search import CoreGroups, Tables, search_all
from phaze.cost.mapper.splits import empty_splits
from phaze.cost.mapper.tiles import MOST


class Cores(NamedTuple):
    """Tensor cores, and the global buffer behind them; arrays (C,)."""

    rows: Ints
    columns: Ints
    l2_words: Ints
    words_per_cycle: Floats
    number: Ints
    """How many such cores share the global buffer."""


class MappedShapes(NamedTuple):
    """The fastest mappings of shapes on cores, arrays (S, C)."""

    cycles: Floats
    """From the first word out of the global buffer to the last one in."""
    array_cycles: Floats
    """Cycles that the busiest array works."""
    glb_words: Floats
    """Words between global buffer and cores, without the extra ones."""
    l2_words: Floats
    """Words between L2 buffers and arrays."""


def map_shapes(shapes: Ints, extra_words: Floats, cores: Cores, *, preload: bool) -> MappedShapes:
    """Fastest mappings of shapes (S, 4: batch, m, k, n) on cores.

    `extra_words` (S,) cross the global buffer's edge beside the operands and share its bandwidth; `preload`
    says whether arrays load what stays in them while the fold before streams.
    """
    plan = _plan(cores, preload=preload)
    found = np.empty((len(MappedShapes._fields), len(shapes), len(cores.number)))
    # Contiguous, as otherwise it would be compiled once more.
    each = np.ascontiguousarray(shapes), np.ascontiguousarray(extra_words), np.lexsort(shapes.T)
    search_all(*each, plan, _tables(plan), found)
    return MappedShapes(*found)


def _plan(cores: Cores, *, preload: bool) -> CoreGroups:
    """Groups of equal cores, and what every number of them may choose from."""
    keys = np.column_stack(cores[:4]).astype(float)
    groups, group_of = distinct_rows(keys)
    order = np.lexsort((cores.number, group_of))
    counts, count_of = np.unique(cores.number[order], return_inverse=True)
    units, unit_of = np.unique(groups[:, :2], return_inverse=True)
    buffers, buffer_of = np.unique(groups[:, 2], return_inverse=True)
    return CoreGroups(
        groups=groups,
        places=np.column_stack([unit_of.reshape(-1, 2), buffer_of.ravel()]),
        units=units,
        buffers=buffers,
        bounds=np.searchsorted(group_of[order], np.arange(len(groups) + 1)),
        order=order,
        count_of=count_of.ravel(),
        divisions=list_divisions(counts),
        preloads=preload,
    )


def distinct_rows(table: Floats) -> tuple[Floats, Ints]:
    """Distinct rows of a table (R, F), and where in them each row is, (R,).

    As `numpy.unique` along an axis, ten times as fast.
    """
    order = np.lexsort(table.T[::-1])
    ordered = table[order]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    place = np.empty(len(table), dtype=np.int64)
    place[order] = np.cumsum(is_new) - 1
    return ordered[is_new], place


def _tables(plan: CoreGroups) -> Tables:
    rows = plan.divisions.rows
    parts, place = np.unique(np.insert(rows[:, 1:3], 1, 1, axis=1), return_inverse=True)
    number = 3 * len(plan.units) * len(parts)
    return Tables(
        place.reshape(-1, 3) + len(parts) * np.arange(3),
        empty_splits(len(rows), len(plan.units), len(plan.buffers)),
        np.empty(3 * len(rows)),
        np.empty(3 * len(rows) + 1, dtype=np.int64),
        np.empty((number, MOST, 4)),
        np.zeros(number, dtype=np.int64),
    )
