"""Simulated annealing over mappings. A move swaps two devices, or a device in use with a free one.

The search minimises the simulated step time, or the longest stage time of an instantiation. Both are the
maximum over stages of the slowest replica's time plus an all-reduce. A swap therefore changes only two
replicas and two rings; for all others the three slowest replicas of each stage are stored. A maximum over
many terms gives the search little direction. The mean over all replica times and ring links is therefore
added, with a weight that decays to almost zero. Half of the slots to move are drawn from the slowest replica
or ring, and most target devices lie near a neighbour's device.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit, njit_nogil
from phaze.base.deadline import Deadline, slices
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.map.objective import MappingProblem
from phaze.map.schemes import LinkTimes
from phaze.pipeline.gpipe import StageArrays, pass_through, stage_arrays
from phaze.workload.operator_graphs import StageGraph


class AnnealingTask(NamedTuple):
    """Objective of the annealing, and its inputs."""

    simulated: bool
    """True to minimise the simulated step time, False for the longest stage time."""
    work: StageArrays
    replicas: int
    links: LinkTimes


def step_task(stages: StageGraph, network: DeviceNetwork, memory_bytes_per_s: float) -> AnnealingTask:
    """Task that minimises the simulated step time."""
    problem = MappingProblem(stages, network, "exact")
    return _task(problem, stage_arrays(stages, memory_bytes_per_s, network.slowness), simulated=True)


def stage_task(problem: MappingProblem) -> AnnealingTask:
    """Task that minimises the longest stage time of an instantiation."""
    work = stage_arrays(problem.stages, math.inf, problem.network.slowness)
    counted = work._replace(edges=problem.edges, sizes=problem.edge_bytes, update=np.zeros_like(work.update))
    task = _task(problem, counted, simulated=False)
    if problem.counts_rings:
        return task
    links = task.links._replace(ring_bytes=np.zeros_like(task.links.ring_bytes), ring_waits=0.0)
    return task._replace(links=links)


def _task(problem: MappingProblem, work: StageArrays, *, simulated: bool) -> AnnealingTask:
    return AnnealingTask(simulated, work, problem.stages.replicas, LinkTimes.of(problem))


class AnnealingState(NamedTuple):
    """A mapping with its stage times."""

    at: Ints
    """Device of each slot, then the free devices, shape (D,). Slot s R + r is replica r of stage s."""
    place: Ints
    """Slot of each device, shape (D,)."""
    times: Floats
    """Time of each replica of each stage without its all-reduce, shape (S, R)."""
    rings: Floats
    """Time of the slowest link of each stage's ring, shape (S,)."""
    sums: Floats
    """Sum of the link times of each stage's ring, shape (S,)."""
    top: Ints
    """The three slowest replicas of each stage, padded with -1, shape (S, 3)."""
    columns: Floats
    """New times of the two replicas that a swap changes, shape (2, S)."""
    devices: Ints
    """Devices of one replica, shape (S,)."""
    scratch: Floats


class SlotSwap(NamedTuple):
    """Effect of swapping two slots."""

    value: float
    """Objective after the swap."""
    spread: float
    """Mean of replica times and ring links, up to a constant."""
    worst: int
    """Stage with the longest time."""
    ring_a: float
    sum_a: float
    ring_b: float
    sum_b: float


def new_state(task: AnnealingTask, start: Ints) -> AnnealingState:
    """Allocate the state of a mapping; its times are not yet computed."""
    stages, replicas = len(task.work.forward), task.replicas
    return AnnealingState(
        start.copy(),
        np.argsort(start),
        np.empty((stages, replicas)),
        np.empty(stages),
        np.empty(stages),
        np.empty((stages, 3), np.int64),
        np.empty((2, stages)),
        np.empty(stages, np.int64),
        np.empty(stages + len(task.work.edges)),
    )


@njit
def replica_times(task: AnnealingTask, devices: Ints, times: Floats, scratch: Floats) -> None:
    """Write the time of each stage of one replica without its all-reduce, shape (S,)."""
    if task.simulated:
        pass_through(task.work, devices, task.links.seconds, task.links.waits, times, scratch)
        return
    work = task.work
    for s in range(len(times)):
        times[s] = (work.forward[s] + work.backward[s]) * work.slowness[devices[s]]
    for e in range(len(work.edges)):
        s, t = work.edges[e]
        d, c = devices[s], devices[t]
        cost = work.sizes[e] * task.links.message[d, c] + task.links.message_wait[d, c]
        times[s] += cost
        times[t] += cost


@njit
def _link(task: AnnealingTask, stage: int, source: int, target: int) -> float:
    wait = task.links.ring_waits * task.links.waits[source, target]
    return float(wait + task.links.ring_bytes[stage] * task.links.seconds[source, target])


