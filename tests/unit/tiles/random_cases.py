"""Random chips with groups of tiles that all have the same part of the same operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.random import Generator

from phaze.cost.network.mesh import PortMemory, TileGrid, Wires
from phaze.papers.palm.inference import Activity, Fidelity, simulate
from phaze.spec.tiled import Tile
from phaze.tiles.chip import Chip
from phaze.tiles.operators import ConvolutionShape, Degrees, Linear, TileOperator, TransformerLayer
from phaze.tiles.placement import Placed, line, s_shaped
from phaze.tiles.steps import StagePart, StageProgram, TileStage
from phaze.tiles.tile import TileExecution

TRAINED: tuple[StagePart, ...] = ("forward", "backward", "sync", "update")


@dataclass(frozen=True)
class Case:
    """Equal stages on one chip, and the part of each tile."""

    part: StagePart
    programs: tuple[StageProgram, ...]

    @property
    def chip(self) -> Chip:
        return self.programs[0].chip

    @property
    def activities(self) -> tuple[Activity, ...]:
        return tuple(Activity(some.stage.tiles, some.steps(self.part)) for some in self.programs)

    def on(self, chip: Chip) -> Case:
        """Return the case on another chip."""
        return replace(self, programs=tuple(replace(program, chip=chip) for program in self.programs))

    def time_s(self, fidelity: Fidelity) -> float:
        return max(simulate(self.chip, self.activities, fidelity))


def random_cases(count: int, seed: int = 0) -> list[Case]:
    """Return several random cases with nonempty work."""
    found: list[Case] = []
    number = 0
    while len(found) < count:
        some = random_case(np.random.default_rng([seed, number]))
        found += [some] if all(activity.steps for activity in some.activities) else []
        number += 1
    return found


def random_case(rng: Generator) -> Case:
    """Return a chip of up to 8 × 8 tiles with up to four groups that all have the same operators."""
    down, across = int(rng.choice([2, 4])), int(rng.choice([1, 2, 4]))
    grid = TileGrid(down * int(rng.integers(1, 3)), across * int(rng.integers(1, 3)))
    width = down * across
    rows = rng.random() < 0.3 and not (width % grid.columns and grid.columns % width)
    stages = line(grid, grid.tiles // width) if rows else s_shaped(grid, down, across)
    tile = Tile(
        clock_hz=1e9, pe_x=64, pe_y=64, sram_bytes=float(rng.choice([0.0625, 0.25, 1, 4, 64]) * 2**20),
        sram_bandwidth_bytes_per_s=float(rng.choice([256e9, 1024e9])),
    )  # fmt: skip
    wires = Wires(
        float(rng.choice([64e9, 256e9, 1024e9])), float(rng.choice([0, 1e-9, 1e-7])), (down, across)
    )
    chip = Chip("random", grid, tile, wires, _memory(rng, grid))
    operators = tuple(_operator(rng, width) for _ in range(int(rng.integers(1, 4))))
    placed: Placed = "near" if rng.random() < 0.5 else "far"
    training = bool(rng.random() < 0.5)
    execution = TileExecution(training, shared=not training and bool(rng.random() < 0.5))
    part = TRAINED[int(rng.integers(4))] if training else "forward"
    return Case(
        part, tuple(StageProgram(chip, TileStage(tiles, operators, placed), execution) for tiles in stages)
    )


def _memory(rng: Generator, grid: TileGrid) -> PortMemory:
    tiles, row = range(grid.tiles), range(grid.columns)
    places = tuple(tiles), grid.edge(), tuple(row), (int(rng.integers(grid.tiles)),)
    response = float(rng.choice([0, 1e-7, 1e-6]))
    return PortMemory(places[int(rng.integers(4))], float(rng.choice([16e9, 64e9, 256e9])), response)


def _operator(rng: Generator, width: int) -> tuple[TileOperator, Degrees]:
    """Return an operator, cut into a power of two of parts along some axes."""
    operators: tuple[TileOperator, ...] = (
        TransformerLayer(16, 256, 64, 16), Linear(16, 64, 256, 128),
        ConvolutionShape(16, 64, 16, 64, window=3),
    )  # fmt: skip
    kind, parts = int(rng.integers(3)), [1, 1, 1, 1]
    while prod(parts) < width:
        parts[int(rng.integers(4 if kind else 2))] *= 2
    return operators[kind], (parts[0], parts[1], parts[2], parts[3])
