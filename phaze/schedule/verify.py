"""Whether a schedule can be executed under the paper's model (Section 4): an independent check.

Nothing is shared with what makes schedules but the layer and the schedule themselves. The rules:

- every operator takes ℓ̂ on all cores and ℓ on one, and runs on a core that exists, a fused one on a pair;
- no operator begins before those have ended whose results it reads;
- while an operator runs on all cores nothing else runs; a network operator overlaps nothing, or only computation
  where communication may overlap;
- no core, and no link, runs two operators at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from phaze.theory.graphs import ALL_CORES, Layer, Schedule

TOLERANCE = 1e-9
"""Rounding of sums, relative to the latency of the schedule."""


def find_faults(layer: Layer, schedule: Schedule) -> tuple[str, ...]:
    """Return every rule that a schedule breaks, in words; empty if it can be executed."""
    n = len(layer.core)
    if any(values.shape != (n,) for values in (schedule.start_s, schedule.end_s, schedule.core)):
        return (f"times and cores must be given for {n} operators",)
    room = TOLERANCE * max((float(end) for end in schedule.end_s), default=0.0)
    return (
        *_core_faults(layer, schedule),
        *_time_faults(layer, schedule, room),
        *_order_faults(layer, schedule, room),
        *_overlap_faults(layer, schedule, room),
    )


def _core_faults(layer: Layer, schedule: Schedule) -> Iterator[str]:
    """Yield operators on cores that do not exist."""
    cores = {
        "tensor": layer.num_tc,
        "vector": layer.num_vc,
        "fused": min(layer.num_tc, layer.num_vc),
        "network": 1 if layer.overlap_communication else 0,
        "none": 0,
    }
    for i, kind in enumerate(layer.core):
        core = int(schedule.core[i])
        if core != ALL_CORES and not 0 <= core < cores[kind]:
            yield f"operator {i} ({kind}) runs on core {core} of {cores[kind]}"


def _time_faults(layer: Layer, schedule: Schedule, room: float) -> Iterator[str]:
    """Yield operators that begin before time 0 or take another time than estimated."""
    for i, kind in enumerate(layer.core):
        start, end = float(schedule.start_s[i]), float(schedule.end_s[i])
        wide = schedule.core[i] == ALL_CORES
        latency = float(layer.latency_all_s[i] if wide else layer.latency_s[i]) if kind != "none" else 0.0
        if not start >= 0:
            yield f"operator {i} begins at {start} s"
        if not abs(end - start - latency) <= room:
            yield f"operator {i} takes {end - start} s instead of {latency} s"


def _order_faults(layer: Layer, schedule: Schedule, room: float) -> Iterator[str]:
    """Yield edges along which an operator reads what is not yet written."""
    for i, j in layer.edges:
        if not schedule.end_s[i] <= schedule.start_s[j] + room:
            yield f"operator {j} begins at {schedule.start_s[j]} s, before operator {i} ends"


def _overlap_faults(layer: Layer, schedule: Schedule, room: float) -> Iterator[str]:
    """Yield pairs of operators that run at once but may not."""
    working = [i for i, kind in enumerate(layer.core) if kind != "none"]
    for i, j in combinations(working, 2):
        apart = (
            schedule.end_s[i] <= schedule.start_s[j] + room or schedule.end_s[j] <= schedule.start_s[i] + room
        )
        reason = "" if apart else _conflict(layer, schedule, i, j)
        if reason:
            yield f"operators {i} and {j} run at once, but {reason}"


def _conflict(layer: Layer, schedule: Schedule, i: int, j: int) -> str:
    """Return why two operators may not run at once, empty if they may."""
    networks = [a for a in (i, j) if layer.core[a] == "network"]
    if len(networks) == 2:
        return "the link carries one at a time"
    if networks and not layer.overlap_communication:
        return "network operators overlap nothing"
    for a in networks or (i, j):
        if schedule.core[a] == ALL_CORES:
            return f"operator {a} runs on all cores"
    if not networks and schedule.core[i] == schedule.core[j]:
        shared = _types(layer.core[i]) & _types(layer.core[j])
        if shared:
            return f"{shared.pop()} core {schedule.core[i]} runs one at a time"
    return ""


def _types(kind: str) -> set[str]:
    return {"tensor", "vector"} if kind == "fused" else {kind}