@njit
def _ring(task: AnnealingTask, at: Ints, stage: int) -> tuple[float, float]:
    """Slowest link time of a stage's ring and the sum of its link times."""
    slowest, total, replicas = 0.0, 0.0, task.replicas
    if replicas > 1:
        for r in range(replicas):
            time = _link(task, stage, at[stage * replicas + r], at[stage * replicas + (r + 1) % replicas])
            slowest = max(slowest, time)
            total += time
    return slowest, total


@njit
def _rank(times: Floats, top: Ints, stage: int) -> None:
    """Write the three slowest replicas of a stage into `top`."""
    for k in range(3):
        top[stage, k] = -1
    for r in range(times.shape[1]):
        value = times[stage, r]
        k = 3
        while k > 0 and (top[stage, k - 1] < 0 or value > times[stage, top[stage, k - 1]]):
            if k < 3:
                top[stage, k] = top[stage, k - 1]
            k -= 1
        if k < 3:
            top[stage, k] = r


@njit
def _column(task: AnnealingTask, state: AnnealingState, replica: int, which: int) -> None:
    """Write the stage times of a replica into row `which` of `columns`."""
    for s in range(len(task.work.forward)):
        state.devices[s] = state.at[s * task.replicas + replica]
    replica_times(task, state.devices, state.columns[which], state.scratch)


@njit
def _measure(task: AnnealingTask, state: AnnealingState) -> SlotSwap:
    """Compute all times of a mapping and its objective from scratch."""
    stages, n = len(task.work.forward), len(task.work.forward) * task.replicas
    for r in range(task.replicas):
        _column(task, state, r, 0)
        for s in range(stages):
            state.times[s, r] = state.columns[0, s]
    value, worst = -1.0, 0
    for s in range(stages):
        state.rings[s], state.sums[s] = _ring(task, state.at, s)
        _rank(state.times, state.top, s)
        reached = state.times[s, state.top[s, 0]] + state.rings[s] + task.work.update[s]
        if reached > value:
            value, worst = reached, s
    return SlotSwap(value, (state.times.sum() + state.sums.sum()) / n, worst, 0.0, 0.0, 0.0, 0.0)


@njit
def _draw_slot(task: AnnealingTask, state: AnnealingState, worst: int, rng: np.random.Generator) -> int:
    """Draw a slot: 25 % from the slowest replica, 25 % from the slowest stage's ring, 50 % from all."""
    stages, replicas = len(task.work.forward), task.replicas
    kind = rng.random()
    if kind < 0.25:
        return int(rng.random() * stages) * replicas + int(state.top[worst, 0])
    if kind < 0.5:
        return worst * replicas + int(rng.random() * replicas)
    return int(rng.random() * stages * replicas)


@njit
def _draw_neighbour(task: AnnealingTask, slot: int, rng: np.random.Generator) -> int:
    """Draw a communication partner of a slot; -1 if the drawn edge or ring link has none."""
    stage, replica = slot // task.replicas, slot % task.replicas
    count = len(task.work.edges)
    pick = int(rng.random() * (count + 2))
    if pick >= count:
        if task.replicas == 1:
            return -1
        other = replica + 1 if pick == count else replica - 1
        return stage * task.replicas + other % task.replicas
    if task.work.edges[pick, 0] == stage:
        return int(task.work.edges[pick, 1] * task.replicas + replica)
    if task.work.edges[pick, 1] == stage:
        return int(task.work.edges[pick, 0] * task.replicas + replica)
    return -1


@njit
def _draw_place(
    task: AnnealingTask, state: AnnealingState, near: Ints, slot: int, rng: np.random.Generator
) -> int:
    """Draw a slot to swap with: 70 % near a communication partner, 30 % from all. May be the slot itself."""
    devices = len(state.at)
    if rng.random() < 0.7:
        neighbour = _draw_neighbour(task, slot, rng)
        if neighbour < 0:
            return slot
        rank = int(near.shape[1] * rng.random() ** 4)
        return int(state.place[near[state.at[neighbour], rank]])
    return int(rng.random() * devices)


@njit
def _others_s(state: AnnealingState, stage: int, a: int, b: int) -> float:
    """Time of a stage's slowest replica other than `a` and `b`; 0 if there is none."""
    for k in range(3):
        r = state.top[stage, k]
        if r >= 0 and r != a and r != b:
            return float(state.times[stage, r])
    return 0.0


