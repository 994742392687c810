"""A second implementation of the search over layouts: prices every valid layout with every pipeline split.

It shares only the definition of a plan and its price with phaze: no bounds, linear programs or orders. The
price builds its events once for all pipelines that have the same ones, and costs a stage once for all plans
of a layout in which its neighbours exchange the same bytes with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import combinations, pairwise, product
from math import inf
from typing import get_args

import numpy as np

from phaze.base.arrays import Ints
from phaze.layout import BALANCED, SHARED_OPTIONS, Compute, Layout, Load, Offload, Optimizer
from phaze.pipeline.graph import kept_event_graph, shape_of
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.timeline import Timeline
from phaze.plan.machines import device_of, load_machine
from phaze.plan.plan import Plan, Stage
from phaze.plan.pricing.price import Price
from phaze.plan.pricing.stage_costs import pipeline_of, stage_cost
from phaze.plan.question import PlanQuestion
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import RecomputedCounts, TrainingTask
from phaze.runtimes.space import Fixed, space
from phaze.runtimes.torchtitan import TORCHTITAN
from phaze.spec.models import load_transformer
from phaze.spec.overlap import Overlapped, OverlapShare
from phaze.spec.speeds.experts import ExpertLoads

Numbers = tuple[int, ...]
KNOWN = {
    "megatron": MEGATRON, "torchtitan": TORCHTITAN,
    "torchtitan in part": replace(TORCHTITAN, recomputed_counts="any"),
}  # fmt: skip
"""Runtimes, and one with all schedules and with recompute counts per stage."""


@dataclass(frozen=True)
class SmallCase:
    """A model of few layers on few devices, with too little memory for some layouts."""

    model: str
    layers: int
    sequence: int
    devices: int
    hbm_gib: float
    global_batch: int = 8
    offload: Offload = "none"
    cp_kind: str = ""
    """The only exchange kind of context-parallel ranks; default: any."""
    lora: int | None = None
    compute: Compute = "bf16"
    load: Load = BALANCED
    pairs: bool = False
    """True if expert dispatch overlaps with the passes of another microbatch."""
    share: float = 1.0
    """Overlapping share of all communication; half of it is proven."""
    replicate: int = 1
    """Number of groups that shard states and replicate them among each other."""
    optimizer: Optimizer = "adam"
    prudent: bool = False
    """True for prudent prices: proven overlap, the upper end of memory, the prudent expert load."""

    @property
    def fixed(self) -> dict[str, int | str]:
        """Fixed fields."""
        shared: dict[str, int | str] = {name: getattr(self, name) for name in SHARED_OPTIONS}
        return shared | ({"cp_kind": self.cp_kind} if self.cp_kind else {})

    def question(self, runtime: str) -> PlanQuestion:
        """Question for the search."""
        model = load_transformer(self.model, "test").model_copy(
            update={"layers": self.layers, "lora": self.lora}
        )
        sizes = self.sequence, self.global_batch, self.devices
        task = TrainingTask(model, *sizes, compute=self.compute, load=self.load)
        machine = load_machine("h100", stack="megatron-core-2024", devices=self.devices)
        own = {"hbm_gib": self.hbm_gib, "driver_gib": 0.0, "workspace_mib": 0.0}
        own |= {"reserve_gib": 0.0, "host_bandwidth_bytes_per_s": 2e10}
        device = device_of(machine).model_copy(update=own)
        overlap = (*machine.stack.overlap, *["ep"] * self.pairs)
        shares = dict.fromkeys(get_args(Overlapped), OverlapShare(expected=self.share, proven=self.share / 2))
        small = {"context_gib": (0.0, 0.0, 0.0), "held_processors": 1}  # else more than the tensors
        small |= {
            "load": ExpertLoads(expected=self.load, prudent="max_vio_0.72"),
            "overlap": overlap,
            "overlap_shares": shares,
        }
        stack = machine.stack.model_copy(update=small)
        found = PlanQuestion(task, replace(machine, device=device, stack=stack), KNOWN[runtime])
        return found.prudent if self.prudent else found


@dataclass(frozen=True)
class PricedSplit:
    """Pipeline split of a layout, and its price."""

    blocks: Numbers
    recomputed: Numbers
    time_s: float
    """Seconds; infinite if it does not fit."""
    peak_bytes: float
    """Peak bytes of any rank."""


Costs = dict[tuple[object, ...], StageCost]
"""Costs of stages by what they depend on, in plans of one layout and schedule."""


@dataclass(frozen=True, eq=False)
class QuickPrice(Price):
    """Price of a plan with known events and costs, for schedules whose order does not depend on times."""

    known: Costs = field(default_factory=dict)

    @cached_property
    def pipeline(self) -> Pipeline:
        """Pipeline with all its communication."""
        costs, ends = [], (None, *self.plan.stages, None)
        for q, (before, stage, after) in enumerate(zip(ends, ends[1:], ends[2:], strict=False)):
            key = q, stage, before and before.departing_bytes, after and after.arriving_bytes
            if key not in self.known:
                self.known[key] = stage_cost(self.plan, self.machine, q)
            costs.append(self.known[key])
        return pipeline_of(self.plan, self.machine, costs=costs)

    @cached_property
    def timeline(self) -> Timeline:
        """Timeline of a batch; stages that recompute nothing have such jobs without duration."""
        pipeline = self.pipeline
        shape = shape_of(pipeline, recomputes=self.plan.layout.recompute == "full")
        return simulate(pipeline, kept_event_graph(shape).of(pipeline))


def legal_layouts(question: PlanQuestion, fixed: Fixed | None = None) -> Iterator[tuple[Layout, str]]:
    """Every layout that the runtime can run, with its schedule."""
    grid = space(question.runtime, question.task, fixed)
    broken = sum(question.runtime.illegal(question.task, grid).values())
    for place in range(len(grid)):
        if not broken[place]:
            yield grid.layout(place), grid.schedule_of(place)


def prepare(question: PlanQuestion, layouts: list[Layout]) -> None:
    """Cost the layers of layouts together, as one by one takes as long as their prices."""
    for tp in {layout.tp for layout in layouts}:
        alike = [layout for layout in layouts if layout.tp == tp]
        question.lowering(alike[0]).prepare(alike)


def divisions(
    layout: Layout, layers: int, counts: RecomputedCounts = "any"
) -> Iterator[tuple[Numbers, Numbers]]:
    """Blocks of every stage, and recomputed blocks; only the ends may be empty."""
    for ends in combinations(range(layers + 1), layout.stages - 1):
        blocks = tuple(end - start for start, end in pairwise((0, *ends, layers)))
        for again in product(*(range(n + 1) for n in blocks)):
            equal = any(again == tuple(min(k, n) for n in blocks) for k in range(layers + 1))
            is_valid = {"any": True, "equal": equal, "all": again in (blocks, (0,) * len(blocks))}[counts]
            if is_valid and any(again) == (layout.recompute == "full"):
                yield blocks, again


def drawn_blocks(rng: np.random.Generator, ranges: list[tuple[int, int]], layers: int) -> Ints:
    """Return blocks of every stage by lot, within their ranges."""
    blocks = np.array([low for low, _ in ranges])
    while blocks.sum() < layers:
        free = np.flatnonzero(blocks < [high for _, high in ranges])
        blocks[rng.choice(free)] += 1
    return blocks


def planned(question: PlanQuestion, layout: Layout, schedule: str, blocks: Numbers, again: Numbers) -> Plan:
    """Plan of a pipeline split."""
    ends = [1 + sum(blocks[: q + 1]) for q in range(len(blocks))]
    ends[-1] += 1
    starts = [0, *ends[:-1]]
    stages = [_stage(question, layout, *one) for one in zip(starts, ends, again, strict=True)]
    return question.lowering(layout).plan(stages, schedule)


@cache
def _stage(question: PlanQuestion, layout: Layout, start: int, end: int, again: int) -> Stage:
    number = again if layout.recompute == "full" else None
    return question.lowering(layout).stage(range(start, end), layout, number)


def priced(
    question: PlanQuestion,
    layout: Layout,
    schedule: str,
    blocks: Numbers,
    again: Numbers,
    known: Costs | None = None,
) -> PricedSplit:
    """Pipeline split with its price, and with what is known of other splits of the layout."""
    plan = planned(question, layout, schedule, blocks, again)
    found = QuickPrice(plan, question.machine, {} if known is None else known)
    peak_bytes = float(found.peak_bytes.max())
    time_s = found.time_s if peak_bytes <= question.limit_bytes(layout) else inf
    return PricedSplit(blocks, again, time_s, peak_bytes)


def priced_splits(question: PlanQuestion, layout: Layout, schedule: str) -> Iterator[PricedSplit]:
    """Every pipeline split of a layout, priced."""
    known: Costs = {}
    for blocks, again in divisions(layout, question.task.model.layers, question.runtime.recomputed_counts):
        yield priced(question, layout, schedule, blocks, again, known)


def priced_layouts(question: PlanQuestion, fixed: Fixed) -> dict[tuple[Layout, str], tuple[PricedSplit, ...]]:
    """Every pipeline split of every layout of a question."""
    every = list(legal_layouts(question, fixed))
    prepare(question, [layout for layout, _ in every])
    return {
        (layout, schedule): tuple(priced_splits(question, layout, schedule)) for layout, schedule in every
    }


def fastest_s(divisions: tuple[PricedSplit, ...]) -> float:
    """Seconds of the fastest pipeline split that fits; infinite if none does."""
    return min((one.time_s for one in divisions), default=inf)
