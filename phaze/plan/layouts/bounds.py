"""Lower bounds of time and memory for many layouts at once.

Every block of a layout takes at least u seconds of a microbatch, its r more if it runs forward again, and the
embedding and the head what they take. A rank s that holds n blocks, k of which run forward again, needs

    m (e_s + n u + k r) + n t

seconds for m microbatches and the update of its weights (t a block), and begins when the first microbatch has
passed the ranks before. Without the update, the last microbatch passes those ranks on its way back after
that; not so where a schedule puts the gradients of weights off, as a rank may make its last ones meanwhile.
Under interleaved only the blocks of the first chunks are passed.

Its memory holds n blocks of weights and states, and of each microbatch in flight what n − k blocks keep and k
keep only of their inputs. The least x for which ranks that do no more than this in x seconds have room for
all blocks bounds every division from below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.cost.memory import parameter_bytes
from phaze.cost.network.network import Kind
from phaze.layout import Group, Layout
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.lowered import LayerCost
from phaze.runtimes.grid import LayoutGrid

STEPS = 40
"""Halvings of the range in which the least time lies."""


@dataclass(frozen=True, eq=False)
class LayoutBounds:
    """Bounds of every layout of a grid, (N,) each."""

    time_s: Floats
    """Of a step; infinite where no division fits."""
    lacking_bytes: Floats
    """By how much at least the fullest rank exceeds its memory; 0 where a division may fit."""

    @property
    def fits(self) -> Bools:
        """Layouts of which a division may fit."""
        return self.lacking_bytes <= 0


class BlockFigures(NamedTuple):
    """Figures of one slice, (N,) each: of a block, of the embedding (first) and the head (last)."""

    forward_s: Floats
    backward_s: Floats
    again_s: Floats
    """Of a block that runs forward again."""
    stash_bytes: Floats
    """Kept by a block of a microbatch."""
    saved_bytes: Floats
    """Less by one that runs forward again."""
    parameters: Floats
    first_s: Floats
    first_forward_s: Floats
    last_s: Floats
    first_bytes: Floats
    last_bytes: Floats
    first_parameters: Floats
    last_parameters: Floats


class StateFigures(NamedTuple):
    """Figures by ZeRO stage and replicas, (N,) each."""

    bytes_each: Floats
    """Of a parameter: weights, gradients and optimizer."""
    update_s: Floats
    """Of a parameter in an optimizer step."""
    added_s: Floats
    """Of a parameter's gradients of a microbatch, added to those before."""


def bound_layouts(question: PlanQuestion, grid: LayoutGrid) -> LayoutBounds:
    """Bounds of all layouts of a grid."""
    if not len(grid):
        return LayoutBounds(np.zeros(0), np.zeros(0))
    blocks = _block_figures(question, grid)
    states = _state_figures(question, grid)
    gather_s, reduce_s = _exchanged_s(question, grid, blocks.parameters)
    held, first = _held(question, grid)
    count = grid.microbatches(question.task.global_batch).astype(float)
    added_s = states.added_s * (count > 1)
    forward_s = np.maximum(blocks.forward_s, gather_s)
    backward_s = np.maximum(blocks.backward_s + added_s * blocks.parameters, gather_s + reduce_s)
    splits = np.array([SCHEDULES[name].splits for name in grid.schedules])[grid.schedule]
    each_s = forward_s + backward_s
    first_s = blocks.first_s + added_s * blocks.first_parameters
    figures = np.stack([
        count,
        each_s,
        blocks.again_s,
        states.update_s * blocks.parameters,
        forward_s / each_s,
        first_s,
        blocks.last_s + added_s * blocks.last_parameters,
        states.bytes_each * blocks.parameters,
        blocks.stash_bytes,
        blocks.saved_bytes,
        states.bytes_each * blocks.first_parameters,
        states.bytes_each * blocks.last_parameters,
        blocks.first_bytes,
        blocks.last_bytes,
        blocks.first_forward_s,
        ~splits,
    ], axis=1)  # fmt: skip
    layers, limit = question.task.model.layers, question.limit_bytes
    return LayoutBounds(*least_times(figures, grid.pp, grid.vp, held, first, layers, limit))


