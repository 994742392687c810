"""Collectives as message plans around a ring, with all rounds or merged into a few rounds.

Sizes are those of a whole tensor on one member, as in `network`. A ring over d members has 2 (d − 1) rounds,
so a pipeline of many devices would send millions of messages. Merged rounds take exactly as long on idle
links. On shared links their messages are longer and make others wait accordingly longer.
"""

from collections.abc import Sequence

from phaze.base.errors import PhazeError
from phaze.cost.network.messages import Message, Plan, then, together
from phaze.cost.network.network import EXCHANGES, Collective, rounds
from phaze.cost.network.topology import Topology

ROUNDS = 4
"""Default number of merged rounds per ring."""


def collective(kind: Collective, members: Sequence[int], size_bytes: float, pieces: int = 1) -> Plan:
    """Message plan of a collective, with all of its rounds.

    The all-gather of an all-reduce does not wait for the slowest member. In round r of an all-to-all every
    member sends one p-th directly to the member r positions ahead. A broadcast passes from the first member
    along the others, and a reduce from the last to the first. Both are pipelined in `pieces` pieces.
    """
    width = len(members)
    if kind not in EXCHANGES:
        raise PhazeError(f"collective: must be one of {', '.join(EXCHANGES)}, got {kind}")
    if not members or len(set(members)) < width:
        raise PhazeError(f"collective: members must be different nodes, got {list(members)}")
    if pieces < 1:
        raise PhazeError(f"collective: pieces must be ≥ 1, got {pieces}")
    if kind == "all_to_all":
        return _direct_messages(members, size_bytes / width)
    if kind in ("broadcast", "reduce"):
        return _chain_messages(members if kind == "broadcast" else members[::-1], size_bytes / pieces, pieces)
    return _ring_messages(members, size_bytes / width, int(rounds(kind, width)))


def all_reduce(
    topology: Topology, rows: Sequence[Sequence[int]], size_bytes: float, most: int = ROUNDS
) -> Plan:
    """Message plan of a hierarchical all-reduce: first inside rows (nodes), then between them.

    Rows of equal length are the members of one node each. Every member keeps a shard of the tensor, which is
    all-reduced between the nodes. Otherwise a single ring passes through all members. Each ring has at most
    `most` rounds of messages.
    """
    members = [member for row in rows for member in row]
    # Rank k of every node holds shard k after the reduce-scatter, so these ranks form the outer rings.
    across = list(zip(*rows, strict=False))
    if len({len(row) for row in rows}) > 1 or len(rows) == 1 or len(across) == 1:
        return ring(topology, "all_reduce", members, size_bytes, most)
    scatter = together(*(ring(topology, "reduce_scatter", row, size_bytes, most) for row in rows))
    share = size_bytes / len(across)
    between = together(*(ring(topology, "all_reduce", column, share, most) for column in across))
    return then(scatter, between, scatter)  # an all-gather sends as much as a reduce-scatter


def by_level(
    topology: Topology, kind: Collective, rows: Sequence[Sequence[int]], size_bytes: float, most: int = ROUNDS
) -> Plan:
    """Message plan of a collective whose members are in nodes: inside rows, and between equal rows.

    A reduce-scatter leaves every member of a row its shard, which is reduced between rows; an all-gather is
    the reverse. Collectives of other kinds are one ring.
    """
    if kind == "all_reduce":
        return all_reduce(topology, rows, size_bytes, most)
    across = list(zip(*rows, strict=False))
    one_ring = kind not in ("reduce_scatter", "all_gather") or len({len(row) for row in rows}) > 1
    if one_ring or len(rows) == 1 or len(across) == 1:
        return ring(topology, kind, [member for row in rows for member in row], size_bytes, most)
    inside = together(*(ring(topology, kind, row, size_bytes, most) for row in rows))
    share = size_bytes / len(across)
    between = together(*(ring(topology, kind, column, share, most) for column in across))
    return then(inside, between) if kind == "reduce_scatter" else then(between, inside)


def ring(
    topology: Topology, kind: Collective, members: Sequence[int], size_bytes: float, most: int = ROUNDS
) -> Plan:
    """Message plan of a ring collective, with its rounds merged into at most `most` rounds."""
    width, all_rounds = len(members), int(rounds(kind, len(members)))
    taken = min(all_rounds, most)
    if not taken:
        return ()
    links = [(member, members[(place + 1) % width]) for place, member in enumerate(members)]
    # A merged message pays its latency once; the delay makes up for the rounds that it stands for.
    waits = [sum(leg.latency_s for leg in topology.legs(*link)) * (all_rounds / taken - 1) for link in links]
    return _ring_messages(members, size_bytes / width * all_rounds / taken, taken, waits)


def by_node(members: Sequence[int], node: int) -> list[list[int]]:
    """Group members by node, for nodes of `node` devices."""
    rows: dict[int, list[int]] = {}
    for member in members:
        rows.setdefault(member // node, []).append(member)
    return list(rows.values())


def _ring_messages(
    members: Sequence[int], part_bytes: float, times: int, waits_s: Sequence[float] | None = None
) -> Plan:
    """Ring rounds in which every member forwards the part that it received in the previous round.

    A member sends one message at a time, after it has received the previous part.
    """
    width = len(members)
    plan: list[Message] = []
    for number in range(times):
        last = (number - 1) * width
        for place, member in enumerate(members):
            # Two conditions: the member's own last message is sent, and the part from its predecessor has
            # come.
            before = tuple(sorted({last + place, last + (place - 1) % width})) if number else ()
            wait_s = waits_s[place] if waits_s else 0.0
            plan.append(Message(member, members[(place + 1) % width], part_bytes, before, wait_s))
    return tuple(plan)


def _direct_messages(members: Sequence[int], part_bytes: float) -> Plan:
    width = len(members)
    plan: list[Message] = []
    for shift in range(1, width):
        for place, member in enumerate(members):
            # The member's own message of the previous round: it sends to one peer at a time.
            before = (len(plan) - width,) if shift > 1 else ()
            plan.append(Message(member, members[(place + shift) % width], part_bytes, before))
    return tuple(plan)


def _chain_messages(members: Sequence[int], part_bytes: float, pieces: int) -> Plan:
    hops = len(members) - 1
    plan: list[Message] = []
    for piece in range(pieces):
        for hop in range(hops):
            came = (len(plan) - 1,) if hop else ()
            sent = (len(plan) - hops,) if piece else ()
            plan.append(Message(members[hop], members[hop + 1], part_bytes, sent + came))
    return tuple(plan)
