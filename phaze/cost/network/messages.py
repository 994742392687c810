"""Message plans: messages between nodes and the dependencies among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from phaze.base.errors import PhazeError


class Message(NamedTuple):
    """Message from one node to another, sent after a delay once its dependencies have arrived."""

    source: int
    target: int
    size_bytes: float
    after: tuple[int, ...] = ()
    """Indices of earlier messages of the plan that must have arrived."""
    delay_s: float = 0.0

    def waiting_for(self, after: tuple[int, ...]) -> Message:
        """Copy with other dependencies; much faster than `_replace`."""
        return Message(self.source, self.target, self.size_bytes, after, self.delay_s)


Plan = tuple[Message, ...]
"""Messages in topological order: every message comes after its dependencies."""


def together(*plans: Sequence[Message]) -> Plan:
    """Combine plans to run concurrently, with interleaved messages: first of each, second of each, …."""
    if len(plans) == 1:
        return tuple(plans[0])
    # Simultaneous requests follow plan order; interleaving keeps one plan from always being first.
    turn = sorted((k, p) for p, plan in enumerate(plans) for k in range(len(plan)))
    place = {(p, k): number for number, (k, p) in enumerate(turn)}
    return tuple(
        plans[p][k].waiting_for(tuple([place[p, before] for before in plans[p][k].after])) for k, p in turn
    )


def then(*plans: Sequence[Message]) -> Plan:
    """Combine plans to run in sequence; each starts when all messages of the previous one have arrived."""
    joined: list[Message] = []
    for plan in plans:
        if not plan:
            continue
        offset = len(joined)
        if joined:
            joined.append(_barrier(joined))
        joined += [_shifted(message, len(joined), offset) for message in plan]
    return tuple(joined)


def _shifted(message: Message, by: int, barrier: int) -> Message:
    """Message with dependencies shifted by `by`; if it has none and `by` is not 0, it waits for `barrier`."""
    before = tuple(other + by for other in message.after)
    return message.waiting_for(before if before or not by else (barrier,))


def _barrier(plan: Sequence[Message]) -> Message:
    # Waiting for the messages without successors is enough: all others have arrived before these.
    waited = {other for message in plan for other in message.after}
    node = plan[-1].target
    return Message(node, node, 0.0, tuple(k for k in range(len(plan)) if k not in waited))


def check_plan(plan: Sequence[Message]) -> None:
    """Raise `PhazeError` if a size or delay is negative or a message waits for a later one."""
    for number, message in enumerate(plan):
        if not 0 <= message.size_bytes < float("inf") or not 0 <= message.delay_s < float("inf"):
            raise PhazeError(f"plan: size_bytes and delay_s of message {number} must be ≥ 0 and finite")
        if any(not 0 <= other < number for other in message.after):
            raise PhazeError(f"plan: message {number} must wait for earlier ones, got {message.after}")