def _block_figures(question: PlanQuestion, grid: LayoutGrid) -> BlockFigures:
    """Figures of the slices of every layout, which depend on few of its fields."""
    keys = np.stack([grid.tp, grid.cp, grid.microbatch, grid.sequence_parallel, grid.recompute], axis=1)
    distinct, where = np.unique(keys, axis=0, return_inverse=True)
    layouts = [
        Layout(tp=tp, cp=cp, microbatch=size, sequence_parallel=bool(cut), recompute=grid.recomputes[again])
        for tp, cp, size, cut, again in distinct.tolist()
    ]
    for first in {layout.tp: layout for layout in layouts}.values():
        question.lowering(first).prepare([layout for layout in layouts if layout.tp == first.tp])
    costs = [question.lowering(layout).layers(layout)[1] for layout in layouts]
    rows = [
        _figures(layout, cost["embedding"], cost["block"], cost["head"])
        for layout, cost in zip(layouts, costs, strict=True)
    ]
    return BlockFigures(*np.array(rows)[where].T)


def _figures(layout: Layout, first: LayerCost, block: LayerCost, last: LayerCost) -> tuple[float, ...]:
    every = layout.recompute == "selective"  # all blocks do; with full recomputation as many as it takes
    again_s = float(block.again_s(layout.recompute).sum())
    kept = block.kept_bytes(layout.recompute if every else "none")[0]
    saved = kept - block.kept_bytes("full")[0] if layout.recompute == "full" else 0.0
    return (
        float(block.forward_s.sum()),
        float(block.backward_s.sum()) + again_s * every,
        again_s * (layout.recompute == "full"),
        kept,
        saved,
        float(block.layer.parameters),
        float((first.forward_s + first.backward_s).sum()),
        float(first.forward_s.sum()),
        float((last.forward_s + last.backward_s).sum()),
        first.kept_bytes("none")[0],
        last.kept_bytes("none")[0],
        float(first.layer.parameters),
        float(last.layer.parameters),
    )


def _state_figures(question: PlanQuestion, grid: LayoutGrid) -> StateFigures:
    distinct, where = np.unique(np.stack([grid.zero, grid.sharers], axis=1), axis=0, return_inverse=True)
    machine, lowering = question.machine, question.lowering(Layout())
    width = parameter_bytes(question.optimizer, "mixed", machine.stack.gradient_bytes).gradients
    rows = []
    for zero, replicas in distinct.tolist():
        layout = Layout(dp=replicas, zero=zero)
        update_s = lowering.update_bytes(layout, 1, width) / machine.hbm_bytes_per_s
        rows.append((lowering.state_bytes(1, layout), update_s, lowering.added_s(width, layout)))
    return StateFigures(*np.array(rows)[where].T)


def _exchanged_s(question: PlanQuestion, grid: LayoutGrid, parameters: Floats) -> tuple[Floats, Floats]:
    """Seconds for which replicas gather the weights of a block (ZeRO 3), and scatter its gradients (from
    ZeRO 2 on), in every pass; a collective's start is left out, as a stage starts few of them.
    """
    size = parameter_bytes(question.optimizer, "mixed", question.machine.stack.gradient_bytes)
    network = question.machine.network
    keys = np.stack([grid.zero, grid.sharers, grid.tp], axis=1)
    _, first, where = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    found = np.zeros((len(first), 2))
    for row, place in enumerate(first.tolist()):
        zero, group = grid.zero[place], Group(int(grid.sharers[place]), int(grid.tp[place]))
        ways: tuple[tuple[Kind, int, int], ...] = (
            ("all_gather", size.weights, 3),
            ("reduce_scatter", size.gradients, 2),
        )
        for column, (kind, width, least) in enumerate(ways):
            nbytes = width * parameters[place]
            if zero >= least:
                once, twice = (network.seconds(kind, times * nbytes, group) for times in (1, 2))
                found[row, column] = twice - once
    return found[where, 0], found[where, 1]


def _held(question: PlanQuestion, grid: LayoutGrid) -> tuple[Floats, Ints]:
    """Microbatches that ranks hold: (ranks, 3) for one distinct pipeline after the other, and where those of
    each layout begin, (N,).

    A rank with n blocks holds a n + b blocks' activations at its fullest moment at least, and no block is
    held of more than c microbatches; columns a, b, c.
    """
    count = grid.microbatches(question.task.global_batch)
    keys = np.stack([grid.schedule, grid.pp, grid.vp, count], axis=1)
    distinct, where = np.unique(keys, axis=0, return_inverse=True)
    layers = question.task.model.layers
    rows = [_held_by_rank(grid.schedules[name], pp, vp, m, layers) for name, pp, vp, m in distinct.tolist()]
    starts = np.cumsum([0, *(len(row) for row in rows)])[:-1]
    return np.concatenate(rows), starts[where]


