"""Zero-bubble schedules by hand: gradients of weights fill the bubbles of 1f1b (Qi et al., ICLR 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Ints
from phaze.pipeline.schedules.base import Passes, Schedule, split_turns

if TYPE_CHECKING:
    from phaze.pipeline.pipeline import Pipeline


class ZeroBubble(Schedule):
    """ZB-H1: 1f1b, where gradients of weights fill the bubbles behind the last forward passes.

    Rank i puts them off by i microbatches, so that every rank holds p, as the first one does under 1f1b
    (Section 2.2).
    """

    name = "zb-h1"
    splits = True
    equal_replicas = True
    in_runs = True

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for p on every rank, those that wait for gradients of their weights included."""
        return (pipeline.depth,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """A gradient of weights stands behind that of the input of the microbatch i later, or at the end."""
        window = min(pipeline.depth - group, len(own))
        kind, number = split_turns(window, len(own), group)
        return Passes(kind, np.full(len(kind), group), own[number])


class ZeroBubbleTwice(ZeroBubble):
    """ZB-H2: zb-h1 with forward passes also where 1f1b waits for the first gradient.

    Rank i begins with 2 (p - i) - 1 of them and puts gradients of weights off by 2 i microbatches, so that
    every rank holds 2 p - 1 (Section 2.2, Figure 3). Without the paper's validation of the optimizer's step
    afterwards, which no runtime here has, all ranks end together.
    """

    name = "zb-h2"

    def places(self, pipeline: Pipeline) -> Sequence[int]:
        """Room for 2 p - 1 on every rank."""
        return (2 * pipeline.depth - 1,) * pipeline.depth

    def order(self, pipeline: Pipeline, group: int, own: Ints) -> Passes:
        """Gradients of weights stand behind that of the input of the microbatch 2 i later, or at the end."""
        window = min(2 * (pipeline.depth - group) - 1, len(own))
        kind, number = split_turns(window, len(own), 2 * group)
        return Passes(kind, np.full(len(kind), group), own[number])
