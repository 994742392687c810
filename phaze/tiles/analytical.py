"""The tile level as formulas (PALM, Equations 2, 4 and 5 without contention): a lower bound.

Two things bound the time from below. A tile does one step after the other, each at least as long as if it
had the network to itself: an access Response_Time + Access_Size / BW_DRAM + NoC_Time, a collective as many
messages to the next member as there are rounds. And a link or port that only one can hold is held for the sum
of the times of all that use it, whoever it is and whenever.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats
from phaze.cost.network.collectives import collective
from phaze.cost.network.messages import Message
from phaze.cost.network.network import Collective
from phaze.tiles.chip import Chip
from phaze.tiles.placement import Tiles
from phaze.tiles.steps import Activity, Bound, Exchange, Outcome, Step, port_resources

BOUNDS: tuple[Bound, ...] = ("compute", "sram", "dram", "links")


@dataclass(frozen=True)
class Traffic:
    """Messages of one size, of which every tile waits for its own, as linear functions of the size."""

    alone_s: Floats
    """(tiles,) the part that does not depend on the size."""
    alone_s_per_byte: Floats
    held_s: Floats
    """(resources,) the same of what is held by all of them together."""
    held_s_per_byte: Floats

    def alone(self, size_bytes: float) -> Floats:
        """Return how long every tile waits for its own messages, (tiles,)."""
        return self.alone_s + size_bytes * self.alone_s_per_byte

    def held(self, size_bytes: float) -> Floats:
        """Return how long every resource is held, (resources,)."""
        return self.held_s + size_bytes * self.held_s_per_byte


def run(chip: Chip, activities: Sequence[Activity]) -> Outcome:
    """Return how long activities take at least."""
    ports = port_resources(chip)
    alone = [held(chip, activity) for activity in activities]
    found = [_longest(_chains(chip, activity)) for activity in activities]
    for spent, mine in zip(found, alone, strict=True):
        _wait(spent, mine, ports)
    busy = np.sum(alone, axis=0) if alone else np.zeros(chip.topology.resources)
    if found:
        _wait(max(found, key=lambda spent: sum(spent.values())), busy, ports)
    return Outcome(tuple(sum(spent.values()) for spent in found), tuple(found), busy)


def _wait(spent: dict[Bound, float], held: Floats, ports: NDArray[np.bool_]) -> None:
    """Let an activity last no less than the resource that is held longest, which then binds all of it."""
    longest = float(held.max(initial=0.0))
    if longest > sum(spent.values()):
        spent.update(dict.fromkeys(BOUNDS, 0.0))
        spent["dram" if ports[int(np.argmax(held))] else "links"] = longest


def _longest(chains: Floats) -> dict[Bound, float]:
    """Return what the tile with the longest chain waits for; chains are (bounds, tiles)."""
    slowest = int(np.argmax(chains.sum(axis=0)))
    return dict(zip(BOUNDS, chains[:, slowest].tolist(), strict=True))


def _chains(chip: Chip, activity: Activity) -> Floats:
    """Return the seconds that every tile waits for each bound, (bounds, tiles)."""
    found = np.zeros((len(BOUNDS), len(activity.tiles)))
    beside = np.zeros(len(activity.tiles))
    for step in activity.steps:
        found[BOUNDS.index("links")] += _exchanged(chip, activity.tiles, (*step.before, *step.exchanges))
        bound, seconds = work_s(step)
        access = np.zeros(len(activity.tiles))
        for some, size in _accesses(chip, activity.tiles, step):
            np.maximum(access, some.alone(size), out=access)
        found[BOUNDS.index("dram")] += np.where(access > seconds, access, 0.0)
        found[BOUNDS.index(bound)] += np.where(access > seconds, 0.0, seconds)
        beside += _exchanged(chip, activity.tiles, step.beside)
    # Collectives beside the work follow each other: the group is not done before them.
    over = np.maximum(beside - found.sum(axis=0), 0.0)
    found[BOUNDS.index("links")] += over
    return found


def work_s(step: Step) -> tuple[Bound, float]:
    """Return what binds the work of a tile beside memory, and its seconds."""
    return "sram" if step.work.sram_s > step.work.compute_s else "compute", step.work.busy_s


def held(chip: Chip, activity: Activity) -> Floats:
    """Return the seconds for which resources are held, (resources,)."""
    found = np.zeros(chip.topology.resources)
    for step in activity.steps:
        for exchange in (*step.before, *step.exchanges, *step.beside):
            found += _exchange(chip, activity.tiles, exchange.kind, exchange.groups).held(exchange.size_bytes)
        for some, size in _accesses(chip, activity.tiles, step):
            found += some.held(size)
    return found


def _exchanged(chip: Chip, tiles: Tiles, exchanges: Sequence[Exchange]) -> Floats:
    """Return how long every tile waits for its messages, (tiles,)."""
    found = np.zeros(len(tiles))
    for some in exchanges:
        found += _exchange(chip, tiles, some.kind, some.groups).alone(some.size_bytes)
    return found


def _accesses(chip: Chip, tiles: Tiles, step: Step) -> list[tuple[Traffic, float]]:
    """Return what a step reads and writes: who sends what to whom, and its bytes on each tile."""
    sizes = (False, step.access.read_bytes), (True, step.access.write_bytes)
    return [(_access(chip, tiles, write), size) for write, size in sizes if size]


@lru_cache(maxsize=1024)
def _access(chip: Chip, tiles: Tiles, write: bool) -> Traffic:
    """Return an access of one byte by every tile."""
    pairs = [(tile, chip.port(tile)) for tile in tiles]
    plan = [Message(a, b, 1.0) if write else Message(b, a, 1.0) for a, b in pairs]
    return _traffic(chip, tiles, plan, [tile for tile, _ in pairs])


@lru_cache(maxsize=1024)
def _exchange(chip: Chip, tiles: Tiles, kind: Collective, groups: tuple[Tiles, ...]) -> Traffic:
    """Return a collective of one byte in groups; rounds of a ring are alike, and counted once."""
    rounds = 1
    plan: list[Message] = []
    for group in groups:
        messages = collective(kind, group, 1.0)
        if kind in ("all_reduce", "reduce_scatter", "all_gather") and len(group) > 1:
            rounds, messages = len(messages) // len(group), messages[: len(group)]
        plan += messages
    found = _traffic(chip, tiles, plan, [message.source for message in plan])
    parts = found.alone_s, found.alone_s_per_byte, found.held_s, found.held_s_per_byte
    return Traffic(*(rounds * part for part in parts))


def _traffic(chip: Chip, tiles: Tiles, plan: Sequence[Message], who: Sequence[int]) -> Traffic:
    """Return messages as linear functions of their size; each one is waited for by one tile."""
    place = {tile: k for k, tile in enumerate(tiles)}
    alone, held = np.zeros((2, len(tiles))), np.zeros((2, chip.topology.resources))
    for message, tile in zip(plan, who, strict=True):
        for leg in chip.topology.legs(message.source, message.target):
            seconds = leg.latency_s, message.size_bytes / leg.bandwidth_bytes_per_s
            alone[:, place[tile]] += seconds
            held[:, list(leg.resources)] += np.array(seconds)[:, np.newaxis]
    return Traffic(alone[0], alone[1], held[0], held[1])
