"""Result of a simulation: event times, device time by use, critical path, and memory over time.

A microbatch is in flight on a stage from the start of its forward pass to the end of its backward pass, as
the stashes in the caption of Piper's Figure 5. Under 1f1b and 2bw a worker has at most ceil(s/d) of them,
min(S, B) on the first of S equal stages; under gpipe it has all (PALM, IV.B). `cost.memory` counts s - 1
instead, because it adds the current microbatch to the permanent memory.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.pipeline.durations import JobKind, occupied_s
from phaze.pipeline.orders import Jobs, Kinds
from phaze.pipeline.pipeline import Pipeline

Use = Literal["forward", "recompute", "backward", "update", "fetch", "transfer", "synchronisation", "bubble"]
"""Kind of use of device time.

transfer: activations and gradients in flight while the device is idle; synchronisation: likewise gradients
and updated weights; bubble: waiting for other stages."""

FORWARD, SYNC, UPDATE = int(JobKind.FORWARD), int(JobKind.SYNC), int(JobKind.UPDATE)
USES: dict[JobKind, Use] = {
    JobKind.FETCH: "fetch",
    JobKind.FORWARD: "forward",
    JobKind.RECOMPUTE: "recompute",
    JobKind.BACKWARD: "backward",
    JobKind.PAIRED_BACKWARD: "backward",
    JobKind.INPUT_GRADIENT: "backward",
    JobKind.WEIGHT_GRADIENT: "backward",
    JobKind.SYNC: "synchronisation",
    JobKind.LAST_SYNC: "synchronisation",
    JobKind.UPDATE: "update",
    JobKind.GATHER: "synchronisation",
}
WAITS: dict[JobKind, Use] = {
    JobKind.FETCH: "fetch",
    JobKind.FORWARD: "transfer",
    JobKind.BACKWARD: "transfer",
    JobKind.PAIRED_BACKWARD: "transfer",
    JobKind.INPUT_GRADIENT: "transfer",
    JobKind.LAST_SYNC: "synchronisation",
}
"""Use to which a worker's wait before a job is attributed, by the kind of job that sends its input."""

RESOURCES: dict[Use, str] = {
    "forward": "compute",
    "recompute": "compute",
    "backward": "compute",
    "update": "memory traffic of the update",
    "fetch": "input",
    "transfer": "transfer",
    "synchronisation": "synchronisation",
    "bubble": "arrival of microbatches",
}


@dataclass(frozen=True)
class Step:
    """Step of the critical path: its use of time, its stage and its duration."""

    use: Use
    stage: int
    seconds: float


@dataclass(frozen=True)
class Bound:
    """Resource with the largest share of the critical path."""

    resource: str
    group: int
    """Device group with the largest part of that share."""
    share: float
    """Share of the critical path, summed over all groups."""

    def __str__(self) -> str:
        return f"{self.resource} ({100 * self.share:.0f} % of the critical path, most in group {self.group})"


@dataclass(frozen=True)
class MemoryProfile:
    """Memory of one device of a worker over time: `bytes_[i]` from `time_s[i]` on."""

    time_s: Floats
    bytes_: Floats

    @property
    def peak_bytes(self) -> float:
        """Peak memory in bytes."""
        return float(self.bytes_.max())


