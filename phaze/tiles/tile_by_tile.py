"""The tile level with every tile by itself: its work, its accesses and its messages wait for its own alone.

What tiles do becomes one plan of messages on the network, whose links and ports carry one transfer at a time
(PALM, Equations 2 to 5 with contention): work is a message from a tile to itself that is sent so much later,
an access one between a memory and the tile, and what a tile sends in a collective waits for what the tile did
before. Tiles run ahead of others until a collective makes them wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import Delivery, deliver
from phaze.cost.network.messages import Message, Plan, together
from phaze.cost.network.network import Collective
from phaze.tiles.analytical import BOUNDS, work_s
from phaze.tiles.chip import Chip
from phaze.tiles.steps import Activity, Bound, Exchange, Outcome, Spent, Step

Waits = dict[int, tuple[int, ...]]
"""Messages that a tile waits for before it goes on."""


def run(chip: Chip, activities: Sequence[Activity]) -> Outcome:
    """Return when every activity is over, and what its last tile waited for."""
    return outcome(*perform(chip, activities))


def perform(chip: Chip, activities: Sequence[Activity]) -> tuple[Delivery, list[tuple[int, Bound]]]:
    """Carry out activities; with it come the activity of every message, and what it is counted as."""
    written = [_written(chip, activity) for activity in activities]
    turn = sorted((k, p) for p, some in enumerate(written) for k in range(len(some.plan)))
    kinds = [(p, written[p].kinds[k]) for k, p in turn]
    plan = together(*(some.plan for some in written)) if len(written) != 1 else tuple(written[0].plan)
    return deliver(chip.topology, plan), kinds


def outcome(delivery: Delivery, kinds: Sequence[tuple[int, Bound]]) -> Outcome:
    """Return what came of activities that have been carried out."""
    last: dict[int, int] = {}
    arrived = delivery.arrived_s.tolist()
    for number, (activity, _) in enumerate(kinds):
        if arrived[number] >= arrived[last.setdefault(activity, number)]:
            last[activity] = number
    ends = [last[activity] for activity in sorted(last)]
    spent = tuple(_critical(delivery, kinds, end) for end in ends)
    return Outcome(tuple(arrived[end] for end in ends), spent, delivery.busy_s)


def _critical(delivery: Delivery, kinds: Sequence[tuple[int, Bound]], end: int) -> Spent:
    """Return the seconds of a message and of those that it waited for, one after the other."""
    spent: dict[Bound, float] = dict.fromkeys(BOUNDS, 0.0)
    number: int | None = end
    while number is not None:
        before = delivery.plan[number].after
        earlier = max(before, key=lambda k: float(delivery.arrived_s[k]), default=None)
        start = float(delivery.arrived_s[earlier]) if earlier is not None else 0.0
        spent[kinds[number][1]] += float(delivery.arrived_s[number]) - start
        number = earlier
    return spent


@dataclass
class _Writer:
    """Writes down what the tiles of a group do."""

    chip: Chip
    plan: list[Message] = field(default_factory=list)
    kinds: list[Bound] = field(default_factory=list)

    def add(self, kind: Bound, message: Message) -> int:
        """Add a message, and return its number."""
        self.plan.append(message)
        self.kinds.append(kind)
        return len(self.plan) - 1

    def step(self, tile: int, step: Step, after: tuple[int, ...]) -> tuple[int, ...]:
        """Let a tile work while it reads and writes."""
        bound, seconds = work_s(step)
        numbers = [self.add(bound, Message(tile, tile, 0.0, after, seconds))]
        if step.access.read_bytes:
            source = self.chip.port(tile)
            numbers.append(self.add("dram", Message(source, tile, step.access.read_bytes, after)))
        if step.access.write_bytes:
            target = self.chip.port(tile)
            numbers.append(self.add("dram", Message(tile, target, step.access.write_bytes, after)))
        return tuple(numbers)

    def exchange(self, exchange: Exchange, waits: Waits) -> Waits:
        """Let groups exchange something, the messages of all groups in turns; return what they wait for."""
        found = dict(waits)
        pattern = _pattern(exchange.kind, len(exchange.groups[0]))
        number: dict[tuple[int, int], int] = {}
        for k, message in enumerate(pattern.plan):
            for g, group in enumerate(exchange.groups):
                source, target = group[message.source], group[message.target]
                first = waits[source] if k in pattern.first else ()
                after = (*first, *(number[g, before] for before in message.after))
                size = message.size_bytes * exchange.size_bytes
                number[g, k] = self.add("links", Message(source, target, size, after))
        for g, group in enumerate(exchange.groups):
            for member, ends in zip(group, pattern.ends, strict=True):
                found[member] = tuple(number[g, k] for k in ends)
        return found


def _written(chip: Chip, activity: Activity) -> _Writer:
    """Write down an activity."""
    writer = _Writer(chip)
    waits: Waits = dict.fromkeys(activity.tiles, ())
    beside: Waits = dict(waits)
    for step in activity.steps:
        for exchange in step.before:
            waits = writer.exchange(exchange, waits)
        waits = {tile: writer.step(tile, step, waits[tile]) for tile in activity.tiles}
        if step.beside:
            # What is reduced waits for the work, and for what was reduced before.
            beside = {tile: tuple(dict.fromkeys((*beside[tile], *waits[tile]))) for tile in activity.tiles}
            for exchange in step.beside:
                beside = writer.exchange(exchange, beside)
        for exchange in step.exchanges:
            waits = writer.exchange(exchange, waits)
    return writer


@dataclass(frozen=True)
class _Pattern:
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
