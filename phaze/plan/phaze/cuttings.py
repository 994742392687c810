"""All that a layer graph with branches can be cut into, ready for the recurrence of the placement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.memory import microbatches_in_flight
from phaze.layout import Layout
from phaze.pipeline.flushing import Chain, Setting
from phaze.plan.downsets import Downsets, enumerate_downsets
from phaze.plan.phaze.graph_partition import Widths, nothing_placed, one_more_stage, widths_of
from phaze.plan.phaze.stage_tables import Options, Stages, count_stages, options_of, stages_of
from phaze.plan.phaze.stages import MOST_BRANCHES, Work, work_of

MOST_DOWNSETS = 10_000
MOST_STAGES = 1_500_000
"""Stages that are considered: each takes about 10 us, and 100 bytes for each of its options."""


@dataclass(frozen=True, eq=False)
class Cutting:
    """A graph, for one TMP width, with its downsets and stages."""

    graph: Chain
    layout: Layout
    work: Work
    downsets: Downsets
    stages: Stages
    options: Options

    def room(self, setting: Setting) -> Ints:
        """Return how many microbatches in flight each option has room for."""
        limit = max(len(self.graph), setting.microbatches)
        return self.options.in_flight(setting.memory_bytes, limit)

    def widths(self, devices: int) -> Widths:
        """Return the numbers of devices that a pipeline can have."""
        return widths_of(self.graph, self.layout, devices, self.options)

    def behind(self, option: int) -> int:
        """Return the downset that the stage of an option leaves behind."""
        return int(self.stages.inner[np.searchsorted(self.options.first, option, side="right") - 1])

    def layers(self, outer: int, inner: int) -> tuple[int, ...]:
        """Return the layers of a stage."""
        return self.downsets.difference(outer, inner)

    def tables(self, widths: Widths, costs: Iterator[Floats]) -> Iterator[Floats]:
        """Yield dp[0], dp[1], ... for costs of s = 1, 2, ..., as long as anything can be placed."""
        dp = nothing_placed(self.stages, widths)
        yield dp
        for cost in costs:
            dp = one_more_stage(dp, self.stages, self.options, widths, cost)
            if not np.isfinite(dp).any():
                return
            yield dp


def cutting_of(graph: Chain, layout: Layout, setting: Setting, most_branches: int = MOST_BRANCHES) -> Cutting:
    """Return what a graph can be cut into; PhazeError if that is too much."""
    downsets = few_downsets(graph)
    stages = stages_of(downsets)
    work = work_of(graph, layout, setting.bandwidth_bytes_per_s)
    options = options_of(work, downsets, stages, setting.recompute, most_branches)
    return Cutting(graph, layout, work, downsets, stages, options)


def few_downsets(
    graph: Chain, most_downsets: int = MOST_DOWNSETS, most_stages: int = MOST_STAGES
) -> Downsets:
    """Return the downsets of a graph; PhazeError if there are too many, or too many stages."""
    ends = [(source, target) for source, target, _ in graph.edges]
    try:
        downsets = enumerate_downsets(len(graph), ends, most_downsets)
    except PhazeError as error:
        raise PhazeError(_too_many(f"more than {most_downsets} downsets", f"{most_downsets}")) from error
    if (stages := count_stages(downsets)) > most_stages:
        found = f"{len(downsets)} downsets and {stages} possible stages"
        raise PhazeError(_too_many(found, f"{most_stages} stages"))
    return downsets


def needed(setting: Setting, s: int, microbatches: int) -> int:
    """Return the microbatches in flight that the s-th stage from the end has to have room for."""
    return microbatches_in_flight(setting.schedule, s, microbatches)


def _too_many(found: str, allowed: str) -> str:
    return (
        f"the layer graph has {found}, allowed are {allowed}: merge layers that run beside each "
        "other, or add edges of 0 bytes that say which comes first"
    )
