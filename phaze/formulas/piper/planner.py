r"""Piper's planner: stages, degrees and configurations with the least time per sample (Piper, Section 4).

The least time is found by thresholds, each answered by a dynamic program. A plan found within a threshold
lowers the upper bound to its own slowest stage; otherwise the lower bound rises to the threshold. The search
ends with a threshold just below the best plan (1e-11 of it) within which there is no plan. Each plan is
traced back, priced again by `best_stage`, and must agree with the search. If there is no plan, the reason is
the first violated necessary condition.

The dynamic program finds the fewest devices with which every stage meets a time limit. For a time τ let f(D,
s) be the fewest devices that run the downset D in stages of at most τ each whose data-parallel degrees sum to
exactly s. With Piper's recursion (Section 4),

    f(∅, 0) = 0,    f(D, s) = min of f(D', s - d) + d t  over downsets D' of D, t, d
                              with TPS(D \ D', t, d, s) <= τ,

and a plan within τ exists if f(V, s) <= K for an s that the batch allows. A table of times for every k is not
needed. s is the exact sum, so no monotonicity of TPS in s is assumed: with the rule of `knapsack` a stage may
take less time with more microbatches in flight.

The search prunes two kinds of states without losing the optimum:

- A stage on d devices of width t has d t τ >= Σ t (X.p + transfers): d·t devices can do no more in a time per
  sample of τ. States are not extended if the remaining layers, with any configurations, need more than the
  K - f remaining devices. Stages are not tried if their own work exceeds d t τ or they leave too few devices
  for the rest. Every stage of a plan within τ and K devices passes both tests.
- Of two ways to reach (D, s) only the one with fewer devices is kept: the rest depends only on D, s and the
  remaining devices. A way that is no better is not priced at all.

Downsets are sorted by work, which respects inclusion. Candidate supersets then lie in windows: for each
number q = d t of devices those with between W(V) - (K - f - q) τ and W(D') + q τ of work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats, Ints
from phaze.base.bitsets import holds
from phaze.base.compiled import njit
from phaze.base.deadline import Deadline, slices
from phaze.base.errors import PhazeError
from phaze.base.room import refuse_beyond_memory
from phaze.formulas.downsets import Downsets, enumerate_downsets, enumerate_prefixes
from phaze.formulas.piper.layers import FlatCluster, PiperPlan, PlannedStage, ProfiledLayers
from phaze.formulas.piper.prices import (
    SLACK,
    PriceCache,
    SearchTables,
    empty_cache,
    meets,
    price_queue,
    stage_base,
)
from phaze.formulas.piper.stages import ConfigurationCosts, best_stage, costs_of
from phaze.formulas.piper.sums import MISSING, downset_bytes, list_steps, most_in_flight, sum_up
from phaze.layout import Layout

Table = NDArray[np.int32]

NONE = 2**30
"""Value of f(D, s) for a state that no plan reaches."""
FIRST_PAIRS = 100_000
"""Number of downset pairs in the first slice, enough for small searches to need only one slice."""
BELOW = 1 - 1e-11
"""A plan counts as better if its time is below this fraction of the other plan's."""
CLOSE = 1.001
"""Ratio of the bounds below which the search tries just below the upper bound instead of bisecting."""


class States(NamedTuple):
    """Search states (D, s): the fewest devices of each state, and the range of s with a plan."""

    fewest: Table
    """(m, S + 1) f(D, s), NONE if no plan is known."""
    low: Ints
    """(m,) smallest s with a plan."""
    high: Ints
    """(m,) largest s with a plan."""


