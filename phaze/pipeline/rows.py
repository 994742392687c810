"""A timeline as rows of a table: its jobs, the tensors under way, and the memory of its stages."""

from __future__ import annotations

from collections.abc import Iterator

from phaze.pipeline.durations import Kind
from phaze.pipeline.timeline import MemoryProfile, Timeline
from phaze.pipeline.trace import NAMES

Row = dict[str, object]


def job_rows(timeline: Timeline) -> Iterator[Row]:
    """Yield the jobs of workers, then of ports, with the memory of a device meanwhile; seconds and bytes."""
    jobs = timeline.jobs
    for resource in range(len(jobs.first) - 1):
        first, last = jobs.first[resource : resource + 2].tolist()
        worker = resource < len(timeline.pipeline.workers)
        held = timeline.memory(resource).bytes_[1::2] if worker else [0.0] * (last - first)
        for number, job in enumerate(range(first, last)):
            yield {
                "resource": resource,
                "number": number,
                "kind": NAMES[Kind(jobs.kind[job])],
                "stage": int(jobs.stage[job]),
                "microbatch": int(jobs.microbatch[job]),
                "start_s": float(timeline.start_s[job]),
                "end_s": float(timeline.end_s[job]),
                "held_bytes": float(held[number]),
            }


def transfer_rows(timeline: Timeline) -> Iterator[Row]:
    """Yield the tensors under way between workers, as jobs of those that receive them; without memory."""
    jobs, resource = timeline.jobs, timeline.jobs.resource
    passes = (Kind.FORWARD, Kind.BACKWARD)
    for job, sender in enumerate(timeline.binding.tolist()):
        if sender < 0 or resource[job] == resource[sender]:
            continue
        if jobs.kind[sender] not in passes or jobs.kind[job] >= Kind.SYNC:
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
    """Return the memory of a device of every group's first replica over time."""
    workers = enumerate(timeline.pipeline.workers)
    return {group: timeline.memory(worker) for worker, (group, replica) in workers if replica == 0}
