"""Load of each unit of work on core designs: cycles, traffic and operations.

Matrix multiplications are mapped onto tensor cores with the fastest dataflow, tiling, loop order and split.

A multiplication of `batch` independent products (m × k) · (k × n) is split into equal parts along batch, rows
and columns: any number of parts up to 16, powers of two above. Cores take the parts. A core works on its part
tile by tile, with the tile in its L2 buffer. All cores share the global buffer, from which each fetches its
own copy of its operands. The time of a mapping is

    max(cycles of the array, words of all cores / words per cycle) + one filling / words per cycle,

with cycles and words as `mapper.arrays` defines them. Cores are fed one after the other (paper, Section 4),
so only one fill is exposed. For each of the three dataflows the search tries

    tiles in the array's two dimensions   those of `cost.mapper.tilings`
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

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_nested
from phaze.base.ranking import distinct_rows
from phaze.cost.designs import Designs
from phaze.cost.mapper.arrays import INNER_K, INNER_M, INNER_N, buffer_words, ceil_div
from phaze.cost.mapper.search import CoreGroups, Tables, search_shape
from phaze.cost.mapper.splits import SplitSpace, list_splits
from phaze.cost.mapper.tilings import MOST
from phaze.cost.mapper.works import Works
from phaze.cost.network.network import Flat, Kind, sent_bytes
from phaze.cost.vector import vector_cycles
from phaze.layout import Layout
from phaze.workload.lower.attention import BLOCK

REDUCING: tuple[Kind, ...] = ("all_reduce", "reduce_scatter")
"""Collectives that perform additions."""


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
    costs = np.empty((len(shapes), len(MappedShapes._fields), len(cores.number)))
    for s in np.lexsort(shapes.T):  # shapes of equal sizes share tiles; without shapes nothing is compiled
        batch, m, _, n = map(float, shapes[s])
        search_shape(batch * m * n, float(extra_words[s]), space.of(shapes[s]), groups, tables, costs[s])
    return MappedShapes(*np.ascontiguousarray(costs.swapaxes(0, 1)))


def map_folded(shapes: Ints, extra_words: Floats, cores: Cores, *, preload: bool) -> MappedShapes:
    """Find the fastest mapping as `map_shapes` does, on arrays whose axes take several loops of a product.

    An array of x by y units then also works as any array of as many units whose sides are x and y times
    powers of two: 4096 by 4 takes 128 by 128 of a product, with 32 groups of columns side by side. This is
    how Sunstone unrolls products (Olyaiy et al., ISPASS 2023). Ties keep the array's own sides.
    """
    best = map_shapes(shapes, extra_words, cores, preload=preload)
    for shift in range(1, int(max(*cores.rows, *cores.columns)).bit_length()):
        for wide, narrow in ((cores.rows, cores.columns), (cores.columns, cores.rows)):
            divides = np.flatnonzero(wide % (1 << shift) == 0)
            if not len(divides):
                continue
            sides = (wide[divides] >> shift, narrow[divides] << shift)
            rows, columns = sides if wide is cores.rows else sides[::-1]
            sided = Cores(
                rows,
                columns,
                cores.l2_words[divides],
                cores.words_per_cycle[divides],
                cores.number[divides],
            )
            mapped = map_shapes(shapes, extra_words, sided, preload=preload)
            faster = mapped.cycles < best.cycles[:, divides]
            for field, other in zip(best, mapped, strict=True):
                field[:, divides] = np.where(faster, other, field[:, divides])
    return best


def _groups(cores: Cores, *, preload: bool) -> tuple[CoreGroups, SplitSpace]:
    """Group identical cores, and list the splits that their core counts allow."""
    # Cores that differ only in their number share all tilings, so they are searched together.
    keys = np.column_stack(cores[:4]).astype(float)
    groups, group_of = distinct_rows(keys)
    # Ascending counts within a group, because a larger count starts from the best of the smaller ones.
    order = np.lexsort((cores.number, group_of))
    counts, count_of = np.unique(cores.number[order], return_inverse=True)
    units, unit_of = np.unique(groups[:, :2], return_inverse=True)
    buffers, buffer_of = np.unique(groups[:, 2], return_inverse=True)
    rows, ranges = list_splits(tuple(counts.tolist()))
    # k is never split among cores: partial sums would have to be added across them.
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


def _tables(space: SplitSpace) -> Tables:
    splits, number = 3 * len(space.rows), space.places.max() + 1
    return Tables(
        np.empty(splits),
        np.empty(splits + 1, dtype=np.int64),
        np.empty((len(space.units), number, MOST, 4)),
        np.zeros((len(space.units), number), dtype=np.int64),
    )


@dataclass(frozen=True)
class Hardware:
    """Cluster parameters used by the estimates."""

    clock_hz: float
    hbm_bandwidth_bytes_per_s: float
    network: Flat
    bytes_per_element: int


@dataclass(frozen=True)
class Load:
    """Cycles, traffic and operations of units of work on designs; (W, D), or (W, 1) if equal for all."""

    core_cycles: Floats
    """Tensor-core cycles, including waits for the global buffer."""
    array_cycles: Floats
    """Tensor-core cycles, excluding waits for data."""
    lane_cycles: Floats
    """Vector-core cycles."""
    network_s: Floats
    glb_words: Floats
    """Words between the global buffer and cores of both types."""
    array_words: Floats
    """Words between the L2 buffers of tensor cores and their arrays."""
    streamed_words: Floats
    """Words to and from vector cores, part of `glb_words`."""
    hbm_bytes: Floats
    link_bytes: Floats
    operations: Floats
    """Multiply-accumulates plus vector-lane cycles."""


def loads_of(
    works: Works,
    designs: Designs,
    hardware: Hardware,
    layout: Layout,
    cycles_per_addition: float,
    *,
    preload: bool,
    folded: bool = False,
) -> tuple[Load, Load]:
    """Loads of units of work on one core and on all cores; collectives always reduce on all cores.

    If `preload`, arrays load the next stationary operand ahead. If `folded`, their axes take several loops.
    """
    on_one, on_all = _map(works, designs, hardware, preload=preload, folded=folded)
    hbm = _hbm_bytes(works, designs, hardware)
    adds = additions(works, layout)  # of a collective, on all vector cores (paper, Appendix C.2, Table 3)
    adding = works.total(
        cycles_per_addition * np.ceil(adds[:, None] / (designs.lanes * designs.vector_cores))
    )
    streamed = works.total(works.streamed_bytes)[:, None] / hardware.bytes_per_element
    operations = works.total(works.shapes.prod(axis=1, dtype=float) + works.elements * works.cycles)
    operations += cycles_per_addition * works.total(adds)
    network_s, link_bytes = _exchanges(works, hardware.network, layout)

    def load(mapped: MappedShapes, cores: Ints) -> Load:
        lanes = vector_cycles(works.elements, works.cycles, designs.lanes * cores)
        return Load(
            core_cycles=mapped.cycles,
            array_cycles=mapped.array_cycles,
            lane_cycles=works.total(lanes) + adding,
            network_s=works.total(network_s)[:, None],
            glb_words=mapped.glb_words + streamed,
            array_words=mapped.l2_words,
            streamed_words=streamed,
            hbm_bytes=hbm,
            link_bytes=works.total(link_bytes)[:, None],
            operations=operations[:, None],
        )

    return load(on_one, np.ones_like(designs.vector_cores)), load(on_all, designs.vector_cores)


def _map(
    works: Works, designs: Designs, hardware: Hardware, *, preload: bool, folded: bool
) -> tuple[MappedShapes, MappedShapes]:
    """Map the matrix multiplications of each unit of work to one core and to all cores; totals are (W, D).

    Matrix multiplications run sequentially. The traffic that vector parts stream through the global buffer is
    divided equally among them.
    """
    matmuls = works.matmuls
    share = works.total(works.streamed_bytes) / np.maximum(works.total(np.ones(len(matmuls)), matmuls), 1.0)
    extra = share[works.of_part[matmuls]] / hardware.bytes_per_element
    shapes, of_shape = np.unique(np.column_stack([works.shapes[matmuls], extra]), axis=0, return_inverse=True)
    cores, of_cores = distinct_cores(designs, hardware.bytes_per_element)
    map_all = map_folded if folded else map_shapes
    mapped = map_all(shapes[:, :4].astype(np.int64), shapes[:, 4], cores, preload=preload)
    totals = [works.total(field[of_shape.ravel()], matmuls) for field in mapped]

    def gathered(place: Ints) -> MappedShapes:
        return MappedShapes(*(total[:, place] for total in totals))

    return gathered(of_cores[0]), gathered(of_cores[1])


def distinct_cores(designs: Designs, bytes_per_element: int) -> tuple[Cores, Ints]:
    """Distinct tensor-core configurations, and the indices of each design with one and all cores, (2, D)."""
    l2_words = designs.l2_tc_bytes // bytes_per_element
    cores = [designs.rows, designs.columns, l2_words, designs.words_per_cycle]
    on_one = np.column_stack([*cores, np.ones_like(designs.tensor_cores)])
    on_all = np.column_stack([*cores, designs.tensor_cores])
    keys, place = distinct_rows(np.concatenate([on_one, on_all]))
    numbers = keys.astype(np.int64)
    return Cores(numbers[:, 0], numbers[:, 1], numbers[:, 2], keys[:, 3], numbers[:, 4]), place.reshape(2, -1)


def _hbm_bytes(works: Works, designs: Designs, hardware: Hardware) -> Floats:
    """HBM traffic in bytes, (W, D): matrix multiplications plus streamed tensors.

    The elements that a convolution unrolls on chip are subtracted once: a tiling that reads its input several
    times reads it unrolled except for the first time.
    """
    size, matmuls = hardware.bytes_per_element, works.matmuls
    shapes, of_shape = np.unique(works.shapes[matmuls], axis=0, return_inverse=True)
    capacities, of_design = np.unique(designs.glb_bytes, return_inverse=True)
    words = hbm_words(shapes, capacities // size)[of_shape.ravel()] - works.unrolled[matmuls, None]
    attends = works.kinds[matmuls] == "attention"
    if attends.any():
        words[attends] = reread_words(works.shapes[matmuls][attends], capacities // size)
    moved = works.total(words, matmuls) * size + works.total(works.streamed_bytes)[:, None]
    return moved[:, of_design.ravel()]


def reread_words(shapes: Ints, glb_words: Ints) -> Floats:
    """Words that products of attention read again, (S, G), for shapes (S, 4) and buffers of (G,) words.

    The buffer has blocks of rows with their results, and scores of a block of keys. Each block of rows reads
    all of the other operand; the first read is part of the operator's traffic. Scores stay in the buffer.
    """
    batch, m, k, n = shapes.T[:, :, None]
    rows = np.maximum(glb_words // (2 * np.minimum(k, n) + BLOCK), 1)
    words: Floats = batch * k * n * (-(-m // rows) - 1.0)
    return words


def _exchanges(works: Works, network: Flat, layout: Layout) -> tuple[Floats, Floats]:
    """Seconds of every collective on the network, and bytes that a rank sends, (P,) each."""
    seconds, nbytes = np.zeros((2, len(works.kinds)))
    for kind, axis, chosen in works.collectives():
        size_bytes, group = works.network_bytes[chosen], layout.group(axis)
        seconds[chosen] = network.seconds(kind, size_bytes, group)
        nbytes[chosen] = size_bytes if kind == "send" else sent_bytes(kind, size_bytes, group.ranks)
    return seconds, nbytes


def additions(works: Works, layout: Layout) -> Floats:
    """Additions that one rank performs for each part, (P,): one per element sent in a reduce-scatter."""
    adds = np.zeros(len(works.kinds))
    for kind, axis, chosen in works.collectives():
        if kind in REDUCING:
            adds[chosen] = sent_bytes("reduce_scatter", works.elements[chosen], layout.group(axis).ranks)
    return adds


def hbm_words(shapes: Ints, glb_words: Ints) -> Floats:
    """Minimum HBM traffic in words, (S, G), for shapes (S, 4) and global buffers of (G,) words.

    The minimum is over all tilings and loop orders. The global buffer has its own tiles, which need not
    contain the cores' tiles (a non-inclusive hierarchy). Every product of a batch is separate. In each loop
    order the words depend on the tiles of two dimensions only, so a tile is one word wide in the third. For
    every number of tiles in one dimension, the best tile in the other is the largest that fits.
    """
    words = np.full((len(shapes), len(glb_words)), np.inf)
    for shape, fewest in zip(shapes, words, strict=True):  # nothing is compiled for devices without arrays
        _fill_words(shape, glb_words, fewest)
    return words


@njit
def _fill_words(shape: Ints, glb_words: Ints, words: Floats) -> None:
    """Fill `words` (G,) with the minimum HBM traffic of a shape, in words."""
    batch, m, k, n = shape[0], shape[1], shape[2], shape[3]
    for g in range(len(glb_words)):
        for inner in (INNER_M, INNER_K, INNER_N):
            words[g] = _fewest(words[g], inner, m, k, n, glb_words[g])
        words[g] *= batch


@njit_nested
def _fewest(fewest: float, inner: int, m: int, k: int, n: int, capacity: int) -> float:
    """Minimum HBM traffic in words with a given innermost loop, or `fewest` if that is less.

    Tile counts are enumerated until their lower bound alone reaches `fewest`.
    """
    left, right, result = float(m) * k, float(k) * n, float(m) * n
    size = m if inner == INNER_N else n
    tile = size
    while tile > 0:
        count = ceil_div(size, tile)
        # With one tile in the other dimension the words only grow with `count`, so that no later one is
        # better.
        if buffer_words(inner, left, right, result, count if inner == INNER_N else 1, 1, count) >= fewest:
            break
        # The smallest tile with this many tiles leaves the most room for the other dimension.
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
    """Largest size of a tile in its second dimension that fits in the buffer; 0 if none fits."""
    if inner == INNER_K:
        return max(0, (capacity - 2 * tile) // (2 + tile))
    return max(0, (capacity - tile) // (2 * (tile + 1)))
