"""Schedules with one stage per device group and unsplit backward passes: gpipe, 1f1b, 2bw and similar.

Suffix sums s add the replicas d from a device group to the last. With equal replicas s/d is a stage's number
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
        """In-flight microbatches: all of them."""
        return (pipeline.lane_microbatches,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Forward passes up to the in-flight maximum, then backward and forward alternate."""
        kind, number = turns(pipeline.in_flight[group], len(own))
        return Passes(kind, np.full(len(kind), group), own[number])

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """Lower bound: each group starts after the first microbatch of the groups before it."""
        count = -(-microbatches // np.asarray(data))
        return float((np.cumsum(loads_s) - loads_s + count * loads_s).max())


class OneForwardOneBackward(GPipe):
    """1F1B: ceil(s/d) forward passes, then backward and forward alternate (Narayanan et al., SC 2021)."""

    name = "1f1b"

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """In-flight microbatches: the number of workers from here to the end, per replica."""
        return stashes(pipeline)


class TwoBuffered(GPipe):
    """PipeDream-2BW: 1f1b over all batches without a flush between them, with two versions of the weights.

    Batch k + 2 is the first that uses the gradients of batch k (Narayanan et al., 2020, Section 3.1). Piper
    plans for this schedule (Figure 5).
    """

    name = "2bw"
    flushes = False
    in_runs = False

    def problem(self, pipeline: Pipeline) -> str:
        """Error if a batch has too few microbatches for two weight versions."""
        least = pipeline.suffixes[0] if pipeline.batches > 1 else max(pipeline.replicas)
        found = super().problem(pipeline)
        if not found and (pipeline.microbatches % pipeline.lanes or pipeline.lane_microbatches < least):
            found = (
                f"microbatches under 2bw must be a multiple of {pipeline.lanes}, and at least "
                f"{least * pipeline.lanes} with data {pipeline.data or 1}, got {pipeline.microbatches}"
            )
        return found

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """In-flight microbatches as under 1f1b, or fewer if some d does not divide its s."""
        return steady_windows(pipeline)

    def lower_bound_s(self, loads_s: Floats, data: Sequence[int], microbatches: int) -> float:
        """Lower bound from the slowest stage, which sets the steady-state rate (Piper, Section 3.2)."""
        return float((loads_s / np.asarray(data)).max()) * microbatches


class LayerWise(OneForwardOneBackward):
    """Single stage that processes one microbatch after the other (PALM, IV.A)."""

    name = "layer-wise"
    in_runs = False

    def problem(self, pipeline: Pipeline) -> str:
        """Error if there is more than one stage."""
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