def fewest_devices(
    problem: SearchTables,
    costs: ConfigurationCosts,
    cache: PriceCache,
    devices: int,
    threshold_s: float,
    fewest: Table,
) -> PriceCache:
    """Compute f(D, s), the fewest devices by downset and degree sum, (m, S + 1); NONE above `devices`.

    The search stops at a downset with stages whose price needs an exact knapsack or all layers, and continues
    from it once they are priced. It runs in slices, between which Ctrl-C is handled. Returns the updated
    cache of prices.
    """
    count = len(fewest)
    rest_devices = np.ceil(np.minimum(problem.sums.rest_s / threshold_s / SLACK, NONE)).astype(np.int64)
    states = States(fewest, np.full(count, fewest.shape[1]), np.full(count, -1))
    cache.stage[:] = -1
    fewest[:] = NONE
    fewest[0, 0] = states.low[0] = states.high[0] = 0
    for begin, end in slices(count - 1, Deadline(), max(1, FIRST_PAIRS // count)):
        i = begin
        while i < end:
            i = _search(problem, cache, states, rest_devices, devices, threshold_s, i, end)
            cache = price_queue(problem, costs, cache)
    return cache


@njit
def _search(
    problem: SearchTables,
    cache: PriceCache,
    states: States,
    rest_devices: Ints,
    devices: int,
    threshold_s: float,
    begin_with: int,
    end_before: int,
) -> int:
    """Extend the states of some downsets in order; return the first downset with stages yet to be priced.

    rest: (m,) lower bound on the devices for the layers outside each downset.
    """
    sums = problem.sums
    last = len(sums.work_s) - 1
    for i in range(begin_with, end_before):
        if states.high[i] < states.low[i]:
            continue
        used = int(states.fewest[i, states.low[i] : states.high[i] + 1].min())
        seen = i + 1
        for q in problem.products:
            if used + q > devices:
                break
            # The rest must fit on the other devices, and the stage on its own q, in the time allowed.
            least = (sums.work_s[last] - (devices - used - q) * threshold_s) / SLACK
            # Each superset is tried once, at the fewest devices that can do its work.
            begin = max(seen, np.searchsorted(sums.work_s, least))
            most = (sums.work_s[i] + q * threshold_s) * SLACK
            seen = max(seen, np.searchsorted(sums.work_s, most))
            for j in range(begin, seen):
                if used < devices - rest_devices[j] and holds(sums.words, j, i):
                    room = devices - rest_devices[j]
                    _extend(problem, cache, states, room, threshold_s, i, j, used)
        if cache.unpriced[0]:
            return i
    return end_before


@njit
def _extend(
    problem: SearchTables,
    cache: PriceCache,
    states: States,
    room: int,
    threshold_s: float,
    i: int,
    j: int,
    used: int,
) -> None:
    """Relax every state of downset j with stage (i, j), up to `room` devices in total.

    used: fewest devices of any state of i.
    """
    sums = problem.sums
    for t in range(len(problem.widths)):
        if sums.totals[t, i, MISSING] < sums.totals[t, j, MISSING]:
            continue
        base_s, weight_s = stage_base(sums, t, i, j, threshold_s)
        for index in range(len(problem.degrees)):
            d = problem.degrees[index]
            most = room - d * problem.widths[t]
            if most < used:
                break
            fast_s = base_s + problem.exchanged[index] * weight_s
            if fast_s / d <= threshold_s * SLACK:
                margin_s = threshold_s * d - fast_s
                _follow(problem, cache, states, most, margin_s, (i, j, t, index))


@njit
def _follow(
    problem: SearchTables,
    cache: PriceCache,
    states: States,
    most: int,
    margin_s: float,
    stage: tuple[int, int, int, int],
) -> None:
    """Relax states of downset j with stage (i, j) at degrees t, d, from states of i with <= `most` devices.

    margin_s: allowed extra time of saving memory, for d times the time.
    """
    i, j, t, index = stage
    fewest, d = states.fewest, problem.degrees[index]
    checked, fits = -1, False
    for s in range(states.low[i] + d, min(states.high[i] + d, fewest.shape[1] - 1) + 1):
        k = fewest[i, s - d]
        # Neither too many devices nor more than another way to the same state needs.
        if k > most or k + d * problem.widths[t] >= fewest[j, s]:
            continue
        # Memory depends on s only through the microbatches in flight.
        if (s + d - 1) // d != checked:
            checked = (s + d - 1) // d
            fits = meets(problem, cache, t, i, j, index, checked, margin_s)
        if fits:
            fewest[j, s] = k + d * problem.widths[t]
            states.low[j] = min(states.low[j], s)
            states.high[j] = max(states.high[j], s)


@njit
def last_stage(
    problem: SearchTables, cache: PriceCache, threshold_s: float, fewest: Table, j: int, s: int
) -> tuple[int, int, int]:
    """Last stage (D', t, d) that attains f(D, s), with t and d as indices."""
    sums = problem.sums
    for i in range(j):
        if not holds(sums.words, j, i):
            continue
        for t in range(len(problem.widths)):
            if sums.totals[t, i, MISSING] < sums.totals[t, j, MISSING]:
                continue
            base_s, weight_s = stage_base(sums, t, i, j, threshold_s)
            for index in range(len(problem.degrees)):
                d = problem.degrees[index]
                if d > s:
                    break
                if fewest[i, s - d] + d * problem.widths[t] != fewest[j, s]:
                    continue
                fast_s = base_s + problem.exchanged[index] * weight_s
                margin_s, in_flight = threshold_s * d - fast_s, (s + d - 1) // d
                if meets(problem, cache, t, i, j, index, in_flight, margin_s):
                    return i, t, index
    return -1, -1, -1


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search for the best plan."""

    linear: bool = False
    """True if only the prefixes of one linear order are downsets, as in Table 1 of the paper."""
    exact_knapsack: bool = False
    """True if an exact knapsack chooses configurations, instead of the paper's rule."""
    most_data: int | None = None
    """Largest degree of data parallelism."""
    max_downsets: int = 100_000
    """Limit on the number of downsets; more are an error."""


def plan(
    layers: ProfiledLayers,
    cluster: FlatCluster,
    options: SearchOptions = SearchOptions(),
    below_s: float = np.inf,
) -> PiperPlan | None:
    """Plan with the least time per sample; None if nothing fits within the limit (Piper, Section 4).

    below_s: strict upper limit of the plan's time.
    """
    search = ThresholdSearch(layers, cluster, options)
    # One search rules it out, while the best plan takes many.
    if below_s < np.inf and (not search.possible or search.within(below_s * BELOW, cluster.devices) is None):
        return None
    return search.best(cluster.devices, search.first_plan())


class PiperRun(NamedTuple):
    """Fastest plan of several runs, with the input of its run."""

    microbatch: int
    layers: ProfiledLayers
    cluster: FlatCluster
    plan: PiperPlan

    @property
    def sample_s(self) -> float:
        """Time per training sample that Piper claims; Piper's own sample is a microbatch."""
        return self.plan.time_per_sample_s / self.microbatch


def fastest_run(inputs: Iterable[tuple[int, ProfiledLayers, FlatCluster]]) -> PiperRun | None:
    """Fastest plan over runs with given microbatch sizes, layers and clusters; None if nothing fits."""
    fastest: PiperRun | None = None
    for microbatch, layers, cluster in inputs:
        # Later runs have to beat the fastest one, which a single search can rule out.
        below_s = np.inf if fastest is None else fastest.sample_s * microbatch
        best = plan(layers, cluster, below_s=below_s)
        if best is not None:
            run = PiperRun(microbatch, layers, cluster, best)
            fastest = run if fastest is None or run.sample_s < fastest.sample_s else fastest
    return fastest


def plan_over_devices(
    layers: ProfiledLayers, cluster: FlatCluster, options: SearchOptions = SearchOptions()
) -> Floats:
    """Least time per sample on at most k devices, (K + 1,); inf if nothing fits."""
    search = ThresholdSearch(layers, cluster, options)
    times = np.full(cluster.devices + 1, np.inf)
    devices, start, faster_s = cluster.devices, search.first_plan(), 0.0
    while devices > 0:
        best = search.best(devices, start, faster_s)
        if best is None:
            break
        times[best.devices : devices + 1] = best.time_per_sample_s
        # On fewer devices than this time needs, the plan is slower, but with many devices only a little.
        devices, start, faster_s = best.devices - 1, None, best.time_per_sample_s
    return times


@dataclass
class ThresholdSearch:
    """Threshold search for the best plan of given layers, on any number of devices up to the cluster's."""

    layers: ProfiledLayers
    cluster: FlatCluster
    options: SearchOptions
    _cache: PriceCache | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Raise PhazeError for an input that cannot be planned on any cluster."""
        if not len(self.layers):
            raise PhazeError("a plan needs at least one layer, got none")

    @cached_property
    def possible(self) -> bool:
        """True if every layer has a configuration and the devices suffice for the required degrees."""
        if self.cluster.exactly and self.cluster.microbatches > self.cluster.devices:
            return False
        return bool(np.isfinite(self.layers.least(lambda _, options: options.time_s)).all())

    @cached_property
    def downsets(self) -> Downsets:
        """Downsets of the layer graph: the sets of layers that can form the rest of a pipeline."""
        if self.options.linear:
            return enumerate_prefixes(len(self.layers), self.layers.pairs)
        size_bytes = downset_bytes(len(self.layers), len(self.layers.pairs), len(self.layers.options))
        return enumerate_downsets(len(self.layers), self.layers.pairs, self.options.max_downsets, size_bytes)

    @cached_property
    def problem(self) -> SearchTables:
        """Input tables of the compiled search, with downsets sorted by work, then by size."""
        costs = costs_of(self.layers, self.cluster)
        sums = sum_up(costs, self.downsets)
        order = np.lexsort((self.downsets.sizes, sums.work_s))
        if (order != np.arange(len(order))).any():
            sums = sum_up(costs, self.downsets.take(order))
        degrees = self.cluster.data_widths(self.options.most_data)
        products = np.unique(np.multiply.outer(costs.widths, degrees))
        return SearchTables(
            sums=sums,
            steps=list_steps(costs, most_in_flight(costs, self.most_degree)),
            widths=costs.widths,
            memory_bytes=np.stack([costs.stash_bytes, costs.fixed_bytes], axis=1),
            limit_bytes=costs.limit_bytes,
            degrees=degrees,
            exchanged=np.array([self.cluster.exchanged(Layout(dp=d)) for d in degrees.tolist()]),
            products=products[products <= self.cluster.devices],
            exact=self.options.exact_knapsack,
        )

    @property
    def most_degree(self) -> int:
        """Upper bound on the sum of data-parallel degrees; each replica needs a device and a microbatch."""
        return min(self.cluster.devices, self.cluster.microbatches)

    @cached_property
    def table(self) -> Table:
        """Buffer for f(D, s), the fewest devices by downset and sum of degrees."""
        count, degrees = len(self.downsets), self.most_degree + 1
        refuse_beyond_memory(
            4.0 * count * degrees,
            f"the states of {count:,} downsets with sums of degrees up to {degrees - 1:,}",
            "plan for fewer devices or microbatches",
        )
        return np.empty((count, degrees), dtype=np.int32)

    @cached_property
    def slowest_s(self) -> float:
        """Upper bound on the time of any stage."""
        costs = costs_of(self.layers, self.cluster)
        # All configurations of all layers together, with every exchange: no stage takes longer.
        exchanged = self.problem.exchanged.max() * costs.weight_s.sum()
        return 1e-9 + float(costs.time_s.sum() + costs.forward_s.sum() + costs.backward_s.sum() + exchanged)

    def first_plan(self) -> PiperPlan | None:
        """Best plan along one linear order, a quick bound; None if the full search is as quick."""
        if self.options.linear or not self.possible or len(self.downsets) < 4 * len(self.layers):
            return None
        # Along one order there are n + 1 downsets instead of possibly exponentially many.
        straight = replace(self, options=replace(self.options, linear=True))
        return straight.best(self.cluster.devices, None)

    def best(self, devices: int, start: PiperPlan | None, faster_s: float = 0.0) -> PiperPlan | None:
        """Best plan on at most `devices` devices, improved from the plan `start` if there is one.

        `faster_s` is a known lower bound on its time.
        """
        if not self.possible:
            return None
        lower = max(self.problem.sums.work_s[-1] / devices, faster_s)
        best = start or self._first_within(lower, devices, 1 / devices if faster_s else 0.02)
        while best is not None and best.time_per_sample_s > 0:
            upper = best.time_per_sample_s * BELOW
            near = lower * CLOSE >= upper
            # The geometric mean of the bounds, but at least half of the upper one.
            threshold = upper if near else float(np.sqrt(max(lower, upper / 4) * upper))
            better = self.within(threshold, devices)
            if better is None and near:
                return best
            lower = lower if better else threshold
            best = better or best
        return best

    def _first_within(self, lower: float, devices: int, margin: float) -> PiperPlan | None:
        """First plan found as the time limit is raised from a lower bound; None if infeasible."""
        lower = max(lower, self.slowest_s * 1e-9)
        while lower * (1 + margin) < self.slowest_s:
            candidate = self.within(lower * (1 + margin), devices)
            if candidate is not None:
                return candidate
            margin *= 3
        return self.within(self.slowest_s, devices)

    def within(self, threshold_s: float, devices: int) -> PiperPlan | None:
        """Plan on the fewest devices whose stages all stay within the time threshold; None if infeasible."""
        cache = self._cache or empty_cache(self.problem)
        costs = costs_of(self.layers, self.cluster)
        self._cache = fewest_devices(self.problem, costs, cache, devices, threshold_s, self.table)
        exactly, last = self.cluster.exactly, self.table[-1]
        degree = self.cluster.microbatches if exactly else int(last.argmin())
        if last[degree] > devices:
            return None
        candidate = self._trace(self._cache, threshold_s, degree)
        # The search and the independent price must agree.
        if candidate.time_per_sample_s > threshold_s / BELOW:
            raise AssertionError(f"a plan within {threshold_s} s takes {candidate.time_per_sample_s} s")
        return candidate

    def _trace(self, cache: PriceCache, threshold_s: float, degree: int) -> PiperPlan:
        """Trace the plan back from the table, starting with the first stage."""
        stages: list[PlannedStage] = []
        outer = len(self.downsets) - 1
        while outer:
            inner, t, index = last_stage(self.problem, cache, threshold_s, self.table, outer, degree)
            stages.append(self._stage(outer, inner, t, index, degree))
            outer, degree = inner, degree - stages[-1].layout.dp
        return PiperPlan(tuple(stages))

    def _stage(self, outer: int, inner: int, t: int, index: int, degree: int) -> PlannedStage:
        """Price one stage again, independently of the search, with newly chosen configurations."""
        members = Downsets(len(self.layers), self.problem.sums.words).difference(outer, inner)
        layout = Layout(tp=int(self.problem.widths[t]), dp=int(self.problem.degrees[index]))
        stage = best_stage(self.layers, self.cluster, members, layout, degree, self.options.exact_knapsack)
        if stage is None:
            raise AssertionError(f"the stage of layers {members} does not fit")
        return stage
