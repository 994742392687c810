"""Throughput of pipelined inference on a chip of tiles, one stage per group of tiles (PALM, V.A.3).

All stages have the same number of tiles. Each has consecutive operators, balanced by compute. All stages
work at the same time, each on its own microbatch, while tensors between stages are in flight: all contend
for links and memories. The throughput is the steady state, without warm-up and drain.

PALM states that it adjusted the mapping, but not how. Here it is the fastest of a few candidates:

- the numbers of stages and the microbatch sizes that the user lists;
- per operator, the degrees that are fastest alone, or the fastest of those with the fewest copies of weights;
- weights fetched whole by every replica, or one share per replica, gathered over the network, as a chip with
  multicast can.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from math import isqrt, prod
from typing import Literal

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.network.delivery import deliver
from phaze.cost.network.messages import Message
from phaze.cost.network.network import Levels, Tier
from phaze.layout import Group
from phaze.pipeline.cuts import least_worst
from phaze.pipeline.flushing import interval_sums
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.steady import time_per_microbatch_s
from phaze.tiles.chip import Chip, TiledMachine
from phaze.tiles.operators import Degrees, TileOperator, TransformerLayer, shares
from phaze.tiles.placement import Tiles
from phaze.tiles.simulate import Activity, Fidelity, simulate
from phaze.tiles.steps import StageProgram, TileStage
from phaze.tiles.tile import TileExecution, inference_s

TRIED = 8
"""Number of mappings simulated with contention: the fastest ones without contention."""


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
    for left in range(stages - 1, 0, -1):
        ends = np.arange(starts[-1] + 1, n - left + 1)
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
    found = [
        throughput(programs, microbatch, "analytical")
        for fetched, microbatch, stages in product(choices.fetched, choices.microbatches, choices.stages)
        for programs in mappings(
            chip, order, operators(microbatch), stages,
            TileExecution(training=False, element_bytes=size, shared=fetched == "shared"),
        )
    ]  # fmt: skip
    if not found:
        raise PhazeError(f"system {machine.name}: none of the mappings asked for is possible")
    few = sorted(found, key=lambda some: -some.samples_per_s)[:TRIED]
    again = [throughput(some.programs, some.microbatch, "tile-by-tile") for some in few]
    return max(again, key=lambda some: some.samples_per_s)


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
    whole = np.array([sum(share.flops for share in shares(each, (1, 1, 1, 1))) for each in operators])
    starts = (*balanced_starts(whole, stages), len(operators))
    both = [_best(chip, size, each, execution.element_bytes) for each in operators]
    for degrees in dict.fromkeys(zip(*both, strict=True)):
        cut = tuple((each, some) for each, some in zip(operators, degrees, strict=True) if some)
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
        StageCost(forward_s=own, send_activation_s=send) for own, send in zip(stage_s, send_s, strict=True)
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
    for degrees in _of_product(tiles, 2 if isinstance(operator, TransformerLayer) else 4):
        try:
            parts = shares(operator, degrees)
        except PhazeError:
            continue
        seconds = sum(
            inference_s(chip.tile, share, element_bytes)
            + sum(
                ring.seconds("all_reduce", some.elements * element_bytes, Group(some.width, 1))
                for some in share.along("forward")
            )
            for share in parts
        )
        possible.append((seconds, degrees, sum(share.weights for share in parts)))
    if not possible:
        return None, None
    once = min((weights, seconds, degrees) for seconds, degrees, weights in possible)
    return min(possible)[1], once[2]


@lru_cache(maxsize=64)
def _of_product(size: int, axes: int) -> tuple[Degrees, ...]:
    """All tuples of degrees with product `size`, with degree 1 on all axes after the first `axes`."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    found = [some for some in product(divisors, repeat=axes) if prod(some) == size]
    return tuple((*some, *(1,) * (4 - axes)) for some in found)  # type: ignore[misc]