@njit
def _judge(task: AnnealingTask, state: AnnealingState, a: int, b: int, spread: float) -> SlotSwap:
    """Objective after swapping slots `a` and `b`; slot `b` may be a free device."""
    stages, replicas = len(task.work.forward), task.replicas
    n = stages * replicas
    sa, ra = a // replicas, a % replicas
    sb, rb = (b // replicas, b % replicas) if b < n else (sa, ra)
    _column(task, state, ra, 0)
    if rb != ra:
        _column(task, state, rb, 1)
    ring_a, sum_a = _ring(task, state.at, sa)
    ring_b, sum_b = (ring_a, sum_a) if sb == sa else _ring(task, state.at, sb)
    value, worst = 0.0, 0
    gained = sum_a - state.sums[sa] + (sum_b - state.sums[sb] if sb != sa else 0.0)
    for s in range(stages):
        longest = max(state.columns[0, s], _others_s(state, s, ra, rb))
        gained += state.columns[0, s] - state.times[s, ra]
        if rb != ra:
            longest = max(longest, state.columns[1, s])
            gained += state.columns[1, s] - state.times[s, rb]
        ring = ring_a if s == sa else (ring_b if s == sb else state.rings[s])
        if longest + ring + task.work.update[s] > value:
            value, worst = longest + ring + task.work.update[s], s
    return SlotSwap(value, spread + gained / n, worst, ring_a, sum_a, ring_b, sum_b)


@njit
def _accept(task: AnnealingTask, state: AnnealingState, a: int, b: int, change: SlotSwap) -> None:
    """Update the state with an accepted swap."""
    stages, replicas = len(task.work.forward), task.replicas
    sa, ra = a // replicas, a % replicas
    sb, rb = (b // replicas, b % replicas) if b < stages * replicas else (sa, ra)
    state.place[state.at[a]], state.place[state.at[b]] = a, b
    state.rings[sa], state.sums[sa] = change.ring_a, change.sum_a
    state.rings[sb], state.sums[sb] = change.ring_b, change.sum_b
    for s in range(stages):
        state.times[s, ra] = state.columns[0, s]
        if rb != ra:
            state.times[s, rb] = state.columns[1, s]
        _rank(state.times, state.top, s)


class Walk(NamedTuple):
    """State of an annealing chain between time slices."""

    values: Floats
    """Current objective, current spread, objective at the start, and best objective, shape (4,)."""
    worst: Ints
    """Stage with the longest time in the current mapping, shape (1,)."""
    best: Ints
    """Device of each slot in the best mapping, shape (D,)."""


class Cooling(NamedTuple):
    """Number of steps of an annealing chain, and its temperatures relative to the objective at the start."""

    steps: int
    hot: float
    """First temperature."""
    cold: float
    """Last temperature."""


def anneal(
    task: AnnealingTask,
    state: AnnealingState,
    near: Ints,
    rng: np.random.Generator,
    cooling: Cooling,
    deadline: Deadline | None = None,
) -> tuple[Ints, float]:
    """Run a chain to its end or the deadline; return the best device of every slot and the objective."""
    walk = _begin(task, state)
    for begin, end in slices(cooling.steps, deadline or Deadline()):
        _walk(task, state, near, rng, walk, cooling, begin, end)
    return walk.best, float(walk.values[3])


@njit
def _begin(task: AnnealingTask, state: AnnealingState) -> Walk:
    """Initial state of an annealing chain."""
    now = _measure(task, state)
    values = np.array([now.value, now.spread, now.value, now.value])
    return Walk(values, np.array([now.worst]), state.at.copy())


@njit_nogil
def _walk(
    task: AnnealingTask,
    state: AnnealingState,
    near: Ints,
    rng: np.random.Generator,
    walk: Walk,
    cooling: Cooling,
    begin: int,
    end: int,
) -> None:
    """Run annealing steps `begin` to `end`."""
    hot, cold = cooling.hot, cooling.cold
    value, spread, scale, best_value = walk.values[0], walk.values[1], walk.values[2], walk.values[3]
    worst, at = walk.worst[0], state.at
    for step in range(begin, end):
        share = step / cooling.steps
        a = _draw_slot(task, state, worst, rng)
        b = _draw_place(task, state, near, a, rng)
        if a == b:
            continue
        at[a], at[b] = at[b], at[a]
        change = _judge(task, state, a, b, spread)
        weight = (1.0 - share) ** 2 + 0.01
        increase = change.value - value + weight * (change.spread - spread)
        if increase > 0 and rng.random() >= np.exp(-increase / (scale * hot * (cold / hot) ** share)):
            at[a], at[b] = at[b], at[a]
            continue
        _accept(task, state, a, b, change)
        value, spread, worst = change.value, change.spread, change.worst
        if value < best_value:
            best_value = value
            walk.best[:] = at
    walk.values[0], walk.values[1], walk.values[3], walk.worst[0] = value, spread, best_value, worst
