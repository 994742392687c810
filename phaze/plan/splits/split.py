"""Pipeline splits of one layout, and the cost of each stage.

A pipeline split (`Split`) has the number of layers of every virtual stage in data-flow order, and the
number of recomputed ones, which come first. The order of the model decides whether a stage has layers of one
kind or of several. The embedding is on the first stage, the head and the loss on the last one; both may be
alone there. Stages with equal counts of every kind cost the same and are priced once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, permutations, product
from math import comb
from typing import Literal

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.layout import Layout
from phaze.pipeline.graph import EventGraph, has_jobs_of, kept_event_graph, shape_of
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.timeline import Timeline
from phaze.plan import effort
from phaze.plan.plan import Plan, Stage
from phaze.plan.pricing.lowering import Lowering
from phaze.plan.pricing.stage_costs import pipeline_of, stage_cost
from phaze.runtimes.layout_string import equal_counts
from phaze.runtimes.recipe import recomputed_on
from phaze.runtimes.rules import ENDS, RecomputedCounts

Place = Literal["first", "middle", "last", "whole"]
"""Position of a stage: with the embedding, in between, with the head, or with both."""
FURTHER = "mtp"
"""Name of the layers for multi-token prediction."""
Numbers = tuple[int, ...]
Content = tuple[Place, Numbers, Numbers]
"""Content of a stage: its position, its layers by kind, and its recomputed layers by kind."""


@dataclass(frozen=True)
class LayerOrder:
    """Names of the layers between the embedding and the head, in order; each distinct name is a kind."""

    names: tuple[str, ...]

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Layer kinds in order of first occurrence, (K,)."""
        return tuple(dict.fromkeys(self.names))

    @property
    def mixed(self) -> bool:
        """True if the layers are of several kinds."""
        return len(self.kinds) > 1

    @cached_property
    def kind(self) -> Ints:
        """Index of every layer's kind in `kinds`, (L,)."""
        return np.array([self.kinds.index(name) for name in self.names], np.int64)

    @cached_property
    def before(self) -> Ints:
        """Number of layers of every kind before each layer, and in total, (L + 1, K)."""
        one_hot = self.kind[:, None] == np.arange(len(self.kinds))
        return np.concatenate([np.zeros((1, len(self.kinds)), np.int64), np.cumsum(one_hot, axis=0)])

    @cached_property
    def in_runs(self) -> tuple[Ints, Ints]:
        """Most and fewest layers of every kind among n consecutive layers, for every n, (L + 1, K) each."""
        runs = [self.before[n:] - self.before[: len(self.before) - n] for n in range(len(self.before))]
        return np.array([run.max(axis=0) for run in runs]), np.array([run.min(axis=0) for run in runs])

    def counts(self, window: range) -> Numbers:
        """Number of layers of every kind in a range of layers."""
        return tuple((self.before[window.stop] - self.before[window.start]).tolist())


@dataclass(frozen=True)
class Split:
    """Pipeline split: layers and recomputed layers of every virtual stage, (stages,) each."""

    blocks: Numbers
    recomputed: Numbers

    @property
    def windows(self) -> list[range]:
        """Range of layer indices of every stage, without the embedding and the head."""
        return [range(start, end) for start, end in pairwise([0, *np.cumsum(self.blocks).tolist()])]


