"""V-half and V-min: two stages per rank in a V, with about a half or a third of the activations of 1f1b.

Passes are spaced so that a rank stores about half or a third of the first rank's activations under 1f1b (Qi
et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024, Sections 3 and 4).

A microbatch passes both stages of a rank forward, and back, with weight gradients in between. The building
block gives the time slot of each pass. Blocks of consecutive microbatches are six slots apart and never
collide. This leaves gaps before the first gradient is back and after the last forward pass. There, passes
move to the first free slot that their inputs allow, unless their rank would exceed the peak memory of all
ranks; then gaps are closed. The procedure runs with the weight gradients in their slots, and again with
weight gradients inserted afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.compiled import njit, njit_nested
from phaze.pipeline.durations import JobKind
from phaze.pipeline.schedules.base import ExplicitSchedule, Passes, folded_passes

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline

INTERVAL = 6
"""Slots between two microbatches: one for each of their passes on a rank."""
FREE, WEIGHTS = -1, 4
"""Markers: an empty slot, and the first of the two weight-gradient passes."""
PASSES = (
    (JobKind.FORWARD, 0), (JobKind.FORWARD, 1), (JobKind.INPUT_GRADIENT, 1), (JobKind.INPUT_GRADIENT, 0),
    (JobKind.WEIGHT_GRADIENT, 1), (JobKind.WEIGHT_GRADIENT, 0),
)  # fmt: skip
"""Kind and chunk of each pass number: forward, input gradients, and weight gradients."""


class _Spaced(ExplicitSchedule):
    chunks = (2, 2)
    folded = True
    splits = True
    rise: ClassVar[int]
    """Number of slots between the first chunk's forward passes on adjacent ranks."""
    pause: ClassVar[int]
    """Extra slots before the second chunk's backward pass if its passes would collide with others."""

    def ranks(self, pipeline: Pipeline) -> Sequence[Passes]:
        """Passes of each rank, in order of execution."""
        return _ranks(pipeline.depth, pipeline.lane_microbatches, self.rise, self.pause)


class VHalf(_Spaced):
    """V-half: about half the activations of 1f1b, with no gaps in the middle of a step if F = B = W."""

    name = "v-half"
    rise = 2
    pause = 3


class VMin(_Spaced):
    """V-min: about a third of the activations of 1f1b."""

    name = "v-min"
    rise = 1
    pause = 2


def building_block(depth: int, rise: int, pause: int) -> Ints:
    """Time slots of the four passes of the first microbatch on each rank, (p, 4)."""
    i, turn = np.arange(depth), (rise + 1) * depth
    back = turn + (pause if depth % (4 - rise) == 0 else 0)
    return np.stack([rise * i, turn - rise - i, back + 1 - rise + rise * i, back + turn - rise - i], axis=1)


@lru_cache(maxsize=16)
def _ranks(depth: int, count: int, rise: int, pause: int) -> tuple[Passes, ...]:
    begins = building_block(depth, rise, pause)[:, :, None] + INTERVAL * np.arange(count)
    rows = np.full((2, depth, int(begins.max()) + 2 * count + 2), FREE, np.int64)
    for rank, way in np.ndindex(depth, WEIGHTS):
        rows[:, rank, begins[rank, way]] = np.full(count, way), np.arange(count)
    ways, numbers = rows
    _fill(ways, numbers, False)
    _move_earlier(ways, numbers, count, True)
    _close_gaps(ways, numbers, count)
    ways[ways >= WEIGHTS] = FREE
    _move_earlier(ways, numbers, count, False)
    _fill(ways, numbers, False)
    _close_gaps(ways, numbers, count)
    ways[ways >= WEIGHTS] = FREE
    _fill(ways, numbers, True)
    return folded_passes(
        [(*PASSES[way], number) for way, number in zip(row[row >= 0], of[row >= 0], strict=True)]
        for row, of in zip(ways, numbers, strict=True)
    )


@njit
def _fill(ways: Ints, numbers: Ints, apart: bool) -> None:
    """Put weight gradients into free slots, in the order of their input gradients and after them.

    `apart`: by chunk, those of the second chunk before those of the first.
    """
    for rank in range(ways.shape[0]):
        waiting, done = np.zeros(2, np.int64), np.zeros(2, np.int64)
        for slot in range(ways.shape[1]):
            way = ways[rank, slot]
            if way in (2, 3):
                waiting[way - 2 if apart else 0] += 1
            elif way == FREE and waiting.sum():
                first = 0 if waiting[0] else 1
                ways[rank, slot], numbers[rank, slot] = WEIGHTS + first, done[first]
                waiting[first] -= 1
                done[first] += 1


