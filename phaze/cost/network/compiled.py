"""Compiled, deadlock-free discrete-event simulation of contended links (PALM, IV.C.2).

Links serve transfers first come, first served.

A transfer requests all links of its leg at once and queues at each of them behind earlier requests. It starts
when it is first at all of them, occupies them for its whole duration, and releases them together. Requests
have the same order at every link. The oldest waiting transfer therefore waits only for running ones: no cycle
of waits can form, and no transfer overtakes another on a link. Simultaneous requests follow the order of
their plan.

Simultaneous events happen in the order in which they were scheduled. Tests compare all times with SimPy; they
are bit-identical.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_inlined
from phaze.cost.network.messages import Message
from phaze.cost.network.topology import Leg, Switching, Topology

NEW, DELAYED, LOCAL, QUEUED, RUNNING, BETWEEN = range(6)
"""States of a message; BETWEEN means that it has yet to request its next leg."""


MOST_LISTED = 2**22
"""Maximum number of node pairs for which a dense lookup table is used."""


class RoutedMessages(NamedTuple):
    """Message plan with its routes, as arrays; each distinct route is stored once."""

    size_bytes: Floats
    delay_s: Floats
    first_follower: Ints
    """Offsets into `follower` of every message's dependents, and the end offset."""
    follower: Ints
    route: Ints
    """Index of the route of every message."""
    first_leg: Ints
    """Index of the first leg of every route, and the end index."""
    first_resource: Ints
    """Offsets into `resource` of every leg's resources, and the end offset."""
    resource: Ints
    latency_s: Floats
    """Latency of every leg."""
    bandwidth_bytes_per_s: Floats


class EventState(NamedTuple):
    """State of every message, and the queue of every resource as a linked list of slots."""

    missing: Ints
    """Number of messages for which each message still waits."""
    doing: Ints
    leg: Ints
    blocked: Ints
    """Number of resources at which each message is not first in the queue."""
    times_s: Floats
    """Times at which each message was requested, started and arrived, (3, messages)."""
    owner: Ints
    """Message in every slot of a queue."""
    following: Ints
    """Next slot in a queue or in the free list; -1 at the end."""
    free: Ints
    """Head of the free list, -1 if empty, and the first slot never used, (2,)."""
    head: Ints
    """First slot in the queue of every resource; -1 if idle."""
    tail: Ints
    busy_s: Floats
    scheduled: Ints
    """Number of events scheduled so far, (1,)."""


class Columns(NamedTuple):
    """Message plan as arrays."""

    source: Ints
    target: Ints
    size_bytes: Floats
    delay_s: Floats
    waits: Ints
    """Number of messages for which each message waits."""
    before: Ints
    """Dependencies of all messages, concatenated in message order."""


def columns(plan: Sequence[Message]) -> Columns:
    """Convert a message plan to arrays."""
    return Columns(
        np.array([message.source for message in plan], np.int64),
        np.array([message.target for message in plan], np.int64),
        np.array([message.size_bytes for message in plan], np.float64),
        np.array([message.delay_s for message in plan], np.float64),
        _integers(len(message.after) for message in plan),
        _integers(chain.from_iterable(message.after for message in plan)),
    )


def carry(
    topology: Topology, plan: Columns, switching: Switching = "pipelined", *, exclusive: bool = True
) -> tuple[Floats, Floats, Floats]:
    """Simulate a plan given as arrays; if not `exclusive`, transfers do not contend for links.

    Returns the times at which messages were requested, started and arrived, (3, messages), the busy seconds
    of every resource, and the bytes over every link.
    """
    pairs, route = _distinct(plan.source * topology.nodes + plan.target, topology.nodes**2)
    legs = [topology.legs(*divmod(int(pair), topology.nodes), switching) for pair in pairs]
    work = _routes(plan, route, legs, exclusive=exclusive)
    state = _initial_state(work, plan.waits.copy(), topology.resources)
    serve(work, state)
    size_bytes = np.bincount(route, plan.size_bytes, len(legs))
    hops = _integers(sum(len(leg.links) for leg in route_legs) for route_legs in legs)
    links = _integers(chain.from_iterable(leg.links for route_legs in legs for leg in route_legs))
    link_bytes = np.bincount(links, np.repeat(size_bytes, hops), len(topology.links)).astype(np.float64)
    return state.times_s, state.busy_s, link_bytes


