"""Finish times of concurrent groups of tiles: tile by tile with contention, or by formulas.

Tile by tile, the activity of all tiles is one plan of messages on the network, whose links and ports carry
one transfer at a time (PALM, Equations 2 to 5 with contention). Work is a delayed message from a tile to
itself. A memory access is a message between a memory port and a tile. A tile's messages in a collective wait
for its previous work. Tiles run ahead of others until a collective makes them wait.

The formulas (PALM, Equations 2, 4 and 5 without contention) are a lower bound. A tile does its steps one
after the other, each at least as long as with the network to itself. A link or port carries one transfer at a
time, so it is busy for the sum of the times of all its transfers.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from phaze.base.arrays import Floats
from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import deliver
from phaze.cost.network.messages import Message, Plan, together
from phaze.cost.network.network import Collective, rounds
from phaze.tiles.chip import Chip
from phaze.tiles.placement import Tiles
from phaze.tiles.steps import GroupCollective, TileStep

Fidelity = Literal["tile-by-tile", "analytical"]


class Activity(NamedTuple):
    """Group of tiles that all execute the same steps."""

    tiles: Tiles
    steps: tuple[TileStep, ...]


def simulate(chip: Chip, activities: Sequence[Activity], fidelity: Fidelity) -> tuple[float, ...]:
    """Finish time of each activity in s, if all start at 0."""
    return (_each if fidelity == "tile-by-tile" else _least)(chip, activities)


def _each(chip: Chip, activities: Sequence[Activity]) -> tuple[float, ...]:
    """Finish time of each activity in s, simulated tile by tile with contention."""
    plans = [_written(chip, activity) for activity in activities]
    turn = sorted((k, p) for p, plan in enumerate(plans) for k in range(len(plan)))
    arrived_s = deliver(chip.topology, together(*plans)).arrived_s
    finish_s = np.zeros(len(activities))
    np.maximum.at(finish_s, [p for _, p in turn], arrived_s)
    return tuple(finish_s.tolist())


Waits = dict[int, tuple[int, ...]]
"""Indices of the messages that each tile waits for before it continues."""


def _written(chip: Chip, activity: Activity) -> list[Message]:
    """Messages of an activity in order: work, memory accesses and collectives of every step."""
    plan: list[Message] = []
    waits: Waits = dict.fromkeys(activity.tiles, ())
    for step in activity.steps:
        for some in step.before:
            waits = _exchanged(plan, some, waits)
        waits = {tile: _worked(plan, chip, tile, step, waits[tile]) for tile in activity.tiles}
        for some in step.after:
            waits = _exchanged(plan, some, waits)
    return plan


def _worked(
    plan: list[Message], chip: Chip, tile: int, step: TileStep, after: tuple[int, ...]
) -> tuple[int, ...]:
    """Append a tile's work, read and write to the plan; return the indices of these messages."""
    begin, access = len(plan), step.access
    plan.append(Message(tile, tile, 0.0, after, step.work_s))
    if access.read_bytes:
        plan.append(Message(chip.port(tile), tile, access.read_bytes, after))
    if access.write_bytes:
        plan.append(Message(tile, chip.port(tile), access.write_bytes, after))
    return tuple(range(begin, len(plan)))


def _exchanged(plan: list[Message], some: GroupCollective, waits: Waits) -> Waits:
    """Append a collective, interleaving its groups; return the messages that each tile then waits for."""
    found = dict(waits)
    pattern = _pattern(some.kind, len(some.groups[0]))
    begin, count = len(plan), len(some.groups)
    for k, message in enumerate(pattern.plan):
        for g, group in enumerate(some.groups):
            source = group[message.source]
            first = waits[source] if k in pattern.first else ()
            after = (*first, *(begin + before * count + g for before in message.after))
            plan.append(Message(source, group[message.target], message.size_bytes * some.size_bytes, after))
    for g, group in enumerate(some.groups):
        for member, ends in zip(group, pattern.ends, strict=True):
            found[member] = tuple(begin + k * count + g for k in ends)
    return found


class _Pattern(NamedTuple):
    """Message pattern of a one-byte collective among members 0, 1, …."""

    plan: Plan
    first: frozenset[int]
    """Index of the first message of each source."""
    ends: tuple[tuple[int, ...], ...]
    """Indices of each member's last messages: no other message from or to the member waits for them."""