@dataclass(frozen=True, eq=False)
class Timeline:
    """Result of a simulation: start and end of N jobs in seconds, by resource and in order of execution."""

    pipeline: Pipeline
    jobs: Jobs
    start_s: Floats
    duration_s: Floats
    arrival_s: Floats
    """Arrival time of each job's last input, excluding the wait for its resource."""
    binding: Ints
    """Job that sent the last input, -1 if there is none."""

    @cached_property
    def end_s(self) -> Floats:
        """End of each job, (N,)."""
        return self.start_s + self.duration_s

    @cached_property
    def time_s(self) -> float:
        """Time of all batches, including set-up, drain, synchronisation and update."""
        return float(self.end_s.max())

    @cached_property
    def share_of(self) -> dict[Use, float]:
        """Share of each use in the device time of the simulated lane; the shares sum to one.

        Before a job, a device waits for its input. While the input is in flight this is transfer,
        synchronisation or fetch; before that, and at the end, it is bubble.
        """
        seconds = dict.fromkeys(RESOURCES, 0.0)
        for use, value in self._uses():
            seconds[use] += value
        total = self.time_s * float(self.pipeline.worker_devices.sum())
        # Idle time behind a worker's last job precedes no job, so bubbles are what the other uses leave.
        seconds["bubble"] = total - sum(value for use, value in seconds.items() if use != "bubble")
        return {use: value / total if total else 0.0 for use, value in seconds.items()}

    @cached_property
    def critical_path(self) -> tuple[Step, ...]:
        """Critical path: a gapless chain of steps that sums to `time_s`, listed backwards in time."""
        return tuple(self._walk())

    @cached_property
    def bound_by(self) -> Bound:
        """Resource with the largest part of the critical path."""
        return self.bound_among(lambda step: {RESOURCES[step.use]: step.seconds})

    def bound_among(self, spends: Callable[[Step], Mapping[str, float]]) -> Bound:
        """Resource with the largest part of the critical path; `spends` splits a step's time by resource."""
        spent: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(self.pipeline.depth))
        for step in self.critical_path:
            for resource, part_s in spends(step).items():
                spent[resource][self.pipeline.groups[step.stage]] += part_s
        resource, seconds = max(spent.items(), key=lambda item: (item[1].sum(), item[0]))
        share = float(seconds.sum()) / self.time_s if self.time_s else 0.0
        return Bound(resource, int(np.argmax(seconds)), share)

    def memory(self, worker: int) -> MemoryProfile:
        """Memory of each device of a worker over time."""
        jobs = slice(*self.jobs.first[worker : worker + 2])
        group, kind, stage = self.pipeline.workers[worker][0], self.jobs.kind[jobs], self.jobs.stage[jobs]
        during, after = used_bytes(self.pipeline, group, kind, stage)
        time = np.column_stack([self.start_s[jobs], self.end_s[jobs]]).ravel()
        used = np.column_stack([during, after]).ravel()
        fixed, _ = _total_bytes(self.pipeline, group)
        return MemoryProfile(np.concatenate([[0.0], time]), np.concatenate([[fixed], used]))

    @cached_property
    def peak_bytes(self) -> Floats:
        """Peak memory of a device of each group, in bytes, (p,)."""
        peaks = np.zeros(self.pipeline.depth)
        for worker, (group, _) in enumerate(self.pipeline.workers):
            jobs = slice(*self.jobs.first[worker : worker + 2])
            used = used_bytes(self.pipeline, group, self.jobs.kind[jobs], self.jobs.stage[jobs])[0]
            peaks[group] = max(peaks[group], used.max())
        return peaks

    def most_in_flight(self, worker: int) -> int:
        """Maximum number of in-flight microbatches of a worker, counted per chunk."""
        kind = self.jobs.kind[slice(*self.jobs.first[worker : worker + 2])]
        return self.pipeline.rules.most_in_flight(kind)

    def passed_s(self, kind: JobKind, stage: int) -> Floats:
        """Times at which the microbatches, in order, have passed a stage in one direction."""
        out = np.flatnonzero((self.jobs.kind == kind) & (self.jobs.stage == stage))
        return self.end_s[out[np.argsort(self.jobs.microbatch[out], kind="stable")]]

    @cached_property
    def _worker_jobs(self) -> slice:
        """Range of jobs that belong to workers, not to ports."""
        return slice(0, int(self.jobs.first[len(self.pipeline.workers)]))

    def _uses(self) -> Iterator[tuple[Use, float]]:
        """Yield the device-seconds of each use: busy time of workers, and waiting time before their jobs."""
        kind, stage = self.jobs.kind[self._worker_jobs], self.jobs.stage[self._worker_jobs]
        first = self.jobs.first[: len(self.pipeline.workers) + 1]
        devices = np.repeat(self.pipeline.worker_devices.astype(float), np.diff(first))
        occupied = occupied_s(self.pipeline)[kind, stage]
        # Transfers that occupy the device are inside the durations of its jobs, and reported apart.
        yield "transfer", float(occupied @ devices)
        busy = np.bincount(
            kind, devices * (self.duration_s[self._worker_jobs] - occupied), minlength=len(JobKind)
        )
        sender = self.binding[self._worker_jobs]
        previous = np.concatenate([[0.0], self.end_s[self._worker_jobs][:-1]])
        previous[first[:-1]] = 0.0
        gaps_s = np.maximum(self.start_s[self._worker_jobs] - previous, 0.0)
        waited = devices * np.minimum(gaps_s, self._in_flight_s)
        behind = np.bincount(self.jobs.kind[sender], waited, minlength=len(JobKind))
        for done, use in USES.items():
            yield use, float(busy[done])
        for source, use in WAITS.items():
            yield use, float(behind[source])

    @cached_property
    def _in_flight_s(self) -> Floats:
        """Time for which the input of each job of a worker was in flight."""
        sender = self.binding[self._worker_jobs]
        source, travel = self.jobs.kind[sender], self.arrival_s[self._worker_jobs] - self.end_s[sender]
        # Ports deliver at once: what a worker waits for is the job of the port itself.
        travel[source == JobKind.FETCH] = self.pipeline.fetch_s
        syncs = source == JobKind.LAST_SYNC
        travel[syncs] = self.pipeline.column("sync_s")[self.jobs.stage[sender[syncs]]]
        travel[sender < 0] = 0.0
        return travel

    @cached_property
    def critical_jobs(self) -> tuple[Ints, Bools]:
        """Jobs of the critical path, backwards in time, and whether each waited for an input.

        False: it waited for the preceding job on its resource.
        """
        path, waited = np.empty(len(self.start_s), np.int64), np.empty(len(self.start_s), np.bool_)
        graph = self.jobs.resource, self.jobs.first, self.binding
        count = _trace_back(int(np.argmax(self.end_s)), graph, (self.arrival_s, self.end_s), path, waited)
        return path[:count], waited[:count]

    def _walk(self) -> Iterator[Step]:
        """Yield the steps of the critical path from its end back to its start."""
        until = self.time_s
        path = self.critical_jobs[0].tolist()
        for job, before in zip(path, [*path[1:], -1], strict=True):
            start, kind = float(self.start_s[job]), self.jobs.kind[job]
            yield Step(USES[JobKind(kind)], int(self.jobs.stage[job]), until - start)
            if before < 0:
                return
            # A synchronisation that overlaps begins before its predecessor ends.
            until = min(float(self.end_s[before]), start)
            if start > until:
                # Nothing is in flight between two fetches: the source has no microbatch yet (`release_s`).
                use: Use = "bubble" if kind == JobKind.FETCH else "transfer"
                yield Step(use, int(self.jobs.stage[before]), start - until)


