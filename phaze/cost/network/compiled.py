"""Contended links as discrete events (PALM, IV.C.2), compiled: first come first served, never a deadlock.

A transfer asks for all links of its leg in one instant and queues at each of them behind earlier requests. It
starts when it is first at all of them, uses them for its whole time, and releases them together. Requests
have the same order at every link. So the oldest waiting transfer waits only for running ones: no cycle of
waits can form, and no transfer overtakes another on a link. Requests of one instant follow the order of their
plan.

Events of one instant happen in the order in which they were scheduled. Tests compare all times with SimPy's,
bit by bit.
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
"""What a message does: between means that it has to ask for its next leg."""


MOST_LISTED = 2**22
"""Pairs of nodes that are looked up in a list of all."""


class RoutedMessages(NamedTuple):
    """A plan and the routes that it takes, each route once."""

    size_bytes: Floats
    delay_s: Floats
    first_follower: Ints
    """First message that waits for each message, and the end."""
    follower: Ints
    route: Ints
    """Route of every message."""
    first_leg: Ints
    """First leg of every route, and the end."""
    first_resource: Ints
    """First resource of every leg, and the end."""
    resource: Ints
    latency_s: Floats
    """Of every leg."""
    bandwidth_bytes_per_s: Floats


class EventState(NamedTuple):
    """What every message does, and the queue of every resource: slots that name the next one."""

    missing: Ints
    """Messages for which each still waits."""
    doing: Ints
    leg: Ints
    blocked: Ints
    """Resources at which each is not the first."""
    times_s: Floats
    """When each asked, started and arrived, (3, messages)."""
    owner: Ints
    """The message in every slot of a queue."""
    following: Ints
    """Slot behind each, in a queue or among the free ones; -1: none."""
    free: Ints
    """First slot that is free again, -1 where there is none, and the first that was never used, (2,)."""
    head: Ints
    """First slot in the queue of every resource, -1 where it is idle."""
    tail: Ints
    busy_s: Floats
    scheduled: Ints
    """How many events there have been, (1,)."""


class Columns(NamedTuple):
    """A plan as arrays."""

    source: Ints
    target: Ints
    size_bytes: Floats
    delay_s: Floats
    waits: Ints
    """For how many messages each waits."""
    before: Ints
    """These, one message's after the other."""


def columns(plan: Sequence[Message]) -> Columns:
    """Plan as arrays."""
    return Columns(
        np.array([message.source for message in plan], np.int64),
        np.array([message.target for message in plan], np.int64),
        np.array([message.size_bytes for message in plan], np.float64),
        np.array([message.delay_s for message in plan], np.float64),
        _counts(len(message.after) for message in plan),
        _counts(chain.from_iterable(message.after for message in plan)),
    )


def events(
    topology: Topology, plan: Sequence[Message], switching: Switching
) -> tuple[Floats, Floats, Floats]:
    """When messages asked, started and arrived, (3, messages), the seconds of every resource and the bytes of
    every link.
    """
    return carry(topology, columns(plan), switching)


def carry(
    topology: Topology, plan: Columns, switching: Switching = "pipelined", *, exclusive: bool = True
) -> tuple[Floats, Floats, Floats]:
    """The events of a plan as arrays; not exclusive, every link carries all that comes at once."""
    pairs, route = _distinct(plan.source * topology.nodes + plan.target, topology.nodes**2)
    legs = [topology.legs(*divmod(int(pair), topology.nodes), switching) for pair in pairs]
    work = _work(plan, route, legs, exclusive=exclusive)
    state = _state(work, plan.waits.copy(), topology.resources)
    serve(work, state)
    return state.times_s, state.busy_s, _link_bytes(topology, work, legs)


def _distinct(numbers: Ints, most: int) -> tuple[Ints, Ints]:
    """Distinct ones of numbers below `most` in order, and where each is among them."""
    if most > MOST_LISTED:
        found, where = np.unique(numbers, return_inverse=True)
        return found, where.astype(np.int64)
    place = np.zeros(most, np.int64)
    place[numbers] = 1
    found = np.flatnonzero(place)
    place[found] = np.arange(len(found))
    return found, place[numbers]


def _work(plan: Columns, route: Ints, legs: Sequence[tuple[Leg, ...]], *, exclusive: bool) -> RoutedMessages:
    flat = list(chain.from_iterable(legs))
    held = [leg.resources if exclusive else () for leg in flat]
    first_follower = np.concatenate([[0], np.cumsum(np.bincount(plan.before, minlength=len(plan.source)))])
    follower = np.empty(len(plan.before), np.int64)
    sort_followers(plan.waits, plan.before, first_follower[:-1].copy(), follower)
    return RoutedMessages(
        plan.size_bytes,
        plan.delay_s,
        first_follower,
        follower,
        route,
        _firsts(len(way) for way in legs),
        _firsts(len(resources) for resources in held),
        _counts(chain.from_iterable(held)),
        np.array([leg.latency_s for leg in flat], np.float64),
        np.array([leg.bandwidth_bytes_per_s for leg in flat], np.float64),
    )


