"""Whole batches on groups of tiles: layer by layer, in a pipeline, or inference (PALM, IV.A, V.A.3).

Layer-wise execution is a pipeline of depth 1: one group, usually of all tiles, executes every operator.
Groups are measured one by one, so that they do not contend with each other. Every tile of a group sends what
it has of the last output to the tile at its place in the next group; gradients go back the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from phaze.base.errors import PhazeError
from phaze.cost.network.delivery import deliver
from phaze.cost.network.messages import Message
from phaze.pipeline.balance import balanced_starts
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline, Schedule
from phaze.pipeline.steady import time_per_microbatch_s
from phaze.tiles.chip import Chip
from phaze.tiles.group import Fidelity, GroupTimes, measure
from phaze.tiles.mapping import Placed, Tiles
from phaze.tiles.operators import Degrees, Operator, shares
from phaze.tiles.steps import Mode, Stage


@dataclass(frozen=True)
class Execution:
    """Groups of tiles, measured, and the pipeline that they form."""

    groups: tuple[GroupTimes, ...]
    pipeline: Pipeline

    @property
    def time_s(self) -> float:
        """Time of a batch, with set-up and drain; in inference, of all microbatches."""
        return simulate(self.pipeline).time_s

    @property
    def microbatches_per_s(self) -> float:
        """Throughput: in inference without set-up and drain, else over the time of a batch."""
        return 1.0 / time_per_microbatch_s(self.pipeline)


def balanced(
    operators: Sequence[tuple[Operator, Degrees]], groups: Sequence[Tiles], placed: Placed = "near"
) -> tuple[Stage, ...]:
    """Return a stage for each group of tiles: operators in their order, balanced by FLOPs (PALM, IV.B).

    This is the default; who binds operators to tiles makes stages himself.
    """
    flops = [sum(share.flops for share in shares(*each)) for each in operators]
    starts = balanced_starts(np.array(flops), len(groups))
    cuts = pairwise((*starts, len(operators)))
    return tuple(
        Stage(tiles, tuple(operators[a:b]), placed) for tiles, (a, b) in zip(groups, cuts, strict=True)
    )


def execute(
    chip: Chip,
    stages: Sequence[Stage],
    microbatches: int,
    schedule: Schedule = "1f1b",
    mode: Mode | None = None,
    fidelity: Fidelity = "analytical",
) -> Execution:
    """Return what a batch takes; the operators of a stage are those of one microbatch.

    Raises `PhazeError` where the mode does not train and the schedule does, or the other way round.
    """
    mode = mode or Mode()
    if mode.training.backward == (schedule == "inference"):
        raise PhazeError(
            f"tile: schedule {schedule} {'has no' if schedule == 'inference' else 'needs a'} backward pass: "
            f"training.backward must be {schedule != 'inference'}"
        )
    groups = tuple(measure(chip, stage, mode, fidelity) for stage in stages)
    pairs = list(pairwise(groups))
    sends = [_sent_s(chip, one, other, one) for one, other in pairs]
    gradients = [_sent_s(chip, other, one, one) * mode.training.backward for one, other in pairs]
    costs = tuple(
        group.stage_cost(forth, back)
        for group, forth, back in zip(groups, [*sends, 0.0], [0.0, *gradients], strict=True)
    )
    return Execution(groups, Pipeline(costs, microbatches, schedule))


def _sent_s(chip: Chip, source: GroupTimes, target: GroupTimes, output_of: GroupTimes) -> float:
    """Return how long the last output of a group, or its gradient, takes from group to group."""
    here, there = source.program.stage.tiles, target.program.stage.tiles
    if len(here) != len(there):
        raise PhazeError(
            "tile: groups that follow each other must have equally many tiles, "
            f"got {len(here)} and {len(there)}"
        )
    size = output_of.program.sizes[-1].outputs
    return deliver(chip.topology, [Message(a, b, size) for a, b in zip(here, there, strict=True)]).time_s
