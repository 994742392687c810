"""Random and ideal pipelines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.schedules import SCHEDULES
from phaze.pipeline.stages import StageCost

NAMES = tuple(SCHEDULES)


def ideal(depth: int, microbatches: int, schedule: str, chunks: int = 1) -> Pipeline:
    """Return a pipeline of equal stages without communication: forward 1, backward 2 over all chunks."""
    stage = StageCost(1.0 / chunks, 2.0 / chunks, stash_bytes=1.0 / chunks)
    return Pipeline((stage,) * (depth * chunks), microbatches, schedule, chunks=chunks)


def random_stage(rng: np.random.Generator) -> StageCost:
    """Return a stage in which any cost may be zero."""
    times = rng.uniform(0.1, 3.0, 8) * (rng.random(8) < 0.7)
    return StageCost(
        forward_s=float(times[0] + 0.1),
        backward_s=float(times[1] + 0.1),
        recompute_s=float(times[2]),
        send_activation_s=float(times[3] / 4),
        send_gradient_s=float(times[4] / 4),
        sync_s=float(times[5]),
        update_s=float(times[6]),
        gather_s=float(times[7]),
        operators=int(rng.integers(1, 5)),
        stash_bytes=float(rng.integers(0, 5)),
        work_bytes=float(rng.integers(0, 5)),
        fixed_bytes=float(rng.integers(0, 50)),
        weight_s=float((times[1] + 0.1) * rng.random()),
    )


def random_data(rng: np.random.Generator, depth: int, schedule: str) -> tuple[int, ...]:
    """Return replicas of every group: equal ones, ones that divide their suffix sums, or any."""
    kind = 0 if SCHEDULES[schedule].equal_replicas else int(rng.integers(3))
    if kind == 0:
        return (int(rng.integers(1, 4)),) * depth
    if kind == 1:
        return dividing_data(rng, depth)
    return tuple(int(d) for d in rng.integers(1, 4, depth))


def dividing_data(rng: np.random.Generator, depth: int) -> tuple[int, ...]:
    """Return replicas of every group that divide the sum from it to the last."""
    data = [int(rng.integers(1, 4))]
    while len(data) < depth:
        data.insert(0, int(rng.choice([d for d in range(1, 5) if sum(data) % d == 0])))
    return tuple(data)


def divides(data: tuple[int, ...]) -> bool:
    """Return whether all replicas divide the sum from their group to the last."""
    return all(sum(data[group:]) % d == 0 for group, d in enumerate(data))


def random_pipeline(rng: np.random.Generator, schedule: str) -> Pipeline:
    """Return a pipeline with unequal loads under a schedule, in which jobs never wait in a circle."""
    rules = SCHEDULES[schedule]
    depth = 1 if schedule == "layer-wise" else int(rng.integers(2 if rules.chunked else 1, 6))
    depth += depth % rules.streams
    chunks = int(rng.integers(rules.chunks[0], min(rules.chunks[1], 3) + 1))
    data = random_data(rng, depth, schedule)
    lanes = int(np.gcd.reduce(data))
    least = sum(data) if schedule == "2bw" else max(data)
    per_lane = least // lanes + int(rng.integers(0, 6))
    stages = tuple(random_stage(rng) for _ in range(depth * chunks))
    stopping = schedule != "2bw" or divides(data)
    return Pipeline(
        stages=stages if stopping else tuple(replace(stage, gather_s=0.0) for stage in stages),
        microbatches=lanes * (depth * min(max(per_lane, 2), 3) if rules.chunked else per_lane),
        schedule=schedule,
        chunks=chunks,
        data=data,
        tensor=tuple(int(t) for t in rng.integers(1, 5, depth)),
        batches=int(rng.integers(1, 4)) if schedule == "2bw" else 1,
        fetch_s=float(rng.choice([0.0, 0.5, 2.0])) * (rules.streams == 1),
        release_s=float(rng.choice([0.0, 1.0])) * (rules.streams == 1),
        transfers="occupying" if rng.random() < 0.3 else "overlapped",
        overlap_sync=not stopping or bool(rng.random() < 0.5),
        early_recompute=bool(rng.random() < 0.5),
    )
