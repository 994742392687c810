"""Search for a layout's best pipeline split: simulated splits, and a lower bound over all splits.

A step takes as long as the longest path through its events. With linear lower bounds on the seconds of stages
(`planes`) every path is linear in the layers n_q of each virtual stage q and its recomputed layers k_q:

    least   x
    with    x >= every path found so far,   Σ n = L,   k <= n,   bytes of every rank <= its HBM

One program finds a mean of paths that is as good as all of them together (`event_program`); it may come from
another layout with the same events. If a step has too many events, the program's solution is simulated
instead. The critical path becomes a new constraint, until the simulation takes no longer than the program
predicts (Kelley, 1960).

The program with whole n and k bounds all pipeline splits, and its points are simulated at full price. For a
model with layers of several kinds, n and k are counts of every kind. The program then relaxes the order of
the layers, except where the order keeps them from a stage, and is still a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from math import ceil, inf

import numpy as np

from phaze.base.arrays import Floats
from phaze.plan import effort
from phaze.plan.splits.event_program import Flow
from phaze.plan.splits.in_flight import in_flight_at_peaks
from phaze.plan.splits.parts import SplitParts
from phaze.plan.splits.planes import Paths, Planes, planes_of
from phaze.plan.splits.program import CLOSE, CutProgram, SplitProgram
from phaze.plan.splits.split import (
    Numbers,
    Place,
    Split,
    StagedLayout,
    all_splits,
    even_blocks,
    even_split,
    has_more_splits,
    layer_ranges,
    neighbours,
    splits_by_chunks,
)
from phaze.plan.time_limit import Work

BUSIER = 1.5
"""Factor by which a rank's stages are slowed down to find paths through them."""
ROUNDED_UP = tuple(np.linspace(0.05, 0.95, 10).tolist())
"""Offsets added to fractional stage ends before they are rounded down, in layers."""


@dataclass(frozen=True)
class TimedSplit:
    """Pipeline split that fits in memory, with its step time."""

    split: Split
    time_s: float