@dataclass(frozen=True, eq=False)
class StagedLayout:
    """Layout under a schedule, with the costs and events to price any of its pipeline splits."""

    lowering: Lowering
    layout: Layout
    schedule: str
    counts: RecomputedCounts = "any"
    """Numbers of fully recomputed layers that the runtime's stages can have."""
    _stages: dict[Content, Stage] = field(default_factory=dict)
    _costs: dict[Content, StageCost] = field(default_factory=dict)

    @cached_property
    def order(self) -> LayerOrder:
        """Order of the layers between the embedding and the head."""
        return LayerOrder(self.lowering.layers(self.layout).workload.order[1:-1])

    @property
    def layers(self) -> int:
        """Number of layers of the model, L."""
        return len(self.order.names)

    @property
    def mtp(self) -> int:
        """Number of layers for multi-token prediction, which come last."""
        return self.order.names.count(FURTHER)

    def is_valid(self, blocks: Numbers) -> bool:
        """True if the block counts per stage are valid.

        No stage between the ends is empty, and all layers of multi-token prediction are on the last stage. If
        that stage has only the head, they may be on the stage before, unless that one is on the first rank.
        """
        if not all(blocks[1:-1]):
            return False
        # The runtime may put the head on a stage of its own, behind the layers of multi-token prediction.
        alone = self.layout.pp > 2 and blocks[-1] == 0 and blocks[-2] >= self.mtp
        return len(blocks) == 1 or blocks[-1] >= self.mtp or alone

    @cached_property
    def seconds(self) -> Floats:
        """Time of both passes of every layer per microbatch, in seconds, (L,)."""
        costs = self.lowering.layers(self.layout).costs
        kind_s = [costs[name].forward_s.sum() + costs[name].backward_s.sum() for name in self.order.kinds]
        return np.array(kind_s)[self.order.kind]

    @property
    def count(self) -> int:
        """Number of virtual stages, p v."""
        return self.layout.stages

    @property
    def partial(self) -> bool:
        """True if a stage may choose how many of its layers are recomputed."""
        return self.layout.recompute == "full" and self.counts != "all"

    @property
    def equal(self) -> bool:
        """True if all stages recompute the same number of layers, or all their layers if they have fewer."""
        return self.partial and self.counts == "equal"

    def recomputed_in(self, split: Split) -> Numbers:
        """Number of fully recomputed layers of every stage, (stages,)."""
        every = self.layout.recompute == "full" and not self.partial
        return split.blocks if every else split.recomputed

    def recomputing(self, blocks: Numbers, recomputed: Numbers) -> Split:
        """Pipeline split that the runtime allows, with at least the given recomputed layers on each stage."""
        if self.partial:
            recomputed = recomputed_on(self.counts, blocks, self.mtp, recomputed)
        return Split(blocks, recomputed)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Position of every stage in the pipeline: first, middle, last, or whole if it is the only one."""
        if self.count == 1:
            return ("whole",)
        middle: list[Place] = ["middle"] * (self.count - 2)
        return ("first", *middle, "last")

    def windows(self, place: Place, layers: int) -> list[range]:
        """Distinct ranges of `layers` layers that a stage at this pipeline position can contain."""
        last = self.layers - layers
        starts = {"middle": range(last + 1), "last": range(last, last + 1)}.get(place, range(1))
        every = [range(start, start + layers) for start in starts]
        # Of windows with equal counts the first is kept: reversed twice, as later keys replace earlier ones.
        return list({self.order.counts(window): window for window in reversed(every)}.values())[::-1]

    def content(self, place: Place, window: range, recomputed: int) -> Content:
        """Content of a stage: its position, and its layers and recomputed layers by kind."""
        first_layers = range(window.start, window.start + recomputed)
        return place, self.order.counts(window), self.order.counts(first_layers)

    def stage(self, place: Place, window: range, recomputed: int) -> Stage:
        """Stage with these layers at a pipeline position, cached by its content."""
        key = self.content(place, window, recomputed)
        if key not in self._stages:
            start = window.start + (place not in ("first", "whole"))
            stop = window.stop + 1 + (place in ("last", "whole"))
            number = recomputed if self.partial else None
            self._stages[key] = self.lowering.stage(range(start, stop), self.layout, number)
        return self._stages[key]

    @property
    def _sample_windows(self) -> dict[Place, range]:
        """Example range of two layers for a stage at each pipeline position."""
        few = self.layers if self.count == 1 else min(2, self.layers)
        return {place: self.windows(place, few)[0] for place in dict.fromkeys(self.places)}

    @cached_property
    def _template(self) -> Plan:
        """Plan with two layers per stage, independent of the model's depth."""
        stages = {
            place: self.stage(place, window, int(self.partial))
            for place, window in self._sample_windows.items()
        }
        return self.lowering.plan([stages[place] for place in self.places], self.schedule)

    def cost(self, place: Place, window: range, recomputed: int) -> StageCost:
        """Cost of a stage with these layers at a pipeline position, as in the price of a full plan."""
        key = self.content(place, window, recomputed)
        if key not in self._costs:
            self._costs[key] = self._cost_of(place, self.stage(place, window, recomputed))
        return self._costs[key]

    def _cost_of(self, place: Place, stage: Stage) -> StageCost:
        """Cost of a stage at a pipeline position."""
        # Only the ends may be empty, so the neighbours of a stage do not depend on the split.
        plan, q = self._template, self.places.index(place)
        stages = (*plan.stages[:q], stage, *plan.stages[q + 1 :])
        return stage_cost(replace(plan, stages=stages), self.lowering.machine, q)

    def least_once_s(self, place: Place, window: range) -> tuple[float, float]:
        """Lower bounds on `sync_s` and `update_s` of a stage for any number of recomputed layers.

        Below ZeRO 2 synchronisation takes longer the more seconds of links recompute adds, and less the
        longer the last backward pass is: without recompute on the links, but with all of it in the pass, it
        takes least. An update also takes longer the more of synchronisation is during the pass.
        """
        none, every = (self.stage(place, window, k) for k in (0, len(window)))
        none = replace(none, states_s=every.states_s)
        least = self._cost_of(place, replace(none, recompute_s=every.recompute_s))
        if least.sync_s <= least.backward_s:
            return least.sync_s, least.update_s
        return least.sync_s, min(least.update_s, self._cost_of(place, none).update_s)

    @cached_property
    def frame(self) -> Pipeline:
        """Template pipeline shared by all pipeline splits; only the stage costs differ."""
        few, recomputed = self._sample_windows, int(self.partial)
        costs = {place: self.cost(place, window, recomputed) for place, window in few.items()}
        stages = [costs[place] for place in self.places]
        return pipeline_of(self._template, self.lowering.machine, costs=stages)

    @cached_property
    def _shape(self) -> Pipeline:
        """Shape of the pipeline (`shape_of`), with the jobs that every pipeline split has."""
        return shape_of(self.frame, recomputes=self.layout.recompute != "none")

    @cached_property
    def events(self) -> EventGraph:
        """Event graph of a step: jobs and dependencies, with placeholder times."""
        return kept_event_graph(self._shape).of(self.frame)

    def release(self) -> None:
        """Free the event graph, which is rebuilt on demand."""
        self.__dict__.pop("events", None)

    def pipeline(self, split: Split) -> Pipeline:
        """Pipeline with the stage costs of a pipeline split."""
        numbers = zip(self.places, split.windows, split.recomputed, strict=True)
        return replace(self.frame, stages=tuple(self.cost(*content) for content in numbers))

    def timeline(self, split: Split) -> Timeline:
        """Simulated timeline of a step under a pipeline split."""
        pipeline = self.pipeline(split)
        same_jobs = has_jobs_of(pipeline, self._shape)
        return simulate(pipeline, self.events.of(pipeline) if same_jobs else None)

    def plan(self, split: Split) -> Plan:
        """Build the plan for a pipeline split."""
        numbers = split.recomputed if self.partial else [None] * self.count
        ends = [1 + window.stop for window in split.windows]
        ends[-1] += 1
        cuts = [range(start, end) for start, end in pairwise([0, *ends])]
        stages = [
            self.lowering.stage(cut, self.layout, recomputed)
            for cut, recomputed in zip(cuts, numbers, strict=True)
        ]
        return self.lowering.plan(stages, self.schedule)


