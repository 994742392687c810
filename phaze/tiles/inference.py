"""Inference on a chip of tiles: stages on groups of tiles, microbatch after microbatch (PALM, V.A.3).

Every stage has as many tiles as the others and some of the operators in their order, balanced by compute.
While it works on a microbatch, the others work on theirs, and tensors between stages are on their way: all
contend for links and memories. The throughput is that in the long run, without set-up and drain.

PALM says that it adjusted the mapping, not how. Here it is the fastest of a few: numbers of stages and
microbatches that are asked for; of each operator the degrees that make it fastest alone, or those that do so
while its weights are held once; weights fetched by every replica, or a share by each and gathered over the
network, as a chip with multicast can.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise, product
from math import isqrt, prod
from typing import Literal

import numpy as np

from phaze.base.errors import PhazeError
from phaze.cost.network.delivery import deliver
from phaze.cost.network.messages import Message
from phaze.cost.network.network import Levels, Tier
from phaze.layout import Group
from phaze.pipeline.balance import balanced_starts
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.steady import time_per_microbatch_s
from phaze.tiles.chip import Chip, TiledMachine
from phaze.tiles.operators import Degrees, TileOperator, TransformerLayer, shares
from phaze.tiles.placement import Tiles
from phaze.tiles.simulate import Activity, Fidelity, simulate
from phaze.tiles.steps import StageProgram, TileStage
from phaze.tiles.tile import TileExecution, inference_s

Numbers = Literal["half", "int8"]
"""16-bit floating point, or 8-bit integers at the rate of the tile."""
TRIED = 8
"""Mappings that are simulated with contention, those that are fastest without."""
Fetched = Literal["own", "shared"]
"""Whether every replica fetches its weights, or a share of them and gathers the others'."""

Samples = Callable[[int], tuple[TileOperator, ...]]
"""Operators for a microbatch of so many samples."""


@dataclass(frozen=True)
class Throughput:
    """A mapping of a model to groups of tiles, and what it reaches in the long run."""

    programs: tuple[StageProgram, ...]
    """Of every stage."""
    microbatch: int
    samples_per_s: float
    stage_s: tuple[float, ...]
    """Time of every stage for a microbatch, while all work."""
    send_s: tuple[float, ...]
    """Time of the tensor from every stage to the next one."""

    @property
    def utilisation(self) -> float:
        """Share of the peak of the groups' tiles."""
        tiles = [len(program.stage.tiles) for program in self.programs]
        flops = sum(program.flops * count for program, count in zip(self.programs, tiles, strict=True))
        peak = sum(tiles) * self.programs[0].chip.tile.flops
        return flops * self.samples_per_s / self.microbatch / peak


@dataclass(frozen=True)
class TileMappings:
    """Mappings to choose from."""

    stages: tuple[int, ...]
    microbatches: tuple[int, ...]
    fetched: tuple[Fetched, ...] = ("own", "shared")


def fastest(machine: TiledMachine, operators: Samples, numbers: Numbers, choices: TileMappings) -> Throughput:
    """Throughput of the fastest mapping, of those that are fastest without contention."""
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
    """Chip with the arrays that it has for such numbers."""
    tile = machine.device.tile
    rate = tile.int8_rate if numbers == "int8" else 1
    side = isqrt(rate)
    down, across = (side, side) if side * side == rate else (1, rate)
    wider = tile.model_copy(update={"pe_x": tile.pe_x * down, "pe_y": tile.pe_y * across})
    return replace(machine.chip, tile=wider)


def column_by_column(machine: TiledMachine) -> Tiles:
    """Tiles in columns, every other one backward, so that those that follow are near."""
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
    """Yield the mappings with so many stages, none where operators or tiles do not go into them."""
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
    """Throughput of a mapping while all stages are at work."""
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
    """Seconds of tensors between stages, all of them at once; the last one goes nowhere."""
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
    """Degrees with which an operator is done first; and those if its weights are held once.

    None where it cannot be cut into so many parts. All-reduces are rings of neighbours.
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
    """All degrees whose product is a size, ones after so many axes."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    found = [some for some in product(divisors, repeat=axes) if prod(some) == size]
    return tuple((*some, *(1,) * (4 - axes)) for some in found)  # type: ignore[misc]
