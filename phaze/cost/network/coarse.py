"""All-reduces of many members in few messages: rounds of a ring taken together, bytes and latency the same.

A ring over d members has 2 (d − 1) rounds: a pipeline of many devices would send millions of messages. Where
nothing else is on its links, rounds taken together take exactly as long; where something is, messages are as
long as the rounds that they stand for, and make others wait so much longer.
"""

from __future__ import annotations

from collections.abc import Sequence

from phaze.cost.network.messages import Message, Plan, then, together
from phaze.cost.network.topology import Topology

ROUNDS = 4
"""Rounds of messages that stand for all of a ring's."""


def all_reduce(
    topology: Topology, rows: Sequence[Sequence[int]], size_bytes: float, most: int = ROUNDS
) -> Plan:
    """Return an all-reduce of a tensor on each member, inside rows first, then between them.

    Rows of equal length are the members of a node each: every member keeps its share of the tensor, which
    goes around between the nodes. Otherwise one ring goes through all members. 2 (d − 1)/d of the tensor
    per direction; the planners count 4 (d − 1)/d. Each ring has at most so many rounds of messages.
    """
    members = [member for row in rows for member in row]
    across = list(zip(*rows, strict=False))
    if len({len(row) for row in rows}) > 1 or len(rows) == 1 or len(across) == 1:
        return ring(topology, members, size_bytes, 2 * (len(members) - 1), most)
    width = len(across)
    scatter = together(*(ring(topology, row, size_bytes, width - 1, most) for row in rows))
    between = together(
        *(ring(topology, column, size_bytes / width, 2 * (len(rows) - 1), most) for column in across)
    )
    return then(scatter, between, scatter)


def ring(
    topology: Topology, members: Sequence[int], size_bytes: float, rounds: int, most: int = ROUNDS
) -> Plan:
    """Return so many rounds in which everyone passes one p-th of a tensor on, as so many at most."""
    width, taken = len(members), min(rounds, most)
    part = size_bytes / width * rounds / taken if taken else 0.0
    links = [(member, members[(place + 1) % width]) for place, member in enumerate(members)]
    waits = [
        sum(leg.latency_s for leg in topology.legs(*link)) * (rounds / taken - 1) for link in links if taken
    ]
    plan: list[Message] = []
    for number in range(taken):
        last = (number - 1) * width
        for place, (link, wait_s) in enumerate(zip(links, waits, strict=True)):
            before = tuple(sorted({last + place, last + (place - 1) % width})) if number else ()
            plan.append(Message(*link, part, before, wait_s))
    return tuple(plan)


def by_node(members: Sequence[int], node: int) -> list[list[int]]:
    """Return members in rows, those of a node of so many devices each."""
    rows: dict[int, list[int]] = {}
    for member in members:
        rows.setdefault(member // node, []).append(member)
    return list(rows.values())
