"""Throughput of pipelined inference on a chip of tiles, one stage per group of tiles (PALM, V.A.3).

All stages have the same number of tiles. Each has consecutive operators, balanced by compute. All stages
work at the same time, each on its own microbatch, while tensors between stages are in flight: all contend
for links and memories. The throughput is the steady state, without warm-up and drain.

PALM states that it adjusted the mapping, but not how. Here it is the fastest of a few candidates:

- the numbers of stages and the microbatch sizes that the user lists;
- per operator, the degrees that are fastest alone, or the fastest of those with the fewest copies of weights;
- weights fetched whole by every replica, or one share per replica, gathered over the network, as a chip with
  multicast can.

`phaze tiles --inference` does not give Table V, for three reasons. It has neither 8-bit integers, nor weights
of which replicas fetch shares, nor a search over microbatches and stages. It has all operators of the
workload, in which norms and additions access memory, where Table III has products and pools only. And all
tiles of a group take each step together, while here they run ahead of each other.

The groups are simulated tile by tile with contention, or finish by formulas. Tile by tile, the activity of
all tiles is one plan of messages on the network, whose links and ports carry one transfer at a time (PALM,
Equations 2 to 5 with contention). Work is a delayed message from a tile to itself. A memory access is a
message between a memory port and a tile. A tile's messages in a collective wait for its previous work. Tiles
run ahead of others until a collective makes them wait.

The formulas (PALM, Equations 2, 4 and 5 without contention) are a lower bound. A tile does its steps one
after the other, each at least as long as with the network to itself. A link or port carries one transfer at a
time, so it is busy for the sum of the times of all its transfers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import collective
from phaze.cost.network.delivery import deliver
from phaze.cost.network.messages import Message, Plan, together
from phaze.cost.network.network import Collective, Levels, Tier, rounds
from phaze.formulas.cuts import least_worst
from phaze.formulas.flushing import interval_sums
from phaze.layout import Group
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.steady import time_per_microbatch_s
from phaze.tiles.chip import Chip, TiledMachine
from phaze.tiles.degrees import degrees_of
from phaze.tiles.operators import Degrees, TileOperator, TransformerLayer, shares
from phaze.tiles.placement import Tiles
from phaze.tiles.steps import GroupCollective, StageProgram, TileStage, TileStep
from phaze.tiles.tile import TileExecution, inference_s

Fidelity = Literal["tile-by-tile", "analytical"]
Waits = dict[int, tuple[int, ...]]
"""Indices of the messages that each tile waits for before it continues."""
TRIED = 8
"""Number of mappings simulated with contention: the fastest ones without contention."""


class Activity(NamedTuple):
    """Group of tiles that all execute the same steps."""

    tiles: Tiles
    steps: tuple[TileStep, ...]


def simulate(chip: Chip, activities: Sequence[Activity], fidelity: Fidelity) -> tuple[float, ...]:
    """Finish time of each activity in s, if all activities start at time 0."""
    return (_each if fidelity == "tile-by-tile" else _least)(chip, activities)


def _each(chip: Chip, activities: Sequence[Activity]) -> tuple[float, ...]:
    """Finish time of each activity in s, simulated tile by tile with contention."""
    plans = [_written(chip, activity) for activity in activities]
    turn = sorted((k, p) for p, plan in enumerate(plans) for k in range(len(plan)))
    arrived_s = deliver(chip.topology, together(*plans)).arrived_s
    finish_s = np.zeros(len(activities))
    np.maximum.at(finish_s, [p for _, p in turn], arrived_s)
    return tuple(finish_s.tolist())


def _written(chip: Chip, activity: Activity) -> list[Message]:
    """Messages of an activity in order: work, memory accesses and collectives of every step."""
    plan: list[Message] = []
    waits: Waits = dict.fromkeys(activity.tiles, ())
    for step in activity.steps:
        for collective_of_step in step.before:
            waits = _exchanged(plan, collective_of_step, waits)
        waits = {tile: _worked(plan, chip, tile, step, waits[tile]) for tile in activity.tiles}
        for collective_of_step in step.after:
            waits = _exchanged(plan, collective_of_step, waits)
    return plan


def _worked(
    plan: list[Message], chip: Chip, tile: int, step: TileStep, after: tuple[int, ...]
) -> tuple[int, ...]:
    """Append a tile's work, read and write to the plan; return the indices of these messages."""
    begin, access = len(plan), step.access
    plan.append(Message(tile, tile, 0.0, after, step.work_s))
    if access.read_bytes:
        plan.append(Message(chip.port(tile), tile, access.read_bytes, after))
    if access.write_bytes:
        plan.append(Message(tile, chip.port(tile), access.write_bytes, after))
    return tuple(range(begin, len(plan)))


