"""Pipeline schedules: the order of a worker's passes, and how many microbatches it holds at once.

Everything that differs between schedules is here; the rest of the package asks the schedule of a pipeline. A
worker, one replica of a device group, passes its microbatches forward until it holds as many as it may, and
then does a backward and a forward pass in turn. Suffix sums s add the replicas d from a device group to the
last; with equal replicas s/d is a stage's number from the end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.pipeline.durations import JobKind
from phaze.pipeline.windows import stashes, steady_windows

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline


class Passes(NamedTuple):
    """Passes of one worker in their order: forward, and backward or the two gradients."""

    kind: Ints
    stage: Ints
    microbatch: Ints


class Schedule(ABC):
    """An order of passes for every worker of a pipeline."""

    name: ClassVar[str]
    trains: ClassVar[bool] = True
    """There are backward passes."""
    flushes: ClassVar[bool] = True
    """A batch begins when the one before is over."""
    chunked: ClassVar[bool] = False
    """Device groups have several stages each."""
    splits: ClassVar[bool] = False
    """Gradients of weights are jobs of their own, behind those of the input."""
    in_runs: ClassVar[bool] = False
    """A row of a table of runs may name it."""

    @property
    def last_pass(self) -> JobKind:
        """After it the activations of a microbatch are not needed any more, and its gradients are there."""
        if not self.trains:
            return JobKind.FORWARD
        return JobKind.WEIGHT_GRADIENT if self.splits else JobKind.BACKWARD

    def problem(self, pipeline: Pipeline) -> str:
        """Why a pipeline cannot run so, with the setting, its value and what is allowed; empty if it can."""
        if (pipeline.chunks > 1) != self.chunked:
            return (
                f"chunks must be >= 2 under interleaved and 1 otherwise, got {pipeline.chunks} "
                f"under {self.name}"
            )
        if pipeline.batches > 1 and (self.flushes or not self.trains):
            return f"batches must be 1 except under 2bw, got {pipeline.batches}"
        return ""

    @abstractmethod
    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Microbatches that a worker of each device group has room for, those of all its chunks."""

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Passes of a worker that has these microbatches."""
        kind, number = _turns(pipeline.in_flight[group], len(own))
        return Passes(kind, np.full(len(kind), group), own[number])

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """Time that no batch is below, by what a microbatch takes on a replica of each device group, (p,)."""
        return float((-(-microbatches // np.asarray(data)) * loads_s).max())


class GPipe(Schedule):
    """All forward passes, then all backward passes in the same order (Huang et al., NeurIPS 2019)."""

    name = "gpipe"
    in_runs = True

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for all of them."""
        return (pipeline.lane_microbatches,) * pipeline.depth

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """A group begins behind the first microbatch, and the last one has those before it to pass."""
        turns = -(-microbatches // np.asarray(data))
        return float((np.cumsum(loads_s) - loads_s + turns * loads_s).max())


class OneForwardOneBackward(GPipe):
    """ceil(s/d) forward passes, then backward and forward in turn (Narayanan et al., SC 2021)."""

    name = "1f1b"

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for as many as there are workers from here to the end, for each replica."""
        return stashes(pipeline)


class Interleaved(Schedule):
    """Megatron's order over m v passes, in groups of p microbatches per chunk.

    2 (p - rank - 1) + (v - 1) p forward passes come before the first pair (Narayanan et al., SC 2021, Section
    2.2).
    """

    name = "interleaved"
    chunked = True
    in_runs = True

    def problem(self, pipeline: Pipeline) -> str:
        """Needs several groups with equal replicas, and whole groups of p microbatches."""
        depth, count, found = pipeline.depth, pipeline.lane_microbatches, super().problem(pipeline)
        if not found and (depth < 2 or max(pipeline.replicas) > 1):
            found = (
                f"interleaved needs pp >= 2, two device groups or more with equal data, got {depth} groups "
                f"with data {pipeline.data or 1}"
            )
        if not found and count % depth:
            found = (
                f"microbatches of a replica must be a multiple of pp = {depth} under interleaved, got {count}"
            )
        return found

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for the passes before the first pair, and one more."""
        p, v = pipeline.depth, pipeline.chunks
        return [2 * (p - rank - 1) + (v - 1) * p + 1 for rank in range(p)]

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Microbatches pass a chunk p at a time, then the next chunk."""
        p, v = pipeline.depth, pipeline.chunks
        kind, number = _turns(pipeline.in_flight[group], len(own) * v)
        chunk = number % (p * v) // p
        chunk = np.where(kind == JobKind.BACKWARD, v - 1 - chunk, chunk)
        return Passes(kind, chunk * p + group, number // (p * v) * p + number % p)


class ZeroBubble(Schedule):
    """ZB-H1: 1f1b, where gradients of weights fill the bubbles behind the last forward passes.

    Rank i puts them off by i microbatches, so that every rank holds p, as the first one does under 1f1b
    (Qi et al., ICLR 2024, Section 2.2).
    """

    name = "zb-h1"
    splits = True
    in_runs = True

    def problem(self, pipeline: Pipeline) -> str:
        """Needs equal replicas."""
        unequal = f"data must be equal under zb-h1, got {pipeline.data}"
        return super().problem(pipeline) or (unequal if max(pipeline.replicas) > 1 else "")

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for p on every rank, those that wait for gradients of their weights included."""
        return (pipeline.depth,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """A gradient of weights stands behind that of the input of the microbatch i later, or at the end."""
        kind, number = _turns(min(pipeline.depth - group, len(own)), len(own))
        put_off = min(group, len(own))
        after = np.flatnonzero(kind == JobKind.BACKWARD) + 1
        behind = np.concatenate([after[put_off:], np.repeat(len(kind), put_off)])
        kind = np.insert(kind, behind, JobKind.WEIGHT_GRADIENT)
        number = np.insert(number, behind, np.arange(len(own)))
        return Passes(kind, np.full(len(kind), group), own[number])


class TwoBuffered(Schedule):
    """PipeDream-2BW: 1f1b over all batches without a flush between them, on two versions of the weights.

    Batch k + 2 is the first that uses the gradients of batch k (Narayanan et al., 2020, Section 3.1); Piper
    plans for it (Figure 5).
    """

    name = "2bw"
    flushes = False

    def problem(self, pipeline: Pipeline) -> str:
        """Two versions suffice if no more microbatches are in flight than a batch has."""
        least = pipeline.suffixes[0] if pipeline.batches > 1 else max(pipeline.replicas)
        found = super().problem(pipeline)
        if not found and (pipeline.microbatches % pipeline.lanes or pipeline.lane_microbatches < least):
            found = (
                f"microbatches under 2bw must be a multiple of {pipeline.lanes}, and at least "
                f"{least * pipeline.lanes} with data {pipeline.data or 1}, got {pipeline.microbatches}"
            )
        return found

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """As under 1f1b, or fewer where some d does not divide its s."""
        return steady_windows(pipeline)

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """In the long run the slowest stage decides (Piper, Section 3.2)."""
        return float((loads_s / np.asarray(data)).max()) * microbatches


class LayerWise(OneForwardOneBackward):
    """One stage, which does a microbatch after the other (PALM, IV.A)."""

    name = "layer-wise"
    in_runs = False

    def problem(self, pipeline: Pipeline) -> str:
        """Has one stage."""
        found = super().problem(pipeline)
        return found or ("" if pipeline.depth == 1 else f"layer-wise has one stage, got {pipeline.depth}")


class Inference(GPipe):
    """Forward passes, one microbatch after the other."""

    name = "inference"
    trains = False
    flushes = False
    in_runs = False

    def order(self, _: Pipeline, group: int, own: Ints) -> Passes:
        """Forward passes in the order of the microbatches."""
        return Passes(np.full(len(own), JobKind.FORWARD), np.full(len(own), group), own)


_ALL: tuple[Schedule, ...] = (
    GPipe(), OneForwardOneBackward(), Interleaved(), ZeroBubble(), TwoBuffered(), LayerWise(), Inference(),
)  # fmt: skip
SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in _ALL}
"""Every schedule by the name that users and tables give it."""


def _turns(window: int, count: int) -> tuple[Ints, Ints]:
    """Kinds of passes, backward and forward in turn, and the number of each in its direction."""
    k = np.arange(count)
    backward, number = np.zeros(2 * count, bool), np.empty(2 * count, np.int64)
    backward_at = np.minimum(window + 2 * k, count + k)
    backward[backward_at] = True
    number[backward_at] = number[np.where(k < window, k, 2 * k - window + 1)] = k
    return np.where(backward, JobKind.BACKWARD, JobKind.FORWARD), number
