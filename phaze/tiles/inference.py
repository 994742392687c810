"""Inference on a chip of tiles: stages on groups of tiles, microbatch after microbatch (PALM, V.A.3).

Every stage has as many tiles as the others and some of the operators in their order, balanced by compute.
While it works on a microbatch, the others work on theirs, and tensors between stages are on their way: all
contend for links and memories. The throughput is that in the long run, without set-up and drain.

PALM says that it adjusted the mapping, not how. Here it is the fastest of a few: numbers of stages and
microbatches that are asked for; of each operator the degrees that make it fastest alone, or those that do so
while its weights are held once; weights fetched by every replica, or a share by each and gathered over the
network, as a chip with multicast can.
"""

from collections.abc import Callable, Iterator, Sequence
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
from phaze.tiles.group import Fidelity, simulate
from phaze.tiles.operators import Degrees, Operator, Share, Transformer, shares
from phaze.tiles.placement import Tiles
from phaze.tiles.steps import Activity, Mode, Program, Stage
from phaze.tiles.tile import Training, forward_work

Numbers = Literal["half", "int8"]
"""16-bit floating point, or 8-bit integers at the rate of the tile."""
TRIED = 8
"""Mappings that are simulated with contention, those that are fastest without."""
Fetched = Literal["own", "shared"]
"""Whether every replica fetches its weights, or a share of them and gathers the others'."""

Samples = Callable[[int], tuple[Operator, ...]]
"""Operators for a microbatch of so many samples."""


@dataclass(frozen=True)
class Mapped:
    """Stages of a model on groups of tiles."""

    chip: Chip
    stages: tuple[Stage, ...]
    mode: Mode
    microbatch: int

    @property
    def fetched(self) -> Fetched:
        """Return how weights are fetched."""
        return "shared" if self.mode.training.zero else "own"

    @property
    def programs(self) -> tuple[Program, ...]:
        """Return what the tiles of every stage do."""
        return tuple(Program(self.chip, stage, self.mode) for stage in self.stages)


@dataclass(frozen=True)
class Throughput:
    """What a mapping reaches in the long run."""

    mapped: Mapped
    samples_per_s: float
    stage_s: tuple[float, ...]
    """Time of every stage for a microbatch, while all work."""
    send_s: tuple[float, ...]
    """Time of the tensor from every stage to the next one."""
    utilisation: float
    """Share of the peak of the group's tiles."""


def in_numbers(machine: TiledMachine, numbers: Numbers) -> Chip:
    """Return the chip with the arrays that it has for such numbers."""
    rate = machine.device.tile.int8_rate if numbers == "int8" else 1
    side = isqrt(rate)
    down, across = (side, side) if side * side == rate else (1, rate)
    tile = machine.tile
    return replace(machine.chip, tile=replace(tile, rows=tile.rows * down, columns=tile.columns * across))


def mode_of(numbers: Numbers, fetched: Fetched = "own") -> Mode:
    """Return inference in such numbers."""
    size = 1 if numbers == "int8" else None
    return Mode(Training(False, precision="half", element_bytes=size, zero=3 if fetched == "shared" else 0))


@dataclass(frozen=True)
class Family:
    """Mappings to choose from."""

    stages: tuple[int, ...]
    microbatches: tuple[int, ...]
    fetched: tuple[Fetched, ...] = ("own", "shared")


def fastest(
    machine: TiledMachine,
    operators: Samples,
    numbers: Numbers,
    family: Family,
    fidelity: Fidelity = "tile-by-tile",
) -> Throughput:
    """Return the throughput of the fastest mapping, of those that are fastest without contention."""
    chip = in_numbers(machine, numbers)
    order = column_by_column(machine)
    choices = product(family.fetched, family.microbatches, family.stages)
    found = [
        throughput(mapped, "analytical")
        for fetched, microbatch, stages in choices
        for mapped in mappings(
            chip, order, operators(microbatch), stages, mode_of(numbers, fetched), microbatch
        )
    ]
    if not found:
        raise PhazeError(f"system {machine.name}: none of the mappings asked for is possible")
    few = sorted(found, key=lambda some: -some.samples_per_s)[:TRIED]
    again = [throughput(some.mapped, fidelity) for some in few]
    return max(again, key=lambda some: some.samples_per_s)


def column_by_column(machine: TiledMachine) -> Tiles:
    """Return the tiles in columns, every other one backward, so that those that follow are near."""
    grid = machine.grid
    columns: dict[int, list[int]] = {}
    for tile in machine.tiles:
        columns.setdefault(grid.place(tile)[1], []).append(tile)
    return tuple(
        tile
        for turn, column in enumerate(sorted(columns))
        for tile in (columns[column] if turn % 2 == 0 else columns[column][::-1])
    )