def _exchanged(plan: list[Message], exchange: GroupCollective, waits: Waits) -> Waits:
    """Append a collective, interleaving its groups; return the messages that each tile then waits for."""
    after_waits = dict(waits)
    pattern = _pattern(exchange.kind, len(exchange.groups[0]))
    begin, count = len(plan), len(exchange.groups)
    for k, message in enumerate(pattern.plan):
        for g, group in enumerate(exchange.groups):
            source = group[message.source]
            first = waits[source] if k in pattern.first else ()
            after = (*first, *(begin + before * count + g for before in message.after))
            plan.append(
                Message(source, group[message.target], message.size_bytes * exchange.size_bytes, after)
            )
    for g, group in enumerate(exchange.groups):
        for member, ends in zip(group, pattern.ends, strict=True):
            after_waits[member] = tuple(begin + k * count + g for k in ends)
    return after_waits


class _Pattern(NamedTuple):
    """Message pattern of a one-byte collective among members 0, 1, …."""

    plan: Plan
    first: frozenset[int]
    """Index of the first message of each source."""
    ends: tuple[tuple[int, ...], ...]
    """Indices of each member's last messages: no other message from or to the member waits for them."""


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
    return _Pattern(plan, frozenset(first.values()), tuple(tuple(sorted(messages)) for messages in touching))


def _least(chip: Chip, activities: Sequence[Activity]) -> tuple[float, ...]:
    """Lower bounds on the finish times of activities in s, by formulas.

    The total load of a shared resource bounds the finish of the last activity only.
    """
    held_s = [_held_s(chip, activity) for activity in activities]
    finish_s = [
        max(_longest_s(chip, activity), float(resources_s.max(initial=0.0)))
        for activity, resources_s in zip(activities, held_s, strict=True)
    ]
    if finish_s:
        last = int(np.argmax(finish_s))
        finish_s[last] = max(finish_s[last], float(np.sum(held_s, axis=0).max(initial=0.0)))
    return tuple(finish_s)


class _Linear(NamedTuple):
    """Wait times of tiles and busy times of resources, as linear functions of the message size."""

    alone_s: Floats
    """Wait time of each tile without contention, (2, tiles): constant part, and seconds per byte."""
    held_s: Floats
    """Busy time of each resource, (2, resources): constant part, and seconds per byte."""


def _longest_s(chip: Chip, activity: Activity) -> float:
    """Time of the slowest tile over all steps in s, without contention."""
    total = np.zeros(len(activity.tiles))
    for step in activity.steps:
        for exchange in (*step.before, *step.after):
            total += _of_size(
                _ring(chip, activity.tiles, exchange.kind, exchange.groups).alone_s, exchange.size_bytes
            )
        longest = np.full(len(total), step.work_s)
        for access, size in _accesses(chip, activity.tiles, step):
            np.maximum(longest, _of_size(access.alone_s, size), out=longest)
        total += longest
    return float(total.max())


def _held_s(chip: Chip, activity: Activity) -> Floats:
    """Busy time of each resource in s, (resources,)."""
    held_s = np.zeros(chip.topology.resources)
    for step in activity.steps:
        for exchange in (*step.before, *step.after):
            held_s += _of_size(
                _ring(chip, activity.tiles, exchange.kind, exchange.groups).held_s, exchange.size_bytes
            )
        for access, size in _accesses(chip, activity.tiles, step):
            held_s += _of_size(access.held_s, size)
    return held_s


def _of_size(linear: Floats, size_bytes: float) -> Floats:
    return np.asarray(linear[0] + size_bytes * linear[1])


def _accesses(chip: Chip, tiles: Tiles, step: TileStep) -> list[tuple[_Linear, float]]:
    """Timing functions of a step's read and write, each with the bytes per tile."""
    sizes = (False, step.access.read_bytes), (True, step.access.write_bytes)
    return [(_access(chip, tiles, write), size) for write, size in sizes if size]


@lru_cache(maxsize=1024)
def _access(chip: Chip, tiles: Tiles, write: bool) -> _Linear:
    """Times of a read or write by every tile, as a linear function of its size."""
    pairs = [(tile, chip.port(tile)) for tile in tiles]
    return _linear(chip, tiles, [pair if write else pair[::-1] for pair in pairs], tiles)


@lru_cache(maxsize=1024)
def _ring(chip: Chip, tiles: Tiles, kind: Collective, groups: tuple[Tiles, ...]) -> _Linear:
    """Times of a collective on rings, with equal rounds; a member waits for its own messages only."""
    width = len(groups[0])
    pairs = [pair for group in groups for pair in zip(group, (*group[1:], group[0]), strict=True)]
    linear = _linear(chip, tiles, pairs, [source for source, _ in pairs])
    scale = np.array([[1.0], [1.0 / width]]) * rounds(kind, width)
    return _Linear(scale * linear.alone_s, scale * linear.held_s)


