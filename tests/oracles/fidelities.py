"""How far virtual tiles and formulas are from tile by tile, over random cases.

Of 400 cases virtual tiles are within 1 % on average, and 17 % off at worst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod
from statistics import fmean, median

import numpy as np
from numpy.random import Generator

from phaze.cost.network.mesh import Grid, Memory, Wires
from phaze.layout import Zero
from phaze.tiles.chip import Chip, Tile
from phaze.tiles.group import simulate
from phaze.tiles.operators import Convolution, Degrees, Linear, Operator, Transformer
from phaze.tiles.placement import Placed, line, s_shaped
from phaze.tiles.steps import Activity, Mode, Part, Program, Stage
from phaze.tiles.tile import Training

PARTS: tuple[Part, ...] = ("forward", "backward", "overlapped backward", "sync", "update")
CASES = 80


@dataclass(frozen=True)
class Comparison:
    """One case: groups of tiles that start the same part together."""

    case: int
    tiles: int
    """Of one group."""
    groups: int
    ports: str
    """Where memories are."""
    operators: str
    placed: Placed
    part: Part
    strategy: str
    bound_by: str
    """What the last tile of the last group waited for most."""
    contended: bool
    """Whether several tiles use one port."""
    tile_by_tile_s: float
    virtual_s: float
    analytical_s: float

    @property
    def virtual_error(self) -> float:
        """By which share of the time tile by tile a virtual tile is longer."""
        return self.virtual_s / self.tile_by_tile_s - 1

    @property
    def analytical_error(self) -> float:
        """The same of formulas, which are never longer."""
        return self.analytical_s / self.tile_by_tile_s - 1


@dataclass(frozen=True)
class Summary:
    """Errors of one fidelity over cases of one kind."""

    fidelity: str
    contended: bool
    cases: int
    mean: float
    """Of the absolute values."""
    median: float
    least: float
    most: float


def compare(cases: int = CASES, seed: int = 0) -> list[Comparison]:
    """Return random cases at all three fidelities; those in which nothing happens are left out."""
    found: list[Comparison] = []
    number = 0
    while len(found) < cases:
        some = random_case(np.random.default_rng([seed, number]))
        if all(activity.steps for activity in some.activities):
            found.append(_compared(number, some))
        number += 1
    return found


def summarise(found: Sequence[Comparison]) -> list[Summary]:
    """Return the errors of virtual tiles and formulas, with contention for ports and without."""
    rows = []
    for fidelity in ("virtual", "analytical"):
        for contended in (False, True):
            errors = [
                some.virtual_error if fidelity == "virtual" else some.analytical_error
                for some in found
                if some.contended == contended
            ]
            if errors:
                mean = fmean(abs(error) for error in errors)
                row = Summary(
                    fidelity, contended, len(errors), mean, median(errors), min(errors), max(errors)
                )
                rows.append(row)
    return rows


@dataclass(frozen=True)
class Case:
    """Equal stages on one chip, and the part that all of them do."""

    ports: str
    part: Part
    programs: tuple[Program, ...]

    @property
    def chip(self) -> Chip:
        """The chip of all of them."""
        return self.programs[0].chip

    @property
    def activities(self) -> tuple[Activity, ...]:
        """What each group does."""
        return tuple(Activity(some.stage.tiles, some.steps(self.part)) for some in self.programs)


def random_case(rng: Generator) -> Case:
    """Return a chip of up to 8 × 8 tiles with up to four groups that all have the same operators."""
    down, across = int(rng.choice([2, 4])), int(rng.choice([1, 2, 4]))
    grid = Grid(down * int(rng.integers(1, 3)), across * int(rng.integers(1, 3)))
    stages = s_shaped(grid, down, across) if rng.random() < 0.7 else _rows(grid, down * across)
    ports, memory = _memory(rng, grid)
    tile = Tile(
        64, 64, 1e9, float(rng.choice([0.0625, 0.25, 1, 4, 64]) * 2**20), float(rng.choice([256e9, 1024e9]))
    )
    wires = Wires(
        float(rng.choice([64e9, 256e9, 1024e9])), float(rng.choice([0, 1e-9, 1e-7])), (down, across)
    )
    chip = Chip("random", grid, tile, wires, memory)
    width = len(stages[0])
    operators = tuple(_operator(rng, width) for _ in range(int(rng.integers(1, 4))))
    placed: Placed = "near" if rng.random() < 0.5 else "far"
    zero: Zero = rng.choice([0, 1, 2, 3]).item()
    mode = Mode(Training(optimizer="adam" if rng.random() < 0.5 else "sgd", zero=zero))
    part = PARTS[int(rng.integers(len(PARTS)))]
    return Case(ports, part, tuple(Program(chip, Stage(tiles, operators, placed), mode) for tiles in stages))


def _rows(grid: Grid, size: int) -> tuple[tuple[int, ...], ...]:
    """Return groups in lines, of so many tiles where that can be."""
    if size % grid.columns and grid.columns % size:
        return line(grid, 1)
    return line(grid, grid.tiles // size)


def _memory(rng: Generator, grid: Grid) -> tuple[str, Memory]:
    """Return memories at some places."""
    places = {
        "every tile": tuple(range(grid.tiles)),
        "west and east": grid.edge(),
        "north": grid.edge(["north"]),
        "one": (int(rng.integers(grid.tiles)),),
    }
    name = list(places)[int(rng.integers(len(places)))]
    response = float(rng.choice([0, 1e-7, 1e-6]))
    return name, Memory(places[name], float(rng.choice([16e9, 64e9, 256e9])), response)


def _operator(rng: Generator, width: int) -> tuple[Operator, Degrees]:
    """Return an operator that so many tiles share."""
    kind = int(rng.integers(3))
    if kind == 0:
        return Transformer(16, 256, 64, 16), _degrees(rng, width, 2)
    if kind == 1:
        return Linear(16, 64, 256, 128), _degrees(rng, width, 4)
    return Convolution(16, 16, 16, 64, 3, 3, 64), _degrees(rng, width, 4)


def _degrees(rng: Generator, width: int, axes: int) -> Degrees:
    """Return how a power of two is shared out among some axes."""
    parts = [1, 1, 1, 1]
    while prod(parts) < width:
        parts[int(rng.integers(axes))] *= 2
    return parts[0], parts[1], parts[2], parts[3]


def _compared(number: int, case: Case) -> Comparison:
    """Return a case at all three fidelities."""
    chip, activities = case.chip, case.activities
    each = simulate(chip, activities, "tile-by-tile")
    last = int(np.argmax(each.finish_s))
    program = case.programs[last]
    return Comparison(
        number,
        len(program.stage.tiles),
        len(activities),
        case.ports,
        " + ".join(f"{op.name} {'×'.join(map(str, degrees))}" for op, degrees in program.stage.operators),
        program.stage.placed,
        case.part,
        program.strategy,
        each.bound_by[last],
        _contended(chip, activities),
        each.time_s,
        simulate(chip, activities, "virtual").time_s,
        simulate(chip, activities, "analytical").time_s,
    )


def _contended(chip: Chip, activities: Sequence[Activity]) -> bool:
    """Return whether two tiles that read or write use the same port."""
    users = [
        tile
        for some in activities
        if any(step.access.total_bytes for step in some.steps)
        for tile in some.tiles
    ]
    return any(chip.port(a) == chip.port(b) for a, b in combinations(users, 2))
