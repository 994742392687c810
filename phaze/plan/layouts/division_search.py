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
from phaze.plan.layouts.division_program import CLOSE, CutProgram, DivisionProgram
from phaze.plan.layouts.divisions import (
    MOVES,
    DividedLayout,
    Division,
    Numbers,
    Place,
    all_divisions,
    blocks_at,
    by_chunks,
    even_blocks,
    even_division,
    has_more_divisions,
    neighbours,
)
from phaze.plan.layouts.event_program import Flow
from phaze.plan.layouts.held import held_microbatches
from phaze.plan.layouts.planes import Paths, Planes, planes_of
from phaze.plan.layouts.split_parts import FEW_NUMBERS, WHOLE_WORK, SplitParts
from phaze.plan.layouts.time_limit import Work

MOST_JOBS = 16_000
"""Maximum number of events in one linear program; for longer steps, paths are added one by one."""
SAMPLES = 16
"""Number of stage costs computed in the time of one linear program (order of magnitude)."""
NEARLY = 0.997
"""Fraction of the target bound above which it pays to compute the layout's own event-graph flow."""
LATER = 1.03
"""Ratio to the target step time up to which the neighbours of a pipeline split are simulated."""
HOPEFUL = 0.975
"""Fraction of the target bound above which branching on the layers of single stages may reach it."""
ROUNDS = 300
"""Maximum number of linear relaxations solved per layout."""
BUSIER = 1.5
"""Factor by which a rank's stages are slowed down to find paths through them."""
WHOLE_ROUNDS = 8
"""Maximum number of integer programs per layout if no event-graph flow is known; they take longest."""
FEW = 300
"""Number of pipeline splits up to which all of them are simulated."""
ROUNDED_UP = tuple(np.linspace(0.05, 0.95, 10).tolist())
"""Offsets added to fractional stage ends before they are rounded down, in layers."""
REPAIRS = 6
"""Maximum number of attempts to make a pipeline split fit in memory."""


@dataclass(frozen=True)
class FoundDivision:
    """Pipeline split that fits in memory, with its step time."""

    division: Division
    time_s: float