def _linear(chip: Chip, tiles: Tiles, pairs: Sequence[tuple[int, int]], waiting: Sequence[int]) -> _Linear:
    """Times of messages between pairs of nodes; `waiting` is the tile that waits for each message."""
    place = {tile: k for k, tile in enumerate(tiles)}
    alone, held_s = np.zeros((2, len(tiles))), np.zeros((2, chip.topology.resources))
    for (source, target), tile in zip(pairs, waiting, strict=True):
        for leg in chip.topology.legs(source, target):
            seconds = leg.latency_s, 1.0 / leg.bandwidth_bytes_per_s
            alone[:, place[tile]] += seconds
            held_s[:, list(leg.resources)] += np.array(seconds)[:, np.newaxis]
    return _Linear(alone, held_s)


def balanced_starts(compute_s: Floats, stages: int) -> tuple[int, ...]:
    """First operator of each stage in the pipeline split that minimises the load of the slowest stage.

    `compute_s` (n,) is the time of each operator. On ties the first stages get as many operators as possible.
    """
    n = len(compute_s)
    if not 1 <= stages <= n:
        raise PhazeError(f"pipeline: stages must be between 1 and the {n} operators, got {stages}")
    load = interval_sums(compute_s)
    worst = _least_worst(load, stages)
    starts = [0]
    for stages_left in range(stages - 1, 0, -1):
        ends = np.arange(starts[-1] + 1, n - stages_left + 1)
        starts.append(int(ends[load[starts[-1], ends] <= worst].max()))
    return tuple(starts)


def _least_worst(load: Floats, stages: int) -> float:
    """Minimum load of the slowest stage over all pipeline splits."""
    n = len(load)
    anything: Ints = np.full(load.shape, stages, np.int64)
    table = least_worst(
        load[:, n], load, np.zeros_like(load), anything, np.zeros(load.shape, bool), stages, 0
    )
    return float(table[stages, 0, 0])


Numbers = Literal["half", "int8"]
"""Number format: 16-bit floating point, or 8-bit integers at the tile's int8 rate."""
Fetched = Literal["own", "shared"]
"""Weight fetch: every replica fetches all of its weights, or fetches a share and gathers the rest."""

Samples = Callable[[int], tuple[TileOperator, ...]]
"""Function from the microbatch size, in samples, to the operators of the model."""


@dataclass(frozen=True)
class Throughput:
    """Mapping of a model to groups of tiles, with its steady-state throughput."""

    programs: tuple[StageProgram, ...]
    """Step program of each stage."""
    microbatch: int
    samples_per_s: float
    stage_s: tuple[float, ...]
    """Time of each stage per microbatch, while all stages work."""
    send_s: tuple[float, ...]
    """Transfer time of the tensor from each stage to the next."""

    @property
    def utilisation(self) -> float:
        """Achieved FLOP/s as a share of the peak of the mapped tiles."""
        tiles = [len(program.stage.tiles) for program in self.programs]
        flops = sum(program.flops * count for program, count in zip(self.programs, tiles, strict=True))
        peak = sum(tiles) * self.programs[0].chip.tile.flops
        return flops * self.samples_per_s / self.microbatch / peak


@dataclass(frozen=True)
class TileMappings:
    """Candidate mappings: numbers of stages, microbatch sizes, and modes of fetching weights."""

    stages: tuple[int, ...]
    microbatches: tuple[int, ...]
    fetched: tuple[Fetched, ...] = ("own", "shared")


def fastest(machine: TiledMachine, operators: Samples, numbers: Numbers, choices: TileMappings) -> Throughput:
    """Fastest candidate mapping under contention, with its throughput.

    Only the `TRIED` mappings that are fastest without contention are simulated with it. Raises `PhazeError`
    if no candidate is possible.
    """
    chip, order = in_numbers(machine, numbers), column_by_column(machine)
    size = 1 if numbers == "int8" else 2
    candidates = [
        throughput(programs, microbatch, "analytical")
        for fetched, microbatch, stages in product(choices.fetched, choices.microbatches, choices.stages)
        for programs in mappings(
            chip, order, operators(microbatch), stages,
            TileExecution(training=False, element_bytes=size, shared=fetched == "shared"),
        )
    ]  # fmt: skip
    if not candidates:
        raise PhazeError(f"system {machine.name}: none of the mappings asked for is possible")
    few = sorted(candidates, key=lambda candidate: -candidate.samples_per_s)[:TRIED]
    simulated = [throughput(candidate.programs, candidate.microbatch, "tile-by-tile") for candidate in few]
    return max(simulated, key=lambda candidate: candidate.samples_per_s)


