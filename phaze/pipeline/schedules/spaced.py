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
from phaze.pipeline.schedules.base import FoldedSchedule, Passes, folded_passes

if TYPE_CHECKING:
    from phaze.pipeline.stages import PipelineStages

INTERVAL = 6
"""Slots between two microbatches: one for each of their passes on a rank."""
FREE, WEIGHTS = -1, 4
"""Markers: an empty slot, and the first of the two weight-gradient passes."""
PASSES = (
    (JobKind.FORWARD, 0), (JobKind.FORWARD, 1), (JobKind.INPUT_GRADIENT, 1), (JobKind.INPUT_GRADIENT, 0),
    (JobKind.WEIGHT_GRADIENT, 1), (JobKind.WEIGHT_GRADIENT, 0),
)  # fmt: skip
"""Kind and chunk of each pass number: forward, input gradients, and weight gradients."""


class _Spaced(FoldedSchedule):
    rise: ClassVar[int]
    """Number of slots between the first chunk's forward passes on adjacent ranks."""
    pause: ClassVar[int]
    """Extra slots before the second chunk's backward pass if its passes would collide with others."""

    def ranks(self, pipeline: PipelineStages) -> Sequence[Passes]:
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
    # Without the pause, passes of different microbatches would share slots of a rank: under V-half if p is
    # even, under V-min if it is a multiple of 3.
    back = turn + (pause if depth % (4 - rise) == 0 else 0)
    return np.stack([rise * i, turn - rise - i, back + 1 - rise + rise * i, back + turn - rise - i], axis=1)


@lru_cache(maxsize=16)
def _ranks(depth: int, count: int, rise: int, pause: int) -> tuple[Passes, ...]:
    begins = building_block(depth, rise, pause)[:, :, None] + INTERVAL * np.arange(count)
    # Rows end with room for all weight gradients of a rank, in case no gap can have any.
    rows = np.full((2, depth, int(begins.max()) + 2 * count + 2), FREE, np.int64)
    for rank, kind in np.ndindex(depth, WEIGHTS):
        rows[:, rank, begins[rank, kind]] = np.full(count, kind), np.arange(count)
    kinds, numbers = rows
    # Moves must not raise the peak memory, which depends on where weight gradients are: in slots of their
    # own in the first round, and in the second one wherever a rank would be idle.
    _fill(kinds, numbers, False)
    _move_earlier(kinds, numbers, count, True)
    _close_gaps(kinds, numbers, count)
    kinds[kinds >= WEIGHTS] = FREE
    _move_earlier(kinds, numbers, count, False)
    _fill(kinds, numbers, False)
    _close_gaps(kinds, numbers, count)
    kinds[kinds >= WEIGHTS] = FREE
    _fill(kinds, numbers, True)
    return folded_passes(
        [
            (*PASSES[kind], number)
            for kind, number in zip(kind_row[kind_row >= 0], number_row[kind_row >= 0], strict=True)
        ]
        for kind_row, number_row in zip(kinds, numbers, strict=True)
    )


@njit
def _fill(kinds: Ints, numbers: Ints, apart: bool) -> None:
    """Put weight gradients into free slots, in the order of their input gradients and after them.

    `apart`: by chunk, those of the second chunk before those of the first.
    """
    for rank in range(kinds.shape[0]):
        waiting, done = np.zeros(2, np.int64), np.zeros(2, np.int64)
        for slot in range(kinds.shape[1]):
            kind = kinds[rank, slot]
            if kind in (2, 3):
                waiting[kind - 2 if apart else 0] += 1
            elif kind == FREE and waiting.sum():
                first = 0 if waiting[0] else 1
                kinds[rank, slot], numbers[rank, slot] = WEIGHTS + first, done[first]
                waiting[first] -= 1
                done[first] += 1


@njit_nested
def _peak_activations(kinds: Ints, with_weights: bool) -> int:
    """Peak number of chunk activations on a rank; weight gradients use their own slots or idle ones."""
    stored, most, waiting = 0, 0, 0
    for kind in kinds:
        if kind in (0, 1):
            stored += 1
        elif kind in (2, 3):
            waiting += 1
        elif kind >= WEIGHTS or (not with_weights and waiting):
            stored -= 1
            waiting -= 1
        most = max(most, stored)
    return most