@lru_cache(maxsize=256)
def _pattern(kind: Collective, width: int) -> _Pattern:
    plan = collective(kind, range(width), 1.0)
    first: dict[int, int] = {}
    touching: list[set[int]] = [set() for _ in range(width)]
    for number, message in enumerate(plan):
        first.setdefault(message.source, number)
        for member in (message.source, message.target):
            touching[member] -= set(message.after)
            touching[member].add(number)
    return _Pattern(plan, frozenset(first.values()), tuple(tuple(sorted(some)) for some in touching))


def _least(chip: Chip, activities: Sequence[Activity]) -> tuple[float, ...]:
    """Lower bounds on the finish times of activities in s, by formulas.

    The total load of a shared resource bounds the finish of the last activity only.
    """
    held = [_held_s(chip, activity) for activity in activities]
    finish_s = [
        max(_longest_s(chip, activity), float(own.max(initial=0.0)))
        for activity, own in zip(activities, held, strict=True)
    ]
    if finish_s:
        last = int(np.argmax(finish_s))
        finish_s[last] = max(finish_s[last], float(np.sum(held, axis=0).max(initial=0.0)))
    return tuple(finish_s)


class _Linear(NamedTuple):
    """Wait times of tiles and busy times of resources, as linear functions of the message size."""

    alone_s: Floats
    """Wait time of each tile without contention, (2, tiles): constant part, and seconds per byte."""
    held_s: Floats
    """Busy time of each resource, (2, resources): constant part, and seconds per byte."""


def _longest_s(chip: Chip, activity: Activity) -> float:
    """Time of the slowest tile over all steps in s, without contention."""
    total = np.zeros(len(activity.tiles))
    for step in activity.steps:
        for some in (*step.before, *step.after):
            total += _of_size(_ring(chip, activity.tiles, some.kind, some.groups).alone_s, some.size_bytes)
        longest = np.full(len(total), step.work_s)
        for access, size in _accesses(chip, activity.tiles, step):
            np.maximum(longest, _of_size(access.alone_s, size), out=longest)
        total += longest
    return float(total.max())


def _held_s(chip: Chip, activity: Activity) -> Floats:
    """Busy time of each resource in s, (resources,)."""
    found = np.zeros(chip.topology.resources)
    for step in activity.steps:
        for some in (*step.before, *step.after):
            found += _of_size(_ring(chip, activity.tiles, some.kind, some.groups).held_s, some.size_bytes)
        for access, size in _accesses(chip, activity.tiles, step):
            found += _of_size(access.held_s, size)
    return found


def _of_size(linear: Floats, size_bytes: float) -> Floats:
    return np.asarray(linear[0] + size_bytes * linear[1])


def _accesses(chip: Chip, tiles: Tiles, step: TileStep) -> list[tuple[_Linear, float]]:
    """Timing functions of a step's read and write, each with the bytes per tile."""
    sizes = (False, step.access.read_bytes), (True, step.access.write_bytes)
    return [(_access(chip, tiles, write), size) for write, size in sizes if size]


@lru_cache(maxsize=1024)
def _access(chip: Chip, tiles: Tiles, write: bool) -> _Linear:
    """Times of a read or write by every tile, as a linear function of its size."""
    pairs = [(tile, chip.port(tile)) for tile in tiles]
    return _linear(chip, tiles, [pair if write else pair[::-1] for pair in pairs], tiles)


@lru_cache(maxsize=1024)
def _ring(chip: Chip, tiles: Tiles, kind: Collective, groups: tuple[Tiles, ...]) -> _Linear:
    """Times of a collective on rings, with equal rounds; a member waits for its own messages only."""
    width = len(groups[0])
    pairs = [pair for group in groups for pair in zip(group, (*group[1:], group[0]), strict=True)]
    found = _linear(chip, tiles, pairs, [source for source, _ in pairs])
    scale = np.array([[1.0], [1.0 / width]]) * rounds(kind, width)
    return _Linear(scale * found.alone_s, scale * found.held_s)


def _linear(chip: Chip, tiles: Tiles, pairs: Sequence[tuple[int, int]], waiting: Sequence[int]) -> _Linear:
    """Times of messages between pairs of nodes; `waiting` is the tile that waits for each message."""
    place = {tile: k for k, tile in enumerate(tiles)}
    alone, held = np.zeros((2, len(tiles))), np.zeros((2, chip.topology.resources))
    for (source, target), tile in zip(pairs, waiting, strict=True):
        for leg in chip.topology.legs(source, target):
            seconds = leg.latency_s, 1.0 / leg.bandwidth_bytes_per_s
            alone[:, place[tile]] += seconds
            held[:, list(leg.resources)] += np.array(seconds)[:, np.newaxis]
    return _Linear(alone, held)
