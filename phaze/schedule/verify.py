"""Independent check that a schedule can be executed under the paper's model (Section 4).

It shares nothing with the code that makes schedules, except the layer and schedule types. The rules:

- every operator takes ℓ̂ on all cores and ℓ on one, and runs on an existing core, a fused one on a pair;
- no operator begins before the operators whose results it reads have ended;
- while an operator runs on all cores, nothing else runs; a network operator overlaps nothing, or only
  computation if communication may overlap;
- no core, and no link, runs two operators at once.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from phaze.schedule.graphs import ALL_CORES, LayerSchedule, ScheduledLayer

TOLERANCE = 1e-9
"""Tolerance for rounding of sums, relative to the latency of the schedule."""


class TimedOperator(NamedTuple):
    """One operator of a schedule."""

    kind: str
    start: float
    end: float
    core: int


def find_faults(layer: ScheduledLayer, schedule: LayerSchedule) -> tuple[str, ...]:
    """Messages for all rules that a schedule breaks; empty if it can be executed."""
    n = len(layer.core)
    if any(values.shape != (n,) for values in (schedule.start_s, schedule.end_s, schedule.core)):
        return (f"times and cores must be given for {n} operators",)
    runs = [
        TimedOperator(*values)
        for values in zip(
            layer.core,
            schedule.start_s.tolist(),
            schedule.end_s.tolist(),
            schedule.core.tolist(),
            strict=True,
        )
    ]
    room = TOLERANCE * max((run.end for run in runs), default=0.0)
    return (
        *_core_faults(layer, runs),
        *_time_faults(layer, runs, room),
        *_order_faults(layer, runs, room),
        *_overlap_faults(layer, runs, room),
    )


def _core_faults(layer: ScheduledLayer, runs: list[TimedOperator]) -> Iterator[str]:
    """Yield a message for each operator on a core that does not exist."""
    cores = {
        "tensor": layer.num_tc,
        "vector": layer.num_vc,
        "fused": min(layer.num_tc, layer.num_vc),
        "network": 1 if layer.overlap_communication else 0,
        "none": 0,
    }
    for i, run in enumerate(runs):
        if run.core != ALL_CORES and not 0 <= run.core < cores[run.kind]:
            yield f"operator {i} ({run.kind}) runs on core {run.core} of {cores[run.kind]}"


def _time_faults(layer: ScheduledLayer, runs: list[TimedOperator], room: float) -> Iterator[str]:
    """Yield a message for each operator that begins before time 0 or whose time differs from the estimate."""
    estimates = zip(layer.latency_s.tolist(), layer.latency_all_s.tolist(), strict=True)
    for i, (run, (single, every)) in enumerate(zip(runs, estimates, strict=True)):
        latency = 0.0 if run.kind == "none" else every if run.core == ALL_CORES else single
        if not run.start >= 0:
            yield f"operator {i} begins at {run.start} s"
        if not abs(run.end - run.start - latency) <= room:
            yield f"operator {i} takes {run.end - run.start} s instead of {latency} s"


def _order_faults(layer: ScheduledLayer, runs: list[TimedOperator], room: float) -> Iterator[str]:
    """Yield a message for each edge whose reader begins before its writer ends."""
    for i, j in layer.edges:
        if not runs[i].end <= runs[j].start + room:
            yield f"operator {j} begins at {runs[j].start} s, before operator {i} ends"


def _overlap_faults(layer: ScheduledLayer, runs: list[TimedOperator], room: float) -> Iterator[str]:
    """Yield a message for each pair of operators that run concurrently but may not."""
    working = [(i, run) for i, run in enumerate(runs) if run.kind != "none"]
    for (i, a), (j, b) in combinations(working, 2):
        if a.end <= b.start + room or b.end <= a.start + room:
            continue
        reason = _conflict(a, b, layer.overlap_communication)
        if reason:
            yield f"operators {i} and {j} run at once, but {reason}"


def _conflict(a: TimedOperator, b: TimedOperator, overlap: bool) -> str:
    """Reason why two operators may not run concurrently, empty if they may."""
    networks = [run for run in (a, b) if run.kind == "network"]
    if len(networks) == 2:
        return "the link carries one at a time"
    if networks and not overlap:
        return "network operators overlap nothing"
    if any(run.core == ALL_CORES for run in networks or (a, b)):
        return "one of them runs on all cores"
    shared = _types(a.kind) & _types(b.kind)
    if a.core == b.core and shared:
        return f"{min(shared)} core {a.core} runs one at a time"
    return ""


def _types(kind: str) -> set[str]:
    return {"tensor", "vector"} if kind == "fused" else {kind}