@njit_nested
def _most_held(ways: Ints, with_weights: bool) -> int:
    """Peak number of chunk activations on a rank; weight gradients use their own slots or idle ones."""
    held, most, waiting = 0, 0, 0
    for way in ways:
        if way in (0, 1):
            held += 1
        elif way in (2, 3):
            waiting += 1
        elif way >= WEIGHTS or (not with_weights and waiting):
            held -= 1
            waiting -= 1
        most = max(most, held)
    return most


@njit_nested
def _place_table(ways: Ints, numbers: Ints, count: int) -> Ints:
    """Slot of each pass, by rank, kind of pass and index within the kind, (p, 5, 2 m)."""
    places = np.zeros((ways.shape[0], WEIGHTS + 1, 2 * count), np.int64)
    for rank in range(ways.shape[0]):
        for slot in range(ways.shape[1]):
            if ways[rank, slot] != FREE:
                places[rank, ways[rank, slot], numbers[rank, slot]] = slot
    return places


@njit_nested
def _after(places: Ints, rank: int, way: int, number: int) -> int:
    """Latest slot among a pass's predecessors (-1 if none), except a weight gradient's input gradient."""
    found = -1
    if way in (0, 2) and rank > 0:
        found = places[rank - 1, way, number]
    if way in (1, 3) and rank + 1 < places.shape[0]:
        found = places[rank + 1, way, number]
    if 0 < way < WEIGHTS:
        found = max(found, places[rank, way - 1, number])
    if number > 0:
        found = max(found, places[rank, way, number - 1])
    return int(found)


@njit_nested
def _gradient_slot(ways: Ints, number: int) -> int:
    """Slot of input gradient `number`, counted over both stages of a rank; -1 if it does not exist."""
    found = -1
    for slot in range(len(ways)):
        if ways[slot] in (2, 3):
            found += 1
            if found == number:
                return slot
    return -1


@njit
def _move_earlier(ways: Ints, numbers: Ints, count: int, with_weights: bool) -> None:
    """Move passes to the first free slot that their predecessors and the memory allow.

    Passes move before the first rank has its first gradient, if weight gradients have slots, and after the
    forward pass of the last microbatch.
    """
    places = _place_table(ways, numbers, count)
    fullest = 0
    for rank in range(ways.shape[0]):
        fullest = max(fullest, _most_held(ways[rank], with_weights))
    first_back, before, late = places[0, 3, 0], ways.copy(), False
    for slot in range(ways.shape[1]):
        for rank in range(ways.shape[0]):
            way, number = before[rank, slot], numbers[rank, slot]
            if way != FREE and (late or (with_weights and slot < first_back)):
                _move(ways, numbers, places, rank, slot, fullest, with_weights)
            late = late or (slot >= first_back and way == 0 and number == count - 1)


@njit_nested
def _move(
    ways: Ints, numbers: Ints, places: Ints, rank: int, slot: int, fullest: int, with_weights: bool
) -> None:
    """Move a pass to the first free slot after its predecessors, if its rank stays within the peak memory."""
    way, number = ways[rank, slot], numbers[rank, slot]
    first = _after(places, rank, way, number)
    if way >= WEIGHTS:
        first = max(first, _gradient_slot(ways[rank], number))
    for there in range(first + 1, slot):
        if ways[rank, there] != FREE:
            continue
        ways[rank, slot], ways[rank, there] = FREE, way
        if _most_held(ways[rank], with_weights) <= fullest:
            numbers[rank, there], places[rank, way, number] = number, there
            return
        ways[rank, slot], ways[rank, there] = way, FREE


@njit
def _close_gaps(ways: Ints, numbers: Ints, count: int) -> None:
    """Close idle gaps: start each pass directly after its predecessors, in slot order."""
    before, number_before = ways.copy(), numbers.copy()
    places = np.full((ways.shape[0], WEIGHTS + 1, 2 * count), -1, np.int64)
    over = np.full(ways.shape[0], -1, np.int64)
    ways[:] = FREE
    for slot in range(ways.shape[1]):
        for rank in range(ways.shape[0]):
            way, number = before[rank, slot], number_before[rank, slot]
            if way != FREE:
                over[rank] = max(over[rank], _after(places, rank, way, number)) + 1
                places[rank, way, number] = over[rank]
                ways[rank, over[rank]], numbers[rank, over[rank]] = way, number