@dataclass(eq=False)
class SplitSearch:
    """Search for the fastest pipeline split of a layout that fits in memory, with a rising lower bound."""

    staged: StagedLayout
    limit_bytes: float
    target_s: float = inf
    """Step time of a known plan; pipeline splits slower than that need not be considered."""
    bound_s: float = 0.0
    """Lower bound on the step time of all pipeline splits; infinite if none fits."""
    best: TimedSplit | None = None
    relaxed: bool = False
    """True if the linear relaxation cannot raise the bound further."""
    done: bool = False
    """True if requiring whole layers cannot raise the bound further either."""
    exact: bool = False
    """True if all pipeline splits of the layout were simulated."""
    flows: dict[bytes, list[Flow]] = field(default_factory=dict)
    """Known flows by event graph, also of other layouts; the first is the best over all splits."""
    similar: Split | None = None
    """Best known pipeline split of another layout with the same number of ranks and chunks, if any."""
    may_branch: bool = True
    """True if branching on the layers of single stages may raise the bound further."""
    work: Work = field(default_factory=Work)
    """Count of linear programs solved by this search and by others that share the count."""
    _tried: set[Split] = field(default_factory=set)
    _centre: Floats = field(default_factory=lambda: np.zeros((0, 3)))
    """Best fractional solution so far: 1, layers n and recomputed layers k by stage, (stages, 1 + 2K)."""

    @cached_property
    def most_blocks(self) -> int:
        """Maximum number of blocks on a stage in any pipeline split that is not slower than a known plan."""
        staged, best_s = self.staged, min(self.target_s, self.best.time_s if self.best else inf)
        # Every microbatch passes all layers of a stage, so that a known step time limits their number.
        # A middle stage has no embedding or head, which would only lower the limit.
        place = staged.places[len(staged.places) // 2]
        if staged.count == 1 or best_s == inf:
            return staged.layers
        each_s = min(self._layer_s(place, number) for number in range(len(staged.order.kinds)))
        turns = staged.frame.lane_microbatches
        fastest = max(int(best_s / (turns * each_s)), -(-staged.layers // staged.count))
        return min(fastest, max(most for _, most in layer_ranges(staged)))

    def _layer_s(self, place: Place, kind: int) -> float:
        """Time that one layer of a kind adds to the passes of a middle or last stage, in seconds."""
        staged = self.staged
        layers = np.flatnonzero(staged.order.kind == kind)
        if place == "last":
            layer, end = int(layers[-1]), staged.layers
            without, with_layer = range(layer + 1, end), range(layer, end)
        else:
            layer = int(layers[1]) if len(layers) > 1 else int(layers[0])
            neighbour = layer - 1 if layer else 1
            without = range(neighbour, neighbour + 1)
            with_layer = range(min(layer, neighbour), max(layer, neighbour) + 1)
        shorter, longer = (staged.cost(place, window, 0) for window in (without, with_layer))
        return longer.forward_s + longer.backward_s - shorter.forward_s - shorter.backward_s

    @cached_property
    def planes(self) -> Planes:
        """Linear lower bounds on the costs of all stages, tight near the best pipeline split so far."""
        # Planes are tight near one point only: the best split is where the optimum is expected.
        near = self.best.split if self.best else even_split(self.staged)
        bounds = planes_of(self.staged, self.most_blocks, near)
        self.work.add(bounds.samples // effort.COSTS_PER_PROGRAM)
        return bounds

    @cached_property
    def paths(self) -> Paths:
        """Event graph of a step, with linear bounds on the time of its jobs."""
        return Paths(self.staged.frame, self.staged.events, self.planes)

    @cached_property
    def _program(self) -> SplitProgram:
        return SplitProgram(self.staged, self.paths, self.limit_bytes, self.most_blocks)

    @cached_property
    def _relaxation(self) -> CutProgram:
        """Linear program over all pipeline splits."""
        return self._program.within(self._program.limits)

    @cached_property
    def _parts(self) -> SplitParts:
        return SplitParts(self._program, self.flows, self.work, self._try_point)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of pipeline ranks and of chunks per rank."""
        return self.staged.layout.pp, self.staged.layout.vp

    @property
    def simulated(self) -> int:
        """Number of simulated pipeline splits."""
        return len(self._tried)

    def guess(self, *, simple: bool = True) -> None:
        """Simulate a few initial pipeline splits, or all splits if there are at most `FEW_SPLITS`."""
        many = has_more_splits(self.staged, effort.FEW_SPLITS)
        splits = [] if many else list(islice(all_splits(self.staged), effort.FEW_SPLITS + 1))
        if not many and len(splits) <= effort.FEW_SPLITS:
            for split in splits:
                self._simulate(split)
            self.bound_s, self.done, self.exact = (self.best.time_s if self.best else inf), True, True
        else:
            candidates = [even_blocks(self.staged), *(splits_by_chunks(self.staged) if simple else ())]
            candidates += [self.similar.blocks] if self.similar else []
            for blocks in dict.fromkeys(candidates):
                self.try_blocks(blocks)

    def relax(self, target_s: float) -> None:
        """Raise the bound by linear relaxations until it reaches `target_s` or stops rising."""
        if len(self.paths.graph.jobs) <= effort.MOST_JOBS:
            self._apply_flows(target_s)
        # Paths one by one reach less than a flow, in more time: only for steps too long for a flow.
        if self.bound_s < target_s and not self._parts.graph_flows:
            self._cut_first()
            for _ in range(effort.RELAXATIONS):
                if self.bound_s >= target_s or self.done or self.relaxed:
                    break
                self._solve_once(exact=False)
        self.relaxed = True

    def _apply_flows(self, target_s: float) -> None:
        """Raise the bound with known event-graph flows, then with the layout's own best flow."""
        flows = len(self._parts.graph_flows)
        bound_s = self._flow_bound_s()
        # A flow of another layout with the same events is nearly as good, and takes no program of events.
        if bound_s < target_s and (bound_s > effort.NEARLY * target_s or not flows):
            flow = self._parts.best_flow(self._program.limits)
            if flow is not None:
                self._cut_near(flow.point)
                bound_s = self._flow_bound_s()
        self.bound_s, self.done = max(self.bound_s, bound_s), bound_s == inf

    def _flow_bound_s(self) -> float:
        """Lower bound on the step time of all pipeline splits, from all known flows."""
        self._parts.add_cuts()
        self.work.add(1)
        return self._relaxation.solve().bound

    def finish(self, target_s: float) -> None:
        """Raise the bound by requiring whole layers until it reaches `target_s` or stops rising.

        First on every rank, then by dividing all pipeline splits into parts, one at a time.
        """
        if self.is_branching:
            self.done = not self._parts.branch(target_s)
            self.bound_s = max(self.bound_s, self._parts.bound_s)
            self.done |= self.bound_s >= target_s
            if self.done:
                self._finish_search(target_s)
            return
        if not len(self._centre):
            self._cut_first()
        has_flows = self._parts.graph_flows and self.staged.layout.pp > 1
        ranked = has_flows and self._divide_among_ranks(target_s)
        for _ in range(0 if ranked else effort.INTEGER_ROUNDS):
            if self.bound_s >= target_s or self.done:
                break
            self._solve_once(exact=True)
        self._finish_search(target_s)
        self.done = self.done or not self.is_branching

    def _divide_among_ranks(self, target_s: float) -> bool:
        """Raise the bound by requiring whole layers on every rank; False if a program was not solved."""
        bound_s, point = self._parts.divide_among_ranks(self._program.limits, target_s)
        self.bound_s, self.done = max(self.bound_s, bound_s), bound_s == inf
        if self.may_branch and point is not None and effort.HOPEFUL * target_s < self.bound_s < target_s:
            self._parts.start_branching(self.bound_s, point)
        return self.done or self.bound_s >= target_s or point is not None

    @property
    def is_branching(self) -> bool:
        """True once the pipeline splits are divided into subsets (branch and bound)."""
        return "_parts" in self.__dict__ and self._parts.is_branching

    def adopt_bound(self, other: SplitSearch, target_s: float) -> None:
        """Adopt the bound of a search over a superset of these pipeline splits."""
        self.bound_s, self.relaxed = max(self.bound_s, other.bound_s), other.relaxed
        if other.done:
            self._finish_search(target_s)
            self.done = True

    def _finish_search(self, target_s: float) -> None:
        if self.bound_s < target_s and len(self._centre):
            self._try_cuts()
        if self.best and self.best.time_s < effort.LATER * target_s:
            self.climb()

    def release(self) -> None:
        """Free the events, programs and linear bounds of a finished search; they are rebuilt on demand."""
        for name in ("planes", "paths", "_program", "_relaxation", "_parts", "most_blocks"):
            self.__dict__.pop(name, None)
        self.staged.release()

    def unload(self) -> None:
        """Free the linear program of an unfinished search; its cuts stay."""
        self.__dict__.pop("_relaxation", None)

    def climb(self) -> None:
        """Improve the best pipeline split by local search until no neighbour is faster.

        If no neighbour is faster, try splits that recompute only as many layers as they need to fit.
        """
        most, best = len(self._tried) + effort.MOST_MOVES, None
        while self.best is not None and self.best is not best:
            best = self.best
            # Neighbours with as little recompute as fits cost several simulations each, so they come second.
            for only_needed in (False, True)[: 1 + self.staged.partial]:
                if self.best is best:
                    most_tried = most + only_needed * effort.MOST_MOVES
                    self._try_neighbours(best.split, most_tried, only_needed=only_needed)

    def _try_neighbours(self, split: Split, most: int, *, only_needed: bool) -> None:
        """Simulate neighbours of a pipeline split until `most` splits were simulated in total.

        With `only_needed` each neighbour recomputes only as many layers as it needs to fit.
        """
        for other in neighbours(self.staged, split):
            if len(self._tried) >= most or self.best is None or self.bound_s >= self.best.time_s:
                return
            if only_needed and other.blocks != split.blocks:
                self.try_blocks(other.blocks)
            elif not only_needed and other not in self._tried and self.staged.is_valid(other.blocks):
                self._simulate(other)

    def lighten(self, split: Split) -> None:
        """Simulate a pipeline split without recomputation, or with fewer recomputed layers while it fits.

        With fewer recomputed layers a step is no slower and needs no less memory.
        """
        if not self.staged.partial:
            self.try_blocks(split.blocks)
        lighter: Split | None = split if self.staged.partial else None
        while lighter is not None:
            others = [other for other in neighbours(self.staged, lighter) if other.blocks == lighter.blocks]
            fewer = [other for other in others if sum(other.recomputed) < sum(lighter.recomputed)]
            lighter = next((other for other in fewer if (self._simulate(other) <= 0).all()), None)

    def try_blocks(self, blocks: Numbers) -> None:
        """Simulate a pipeline split with the fewest recomputed layers that fit in memory."""
        self.try_split(blocks, (0,) * self.staged.count)

    def _try_cuts(self) -> None:
        """Simulate pipeline splits with stage ends close to those of the best fractional solution.

        All ends move a little earlier or later together.
        """
        kinds, layers = len(self._program.totals), self.staged.layers
        ends = np.cumsum(self._centre[:, 1 : 1 + kinds].sum(axis=1))[:-1]
        for share in ROUNDED_UP:
            cuts = np.minimum(np.floor(ends + share).astype(int), layers)
            blocks = np.diff(np.concatenate([[0], cuts, [layers]]))
            self.try_blocks(tuple(blocks.tolist()))

    def _cut_near(self, point: Floats) -> None:
        """Simulate a pipeline split near a fractional solution, and add its longest paths as cuts.

        Each cut assumes that one rank is slower than the others.
        """
        self._try_point(point)
        self._centre = self._program.by_stage(point)
        self._cut_by_rank()

    def _try_point(self, point: Floats) -> None:
        """Simulate a pipeline split near a fractional solution of layers and recomputed layers."""
        _, n, k = np.split(self._program.by_stage(point), [1, 1 + len(self._program.totals)], axis=1)
        self.try_split(*self._program.rounded(n, k))

    def _cut_first(self) -> None:
        """Simulate a split and add cuts near a known flow's solution, or else near equal stages."""
        flow = next(iter(self._parts.graph_flows), None)
        n = np.tile(self._program.totals / self.staged.count, (self.staged.count, 1))
        self._cut_near(np.stack([n, 0 * n]).ravel() if flow is None else flow.point)

    def _cut_by_rank(self) -> None:
        seconds = self.paths.seconds(self._centre)
        for rank in (None, *range(self.staged.layout.pp)):
            # Paths of a balanced pipeline are equally long through all ranks: slowing one selects its path.
            slowed = seconds.copy()
            if rank is not None:
                slowed[:, self.staged.frame.stages_of(rank)] *= BUSIER
            self._program.add_cut(self.paths.cut(self.paths.timeline(slowed, self._centre)))

    def _solve_once(self, *, exact: bool) -> None:
        """Solve the program once more, add cuts near its solution, and simulate a pipeline split there."""
        self.work.add_program(self.staged.count * len(self._program.totals), exact=exact)
        answer = self._relaxation.solve(exact=exact)
        self.bound_s = max(self.bound_s, answer.bound)
        if answer.point is None:
            self.done = True
            return
        shape = self.staged.count, len(self._program.totals)
        n, k = answer.point[: 2 * shape[0] * shape[1]].reshape(2, *shape)
        point = np.concatenate([np.ones((shape[0], 1)), n, k], axis=1)
        # The program's points jump between extremes: paths halfway to the best point cut deeper.
        best_s = self._cut_at(self._centre)
        for share in (0.5, 0.0):
            centre = share * self._centre + (1 - share) * point
            time_s = self._cut_at(centre)
            if time_s < best_s:
                best_s, self._centre = time_s, centre
        close = time_s <= answer.bound * (1 + CLOSE)
        if exact or close:
            simulated = len(self._tried)
            self.try_split(*self._program.rounded(n, k))
            # No path through this point is longer than the bound: no further cut can raise it.
            self.done |= exact and close and len(self._tried) == simulated
        self.relaxed |= close and not exact
        self.done |= self.best is not None and self.bound_s >= self.best.time_s

    def _cut_at(self, point: Floats) -> float:
        """Step time at a fractional solution, in seconds, after adding its longest path as a cut."""
        timeline = self.paths.timeline(self.paths.seconds(point), point)
        self._program.add_cut(self.paths.cut(timeline))
        return timeline.time_s

    def try_split(self, blocks: Numbers, recomputed: Numbers) -> None:
        """Simulate a pipeline split; while it does not fit, recompute or move layers and try again."""
        if self.staged.partial and not any(recomputed):  # otherwise it is a layout without recompute
            fullest = int(np.argmax(blocks))
            recomputed = (*recomputed[:fullest], 1, *recomputed[fullest + 1 :])
        split = self.staged.recomputing(blocks, recomputed)
        for _ in range(effort.REPAIRS):
            if split in self._tried or sum(blocks) != self.staged.layers or not self.staged.is_valid(blocks):
                return
            over = self._simulate(split)
            if (over <= 0).all():
                return
            partial = self.staged.partial
            split = self._with_more_recompute(split, over) if partial else self._with_moved_layers(split)
            blocks = split.blocks

    def _simulate(self, split: Split) -> Floats:
        """Simulate a pipeline split, and return the excess memory of every rank in bytes, (ranks,)."""
        self.work.check()
        self._tried.add(split)
        timeline = self.staged.timeline(split)
        over: Floats = timeline.peak_bytes - self.limit_bytes
        if (over <= 0).all() and (self.best is None or timeline.time_s < self.best.time_s):
            self.best = TimedSplit(split, timeline.time_s)
        return over

    def _with_moved_layers(self, split: Split) -> Split:
        """Same pipeline split with layers moved until all ranks fit according to the linear program."""
        blocks = np.array(split.blocks)
        few = np.array([low for low, _ in layer_ranges(self.staged)])
        layer_gib, excess = self._program.excess(blocks)
        for _ in range(len(blocks)):
            lacking = np.maximum(excess, 0.0).sum()
            # Move the layer that lowers the total excess most, by the linear bytes of the program.
            change = layer_gib[:, None, :] - layer_gib[:, :, None]  # (rows, from, to)
            after = np.maximum(excess[:, None, None] + change, 0.0).sum(axis=0)
            after[blocks <= few] = inf
            source, target = np.unravel_index(np.argmin(after), after.shape)
            if after[source, target] >= lacking:
                break
            blocks[[source, target]] += -1, 1
            excess = excess + change[:, source, target]
        return Split(tuple(blocks.tolist()), split.recomputed)

    def _with_more_recompute(self, split: Split, over: Floats) -> Split:
        """Same pipeline split with more recomputed layers on ranks that lack memory."""
        recomputed, staged = np.array(split.recomputed), self.staged
        for rank in np.flatnonzero(over > 0).tolist():
            in_flight = in_flight_at_peaks(staged, rank).max(axis=0).tolist()
            lacking_bytes, freed = over[rank], []
            for q, microbatches in zip(staged.frame.stages_of(rank).tolist(), in_flight, strict=True):
                place, window, k = staged.places[q], split.windows[q], int(recomputed[q])
                if k < len(window):
                    now, least = (staged.cost(place, window, count).stash_bytes for count in (k, len(window)))
                    # Bytes that one layer frees, at least 1 as a divisor; the first of equal stages is taken.
                    freed.append((max((now - least) * microbatches / (len(window) - k), 1.0), -q))
            for layer_bytes, stage in sorted(freed, reverse=True):
                plain = split.blocks[-stage] - int(recomputed[-stage])
                added = min(max(ceil(lacking_bytes / layer_bytes), 0), plain)
                recomputed[-stage] += added
                lacking_bytes -= added * layer_bytes
        return staged.recomputing(split.blocks, tuple(recomputed.tolist()))