def _state(work: RoutedMessages, waits: Ints, resources: int) -> EventState:
    messages = len(work.size_bytes)
    most = np.zeros(len(work.first_leg) - 1, np.int64)
    leg_route = np.repeat(np.arange(len(most)), np.diff(work.first_leg))
    np.maximum.at(most, leg_route, np.diff(work.first_resource))
    slots = int(most @ np.bincount(work.route, minlength=len(most)))  # few of which are ever touched
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


def _link_bytes(topology: Topology, work: RoutedMessages, legs: Sequence[tuple[Leg, ...]]) -> Floats:
    size = np.bincount(work.route, work.size_bytes, len(legs))
    hops = _counts(sum(len(leg.links) for leg in way) for way in legs)
    links = _counts(chain.from_iterable(leg.links for way in legs for leg in way))
    return np.bincount(links, np.repeat(size, hops), len(topology.links)).astype(np.float64)


def _counts(numbers: Iterable[int]) -> Ints:
    return np.fromiter(numbers, np.int64)


def _firsts(numbers: Iterable[int]) -> Ints:
    return _counts(chain([0], np.cumsum(_counts(numbers)).tolist()))


@njit
def sort_followers(waits: Ints, before: Ints, place: Ints, follower: Ints) -> None:
    """Write the followers of every message in order from its place on, which moves behind them."""
    k = 0
    for m in range(len(waits)):
        for _ in range(waits[m]):
            follower[place[before[k]]] = m
            place[before[k]] += 1
            k += 1


Heap = list[tuple[float, int, int]]
"""When something happens, the number of the event, the message."""


@njit
def serve(work: RoutedMessages, state: EventState) -> None:
    """Let everything happen."""
    todo = [m for m in range(len(work.size_bytes)) if state.missing[m] == 0]
    heap = [(0.0, 0, 0)]
    heap.pop()
    at_once = [0]
    now, done = 0.0, 1
    while True:
        for m in todo:
            _go_on(work, state, heap, at_once, now, m)
        todo.clear()
        if done < len(at_once) and (len(heap) == 0 or heap[0][0] > now):
            m = at_once[done]
            done += 1
        elif len(heap) > 0:
            now, _, m = heapq.heappop(heap)
        else:
            return
        _happen(work, state, todo, now, m)
        if done == len(at_once):
            at_once.clear()
            done = 0


@njit_inlined
def _go_on(
    work: RoutedMessages, state: EventState, heap: Heap, at_once: list[int], now: float, m: int
) -> None:
    """Let a message wait for its delay, arrive where it is, ask for its leg, or begin."""
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
        if state.times_s[1, m] < 0:
            state.times_s[1, m] = now
        _wait(state, heap, at_once, now, _seconds(work, state, m), m, RUNNING)


@njit_inlined
def _wait(
    state: EventState, heap: Heap, at_once: list[int], now: float, seconds: float, m: int, doing: int
) -> None:
    """Let something happen to a message later, or in this instant after all that was scheduled before."""
    state.doing[m] = doing
    if now + seconds > now:
        heapq.heappush(heap, (now + seconds, state.scheduled[0], m))
        state.scheduled[0] += 1
    else:
        at_once.append(m)


@njit_inlined
def _seconds(work: RoutedMessages, state: EventState, m: int) -> float:
    leg = state.leg[m]
    seconds: float = work.latency_s[leg] + work.size_bytes[m] / work.bandwidth_bytes_per_s[leg]
    return seconds


@njit_inlined
def _queue(work: RoutedMessages, state: EventState, m: int) -> int:
    """Put a message at the end of all queues of its leg, and return before how many others stand."""
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
def _happen(work: RoutedMessages, state: EventState, todo: list[int], now: float, m: int) -> None:
    """Let a message's event happen, and list who goes on because of it."""
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
    """Give the resources of a leg back, and list who can begin."""
    leg, seconds = state.leg[m], _seconds(work, state, m)
    for k in range(work.first_resource[leg], work.first_resource[leg + 1]):
        r = work.resource[k]
        slot = state.head[r]
        state.busy_s[r] += seconds
        state.head[r] = state.following[slot]
        state.following[slot], state.free[0] = state.free[0], slot
        if state.head[r] >= 0:
            other = state.owner[state.head[r]]
            state.blocked[other] -= 1
            if state.blocked[other] == 0:
                todo.append(other)