def in_numbers(machine: TiledMachine, numbers: Numbers) -> Chip:
    """Chip whose arrays are enlarged to match the speed-up of a number format (int8 or half)."""
    tile = machine.device.tile
    rate = tile.int8_rate if numbers == "int8" else 1
    side = isqrt(rate)
    down, across = (side, side) if side * side == rate else (1, rate)
    wider = tile.model_copy(update={"pe_x": tile.pe_x * down, "pe_y": tile.pe_y * across})
    return replace(machine.chip, tile=wider)


def column_by_column(machine: TiledMachine) -> Tiles:
    """Tiles in column order, with every other column reversed, so that consecutive tiles are close."""
    columns: dict[int, list[int]] = {}
    for tile in machine.tiles:
        columns.setdefault(machine.grid.place(tile)[1], []).append(tile)
    return tuple(
        tile
        for turn, column in enumerate(sorted(columns))
        for tile in (columns[column] if turn % 2 == 0 else columns[column][::-1])
    )


def mappings(
    chip: Chip, order: Tiles, operators: tuple[TileOperator, ...], stages: int, execution: TileExecution
) -> Iterator[tuple[StageProgram, ...]]:
    """Yield the candidate mappings with the given number of stages.

    None if there are fewer operators than stages, or if the stages do not divide the tiles.
    """
    if stages > len(operators) or len(order) % stages:
        return
    size = len(order) // stages
    flops = np.array([sum(share.flops for share in shares(operator, (1, 1, 1, 1))) for operator in operators])
    starts = (*balanced_starts(flops, stages), len(operators))
    both = [_best(chip, size, operator, execution.element_bytes) for operator in operators]
    for degrees in dict.fromkeys(zip(*both, strict=True)):
        cut = tuple((operator, degree) for operator, degree in zip(operators, degrees, strict=True) if degree)
        if len(cut) == len(operators):
            yield tuple(
                StageProgram(chip, TileStage(order[k * size : (k + 1) * size], cut[first:last]), execution)
                for k, (first, last) in enumerate(pairwise(starts))
            )


def throughput(programs: tuple[StageProgram, ...], microbatch: int, fidelity: Fidelity) -> Throughput:
    """Steady-state throughput of a mapping, with all stages at work."""
    chip = programs[0].chip
    activities = [Activity(program.stage.tiles, program.steps("forward")) for program in programs]
    stage_s = simulate(chip, activities, fidelity)
    send_s = _sends(chip, programs)
    costs = tuple(
        StageCost(forward_s=forward_s, send_activation_s=send)
        for forward_s, send in zip(stage_s, send_s, strict=True)
    )
    one_s = time_per_microbatch_s(Pipeline(costs, len(costs), "inference"))
    return Throughput(programs, microbatch, microbatch / one_s, stage_s, send_s)


def _sends(chip: Chip, programs: tuple[StageProgram, ...]) -> tuple[float, ...]:
    """Transfer time from each stage to the next in s, if all send at once; 0 for the last stage."""
    plan = [
        Message(a, b, sent.sizes[-1].outputs)
        for sent, received in pairwise(programs)
        for a, b in zip(sent.stage.tiles, received.stage.tiles, strict=True)
    ]
    if not plan:
        return (0.0,)
    arrived = deliver(chip.topology, plan).arrived_s.reshape(len(programs) - 1, -1)
    return (*arrived.max(axis=1).tolist(), 0.0)


@lru_cache(maxsize=16384)
def _best(
    chip: Chip, tiles: int, operator: TileOperator, element_bytes: int
) -> tuple[Degrees | None, Degrees | None]:
    """Fastest split of an operator over tiles, and the fastest one that stores the fewest weights per tile.

    None if the operator cannot be cut into one part per tile. All-reduces are rings of neighbours.
    """
    ring = Levels((Tier(chip.grid.tiles, chip.wires.bandwidth_bytes_per_s, chip.wires.latency_s),))
    possible: list[tuple[float, Degrees, float]] = []
    for degrees in degrees_of(tiles, 2 if isinstance(operator, TransformerLayer) else 4):
        try:
            parts = shares(operator, degrees)
        except PhazeError:
            continue
        seconds = sum(
            inference_s(chip.tile, share, element_bytes)
            + sum(
                ring.seconds("all_reduce", reduction.elements * element_bytes, Group(reduction.width, 1))
                for reduction in share.along("forward")
            )
            for share in parts
        )
        possible.append((seconds, degrees, sum(share.weights for share in parts)))
    if not possible:
        return None, None
    once = min((weights, seconds, degrees) for seconds, degrees, weights in possible)
    return min(possible)[1], once[2]
