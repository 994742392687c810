"""Collectives around a ring as plans of messages between neighbours, and their times without contention.

Sizes are those of a whole tensor on one member: what an all-reduce, a broadcast or a reduce leaves there,
what a reduce-scatter starts from, what an all-gather ends with, what a member has for all members in an
all-to-all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from phaze.base.errors import PhazeError
from phaze.cost.network.messages import Message, Plan, together

Collective = Literal["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast", "reduce"]
Members = TypeVar("Members")


def reduce_scatter(members: Sequence[int], size_bytes: float) -> Plan:
    """Return a reduce-scatter: p − 1 rounds in which everyone passes on the sum of one p-th."""
    return _rounds(members, size_bytes / len(_members(members)), len(members) - 1)


def all_gather(members: Sequence[int], size_bytes: float) -> Plan:
    """Return an all-gather: p − 1 rounds in which everyone passes on one p-th."""
    return reduce_scatter(members, size_bytes)


def all_reduce(members: Sequence[int], size_bytes: float) -> Plan:
    """Return a reduce-scatter and the all-gather that follows without waiting for the slowest member."""
    return _rounds(members, size_bytes / len(_members(members)), 2 * (len(members) - 1))


def all_reduce_both_ways(members: Sequence[int], size_bytes: float) -> Plan:
    """Return an all-reduce of one half in each direction of the ring, as directed links allow."""
    return together(all_reduce(members, size_bytes / 2), all_reduce(members[::-1], size_bytes / 2))


def all_to_all(members: Sequence[int], size_bytes: float) -> Plan:
    """Return an all-to-all: in round r everyone sends one p-th to the member r places further, directly."""
    width = len(_members(members))
    plan: list[Message] = []
    for shift in range(1, width):
        for place, member in enumerate(members):
            before = (len(plan) - width,) if shift > 1 else ()
            plan.append(Message(member, members[(place + shift) % width], size_bytes / width, before))
    return tuple(plan)


def broadcast(members: Sequence[int], size_bytes: float, pieces: int = 1) -> Plan:
    """Return a broadcast from the first member along the others, in so many pieces that follow each other."""
    if pieces < 1:
        raise PhazeError(f"collective: pieces must be ≥ 1, got {pieces}")
    hops = len(_members(members)) - 1
    plan: list[Message] = []
    for piece in range(pieces):
        for hop in range(hops):
            came = (len(plan) - 1,) if hop else ()
            sent = (len(plan) - hops,) if piece else ()
            plan.append(Message(members[hop], members[hop + 1], size_bytes / pieces, sent + came))
    return tuple(plan)


def reduce(members: Sequence[int], size_bytes: float, pieces: int = 1) -> Plan:
    """Return a reduce to the first member from the last on, in so many pieces that follow each other."""
    return broadcast(members[::-1], size_bytes, pieces)


def collective(kind: Collective, members: Sequence[int], size_bytes: float, pieces: int = 1) -> Plan:
    """Return the plan of a collective by its name."""
    return named_plan(kind, _WHOLE, _IN_PIECES)(members, size_bytes, pieces)


def named_plan(
    kind: Collective,
    whole: Mapping[Collective, Callable[[Members, float], Plan]],
    in_pieces: Mapping[Collective, Callable[[Members, float, int], Plan]],
) -> Callable[[Members, float, int], Plan]:
    """Return what plans a collective, or raise `PhazeError` where there is none of that name."""
    if kind in in_pieces:
        return in_pieces[kind]
    if kind not in whole:
        raise PhazeError(f"collective: must be one of {', '.join([*whole, *in_pieces])}, got {kind}")
    plan = whole[kind]
    return lambda members, size_bytes, _: plan(members, size_bytes)


_WHOLE: dict[Collective, Callable[[Sequence[int], float], Plan]] = {
    "all-reduce": all_reduce,
    "reduce-scatter": reduce_scatter,
    "all-gather": all_gather,
    "all-to-all": all_to_all,
}
_IN_PIECES: dict[Collective, Callable[[Sequence[int], float, int], Plan]] = {
    "broadcast": broadcast,
    "reduce": reduce,
}


def ring_s(
    kind: Collective,
    width: int,
    size_bytes: float,
    bandwidth_bytes_per_s: float,
    latency_s: float = 0.0,
    pieces: int = 1,
) -> float:
    """Return the time of a collective among so many equal neighbours: rounds · (α + bytes of a round · β).

    An all-reduce counts 2 (p − 1)/p of the tensor in each direction; the planners keep the Phaze paper's
    4 (p − 1)/p. An all-to-all has this time only where every pair has a link of its own.
    """
    if kind in ("broadcast", "reduce"):
        rounds, part = width - 2 + pieces if width > 1 else 0, size_bytes / pieces
    else:
        rounds, part = (width - 1) * (2 if kind == "all-reduce" else 1), size_bytes / width
    return rounds * (latency_s + part / bandwidth_bytes_per_s)


def _rounds(members: Sequence[int], part_bytes: float, rounds: int) -> Plan:
    """Return rounds in which everyone sends what he received in the round before to the next member.

    A member sends one message at a time, and not before the other has come.
    """
    width = len(members)
    plan: list[Message] = []
    for number in range(rounds):
        for place, member in enumerate(members):
            last = (number - 1) * width
            before = tuple(sorted({last + place, last + (place - 1) % width})) if number else ()
            plan.append(Message(member, members[(place + 1) % width], part_bytes, before))
    return tuple(plan)


def _members(members: Sequence[int]) -> Sequence[int]:
    """Return members; raises `PhazeError` where one is there twice, or none."""
    if not members or len(set(members)) < len(members):
        raise PhazeError(f"collective: members must be different nodes, got {list(members)}")
    return members
