"""Divisions of a model's blocks into the pipeline stages of one layout, and what each of them costs.

A division says how many blocks every virtual stage has, in the order of the data flow, and how many of them
run forward again. The embedding is on the first stage, the head with the loss on the last one; both may be
alone there. Stages in the middle with the same numbers cost the same, so that each is priced once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np

from phaze.layout import Layout
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.timeline import Timeline
from phaze.plan.given import Lowering
from phaze.plan.plan import Plan, Stage
from phaze.plan.stage_costs import pipeline_of, stage_cost

Place = Literal["first", "middle", "last", "whole"]
"""Where a stage is: with the embedding, between, with the head, with both."""


@dataclass(frozen=True)
class Division:
    """Blocks of every virtual stage, and how many of them run forward again, (stages,) each."""

    blocks: tuple[int, ...]
    recomputed: tuple[int, ...]

    @property
    def cuts(self) -> list[range]:
        """Layers of every stage, the embedding and the head with the ends."""
        ends = [1 + int(end) for end in np.cumsum(self.blocks)]
        ends[-1] += 1
        return [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True, eq=False)
class DividedLayout:
    """A layout under a schedule, of which any division can be priced."""

    lowering: Lowering
    layout: Layout
    schedule: str
    _stages: dict[tuple[Place, int, int], Stage] = field(default_factory=dict)
    _costs: dict[tuple[Place, int, int], StageCost] = field(default_factory=dict)

    @property
    def layers(self) -> int:
        """Blocks of the model."""
        return len(self.lowering.layers(self.layout)[0].order) - 2

    @property
    def count(self) -> int:
        """Virtual stages, p v."""
        return self.layout.stages

    @property
    def partial(self) -> bool:
        """Whether a stage may choose which of its blocks run forward again."""
        return self.layout.recompute == "full"

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Place of every stage."""
        if self.count == 1:
            return ("whole",)
        middle: list[Place] = ["middle"] * (self.count - 2)
        return ("first", *middle, "last")

    def stage(self, place: Place, blocks: int, recomputed: int) -> Stage:
        """Stage at a place; its layer numbers are those of some stage there."""
        key = place, blocks, recomputed
        if key not in self._stages:
            last = self.layers + 1
            cut = {
                "first": range(blocks + 1),
                "middle": range(1, 1 + blocks),
                "last": range(last - blocks, last + 1),
                "whole": range(last + 1),
            }[place]
            self._stages[key] = self.lowering.stage(cut, self.layout, recomputed if self.partial else None)
        return self._stages[key]

    def _template(self, blocks: int, recomputed: int) -> Plan:
        """Plan whose stages have all so many blocks, whatever the model has."""
        stages = {place: self.stage(place, blocks, recomputed) for place in set(self.places)}
        return self.lowering.plan([stages[place] for place in self.places], self.schedule)

    def cost(self, place: Place, blocks: int, recomputed: int) -> StageCost:
        """Costs of a stage at a place, as the price of a plan has them."""
        key = place, blocks, recomputed
        if key not in self._costs:
            # Empty stages are only at the ends; what is beside them does not change with the numbers.
            plan = self._template(max(blocks, 1), min(recomputed, max(blocks, 1)))
            q = self.places.index(place)
            stages = (*plan.stages[:q], self.stage(place, blocks, recomputed), *plan.stages[q + 1 :])
            own = self.lowering.plan(stages, self.schedule)
            self._costs[key] = stage_cost(own, self.lowering.machine, q)
        return self._costs[key]

    @cached_property
    def frame(self) -> Pipeline:
        """Pipeline with two blocks a stage: all but the costs of its stages is that of every division."""
        blocks = self.layers if self.count == 1 else min(2, self.layers)
        return pipeline_of(self._template(blocks, int(self.partial)), self.lowering.machine)

    def pipeline(self, division: Division) -> Pipeline:
        """Pipeline of a division."""
        numbers = zip(self.places, division.blocks, division.recomputed, strict=True)
        return self.framed([self.cost(*one) for one in numbers])

    def framed(self, costs: Sequence[StageCost]) -> Pipeline:
        """Pipeline with these costs of its stages."""
        return replace(self.frame, stages=tuple(costs))

    def timeline(self, division: Division) -> Timeline:
        """Events of a step of a division."""
        return simulate(self.pipeline(division))

    def plan(self, division: Division) -> Plan:
        """Plan of a division."""
        again = division.recomputed if self.partial else [None] * self.count
        stages = [
            self.lowering.stage(cut, self.layout, recomputed)
            for cut, recomputed in zip(division.cuts, again, strict=True)
        ]
        return self.lowering.plan(stages, self.schedule)


def blocks_at(divided: DividedLayout) -> list[tuple[int, int]]:
    """Fewest and most blocks of every stage.

    The embedding and the head may be alone. Virtual stages of several chunks differ by one block, of which
    the first and the last stage may have any number less, as layouts are written in practice.
    """
    layers, count = divided.layers, divided.count
    if count == 1:
        return [(layers, layers)]
    few, most = (layers // count, layers // count + 1) if divided.layout.vp > 1 else (1, layers)
    few = max(few, 1)
    return [(0 if place != "middle" else few, most) for place in divided.places]


def even_blocks(divided: DividedLayout) -> tuple[int, ...]:
    """Blocks of stages that are as equal as may be; the ends have fewer where not all can be equal."""
    ranges = blocks_at(divided)
    blocks = np.array([low for low, _ in ranges])
    ahead = np.zeros(len(blocks))
    ahead[0], ahead[-1] = 0.5, 0.9
    for _ in range(divided.layers - int(blocks.sum())):
        full = blocks >= [high for _, high in ranges]
        blocks[int(np.argmin(blocks + ahead + full * 2.0 * divided.layers))] += 1
    return tuple(blocks.tolist())


def all_divisions(divided: DividedLayout) -> Iterator[Division]:
    """Every division of a layout; under full recomputation some block runs forward again."""
    for blocks in _all_blocks(blocks_at(divided), divided.layers):
        again = product(*(range(n + 1) for n in blocks)) if divided.partial else [(0,) * len(blocks)]
        yield from (Division(blocks, one) for one in again if any(one) or not divided.partial)


def _all_blocks(ranges: Sequence[tuple[int, int]], layers: int) -> Iterator[tuple[int, ...]]:
    """Numbers of blocks within ranges, which sum up to all."""
    if not ranges:
        if not layers:
            yield ()
        return
    low, high = ranges[0]
    least, most = (sum(one[side] for one in ranges[1:]) for side in (0, 1))
    for n in range(max(low, layers - most), min(high, layers - least) + 1):
        yield from ((n, *rest) for rest in _all_blocks(ranges[1:], layers - n))
