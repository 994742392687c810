"""Schedules with a stage and whole backward passes on every device group: gpipe, 1f1b, 2bw, and their kin.

Suffix sums s add the replicas d from a device group to the last; with equal replicas s/d is a stage's number
from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.pipeline.durations import JobKind
from phaze.pipeline.schedules.base import Passes, Schedule, turns
from phaze.pipeline.windows import stashes, steady_windows

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline


class GPipe(Schedule):
    """All forward passes, then all backward passes in the same order (Huang et al., NeurIPS 2019)."""

    name = "gpipe"
    in_runs = True

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for all of them."""
        return (pipeline.lane_microbatches,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Forward passes until the worker holds as many as it may, then backward and forward in turn."""
        kind, number = turns(pipeline.in_flight[group], len(own))
        return Passes(kind, np.full(len(kind), group), own[number])

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """A group begins behind the first microbatch, and the last one has those before it to pass."""
        count = -(-microbatches // np.asarray(data))
        return float((np.cumsum(loads_s) - loads_s + count * loads_s).max())


class OneForwardOneBackward(GPipe):
    """ceil(s/d) forward passes, then backward and forward in turn (Narayanan et al., SC 2021)."""

    name = "1f1b"

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for as many as there are workers from here to the end, for each replica."""
        return stashes(pipeline)


class TwoBuffered(GPipe):
    """PipeDream-2BW: 1f1b over all batches without a flush between them, on two versions of the weights.

    Batch k + 2 is the first that uses the gradients of batch k (Narayanan et al., 2020, Section 3.1); Piper
    plans for it (Figure 5).
    """

    name = "2bw"
    flushes = False
    in_runs = False

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