def _distinct(numbers: Ints, limit: int) -> tuple[Ints, Ints]:
    """Distinct values of `numbers` (all below `limit`), ascending, and the index of each number in them."""
    if limit > MOST_LISTED:
        distinct, where = np.unique(numbers, return_inverse=True)
        return distinct, where.astype(np.int64)
    # Marking and counting is linear, where np.unique sorts; it needs memory for every possible number.
    place = np.zeros(limit, np.int64)
    place[numbers] = 1
    distinct = np.flatnonzero(place)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[numbers]


def _routes(
    plan: Columns, route: Ints, legs: Sequence[tuple[Leg, ...]], *, exclusive: bool
) -> RoutedMessages:
    all_legs = list(chain.from_iterable(legs))
    leg_resources = [leg.resources if exclusive else () for leg in all_legs]
    first_follower = np.concatenate([[0], np.cumsum(np.bincount(plan.before, minlength=len(plan.source)))])
    follower = np.empty(len(plan.before), np.int64)
    sort_followers(plan.waits, plan.before, first_follower[:-1].copy(), follower)
    return RoutedMessages(
        plan.size_bytes,
        plan.delay_s,
        first_follower,
        follower,
        route,
        _offsets(len(route_legs) for route_legs in legs),
        _offsets(len(resources) for resources in leg_resources),
        _integers(chain.from_iterable(leg_resources)),
        np.array([leg.latency_s for leg in all_legs], np.float64),
        np.array([leg.bandwidth_bytes_per_s for leg in all_legs], np.float64),
    )


def _initial_state(work: RoutedMessages, waits: Ints, resources: int) -> EventState:
    messages = len(work.size_bytes)
    most = np.zeros(len(work.first_leg) - 1, np.int64)
    leg_route = np.repeat(np.arange(len(most)), np.diff(work.first_leg))
    # A message is in the queues of one leg at a time, so that the leg with most resources bounds its slots.
    np.maximum.at(most, leg_route, np.diff(work.first_resource))
    slots = int(most @ np.bincount(work.route, minlength=len(most)))  # upper bound; few are used
    return EventState(
        waits,
        np.full(messages, NEW),
        work.first_leg[work.route],
        np.zeros(messages, np.int64),
        np.full((3, messages), -1.0),
        np.empty(slots, np.int64),
        np.empty(slots, np.int64),
        np.array([-1, 0]),
        np.full(resources, -1),
        np.full(resources, -1),
        np.zeros(resources),
        np.zeros(1, np.int64),
    )


