"""When groups of tiles that start together are done: tile by tile with contention, or by formulas.

Tile by tile, what tiles do is one plan of messages on the network, whose links and ports carry one transfer
at a time (PALM, Equations 2 to 5 with contention): work is a message from a tile to itself that is sent so
much later, an access one between a memory and the tile, and what a tile sends in a collective waits for what
the tile did before. Tiles run ahead of others until a collective makes them wait.

The formulas (PALM, Equations 2, 4 and 5 without contention) are a lower bound: a tile does one step after the
other, each at least as long as if it had the network to itself; and a link or port that only one can hold is
held for the sum of the times of all that use it, whoever it is and whenever.
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
    """Steps of one group of tiles, all of which do the same."""

    tiles: Tiles
    steps: tuple[TileStep, ...]


def simulate(chip: Chip, activities: Sequence[Activity], fidelity: Fidelity) -> tuple[float, ...]:
    """Seconds until every activity is over."""
    return (_each if fidelity == "tile-by-tile" else _least)(chip, activities)


def _each(chip: Chip, activities: Sequence[Activity]) -> tuple[float, ...]:
    """Seconds tile by tile."""
    plans = [_written(chip, activity) for activity in activities]
    turn = sorted((k, p) for p, plan in enumerate(plans) for k in range(len(plan)))
    arrived_s = deliver(chip.topology, together(*plans)).arrived_s
    finish_s = np.zeros(len(activities))
    np.maximum.at(finish_s, [p for _, p in turn], arrived_s)
    return tuple(finish_s.tolist())


Waits = dict[int, tuple[int, ...]]
"""Messages that a tile waits for before it goes on."""


def _written(chip: Chip, activity: Activity) -> list[Message]:
    """Plan of an activity."""
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
    """Append a tile's work, what it reads and what it writes; their numbers."""
    begin, access = len(plan), step.access
    plan.append(Message(tile, tile, 0.0, after, step.work_s))
    if access.read_bytes:
        plan.append(Message(chip.port(tile), tile, access.read_bytes, after))
    if access.write_bytes:
        plan.append(Message(tile, chip.port(tile), access.write_bytes, after))
    return tuple(range(begin, len(plan)))


def _exchanged(plan: list[Message], some: GroupCollective, waits: Waits) -> Waits:
    """Append a collective, the messages of all groups in turns; what its members wait for."""
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
    """A collective of one byte among members 0, 1, …."""

    plan: Plan
    first: frozenset[int]
    """Messages that are the first of their source."""
    ends: tuple[tuple[int, ...], ...]
    """Messages of or to each member that no other message of or to it waits for."""


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
    """Seconds by formulas."""
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
    """Messages of one size as linear functions of it: how long tiles wait, how long resources are held."""

    alone_s: Floats
    """(2, tiles): the part that does not depend on the size, and per byte."""
    held_s: Floats
    """(2, resources)"""


def _longest_s(chip: Chip, activity: Activity) -> float:
    """Seconds of the tile whose steps take longest if it had the network to itself."""
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
    """Seconds for which resources are held, (resources,)."""
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
    """Reads and writes of a step, with their bytes on each tile."""
    sizes = (False, step.access.read_bytes), (True, step.access.write_bytes)
    return [(_access(chip, tiles, write), size) for write, size in sizes if size]


@lru_cache(maxsize=1024)
def _access(chip: Chip, tiles: Tiles, write: bool) -> _Linear:
    """Read or write by every tile."""
    pairs = [(tile, chip.port(tile)) for tile in tiles]
    return _linear(chip, tiles, [pair if write else pair[::-1] for pair in pairs], tiles)


@lru_cache(maxsize=1024)
def _ring(chip: Chip, tiles: Tiles, kind: Collective, groups: tuple[Tiles, ...]) -> _Linear:
    """Collective around rings; all of its rounds are alike, and a member waits for its own messages."""
    width = len(groups[0])
    pairs = [pair for group in groups for pair in zip(group, (*group[1:], group[0]), strict=True)]
    found = _linear(chip, tiles, pairs, [source for source, _ in pairs])
    scale = np.array([[1.0], [1.0 / width]]) * rounds(kind, width)
    return _Linear(scale * found.alone_s, scale * found.held_s)


def _linear(chip: Chip, tiles: Tiles, pairs: Sequence[tuple[int, int]], waiting: Sequence[int]) -> _Linear:
    """Messages between pairs of nodes, each of which one tile waits for."""
    place = {tile: k for k, tile in enumerate(tiles)}
    alone, held = np.zeros((2, len(tiles))), np.zeros((2, chip.topology.resources))
    for (source, target), tile in zip(pairs, waiting, strict=True):
        for leg in chip.topology.legs(source, target):
            seconds = leg.latency_s, 1.0 / leg.bandwidth_bytes_per_s
            alone[:, place[tile]] += seconds
            held[:, list(leg.resources)] += np.array(seconds)[:, np.newaxis]
    return _Linear(alone, held)
