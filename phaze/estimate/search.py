"""The search of `estimate.tensor`: one shape after the other, on one group of equal cores after the other.

Every division and dataflow has a least time. That with the smallest is searched first, and of the others only
those whose least time is not above what has been found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.estimate.flows import Core, Flow, least_time
from phaze.estimate.parts import Divisions
from phaze.estimate.splits import (
    AT_M,
    AT_N,
    BATCH,
    LEFT,
    PART_M,
    PART_N,
    REPEATS,
    RIGHT,
    K,
    M,
    N,
    Splits,
    fill_splits,
)
from phaze.estimate.tiles import list_tiles
from phaze.estimate.tilings import Best, try_flow
from phaze.theory.arrays import INPUT, OUTPUT, WEIGHT, exposed_words, start_cycles
from phaze.theory.compiled import njit_inlined
from phaze.theory.compiled import njit_without_arrays as njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Plan(NamedTuple):
    """Groups of equal cores (G,), and what their numbers may choose from."""

    groups: Floats
    """Rows, columns, words of the L2 buffer, words per cycle, (G, 4)."""
    places: Ints
    """Of rows, columns and buffer among the distinct ones, (G, 3)."""
    units: Floats
    """Distinct sizes of arrays."""
    buffers: Floats
    """Distinct L2 buffers in words."""
    bounds: Ints
    """Where the cores of every group start in `order`, (G + 1,)."""
    order: Ints
    """Cores by group and ascending number."""
    count_of: Ints
    """Of cores in that order, the place of their number in the divisions."""
    divisions: Divisions


class Tables(NamedTuple):
    """What is filled for one shape after the other."""

    at: Ints
    """Places of the parts of every division along m and n in the tables of tiles, (X, 2)."""
    splits: Splits
    lower: Floats
    """Least time of every split and dataflow on the group of cores at work, (3 X,)."""
    tiles: Floats
    """By dimension, size of the array, and number of parts, see `estimate.tiles`; listed when asked for."""
    length: Ints
    """How many tiles there are, 0 before they are listed."""


class Job(NamedTuple):
    """A shape on a group of equal cores."""

    shape: Ints
    extra_words: float
    core: Core
    place: Ints
    """Of rows, columns and buffer in the tables."""
    units: Floats
    tables: Tables


@njit
def search_all(shapes: Ints, extra_words: Floats, plan: Plan, tables: Tables, found: Floats) -> None:
    """Fill `found` (4, S, C) with the best mappings."""
    for s in range(len(shapes)):
        fill_splits(tables.splits, shapes[s], plan.divisions.rows, tables.at, plan.units, plan.buffers)
        tables.length[:] = 0
        for g in range(len(plan.groups)):
            x = plan.groups[g]
            core = Core(x[0], x[1], x[2], x[3])
            job = Job(shapes[s], extra_words[s], core, plan.places[g], plan.units, tables)
            _search_group(job, plan, plan.bounds[g], plan.bounds[g + 1], found[:, s])


@njit
def _search_group(job: Job, plan: Plan, start: int, stop: int, found: Floats) -> None:
    """Fill `found` (4, C) for ascending numbers of equal cores; more start from the best of fewer."""
    before, divisions = job.tables.splits.before, plan.divisions
    _bound_splits(job, before[0], before[divisions.every[plan.count_of[stop - 1]]])
    best, done = Best(np.inf, np.inf, np.inf, np.inf), before[0]
    for i in range(start, stop):
        c = plan.count_of[i]
        every = before[divisions.every[c]]
        best = _improve(best, job, done, every)
        done = every
        _store(_between(best, job, divisions, c), found, plan.order[i])


@njit
def _between(best: Best, job: Job, divisions: Divisions, c: int) -> Best:
    """Return the best mapping for a number of cores, also with divisions that only this number takes.

    It is not credited with more than the next power of two.
    """
    before, own = job.tables.splits.before, divisions.own[c]
    above = divisions.above[c]
    if own[0] == above[1]:
        return best
    _bound_splits(job, before[own[0]], before[above[1]])
    limit = _improve(best, job, before[above[0]], before[above[1]])
    ours = _improve(best, job, before[own[0]], before[own[1]])
    return Best(max(ours.time, limit.time), ours.cycles, ours.words, ours.l2_words)


@njit
def _store(best: Best, found: Floats, place: int) -> None:
    """Store a mapping in `found` (4, C)."""
    found[0, place], found[1, place] = best.time, best.cycles
    found[2, place], found[3, place] = best.words, best.l2_words


@njit
def _bound_splits(job: Job, start: int, stop: int) -> None:
    """Fill the least times of some splits on cores."""
    splits, lower = job.tables.splits, job.tables.lower
    row, column = job.place[0], job.place[1]
    k_folds, m_folds, n_folds = splits.k_folds[row], splits.m_folds, splits.n_folds[column]
    for x in range(start, stop):
        for dataflow in (WEIGHT, OUTPUT, INPUT):
            downs = m_folds[row, x] if dataflow == OUTPUT else k_folds
            acrosses = m_folds[column, x] if dataflow == INPUT else n_folds[x]
            lower[3 * x + dataflow] = least_time(job.core, _flow(job, dataflow, x), downs, acrosses)


@njit
def _flow(job: Job, dataflow: int, x: int) -> Flow:
    """Return a dataflow on a split."""
    fields, core, shape = job.tables.splits.fields, job.core, job.shape
    left, right, down, across, stream = fields[LEFT, x], fields[RIGHT, x], float(shape[K]), 0.0, 0.0
    if dataflow == WEIGHT:
        across, stream = fields[PART_N, x], fields[PART_M, x]
    elif dataflow == INPUT:
        across, stream = fields[PART_M, x], fields[PART_N, x]
        left, right = right, left
    else:
        down, across, stream = fields[PART_M, x], fields[PART_N, x], float(shape[K])
    return Flow(
        dataflow == OUTPUT,
        start_cycles(dataflow, core.rows, core.columns),
        down,
        across,
        stream,
        fields[REPEATS, x],
        left,
        right,
        float(shape[BATCH]) * shape[M] * shape[N],
        job.extra_words,
        job.tables.splits.words[job.place[2], x],
        exposed_words(down, across, core.rows, core.columns) / core.words_per_cycle,
    )


@njit
def _improve(best: Best, job: Job, start: int, stop: int) -> Best:
    """Return the best mapping with one of some splits, or `best` if that is better."""
    lower = job.tables.lower[3 * start : 3 * stop]
    while True:
        y = _first(lower)
        if y < 0 or lower[y] > best.time:
            return best
        lower[y] = np.nan
        best = _try_split(best, job, 3 * start + y)


@njit
def _first(lower: Floats) -> int:
    """Return where the least of some values is, -1 if there is none."""
    first, least = -1, np.inf
    for y in range(len(lower)):
        if lower[y] < least:
            first, least = y, lower[y]
    return first


@njit_inlined
def _try_split(best: Best, job: Job, y: int) -> Best:
    """Return the best mapping with a dataflow and a split (3 x + dataflow), or `best` if that is better."""
    x, dataflow = y // 3, y % 3
    fields, flow, tiles = job.tables.splits.fields, _flow(job, dataflow, x), job.tables.tiles
    row, column = job.place[0], job.place[1]
    d, at_d = (0, int(fields[AT_M, x])) if dataflow == OUTPUT else (1, 0)
    a, at_a = (0, int(fields[AT_M, x])) if dataflow == INPUT else (2, int(fields[AT_N, x]))
    downs = _list(flow.down, job.units[row], tiles[d, row, at_d], job.tables.length[d, row, at_d:])
    acrosses = _list(
        flow.across, job.units[column], tiles[a, column, at_a], job.tables.length[a, column, at_a:]
    )
    return try_flow(best, job.core, flow, tiles[d, row, at_d, :downs], tiles[a, column, at_a, :acrosses])


@njit
def _list(size: float, unit: float, table: Floats, length: Ints) -> int:
    """List the candidate tiles of a dimension, unless that is done, and return how many there are."""
    if length[0] == 0:
        length[0] = list_tiles(size, unit, table)
    return length[0]  # type: ignore[no-any-return]
