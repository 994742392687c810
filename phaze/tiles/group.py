"""How long a group of tiles takes for the operators of a stage, what binds it, and what it holds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from phaze.tiles import analytical, tile_by_tile, virtual
from phaze.tiles.chip import Chip
from phaze.tiles.steps import (
    Activity,
    Bound,
    Mode,
    Outcome,
    Part,
    Program,
    Spent,
    Stage,
    Step,
    port_resources,
)
from phaze.tiles.tile import Strategy, one_of

Fidelity = Literal["tile-by-tile", "virtual", "analytical"]
"""Every tile by itself; one tile for a group of equal ones; formulas, which are a lower bound."""


@dataclass(frozen=True)
class TileTraffic:
    """Bytes that each tile of a group moves in one part."""

    sram_bytes: float
    """Between SRAM and arrays; 0 at the peak rate, which does not know."""
    read_bytes: float
    """From DRAM."""
    write_bytes: float
    sent_bytes: float
    """To other tiles, on average."""


@dataclass(frozen=True)
class PartTime:
    """One part of a stage's work: a pass of a microbatch, or what follows a batch."""

    time_s: float
    bound_by: Bound
    """What took most of the time."""
    spent: Spent
    """Seconds by what took them, the time in all."""
    compute_utilisation: float
    """FLOPs of the operators over what the group's arrays could do in the time."""
    dram_utilisation: float
    """Share of the time for which the port that is held longest was held; 0 without memory."""
    link_utilisation: float
    """The same of links."""
    traffic: TileTraffic


@dataclass(frozen=True)
class TileMemory:
    """Bytes that each tile of a group holds."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    """Of all microbatches in flight."""
    microbatch_bytes: float
    """Kept of one microbatch from its forward to its backward pass."""
    sram_bytes: float
    """Of all of them, what the strategy holds in SRAM; the rest is in DRAM."""

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activation_bytes


@dataclass(frozen=True)
class GroupTimes:
    """A stage on its tiles."""

    program: Program
    fidelity: Fidelity
    parts: Mapping[Part, PartTime]
    """Parts that there are."""
    memory: TileMemory

    @property
    def strategy(self) -> Strategy:
        """What stays in SRAM."""
        return self.program.strategy

    def seconds(self, part: Part) -> float:
        """Return the time of a part, 0 where there is none."""
        return self.parts[part].time_s if part in self.parts else 0.0

    @property
    def fits(self) -> bool:
        """Whether a tile's part of the DRAM, equal for all tiles of the chip, holds what SRAM does not."""
        chip, memory = self.program.chip, self.memory
        part = chip.dram_bytes / chip.grid.tiles if chip.memory else 0.0
        return memory.total_bytes - memory.sram_bytes <= part


def measure(
    chip: Chip, stage: Stage, mode: Mode | None = None, fidelity: Fidelity = "analytical"
) -> GroupTimes:
    """Return the parts of a stage's work, each as if the rest of the chip did nothing.

    Raises `PhazeError` on degrees, a placement or a fidelity that cannot be.
    """
    program = Program(chip, stage, mode or Mode())
    found: dict[Part, PartTime] = {}
    for part in get_args(Part):
        steps = program.steps(part)
        if steps:
            outcome = simulate(chip, [Activity(stage.tiles, steps)], fidelity)
            found[part] = _part_time(program, part, steps, outcome)
    return GroupTimes(program, fidelity, found, tile_memory(program))


def simulate(chip: Chip, activities: Sequence[Activity], fidelity: Fidelity) -> Outcome:
    """Carry out activities that start together, in one of three fidelities."""
    one_of("tile", "fidelity", fidelity, get_args(Fidelity))
    runs: dict[Fidelity, Callable[[Chip, Sequence[Activity]], Outcome]] = {
        "tile-by-tile": tile_by_tile.run,
        "virtual": virtual.run,
        "analytical": analytical.run,
    }
    return runs[fidelity](chip, activities)


def _part_time(program: Program, part: Part, steps: Sequence[Step], outcome: Outcome) -> PartTime:
    """Return how long a part took, and how busy it kept what it used."""
    time_s = outcome.time_s
    passes = {"forward": 1, "recompute": 1, "backward": 2, "overlapped backward": 2}.get(part, 0)
    peak = program.chip.tile.peak_flops_per_s * time_s
    ports = port_resources(program.chip)
    busy = outcome.busy_s / time_s if time_s > 0 else np.zeros_like(outcome.busy_s)
    return PartTime(
        time_s,
        outcome.bound_by[0],
        outcome.spent[0],
        passes * program.flops / peak if peak > 0 else 0.0,
        float(busy[ports].max(initial=0.0)),
        float(busy[~ports].max(initial=0.0)),
        tile_traffic(steps),
    )


def tile_traffic(steps: Sequence[Step]) -> TileTraffic:
    """Return what each tile moves in some steps."""
    return TileTraffic(
        sum(step.work.sram_bytes for step in steps),
        sum(step.access.read_bytes for step in steps),
        sum(step.access.write_bytes for step in steps),
        sum(some.sent_bytes for step in steps for some in (*step.before, *step.exchanges, *step.beside)),
    )


def tile_memory(program: Program) -> TileMemory:
    """Return what each tile holds."""
    sizes, training = program.sizes, program.mode.training
    wsg, activations = program.held_bytes
    in_sram = {"S_WSG_ACT": wsg + activations, "S_WSG": wsg, "S_ACT": activations, "S_PTY": 0.0}
    kept = sizes[0].inputs if training.recompute else sum(each.inputs for each in sizes)
    return TileMemory(
        sum(each.weights for each in sizes),
        sum(each.gradients for each in sizes),
        sum(each.optimizer for each in sizes),
        activations,
        kept * training.backward,
        in_sram[program.strategy],
    )