def mappings(
    chip: Chip, order: Tiles, operators: tuple[Operator, ...], stages: int, mode: Mode, microbatch: int
) -> Iterator[Mapped]:
    """Yield the mappings with so many stages, none where operators or tiles do not go into them."""
    if stages > len(operators) or len(order) % stages:
        return
    size = len(order) // stages
    starts = (*balanced_starts(_flops(operators), stages), len(operators))
    width = mode.training.activation_bytes
    both = [_best(chip, size, replace(each, name="alone"), width) for each in operators]
    for degrees in dict.fromkeys(zip(*both, strict=True)):
        cut = tuple((each, some) for each, some in zip(operators, degrees, strict=True) if some)
        if len(cut) == len(operators):
            groups = (
                Stage(order[k * size : (k + 1) * size], cut[first:last])
                for k, (first, last) in enumerate(pairwise(starts))
            )
            yield Mapped(chip, tuple(groups), mode, microbatch)


def throughput(mapped: Mapped, fidelity: Fidelity) -> Throughput:
    """Return what a mapping reaches while all stages are at work."""
    programs = mapped.programs
    activities = [Activity(program.stage.tiles, program.steps("forward")) for program in programs]
    stage_s = simulate(mapped.chip, activities, fidelity).finish_s
    send_s = _sends(mapped, programs)
    costs = tuple(
        StageCost(forward_s=own, send_activation_s=send) for own, send in zip(stage_s, send_s, strict=True)
    )
    one_s = time_per_microbatch_s(Pipeline(costs, len(costs), "inference"))
    tiles = sum(len(stage.tiles) for stage in mapped.stages)
    flops = sum(program.flops * len(program.stage.tiles) for program in programs)
    peak = tiles * mapped.chip.tile.peak_flops_per_s
    return Throughput(mapped, mapped.microbatch / one_s, stage_s, send_s, flops / one_s / peak)


def _sends(mapped: Mapped, programs: tuple[Program, ...]) -> tuple[float, ...]:
    """Return how long tensors take between stages, all of them at once; the last one goes nowhere."""
    plan = [
        Message(a, b, sent.sizes[-1].outputs)
        for sent, received in pairwise(programs)
        for a, b in zip(sent.stage.tiles, received.stage.tiles, strict=True)
    ]
    if not plan:
        return (0.0,)
    arrived = deliver(mapped.chip.topology, plan).arrived_s.reshape(len(programs) - 1, -1)
    return (*arrived.max(axis=1).tolist(), 0.0)


def _flops(operators: Sequence[Operator]) -> np.ndarray:
    whole: Degrees = (1, 1, 1, 1)
    return np.array([sum(share.flops for share in shares(operator, whole)) for operator in operators])


@lru_cache(maxsize=16384)
def _best(
    chip: Chip, tiles: int, operator: Operator, element_bytes: int
) -> tuple[Degrees | None, Degrees | None]:
    """Return the degrees with which an operator is done first; and those if its weights are held once.

    None where it cannot be cut into so many parts.
    """
    possible: list[tuple[float, Degrees, float]] = []
    for degrees in _of_product(tiles, 2 if isinstance(operator, Transformer) else 4):
        try:
            parts = shares(operator, degrees)
        except PhazeError:
            continue
        seconds = sum(_alone_s(chip, share, element_bytes) for share in parts)
        possible.append((seconds, degrees, sum(share.weights for share in parts)))
    if not possible:
        return None, None
    once = min((weights, seconds, degrees) for seconds, degrees, weights in possible)
    return min(possible)[1], once[2]


def _alone_s(chip: Chip, share: Share, element_bytes: int) -> float:
    """Return the work of a tile and its all-reduces, each as a ring of neighbours."""
    links = Tier(chip.grid.tiles, chip.wires.bandwidth_bytes_per_s, chip.wires.latency_s)
    reduced = (
        Levels((links,)).seconds(some.kind, some.elements * element_bytes, Group(some.width, 1))
        for some in share.communications
        if some.phase == "forward"
    )
    return forward_work(chip.tile, share, element_bytes).busy_s + sum(reduced)


@lru_cache(maxsize=64)
def _of_product(size: int, axes: int) -> tuple[Degrees, ...]:
    """Return all degrees whose product is a size, ones after so many axes."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    found = [some for some in product(divisors, repeat=axes) if prod(some) == size]
    return tuple((*some, *(1,) * (4 - axes)) for some in found)  # type: ignore[misc]