def layer_ranges(staged: StagedLayout) -> list[tuple[int, int]]:
    """Minimum and maximum number of layers of every stage; only the first and last may be empty."""
    if staged.count == 1:
        return [(staged.layers, staged.layers)]
    return [(int(place == "middle"), staged.layers) for place in staged.places]


def even_blocks(staged: StagedLayout) -> Numbers:
    """Layers per stage, as even as possible; if they cannot be equal, the first and last have fewer.

    Layers of several kinds are weighted by the seconds of their passes.
    """
    ranges = layer_ranges(staged)
    blocks = np.array([low for low, _ in ranges])
    ahead = np.zeros(len(blocks))
    # Shares of a layer that the embedding and the head count for: between equal stages, the ends come last.
    ahead[0], ahead[-1] = 0.5, 0.9
    for _ in range(staged.layers - int(blocks.sum())):
        full = blocks >= [high for _, high in ranges]
        blocks[int(np.argmin(blocks + ahead + full * 2.0 * staged.layers))] += 1
    if staged.order.mixed and staged.count > 1:
        weights = staged.seconds / staged.seconds.mean()
        ends = np.cumsum(np.full(len(blocks), (staged.layers + ahead.sum()) / len(blocks)) - ahead)
        return ordered_blocks(weights, ends, ranges, staged.mtp)
    return tuple(blocks.tolist())