@dataclass(eq=False)
class DivisionSearch:
    """Search for the fastest pipeline split of a layout that fits in memory, with a rising lower bound."""

    divided: DividedLayout
    limit_bytes: float
    enough_s: float = inf
    """Step time of a known plan; pipeline splits slower than that need not be considered."""
    bound_s: float = 0.0
    """Lower bound on the step time of all pipeline splits; infinite if none fits."""
    found: FoundDivision | None = None
    relaxed: bool = False
    """True if the linear relaxation cannot raise the bound further."""
    done: bool = False
    """True if requiring whole layers cannot raise the bound further either."""
    flows: dict[bytes, list[Flow]] = field(default_factory=dict)
    """Known flows by event graph, also of other layouts; the first is the best over all splits."""
    like: Division | None = None
    """Best known pipeline split of another layout with the same number of ranks and chunks, if any."""
    branches: bool = True
    """True if branching on the layers of single stages may raise the bound further."""
    work: Work = field(default_factory=Work)
    """Count of linear programs solved by this search and by others that share the count."""
    _tried: set[Division] = field(default_factory=set)
    _centre: Floats = field(default_factory=lambda: np.zeros((0, 3)))
    """Best fractional solution so far: 1, layers n and recomputed layers k by stage, (stages, 1 + 2K)."""

    @cached_property
    def most_blocks(self) -> int:
        """Maximum number of blocks on a stage in any pipeline split that is not slower than a known plan."""
        divided, known_s = self.divided, min(self.enough_s, self.found.time_s if self.found else inf)
        place = divided.places[len(divided.places) // 2]
        if divided.count == 1 or known_s == inf:
            return divided.layers
        each_s = min(self._longer_s(place, number) for number in range(len(divided.order.kinds)))
        turns = divided.frame.lane_microbatches
        fastest = max(int(known_s / (turns * each_s)), -(-divided.layers // divided.count))
        return min(fastest, max(most for _, most in blocks_at(divided)))

    def _longer_s(self, place: Place, kind: int) -> float:
        """Time that one layer of a kind adds to the passes of a middle or last stage, in seconds."""
        divided = self.divided
        found = np.flatnonzero(divided.order.kind == kind)
        if place == "last":
            own, end = int(found[-1]), divided.layers
            few, more = range(own + 1, end), range(own, end)
        else:
            own = int(found[1]) if len(found) > 1 else int(found[0])
            beside = own - 1 if own else 1
            few, more = range(beside, beside + 1), range(min(own, beside), max(own, beside) + 1)
        less, longer = (divided.cost(place, window, 0) for window in (few, more))
        return longer.forward_s + longer.backward_s - less.forward_s - less.backward_s

    @cached_property
    def planes(self) -> Planes:
        """Linear lower bounds on the costs of all stages, tight near the best pipeline split so far."""
        near = self.found.division if self.found else even_division(self.divided)
        found = planes_of(self.divided, self.most_blocks, near)
        self.work.add(found.samples // SAMPLES)
        return found

    @cached_property
    def paths(self) -> Paths:
        """Event graph of a step, with linear bounds on the time of its jobs."""
        return Paths(self.divided.frame, self.divided.events, self.planes)

    @cached_property
    def _program(self) -> DivisionProgram:
        return DivisionProgram(self.divided, self.paths, self.limit_bytes, self.most_blocks)

    @cached_property
    def _every(self) -> CutProgram:
        """Linear program over all pipeline splits."""
        return self._program.within(self._program.limits)

    @cached_property
    def _parts(self) -> SplitParts:
        return SplitParts(self._program, self.flows, self.work, self._try_point)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of pipeline ranks and of chunks per rank."""
        return self.divided.layout.pp, self.divided.layout.vp

    @property
    def simulated(self) -> int:
        """Number of simulated pipeline splits."""
        return len(self._tried)

    def guess(self, *, simple: bool = True) -> None:
        """Simulate a few initial pipeline splits, or all splits if there are at most `FEW`."""
        many = has_more_divisions(self.divided, FEW)
        few = [] if many else list(islice(all_divisions(self.divided), FEW + 1))
        if not many and len(few) <= FEW:
            for division in few:
                self._measure(division)
            self.bound_s, self.done = (self.found.time_s if self.found else inf), True
        else:
            good = by_chunks(self.divided) if simple else []
            good += [self.like.blocks] if self.like else []
            for blocks in dict.fromkeys([even_blocks(self.divided), *good]):
                self.try_blocks(blocks)

    def relax(self, enough_s: float) -> None:
        """Raise the bound by linear relaxations until it reaches `enough_s` or stops rising."""
        if len(self.paths.graph.jobs) <= MOST_JOBS:
            self._follow(enough_s)
        if self.bound_s < enough_s and not self._parts.known:
            self._look_at_first()
            for _ in range(ROUNDS):
                if self.bound_s >= enough_s or self.done or self.relaxed:
                    break
                self._step(exact=False)
        self.relaxed = True

    def _follow(self, enough_s: float) -> None:
        """Raise the bound with known event-graph flows, then with the layout's own best flow."""
        known = len(self._parts.known)
        bound_s = self._followed()
        if bound_s < enough_s and (bound_s > NEARLY * enough_s or not known):
            found = self._parts.best_flow(self._program.limits)
            if found is not None:
                self._look_around(found.point)
                bound_s = self._followed()
        self.bound_s, self.done = max(self.bound_s, bound_s), bound_s == inf

    def _followed(self) -> float:
        """Lower bound on the step time of all pipeline splits, from all known flows."""
        self._parts.cut()
        self.work.add(1)
        return self._every.solve().bound

    def finish(self, enough_s: float) -> None:
        """Raise the bound by requiring whole layers until it reaches `enough_s` or stops rising.

        First on every rank, then by dividing all pipeline splits into parts, one at a time.
        """
        if self.parted:
            self._branch(enough_s)
            return
        if not len(self._centre):
            self._look_at_first()
        ranked = bool(self._parts.known) and self.divided.layout.pp > 1 and self._divide_among_ranks(enough_s)
        for _ in range(0 if ranked else WHOLE_ROUNDS):
            if self.bound_s >= enough_s or self.done:
                break
            self._step(exact=True)
        self._end(enough_s)
        self.done = self.done or not self.parted

    def _divide_among_ranks(self, enough_s: float) -> bool:
        """Raise the bound by requiring whole layers on every rank; False if a program was not solved."""
        bound_s, point = self._parts.divide_among_ranks(self._program.limits, enough_s)
        self.bound_s, self.done = max(self.bound_s, bound_s), bound_s == inf
        if self.branches and point is not None and HOPEFUL * enough_s < self.bound_s < enough_s:
            self._parts.begin(self.bound_s, point)
        return self.done or self.bound_s >= enough_s or point is not None

    @property
    def parted(self) -> bool:
        """True once the pipeline splits are divided into subsets (branch and bound)."""
        return "_parts" in self.__dict__ and self._parts.begun

    def _branch(self, enough_s: float) -> None:
        """Branch on one subset of the pipeline splits; finish if the bound rises no further."""
        rises = self._parts.branch(enough_s)
        self.bound_s = max(self.bound_s, self._parts.bound_s)
        self.done = not rises or self.bound_s >= enough_s
        if self.done:
            self._end(enough_s)

    def follow(self, other: DivisionSearch, enough_s: float) -> None:
        """Adopt the bound of a search over a superset of these pipeline splits."""
        self.bound_s, self.relaxed = max(self.bound_s, other.bound_s), other.relaxed
        if other.done:
            self._end(enough_s)
            self.done = True

    def _end(self, enough_s: float) -> None:
        if self.bound_s < enough_s and len(self._centre):
            self._try_cuts()
        if self.found and self.found.time_s < LATER * enough_s:
            self.climb()

    def release(self) -> None:
        """Free the events, programs and linear bounds of a finished search; they are rebuilt on demand."""
        for name in ("planes", "paths", "_program", "_every", "_parts", "most_blocks"):
            self.__dict__.pop(name, None)
        self.divided.release()

    def park(self) -> None:
        """Free the linear program of an unfinished search; its cuts stay."""
        self.__dict__.pop("_every", None)

    def climb(self) -> None:
        """Improve the best pipeline split by local search until no neighbour is faster.

        If no neighbour is faster, try splits that recompute only as many layers as they need to fit.
        """
        most, known = len(self._tried) + MOVES, None
        while self.found is not None and self.found is not known:
            known = self.found
            for fewest in (False, True)[: 1 + self.divided.partial]:
                if self.found is known:
                    self._move(known.division, most + fewest * MOVES, fewest=fewest)

    def _move(self, division: Division, most: int, *, fewest: bool) -> None:
        """Simulate neighbours of a pipeline split until `most` splits were simulated in total.

        With `fewest` each neighbour recomputes only as many layers as it needs to fit.
        """
        for other in neighbours(self.divided, division):
            if len(self._tried) >= most or self.found is None or self.bound_s >= self.found.time_s:
                return
            if fewest and other.blocks != division.blocks:
                self.try_blocks(other.blocks)
            elif not fewest and other not in self._tried and self.divided.may_be(other.blocks):
                self._measure(other)

    def lighten(self, division: Division) -> None:
        """Simulate a pipeline split without recomputation, or with fewer recomputed layers while it fits.

        With fewer recomputed layers a step is no slower and needs no less memory.
        """
        if not self.divided.partial:
            self.try_blocks(division.blocks)
        lighter: Division | None = division if self.divided.partial else None
        while lighter is not None:
            fewer = [
                other
                for other in neighbours(self.divided, lighter)
                if other.blocks == lighter.blocks and sum(other.recomputed) < sum(lighter.recomputed)
            ]
            lighter = next((other for other in fewer if (self._measure(other) <= 0).all()), None)

    def try_blocks(self, blocks: Numbers) -> None:
        """Simulate a pipeline split, with as many recomputed layers as it needs to fit."""
        self._try(blocks, (0,) * self.divided.count)

    def _try_cuts(self) -> None:
        """Simulate pipeline splits with stage ends close to those of the best fractional solution.

        All ends move a little earlier or later together.
        """
        kinds, layers = len(self._program.totals), self.divided.layers
        ends = np.cumsum(self._centre[:, 1 : 1 + kinds].sum(axis=1))[:-1]
        for share in ROUNDED_UP:
            cuts = np.minimum(np.floor(ends + share).astype(int), layers)
            blocks = np.diff(np.concatenate([[0], cuts, [layers]]))
            self.try_blocks(tuple(blocks.tolist()))

    def _look_around(self, point: Floats) -> None:
        """Simulate a pipeline split near a fractional solution, and add its longest paths as cuts.

        Each cut assumes that one rank is slower than the others.
        """
        self._try_point(point)
        self._centre = self._program.by_stage(point)
        self._cut_by_ranks()

    def _try_point(self, point: Floats) -> None:
        """Simulate a pipeline split near a fractional solution of layers and recomputed layers."""
        _, n, k = np.split(self._program.by_stage(point), [1, 1 + len(self._program.totals)], axis=1)
        self._try(*self._program.rounded(n, k))

    def _look_at_first(self) -> None:
        """Simulate a split and add cuts near a known flow's solution, or else near equal stages."""
        flow = next(iter(self._parts.known), None)
        n = np.tile(self._program.totals / self.divided.count, (self.divided.count, 1))
        self._look_around(np.stack([n, 0 * n]).ravel() if flow is None else flow.point)

    def _cut_by_ranks(self) -> None:
        seconds = self.paths.seconds(self._centre)
        for rank in (None, *range(self.divided.layout.pp)):
            own = seconds.copy()
            if rank is not None:
                own[:, self.divided.frame.stages_of(rank)] *= BUSIER
            self._program.add_cut(self.paths.cut(self.paths.timeline(own, self._centre)))

    def _step(self, *, exact: bool) -> None:
        """Solve the program once more, add cuts near its solution, and simulate a pipeline split there."""
        size = -(-self.divided.count * len(self._program.totals) // FEW_NUMBERS)
        self.work.add((WHOLE_WORK if exact else 1) * size)
        answer = self._every.solve(exact=exact)
        self.bound_s = max(self.bound_s, answer.bound)
        if answer.point is None:
            self.done = True
            return
        shape = self.divided.count, len(self._program.totals)
        n, k = answer.point[: 2 * shape[0] * shape[1]].reshape(2, *shape)
        point = np.concatenate([np.ones((shape[0], 1)), n, k], axis=1)
        # The program's points jump between extremes: paths halfway to the best point cut deeper.
        best_s = self._cut_at(self._centre)
        for share in (0.5, 0.0):
            there = share * self._centre + (1 - share) * point
            time_s = self._cut_at(there)
            if time_s < best_s:
                best_s, self._centre = time_s, there
        close = time_s <= answer.bound * (1 + CLOSE)
        if exact or close:
            known = len(self._tried)
            self._try(*self._program.rounded(n, k))
            if exact and close and len(self._tried) == known:
                self.done = True
        if close and not exact:
            self.relaxed = True
        if self.found and self.bound_s >= self.found.time_s:
            self.done = True

    def _cut_at(self, point: Floats) -> float:
        """Step time at a fractional solution, in seconds, after adding its longest path as a cut."""
        timeline = self.paths.timeline(self.paths.seconds(point), point)
        self._program.add_cut(self.paths.cut(timeline))
        return timeline.time_s

    def _try(self, blocks: Numbers, again: Numbers) -> None:
        """Simulate a pipeline split; while it does not fit, recompute or move layers and try again."""
        if self.divided.partial and not any(again):  # otherwise it is a layout without recompute
            fullest = int(np.argmax(blocks))
            again = (*again[:fullest], 1, *again[fullest + 1 :])
        division = self.divided.recomputing(blocks, again)
        for _ in range(REPAIRS):
            if (
                division in self._tried
                or sum(blocks) != self.divided.layers
                or not self.divided.may_be(blocks)
            ):
                return
            over = self._measure(division)
            if (over <= 0).all():
                return
            division = self._leaner(division, over) if self.divided.partial else self._shifted(division)
            blocks = division.blocks

    def _measure(self, division: Division) -> Floats:
        """Simulate a pipeline split, and return the excess memory of every rank in bytes, (ranks,)."""
        self.work.check()
        self._tried.add(division)
        timeline = self.divided.timeline(division)
        over: Floats = timeline.peak_bytes - self.limit_bytes
        if (over <= 0).all() and (self.found is None or timeline.time_s < self.found.time_s):
            self.found = FoundDivision(division, timeline.time_s)
        return over

    def _shifted(self, division: Division) -> Division:
        """Same pipeline split with layers moved until all ranks fit according to the linear program."""
        blocks = np.array(division.blocks)
        few = np.array([low for low, _ in blocks_at(self.divided)])
        each, excess = self._program.excess(blocks)
        for _ in range(len(blocks)):
            lacking = np.maximum(excess, 0.0).sum()
            moved = each[:, None, :] - each[:, :, None]  # (rows, from, to)
            after = np.maximum(excess[:, None, None] + moved, 0.0).sum(axis=0)
            after[blocks <= few] = inf
            source, target = np.unravel_index(np.argmin(after), after.shape)
            if after[source, target] >= lacking:
                break
            blocks[[source, target]] += -1, 1
            excess = excess + moved[:, source, target]
        return Division(tuple(blocks.tolist()), division.recomputed)

    def _leaner(self, division: Division, over: Floats) -> Division:
        """Same pipeline split with more recomputed layers on ranks that lack memory."""
        again, divided = np.array(division.recomputed), self.divided
        for rank in np.flatnonzero(over > 0).tolist():
            held = held_microbatches(divided, rank).max(axis=0)
            lacking, freed = over[rank], []
            for q, microbatches in zip(divided.frame.stages_of(rank).tolist(), held.tolist(), strict=True):
                place, window, k = divided.places[q], division.windows[q], int(again[q])
                if k < len(window):
                    now, least = (divided.cost(place, window, one).stash_bytes for one in (k, len(window)))
                    freed.append((max((now - least) * microbatches / (len(window) - k), 1.0), -q))
            for each, place_of in sorted(freed, reverse=True):
                more = min(max(ceil(lacking / each), 0), division.blocks[-place_of] - int(again[-place_of]))
                again[-place_of] += more
                lacking -= more * each
        return divided.recomputing(division.blocks, tuple(again.tolist()))
