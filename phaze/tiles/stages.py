"""Stages of a pipeline on tile groups: split of the layers, memory, and recomputation where it is needed.

DRAM holds what the tiles' SRAM does not: weights, gradients and optimizer states of every stage, and the
activations of its microbatches in flight. Stages store all activations if they fit. Otherwise those stages
recompute that free most memory, as few as possible (PALM, IV.A).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.pipeline.orders import worker_jobs
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.tiles.steps import StageProgram

ROUNDING = 1e-12
"""Relative difference of loads that are sums of the same numbers in another order."""


def evenly(layers: int, stages: int) -> tuple[int, ...]:
    """Number of layers of each stage; they differ by at most one."""
    ends = [layers * (q + 1) // stages for q in range(stages)]
    return tuple(end - start for start, end in pairwise([0, *ends]))


def by_compute(
    loads: Sequence[float], tiles: Sequence[int], passed: Sequence[float] | None = None
) -> tuple[int, ...]:
    """Number of parts of each stage in the split with the least load per tile of the slowest stage.

    `loads` are those of the parts, layers or operators, and `tiles` those of the stages. With w(i, j) the
    load of parts i to j - 1, the least worst load of the first j parts in q stages is

        worst(q, j) = min over i < j of max(worst(q - 1, i), w(i, j) / tiles(q))

    With `passed`, the elements that cross the boundary behind each part, the split is the one with the fewest
    crossing elements among all splits with that worst load.
    """
    total, layers = np.array([0.0, *accumulate(loads)]), len(loads)
    if len(tiles) > layers:
        return ()
    # Rows are first parts i, columns ends j; a stage has at least one part.
    empty, load = np.tri(layers + 1, dtype=bool), total - total[:, np.newaxis]
    within = [np.where(empty, np.inf, load / number) for number in tiles]
    worst, ends = _cheapest_ends(within, np.maximum)
    if passed is not None:
        limit = worst * (1 + ROUNDING)
        crossing = np.array([0.0, *passed])[:, np.newaxis]
        _, ends = _cheapest_ends([np.where(loads <= limit, crossing, np.inf) for loads in within], np.add)
    return tuple(b - a for a, b in pairwise(ends))


def _cheapest_ends(costs: Sequence[Floats], combine: np.ufunc) -> tuple[float, list[int]]:
    """Cost of the cheapest split, and its ends; `costs` are those of a stage, by its first part and end."""
    layers = len(costs[0]) - 1
    least = np.full(layers + 1, np.inf)
    least[0] = 0.0
    starts = []
    for cost in costs:
        candidates = combine(least[:, np.newaxis], cost)
        starts.append(candidates.argmin(axis=0))
        least = candidates.min(axis=0)
    ends = [layers]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return float(least[-1]), ends[::-1]


@lru_cache(maxsize=64)
def in_flight(stages: int, microbatches: int, schedule: str, chunks: int) -> tuple[int, ...]:
    """Maximum number of microbatches in flight in each stage, from the order of the schedule.

    Raises `PhazeError` if the schedule does not support the stages.
    """
    pipeline = Pipeline((StageCost(1.0, 1.0),) * stages, microbatches, schedule, chunks)
    most = {}
    for passes in worker_jobs(pipeline):
        for stage in np.unique(passes.stage).tolist():
            most[stage] = pipeline.rules.most_in_flight(passes.kind[passes.stage == stage])
    return tuple(most[stage] for stage in range(stages))


def recomputing(programs: Sequence[StageProgram], chunks: int, *, recompute: bool) -> list[StageProgram]:
    """Programs of all stages that recompute their activations, or store them."""
    changed = [
        replace(program, execution=program.execution._replace(recompute=recompute)) for program in programs
    ]
    return together_on_tiles(changed, chunks)


def together_on_tiles(programs: Sequence[StageProgram], chunks: int) -> list[StageProgram]:
    """Programs with the memory of the other stages on their tiles: those of the other chunks."""
    if chunks == 1:
        return list(programs)
    groups = len(programs) // chunks
    totals = [
        np.sum([program.held_bytes for program in programs[group::groups]], axis=0) for group in range(groups)
    ]
    return [
        replace(program, others_bytes=tuple((totals[q % groups] - program.held_bytes).tolist()))
        for q, program in enumerate(programs)
    ]


def as_needed(programs: Sequence[StageProgram], chunks: int, dram_bytes: float) -> list[StageProgram]:
    """Programs in which only those stages recompute whose activations would not fit into DRAM.

    `programs` store all activations.
    """
    chosen = list(programs)
    recomputed = recomputing(programs, chunks, recompute=True)
    spared = [
        program.dram_bytes - other.dram_bytes for program, other in zip(programs, recomputed, strict=True)
    ]
    for stage in sorted(range(len(programs)), key=lambda q: -spared[q]):
        if dram_needed(chosen) <= dram_bytes or spared[stage] <= 0:
            break
        execution = chosen[stage].execution._replace(recompute=True)
        chosen[stage] = replace(chosen[stage], execution=execution)
        chosen = together_on_tiles(chosen, chunks)
    return chosen


def dram_needed(programs: Sequence[StageProgram]) -> float:
    """Bytes of all stages that do not stay in SRAM."""
    return sum(program.dram_bytes for program in programs)


def check_dram(programs: Sequence[StageProgram], dram_bytes: float, system: str) -> None:
    """Raise `PhazeError` with the GiB that lack if the stages do not fit into the memory of the chip."""
    needed = dram_needed(programs)
    if needed <= dram_bytes:
        return
    weights = sum(len(program.stage.tiles) * program.held_bytes[0] for program in programs)
    raise PhazeError(
        f"system {system}: dram.gib: {(needed - dram_bytes) / GIB:,.0f} GiB are missing: the stages need "
        f"{needed / GIB:,.0f} GiB of DRAM, got {dram_bytes / GIB:,.0f} GiB; weights, gradients and optimizer "
        f"states are {weights / GIB:,.0f} GiB",
        "shard them with zero, make the microbatches smaller, or choose a larger system",
    )