def even_split(staged: StagedLayout) -> Split:
    """Even pipeline split; if the layout may recompute any layers, all are recomputed."""
    blocks = even_blocks(staged)
    return Split(blocks, blocks if staged.partial else (0,) * len(blocks))


def splits_by_chunks(staged: StagedLayout) -> list[Numbers]:
    """Pipeline splits with equal layer counts on all ranks; some consecutive chunks have one layer more.

    Only the first and the last stage have fewer layers, as many as equal counts require. Equal layers leave
    one layer's room at both ends; layers of several kinds leave up to `effort.MOST_FEWER`, in any way.
    """
    depth, chunks, mixed = staged.layout.pp, staged.layout.vp, staged.order.mixed
    # Layers that are missing for equal counts on all ranks.
    fewer = -staged.layers % depth
    few, longer_chunks = divmod((staged.layers + fewer) // depth, chunks)
    starts = range(fewer + 1) if mixed else range(1, 2)
    splits = []
    if chunks > 1 and few and (fewer <= effort.MOST_FEWER if mixed else fewer == ENDS):
        for longer, at_start in product(range(chunks - longer_chunks + 1 if longer_chunks else 1), starts):
            blocks = np.full((chunks, depth), few)
            blocks[longer : longer + longer_chunks] += 1
            blocks[0, 0] -= at_start
            blocks[-1, -1] -= fewer - at_start
            if blocks.min() >= 0:
                splits.append(tuple(blocks.ravel().tolist()))
    return splits


def ordered_blocks(
    weights: Floats, ends: Floats, ranges: Sequence[tuple[int, int]], together: int = 0
) -> Numbers:
    """Layers per stage such that the cumulative weight at stage ends is close to `ends`, (stages,).

    `weights` are the layers' weights in order, (L,). The last `together` layers are on the last stage.
    `ranges` are the fewest and most layers of every stage.
    """
    cumulative = np.concatenate([[0.0], np.cumsum(weights)])
    layers, ends_at = len(weights), [0]
    together *= layers >= together + sum(few for few, _ in ranges)  # otherwise the head is alone
    for q, (few, most) in enumerate(ranges):
        later = ranges[q + 1 :]
        fewest_later, most_later = (sum(limits[side] for limits in later) for side in (0, 1))
        low = max(ends_at[-1] + few, layers - most_later)
        high = min(ends_at[-1] + most, layers - fewest_later - together * bool(later))
        nearest = int(np.argmin(np.abs(cumulative - ends[q])))
        ends_at.append(min(max(nearest, low), high))
    return tuple(end - start for start, end in pairwise(ends_at))


def all_splits(staged: StagedLayout) -> Iterator[Split]:
    """Yield every pipeline split of a layout; with optional recompute, at least one layer is recomputed."""
    for blocks in _compositions(layer_ranges(staged), staged.layers):
        if staged.is_valid(blocks):
            yield from (Split(blocks, recomputed) for recomputed in _recompute_choices(staged, blocks))


def has_more_splits(staged: StagedLayout, number: int) -> bool:
    """True if a count of layers per stage alone shows that there are more than `number` pipeline splits.

    It is that of splits with all layers of multi-token prediction on the last stage.
    """
    # Stars and bars: ways to distribute the layers beyond the minimum over all stages.
    free = staged.layers - staged.mtp - sum(few for few, _ in layer_ranges(staged))
    return staged.count > 1 and free >= 0 and comb(free + staged.count - 1, free) > number


def _recompute_choices(staged: StagedLayout, blocks: Numbers) -> Iterable[Numbers]:
    """All numbers of recomputed layers of the stages that the runtime allows, at least one layer if any."""
    none = (0,) * len(blocks)
    if not staged.partial:
        return [none]
    if staged.counts == "any":
        # Without any recomputed layer it would be the layout without recompute, which is searched by itself.
        return (numbers for numbers in product(*(range(n + 1) for n in blocks)) if any(numbers))
    equal = [equal_counts(blocks, staged.mtp, count) for count in range(1, max(blocks) + 1)]
    return [numbers for numbers in dict.fromkeys([*equal, blocks]) if any(numbers)]


def _compositions(ranges: Sequence[tuple[int, int]], layers: int) -> Iterator[Numbers]:
    """Yield all tuples of layer counts within ranges that add up to `layers`."""
    if not ranges:
        if not layers:
            yield ()
        return
    low, high = ranges[0]
    least, most = (sum(later_range[side] for later_range in ranges[1:]) for side in (0, 1))
    for n in range(max(low, layers - most), min(high, layers - least) + 1):
        yield from ((n, *others) for others in _compositions(ranges[1:], layers - n))


def neighbours(staged: StagedLayout, split: Split) -> Iterator[Split]:
    """Yield the pipeline splits that differ by one moved layer or by one recomputed layer.

    Layers move between any two stages, or only between adjacent ones if there are many stages.
    """
    blocks, recomputed = split.blocks, split.recomputed
    few, count = [low for low, _ in layer_ranges(staged)], len(blocks)
    pairs = list(permutations(range(count), 2))
    if len(pairs) > effort.MOST_MOVES // 4:
        pairs = [(source, target) for source, target in pairs if abs(source - target) == 1]
    for source, target in pairs:
        if blocks[source] > few[source]:
            moved = np.array(blocks)
            moved[[source, target]] += -1, 1
            k = moved if staged.equal and recomputed == blocks else np.minimum(recomputed, moved)
            if k.any() or not staged.partial:
                yield staged.recomputing(tuple(moved.tolist()), tuple(k.tolist()))
        if recomputed[source] and staged.partial and not staged.equal:
            other = np.array(recomputed)
            other[[source, target]] += -1, 1
            if blocks[source] > few[source]:
                yield Split(tuple(moved.tolist()), tuple(other.tolist()))
            if other[target] <= blocks[target]:
                yield Split(blocks, tuple(other.tolist()))
    if staged.partial:
        yield from (Split(blocks, numbers) for numbers in _neighbouring_counts(staged, split))


def _neighbouring_counts(staged: StagedLayout, split: Split) -> Iterator[Numbers]:
    """Yield numbers of recomputed layers with one more or one fewer, on one stage or, if equal, on all."""
    blocks, recomputed = split.blocks, split.recomputed
    if staged.equal:
        # The same number on all stages may still leave out layers of multi-token prediction.
        numbers = range(max(max(recomputed) - 1, 1), max(recomputed) + 2)
        yield from (equal_counts(blocks, staged.mtp, number) for number in numbers)
        yield blocks
        return
    for q, number in enumerate(recomputed):
        for neighbour in (number - 1, number + 1):
            if 0 <= neighbour <= blocks[q] and sum(recomputed) - number + neighbour:
                yield (*recomputed[:q], neighbour, *recomputed[q + 1 :])
