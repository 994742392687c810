"""A timeline as table rows, and as a trace file for Perfetto and chrome://tracing.

In the file (Trace Event Format) a process is a device group, and a thread one of its workers or ports. Slices
are jobs, arrows are transfers, and a counter shows the memory of a device.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from phaze.base.files import atomic_path
from phaze.pipeline.durations import BACKWARD_PASSES, JobKind
from phaze.pipeline.timeline import MemoryProfile, Timeline

Row = dict[str, object]
Event = dict[str, str | int | float | dict[str, str | int | float]]

NAMES: dict[JobKind, str] = {
    JobKind.FETCH: "fetch",
    JobKind.FORWARD: "forward",
    JobKind.RECOMPUTE: "recompute",
    JobKind.BACKWARD: "backward",
    JobKind.PAIRED_BACKWARD: "backward",
    JobKind.INPUT_GRADIENT: "input gradient",
    JobKind.WEIGHT_GRADIENT: "weight gradient",
    JobKind.SYNC: "synchronise",
    JobKind.LAST_SYNC: "synchronise",
    JobKind.UPDATE: "update",
    JobKind.GATHER: "gather",
}
MICROSECONDS = 1e6


def write_trace(timeline: Timeline, path: Path) -> None:
    """Write the trace of a timeline as JSON."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps({"traceEvents": trace_events(timeline), "displayTimeUnit": "ms"}))


def trace_events(timeline: Timeline) -> list[Event]:
    """Trace events of a timeline: names, slices, arrows and counters; times in microseconds."""
    return [*_names(timeline), *_slices(timeline), *_arrows(timeline), *_counters(timeline)]


def _places(timeline: Timeline) -> list[tuple[int, int, str]]:
    """Process, thread and thread name of each resource."""
    places = [(group, replica, f"replica {replica}") for group, replica in timeline.pipeline.workers]
    for port in range(len(places), len(timeline.jobs.first) - 1):
        job = int(timeline.jobs.first[port])
        group = int(timeline.pipeline.groups[timeline.jobs.stage[job]])
        fetches = timeline.jobs.kind[job] == JobKind.FETCH
        places.append((group, port, "input" if fetches else "synchronisation"))
    return places


def _names(timeline: Timeline) -> Iterator[Event]:
    for group in range(timeline.pipeline.depth):
        yield {"ph": "M", "name": "process_name", "pid": group, "tid": 0, "args": {"name": f"stage {group}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": group, "tid": 0, "args": {"sort_index": group}}
    for pid, tid, name in _places(timeline):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _slices(timeline: Timeline) -> Iterator[Event]:
    places, jobs = _places(timeline), timeline.jobs
    for job, resource in enumerate(jobs.resource.tolist()):
        pid, tid, _ = places[resource]
        kind, number = JobKind(jobs.kind[job]), int(jobs.microbatch[job])
        of = "batch" if kind >= JobKind.SYNC else "microbatch"
        yield {
            "ph": "X",
            "name": f"{NAMES[kind]} {number}",
            "cat": NAMES[kind],
            "pid": pid,
            "tid": tid,
            "ts": float(timeline.start_s[job]) * MICROSECONDS,
            "dur": float(timeline.duration_s[job]) * MICROSECONDS,
            "args": {"stage": int(jobs.stage[job]), of: number},
        }


def _sent(timeline: Timeline) -> Iterator[tuple[int, int]]:
    """Yield pairs of a receiving and a sending job, for each tensor that a pass sends to another job."""
    kind, passes = timeline.jobs.kind, (JobKind.FORWARD, *BACKWARD_PASSES)
    for job, sender in enumerate(timeline.binding.tolist()):
        if sender >= 0 and kind[sender] in passes and kind[job] < JobKind.SYNC:
            yield job, sender


def _arrows(timeline: Timeline) -> Iterator[Event]:
    """Yield arrow events for the tensors sent between workers.

    An arrow begins in the middle of the sending job: viewers attach arrows to the slice at that time.
    """
    places, resource = _places(timeline), timeline.jobs.resource
    for job, sender in _sent(timeline):
        name = "activation" if timeline.jobs.kind[sender] == JobKind.FORWARD else "gradient"
        middle = float(timeline.start_s[sender] + timeline.end_s[sender]) / 2
        for ph, at, time in (("s", sender, middle), ("f", job, float(timeline.start_s[job]))):
            pid, tid, _ = places[int(resource[at])]
            ends: Event = {"ph": ph, "name": name, "cat": "transfer", "id": job, "pid": pid, "tid": tid}
            # Binding point `e` attaches an arrow's end to the slice that encloses it (Trace Event Format).
            yield {**ends, "ts": time * MICROSECONDS, **({"bp": "e"} if ph == "f" else {})}


def _counters(timeline: Timeline) -> Iterator[Event]:
    for worker, (group, replica) in enumerate(timeline.pipeline.workers):
        profile = timeline.memory(worker)
        for time, used_bytes in zip(profile.time_s.tolist(), profile.bytes_.tolist(), strict=True):
            yield {
                "ph": "C",
                "name": f"memory of replica {replica}",
                "pid": group,
                "tid": replica,
                "ts": time * MICROSECONDS,
                "args": {"bytes": used_bytes},
            }


def job_rows(timeline: Timeline) -> Iterator[Row]:
    """Yield one row per job, workers before ports: its times, and the memory of a device during it."""
    jobs = timeline.jobs
    for resource in range(len(jobs.first) - 1):
        first, last = jobs.first[resource : resource + 2].tolist()
        worker = resource < len(timeline.pipeline.workers)
        used_bytes = timeline.memory(resource).bytes_[1::2] if worker else [0.0] * (last - first)
        for number, job in enumerate(range(first, last)):
            yield {
                "resource": resource,
                "number": number,
                "kind": NAMES[JobKind(jobs.kind[job])],
                "stage": int(jobs.stage[job]),
                "microbatch": int(jobs.microbatch[job]),
                "start_s": float(timeline.start_s[job]),
                "end_s": float(timeline.end_s[job]),
                "held_bytes": float(used_bytes[number]),
            }


def transfer_rows(timeline: Timeline) -> Iterator[Row]:
    """Yield one row per tensor in flight between workers, as if it were a job of the receiver."""
    jobs, resource = timeline.jobs, timeline.jobs.resource
    for job, sender in _sent(timeline):
        if resource[job] == resource[sender]:
            continue
        yield {
            "resource": int(resource[job]),
            "kind": "transfer",
            "stage": int(jobs.stage[job]),
            "microbatch": int(jobs.microbatch[job]),
            "start_s": float(timeline.end_s[sender]),
            "end_s": float(timeline.arrival_s[job]),
        }


def stage_memory(timeline: Timeline) -> dict[int, MemoryProfile]:
    """Memory over time of a device of each group's first replica."""
    workers = enumerate(timeline.pipeline.workers)
    return {group: timeline.memory(worker) for worker, (group, replica) in workers if replica == 0}