def _held_by_rank(schedule: str, depth: int, chunks: int, count: int, layers: int) -> Floats:
    pipeline = Pipeline((_NOTHING,) * (depth * chunks), count, schedule, chunks=chunks)
    held = np.array(pipeline.in_flight, float)
    if chunks == 1:
        return np.stack([held, np.zeros(depth), held], axis=1)
    # A rank holds depth microbatches of every chunk but the last one, and of that one, or again of the first
    # one, the others. With stages of f or f + 1 blocks, of which so many are missing to f + 1 everywhere:
    others = held - (chunks - 1) * depth
    fewest, most = np.minimum(others, depth), np.minimum(np.maximum(others, depth), count)
    few, stages = layers // (depth * chunks), depth * chunks
    if stages * (few + 1) - layers <= stages // 2:
        return np.stack([most, -(few + 1) * (chunks * most - held), most], axis=1)
    ends = np.zeros(depth)
    ends[[0, -1]] = most[[0, -1]]  # the first and the last stage may have fewer than f
    return np.stack([fewest, few * (held - chunks * fewest - ends), most], axis=1)


_NOTHING = StageCost(0.0)


@njit
def least_times(
    figures: Floats, depths: Ints, chunks: Ints, held: Floats, first: Ints, layers: int, limit: float
) -> tuple[Floats, Floats]:
    """Least seconds of a step (N,), and bytes that a rank lacks (N,), of layouts with figures (N, 16).

    The columns are those that `bound_layouts` puts together.
    """
    found, lacking = np.empty(len(depths)), np.zeros(len(depths))
    for i in range(len(depths)):
        row, depth, v, own = figures[i], depths[i], chunks[i], held[first[i] :]
        if blocks_within(row, depth, v, own, layers, limit, np.inf) < layers:
            low, high = 0.0, layers * (row[7] + row[8] * own[0, 2]) + row[10] + row[11]
            high += (row[12] + row[13]) * own[0, 2]
            for _ in range(STEPS):
                middle = (low + high) / 2
                if blocks_within(row, depth, v, own, layers, limit + middle, np.inf) < layers:
                    low = middle
                else:
                    high = middle
            found[i], lacking[i] = np.inf, max(low, 1.0)
            continue
        low, high = 0.0, 2 * (layers * (row[0] * (row[1] + row[2]) + row[3]) + row[0] * (row[5] + row[6]))
        for _ in range(STEPS):
            middle = (low + high) / 2
            if blocks_within(row, depth, v, own, layers, limit, middle) < layers:
                low = middle
            else:
                high = middle
            if high - low <= 1e-4 * low:
                break
        found[i] = low
    return found, lacking


@njit
def blocks_within(
    row: Floats, depth: int, chunks: int, held: Floats, layers: int, limit: float, seconds: float
) -> float:
    """Most blocks that all ranks together have room and time for, at most `layers`."""
    count, each, _, update, share, first, last = row[:7]
    first_there, returns = row[14], row[15]
    few = layers // (depth * chunks)
    missing = depth * chunks * (few + 1) - layers
    blocks = 0.0
    for rank in range(depth):
        start, end = rank == 0, rank == depth - 1
        room = limit - start * (row[10] + row[12]) - end * (row[11] + row[13])
        if room < 0:
            return 0.0
        passed = blocks if chunks == 1 else max((rank - 1) * max(few, 1), rank * (few + 1) - missing)
        there = (rank > 0) * (first_there + passed * each * share)
        back = (rank > 0) * returns * (first - first_there + passed * each * (1 - share))
        spare = (seconds - there) / count - start * first - end * last
        if spare < back / count:
            continue
        here = min(
            blocks_of_rank(row, held[rank], room, spare, each + update / count),
            blocks_of_rank(row, held[rank], room, spare - back / count, each),
        )
        if chunks > 1:
            here = min(here, chunks * (few + 1.0))
        blocks += np.floor(here + 1e-9)
    return float(min(blocks, float(layers)))


@njit
def blocks_of_rank(row: Floats, held: Floats, room: float, spare_s: float, per_block_s: float) -> float:
    """Most blocks, and parts of them, for which a rank has room and seconds of a microbatch."""
    again, state, stash, saved = row[2], row[7], row[8], row[9]
    full, lean = state + stash * held[0], state + (stash - saved) * held[0]
    kept, bare = max(room - stash * held[1], 0.0), max(room - (stash - saved) * held[1], 0.0)
    here = spare_s / per_block_s
    if saved <= 0:
        return float(min(here, kept / full))
    if here > kept / full:
        freed = saved * held[2]
        here = (spare_s + again * kept / freed) / (per_block_s + again * full / freed)
    return float(min(here, bare / lean))