def _integers(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


def _offsets(numbers: Iterable[int]) -> Ints:
    return _integers(chain([0], np.cumsum(_integers(numbers)).tolist()))


@njit
def sort_followers(waits: Ints, before: Ints, place: Ints, follower: Ints) -> None:
    """Fill `follower` with the dependents of every message, advancing `place` past them."""
    k = 0
    for m in range(len(waits)):
        for _ in range(waits[m]):
            follower[place[before[k]]] = m
            place[before[k]] += 1
            k += 1


Heap = list[tuple[float, int, int]]
"""Priority queue of (time, event number, message)."""


@njit
def serve(work: RoutedMessages, state: EventState) -> None:
    """Run the simulation until no event is left."""
    todo = [m for m in range(len(work.size_bytes)) if state.missing[m] == 0]
    # Numba infers the type of a list from an element, so one is pushed and removed.
    heap = [(0.0, 0, 0)]
    heap.pop()
    at_once = [0]
    now, done = 0.0, 1
    while True:
        for m in todo:
            _advance(work, state, heap, at_once, now, m)
        todo.clear()
        if done < len(at_once) and (len(heap) == 0 or heap[0][0] > now):
            m = at_once[done]
            done += 1
        elif len(heap) > 0:
            now, _, m = heapq.heappop(heap)
        else:
            return
        _process(work, state, todo, now, m)
        if done == len(at_once):
            at_once.clear()
            done = 0


@njit_inlined
def _advance(
    work: RoutedMessages, state: EventState, heap: Heap, at_once: list[int], now: float, m: int
) -> None:
    """Advance a ready message: start its delay, deliver it locally, queue for a leg, or transfer it."""
    if state.doing[m] == NEW and work.delay_s[m] > 0:
        _wait(state, heap, at_once, now, work.delay_s[m], m, DELAYED)
        return
    if state.doing[m] <= DELAYED:
        state.times_s[0, m] = now
    if state.leg[m] == work.first_leg[work.route[m] + 1]:
        state.times_s[1, m] = now
        _wait(state, heap, at_once, now, 0.0, m, LOCAL)
        return
    if state.doing[m] != QUEUED:
        state.doing[m], state.blocked[m] = QUEUED, _queue(work, state, m)
    if state.blocked[m] == 0:
        # Only the first leg of a route marks the start of its message.
        if state.times_s[1, m] < 0:
            state.times_s[1, m] = now
        _wait(state, heap, at_once, now, _transfer_s(work, state, m), m, RUNNING)


@njit_inlined
def _wait(
    state: EventState, heap: Heap, at_once: list[int], now: float, seconds: float, m: int, doing: int
) -> None:
    """Schedule the next event of a message; events without delay run in order at the current time."""
    state.doing[m] = doing
    # Rounding may absorb a short delay. Such events follow those scheduled for this time before, so a list
    # suffices.
    if now + seconds > now:
        heapq.heappush(heap, (now + seconds, state.scheduled[0], m))
        state.scheduled[0] += 1
    else:
        at_once.append(m)


@njit_inlined
def _transfer_s(work: RoutedMessages, state: EventState, m: int) -> float:
    leg = state.leg[m]
    seconds: float = work.latency_s[leg] + work.size_bytes[m] / work.bandwidth_bytes_per_s[leg]
    return seconds


@njit_inlined
def _queue(work: RoutedMessages, state: EventState, m: int) -> int:
    """Append a message to all queues of its leg; return the number of queues with another message ahead."""
    leg, blocked = state.leg[m], 0
    for k in range(work.first_resource[leg], work.first_resource[leg + 1]):
        r, slot = work.resource[k], state.free[0]
        if slot < 0:
            slot = state.free[1]
            state.free[1] += 1
        else:
            state.free[0] = state.following[slot]
        state.owner[slot], state.following[slot] = m, -1
        if state.head[r] < 0:
            state.head[r] = slot
        else:
            state.following[state.tail[r]] = slot
            blocked += 1
        state.tail[r] = slot
    return blocked


@njit_inlined
def _process(work: RoutedMessages, state: EventState, todo: list[int], now: float, m: int) -> None:
    """Process a message's event, and append messages that can proceed to `todo`."""
    if state.doing[m] == DELAYED:
        todo.append(m)
        return
    if state.doing[m] == RUNNING:
        _release(work, state, todo, m)
        state.leg[m] += 1
        if state.leg[m] < work.first_leg[work.route[m] + 1]:
            state.doing[m] = BETWEEN
            todo.append(m)
            return
    state.times_s[2, m] = now
    for k in range(work.first_follower[m], work.first_follower[m + 1]):
        other = work.follower[k]
        state.missing[other] -= 1
        if state.missing[other] == 0:
            todo.append(other)


@njit_inlined
def _release(work: RoutedMessages, state: EventState, todo: list[int], m: int) -> None:
    """Release the resources of a leg, and append transfers that can start to `todo`."""
    leg, seconds = state.leg[m], _transfer_s(work, state, m)
    for k in range(work.first_resource[leg], work.first_resource[leg + 1]):
        r = work.resource[k]
        slot = state.head[r]
        state.busy_s[r] += seconds
        state.head[r] = state.following[slot]
        # Slots are recycled, so that memory is bounded by queued messages and not by all of them.
        state.following[slot], state.free[0] = state.free[0], slot
        if state.head[r] >= 0:
            other = state.owner[state.head[r]]
            state.blocked[other] -= 1
            if state.blocked[other] == 0:
                todo.append(other)
