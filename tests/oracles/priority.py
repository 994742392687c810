"""Work by priority: what one worker does next, of all that has arrived (PALM, IV.A, Prior Selector)."""

from __future__ import annotations

from collections.abc import Callable

from phaze.pipeline.durations import JobKind, fetches_on_worker
from phaze.pipeline.orders import Key, own_microbatches
from phaze.pipeline.pipeline import Pipeline


class Queue:
    """What one worker has to do by priority."""

    def __init__(
        self, pipeline: Pipeline, worker: int, updates: list[Key], can_start: Callable[[Key], bool]
    ) -> None:
        """Begin with nothing done; `can_start` says whether all that a job waits for has happened."""
        self.pipeline, self.updates, self.can_start = pipeline, updates, can_start
        self.group, replica = pipeline.workers[worker]
        self.own: list[int] = own_microbatches(pipeline, replica, self.group).tolist()
        self.limit = pipeline.in_flight[self.group]
        self.forward = self.backward = self.updated = 0
        self.per_batch = len(updates) // pipeline.batches

    @property
    def finished(self) -> bool:
        """Return whether nothing is left."""
        released = self.backward if self.pipeline.rules.trains else self.forward
        return released == len(self.own) and self.updated * self.per_batch == len(self.updates)

    def choose(self) -> list[Key]:
        """Return the jobs to do now, none if nothing can be done."""
        if self._update_due and self.can_start(self._next_update[0]):
            jobs = self._next_update
            self.updated += 1
            return jobs
        if self._update_due and not self.pipeline.overlap_sync:
            return []
        return self._backward() or self._forward()

    @property
    def _update_due(self) -> bool:
        """Return whether all backward passes of the batch to update are done."""
        last = (self.updated + 1) * self.pipeline.lane_microbatches
        due = self.backward == len(self.own) or self.own[self.backward] >= last
        return self.pipeline.rules.trains and self.updated < self.pipeline.batches and due

    @property
    def _next_update(self) -> list[Key]:
        """Return the jobs that update the weights with the next batch."""
        return self.updates[self.updated * self.per_batch : (self.updated + 1) * self.per_batch]

    def _backward(self) -> list[Key]:
        """Return the next backward pass with its recomputation, if it can start."""
        waits_for_all = self.pipeline.schedule == "gpipe" and self.forward < len(self.own)
        if not self.pipeline.rules.trains or self.backward >= self.forward or waits_for_all:
            return []
        key = JobKind.BACKWARD, self.group, self.own[self.backward]
        if not self.can_start(key):
            return []
        self.backward += 1
        again = self.pipeline.stages[self.group].recompute_s > 0
        return [(JobKind.RECOMPUTE, *key[1:]), key] if again else [key]

    def _forward(self) -> list[Key]:
        """Return the next forward pass, if it can start and there is a place for the microbatch."""
        if self.forward == len(self.own) or self.forward - self.backward >= self.limit:
            return []
        number = self.own[self.forward]
        stale = self.pipeline.rules.trains and number // self.pipeline.lane_microbatches - self.updated >= 2
        kinds = [JobKind.FORWARD]
        if self.group == 0 and fetches_on_worker(self.pipeline):
            kinds.insert(0, JobKind.FETCH)
        jobs = [(kind, self.group, number) for kind in kinds]
        if stale or not self.can_start(jobs[0]):
            return []
        self.forward += 1
        return jobs