@njit_nested
def _place_table(kinds: Ints, numbers: Ints, count: int) -> Ints:
    """Slot of each pass, by rank, kind of pass and index within the kind, (p, 5, 2 m)."""
    places = np.zeros((kinds.shape[0], WEIGHTS + 1, 2 * count), np.int64)
    for rank in range(kinds.shape[0]):
        for slot in range(kinds.shape[1]):
            if kinds[rank, slot] != FREE:
                places[rank, kinds[rank, slot], numbers[rank, slot]] = slot
    return places


@njit_nested
def _latest_predecessor(places: Ints, rank: int, kind: int, number: int) -> int:
    """Latest slot among a pass's predecessors (-1 if none), except a weight gradient's input gradient."""
    latest = -1
    # Passes 0 and 2 go down the ranks, 1 and 3 up; each also follows the previous one of its rank.
    if kind in (0, 2) and rank > 0:
        latest = places[rank - 1, kind, number]
    if kind in (1, 3) and rank + 1 < places.shape[0]:
        latest = places[rank + 1, kind, number]
    if 0 < kind < WEIGHTS:
        latest = max(latest, places[rank, kind - 1, number])
    if number > 0:
        latest = max(latest, places[rank, kind, number - 1])
    return int(latest)


@njit_nested
def _gradient_slot(kinds: Ints, number: int) -> int:
    """Slot of input gradient `number`, counted over both stages of a rank; -1 if it does not exist."""
    index = -1
    for slot in range(len(kinds)):
        if kinds[slot] in (2, 3):
            index += 1
            if index == number:
                return slot
    return -1


@njit
def _move_earlier(kinds: Ints, numbers: Ints, count: int, with_weights: bool) -> None:
    """Move passes to the first free slot that their predecessors and the memory allow.

    Passes move before the first rank has its first gradient, if weight gradients have slots, and after the
    forward pass of the last microbatch.
    """
    places = _place_table(kinds, numbers, count)
    peak = 0
    for rank in range(kinds.shape[0]):
        peak = max(peak, _peak_activations(kinds[rank], with_weights))
    first_back, before, late = places[0, 3, 0], kinds.copy(), False
    for slot in range(kinds.shape[1]):
        for rank in range(kinds.shape[0]):
            kind, number = before[rank, slot], numbers[rank, slot]
            if kind != FREE and (late or (with_weights and slot < first_back)):
                _move(kinds, numbers, places, rank, slot, peak, with_weights)
            late = late or (slot >= first_back and kind == 0 and number == count - 1)


@njit_nested
def _move(
    kinds: Ints, numbers: Ints, places: Ints, rank: int, slot: int, peak: int, with_weights: bool
) -> None:
    """Move a pass to the first free slot after its predecessors, if its rank stays within the peak memory."""
    kind, number = kinds[rank, slot], numbers[rank, slot]
    first = _latest_predecessor(places, rank, kind, number)
    if kind >= WEIGHTS:
        first = max(first, _gradient_slot(kinds[rank], number))
    for target in range(first + 1, slot):
        if kinds[rank, target] != FREE:
            continue
        kinds[rank, slot], kinds[rank, target] = FREE, kind
        # Whether a move raises the peak depends on the whole rank: it is tried, and undone if it does.
        if _peak_activations(kinds[rank], with_weights) <= peak:
            numbers[rank, target], places[rank, kind, number] = number, target
            return
        kinds[rank, slot], kinds[rank, target] = kind, FREE


@njit
def _close_gaps(kinds: Ints, numbers: Ints, count: int) -> None:
    """Close idle gaps: start each pass directly after its predecessors, in slot order."""
    before, number_before = kinds.copy(), numbers.copy()
    places = np.full((kinds.shape[0], WEIGHTS + 1, 2 * count), -1, np.int64)
    over = np.full(kinds.shape[0], -1, np.int64)
    kinds[:] = FREE
    for slot in range(kinds.shape[1]):
        for rank in range(kinds.shape[0]):
            kind, number = before[rank, slot], number_before[rank, slot]
            if kind != FREE:
                over[rank] = max(over[rank], _latest_predecessor(places, rank, kind, number)) + 1
                places[rank, kind, number] = over[rank]
                kinds[rank, over[rank]], numbers[rank, over[rank]] = kind, number
