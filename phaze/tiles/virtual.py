"""The tile level with one tile for each group: PALM's virtual tile aggregation (IV.A).

All tiles of a group do the same, so that one works for all. It reads and writes for all that share a port
with it: the port is held for the sum of their accesses, the way to the farthest for what they take longer
alone. A collective of all groups along an axis is one event that holds all of its links for the time that it
takes alone. Both times are found once by the network level. Ports and links are still contended for by other
groups.

This is exact where groups are symmetric: every tile has a port for itself or needs none, and rings share no
links, so that all tiles are always equally far. What is lost elsewhere: tiles that run ahead of others, and
accesses that meet messages link by link; a test tells how much that is.
"""

from collections.abc import Generator, Sequence
from functools import lru_cache

import numpy as np
import simpy

from phaze.cost.network.collectives import collective
from phaze.cost.network.contention import Carrier
from phaze.cost.network.delivery import deliver
from phaze.cost.network.messages import Message, together
from phaze.cost.network.topology import Leg
from phaze.tiles.analytical import BOUNDS, held, work_s
from phaze.tiles.chip import Chip
from phaze.tiles.placement import Tiles
from phaze.tiles.steps import Activity, Bound, Exchange, Outcome, Step

Events = Generator[simpy.Event, object, None]
Way = tuple[Leg, ...]
"""Legs that follow each other."""


def run(chip: Chip, activities: Sequence[Activity]) -> Outcome:
    """Return when every activity is over, and what its tile waited for."""
    env = simpy.Environment()
    network = Carrier(env, chip.topology)
    groups = [_Group(chip, activity, network) for activity in activities]
    for group in groups:
        env.process(group.run())
    env.run()
    busy = sum((held(chip, activity) for activity in activities), np.zeros(chip.topology.resources))
    return Outcome(tuple(group.finish_s for group in groups), tuple(group.spent for group in groups), busy)


class _Group:
    """The one tile that stands for a group."""

    def __init__(self, chip: Chip, activity: Activity, network: Carrier) -> None:
        self.chip, self.activity, self.network, self.env = chip, activity, network, network.env
        self.spent: dict[Bound, float] = dict.fromkeys(BOUNDS, 0.0)
        self.finish_s = 0.0

    def run(self) -> Events:
        """Do one step after the other, then wait for what goes on beside."""
        beside: simpy.Event | None = None
        for step in self.activity.steps:
            yield from self._exchanged(step.before)
            yield from self._worked(step)
            if step.beside:
                beside = self.env.process(self._beside(step.beside, beside))
            yield from self._exchanged(step.exchanges)
        start = self.env.now
        if beside is not None:
            yield beside
        self.spent["links"] += self.env.now - start
        self.finish_s = self.env.now

    def _worked(self, step: Step) -> Events:
        start = self.env.now
        bound, seconds = work_s(step)
        waits: list[simpy.Event] = [self.env.timeout(seconds)]
        for size, write in ((step.access.read_bytes, False), (step.access.write_bytes, True)):
            if size:
                ways = _ways(self.chip, self.activity.tiles, write, size)
                waits += [self.env.process(self._accessed(way)) for way in ways]
        yield self.env.all_of(waits)
        took = self.env.now - start
        self.spent["dram" if took > seconds else bound] += took

    def _accessed(self, way: Way) -> Events:
        for leg in way:
            yield self.network.hold(leg)

    def _exchanged(self, exchanges: Sequence[Exchange]) -> Events:
        start = self.env.now
        yield from self._beside(exchanges, None)
        self.spent["links"] += self.env.now - start

    def _beside(self, exchanges: Sequence[Exchange], before: simpy.Event | None) -> Events:
        if before is not None:
            yield before
        for exchange in exchanges:
            yield self.network.hold(_whole(self.chip, exchange))


def _for(resources: tuple[int, ...], seconds: float) -> Leg:
    """Return what holds resources for so long, whatever the bytes."""
    return Leg((), resources, seconds, float("inf"))


@lru_cache(maxsize=4096)
def _whole(chip: Chip, exchange: Exchange) -> Leg:
    """Return the links of a collective in all groups, held for the time that it takes alone."""
    plan = together(*(collective(exchange.kind, group, exchange.size_bytes) for group in exchange.groups))
    alone = deliver(chip.topology, plan)
    return _for(tuple(np.flatnonzero(alone.busy_s > 0).tolist()), alone.time_s)


@lru_cache(maxsize=4096)
def _ways(chip: Chip, tiles: Tiles, write: bool, size_bytes: float) -> tuple[Way, ...]:
    """Return what an access of all tiles holds, one way for each port."""
    return tuple(_way(chip, port, mine, write, size_bytes) for port, mine in chip.users(tiles).items())


def _way(chip: Chip, port: int, users: Sequence[int], write: bool, size_bytes: float) -> Way:
    """Return what tiles hold that share a port: the port for all of them, links for what comes on top."""
    far = max(users, key=lambda tile: chip.topology.hops(port, tile))
    legs = chip.topology.legs(far, port) if write else chip.topology.legs(port, far)
    seconds = [leg.seconds(size_bytes) for leg in legs]
    if len(users) > 1:
        alone = [
            Message(tile, port, size_bytes) if write else Message(port, tile, size_bytes) for tile in users
        ]
        at_port = len(users) * (seconds[-1] if write else seconds[0])
        rest = max(deliver(chip.topology, alone).time_s - at_port, 0.0)
        seconds = [rest, at_port] if write else [at_port, rest]
    return tuple(_for(leg.resources, took) for leg, took in zip(legs, seconds, strict=True))
