"""Handcrafted zero-bubble schedules: weight gradients fill the bubbles of 1f1b (Qi et al., ICLR 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Ints
from phaze.pipeline.schedules.base import Passes, Schedule, split_turns

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline


class ZeroBubble(Schedule):
    """ZB-H1: 1f1b with weight gradients in the bubbles after the last forward passes.

    Rank i postpones them by i microbatches, so that every rank has p microbatches in flight, as the first one
    under 1f1b (Section 2.2).
    """

    name = "zb-h1"
    splits = True
    equal_replicas = True
    in_runs = True

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """In-flight microbatches: p on every rank, including those with postponed weight gradients."""
        return (pipeline.depth,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Passes with each weight gradient after the input gradient i microbatches later, or at the end."""
        window = min(pipeline.depth - group, len(own))
        kind, number = split_turns(window, len(own), group)
        return Passes(kind, np.full(len(kind), group), own[number])


class ZeroBubbleTwice(ZeroBubble):
    """ZB-H2: zb-h1 with additional forward passes while 1f1b waits for the first gradient.

    Rank i begins with 2 (p - i) - 1 forward passes and postpones weight gradients by 2 i microbatches, so
    that every rank has 2 p - 1 microbatches in flight (Section 2.2, Figure 3). Without the paper's validation
    of the optimizer's step afterwards, which no runtime here has, all ranks end together.
    """

    name = "zb-h2"

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """In-flight microbatches: 2 p - 1 on every rank."""
        return (2 * pipeline.depth - 1,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Passes with each weight gradient after the input gradient 2 i microbatches later, or at the end."""
        window = min(2 * (pipeline.depth - group) - 1, len(own))
        kind, number = split_turns(window, len(own), 2 * group)
        return Passes(kind, np.full(len(kind), group), own[number])