def used_bytes(
    pipeline: Pipeline, group: int, kind: Kinds, stage: NDArray[np.int32]
) -> tuple[Floats, Floats]:
    """Bytes that a device of a group uses during and after each of a worker's jobs."""
    during, after = np.empty(len(kind)), np.empty(len(kind))
    sizes = pipeline.column("stash_bytes"), pipeline.column("work_bytes"), pipeline.rules.releasing
    _fill_bytes(kind, stage, sizes, _total_bytes(pipeline, group), during, after)
    return during, after


@njit
def _trace_back(
    job: int, graph: tuple[Ints, Ints, Ints], times: tuple[Floats, Floats], path: Ints, waited: Bools
) -> int:
    """Fill in the chain of jobs that led to a job, and whether each waited for an input; return its length.

    `graph` has the resource of each job, the first job of each resource, and the binding predecessors;
    `times` are arrivals of inputs and ends of jobs. Searches trace paths of 10,000 jobs hundreds of times.
    """
    (resource, first, binding), (arrival_s, end_s), count = graph, times, 0
    while job >= 0:
        sender = binding[job]
        by_resource = job > first[resource[job]] and (sender < 0 or arrival_s[job] <= end_s[job - 1])
        path[count], waited[count] = job, sender >= 0 and not by_resource
        count += 1
        job = job - 1 if by_resource else sender
    return count


@njit
def _fill_bytes(
    kind: Kinds,
    stage: NDArray[np.int32],
    sizes: tuple[Floats, Floats, Bools],
    totals: tuple[float, float],
    during: Floats,
    after: Floats,
) -> None:
    """Fill in the bytes during and after each job, which searches need for every split that they try.

    `sizes` are stashed and temporary bytes by stage, and whether a job frees a stash, by kind. `totals` are
    the permanent bytes and those only during an update.
    """
    (stash_bytes, work_bytes, releases), (fixed, updated) = sizes, totals
    taken = freed = 0.0
    for job in range(len(kind)):
        stash = stash_bytes[stage[job]]
        released = stash if releases[kind[job]] else 0.0
        taken += stash if kind[job] == FORWARD else 0.0
        freed += released
        # Two sums, so that rounding does not depend on how the passes alternate.
        after[job] = fixed + taken - freed
        temporary = work_bytes[stage[job]] if FORWARD <= kind[job] < SYNC else 0.0
        during[job] = after[job] + released + (temporary + (updated if kind[job] == UPDATE else 0.0))


def _total_bytes(pipeline: Pipeline, group: int) -> tuple[float, float]:
    """Bytes that a device of a group uses permanently, and only during an update, over all its chunks."""
    stages = pipeline.stages_of(group)
    fixed, updated = pipeline.column("fixed_bytes")[stages], pipeline.column("update_bytes")[stages]
    return float(fixed.sum()), float(updated.sum())
