"""Piper's planner: stages, degrees and configurations with the least time per sample (Piper, Section 4).

The least time is found by thresholds, each answered by the dynamic program of `search`. A plan found within a
threshold lowers the upper bound to its own slowest stage; otherwise the lower bound rises to the threshold.
The search ends with a threshold just below the best plan (1e-11 of it) within which there is no plan. Each
plan is traced back, priced again by `best_stage`, and must agree with the search. If there is no plan, the
reason is the first violated necessary condition.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.base.room import refuse_beyond_memory
from phaze.base.units import GIB
from phaze.layout import Layout
from phaze.plan.downsets import Downsets, enumerate_downsets, enumerate_prefixes
from phaze.plan.piper.layers import FlatCluster, PiperPlan, PlannedStage, ProfiledLayers
from phaze.plan.piper.prices import Known, SearchTables, empty_cache
from phaze.plan.piper.search import Table, fewest_devices, last_stage
from phaze.plan.piper.stages import best_stage, costs_of
from phaze.plan.piper.sums import downset_bytes, list_steps, most_in_flight, sum_up

BELOW = 1 - 1e-11
"""A plan counts as better if its time is below this fraction of the other plan's."""
CLOSE = 1.001
"""Ratio of the bounds below which the search tries just below the upper bound instead of bisecting."""


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


def plan_over_devices(
    layers: ProfiledLayers, cluster: FlatCluster, options: SearchOptions = SearchOptions()
) -> Floats:
    """Least time per sample on at most k devices, (K + 1,); inf if nothing fits."""
    search = ThresholdSearch(layers, cluster, options)
    times = np.full(cluster.devices + 1, np.inf)
    devices, known, faster_s = cluster.devices, search.first_plan(), 0.0
    while devices > 0:
        best = search.best(devices, known, faster_s)
        if best is None:
            break
        times[best.devices : devices + 1] = best.time_per_sample_s
        # On fewer devices than this time needs, the plan is slower, but with many devices only a little.
        devices, known, faster_s = best.devices - 1, None, best.time_per_sample_s
    return times


@dataclass
class ThresholdSearch:
    """Threshold search for the best plan of given layers, on any number of devices up to the cluster's."""

    layers: ProfiledLayers
    cluster: FlatCluster
    options: SearchOptions
    _known: Known | None = field(default=None, init=False)

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
        each = downset_bytes(len(self.layers), len(self.layers.pairs), len(self.layers.options))
        return enumerate_downsets(len(self.layers), self.layers.pairs, self.options.max_downsets, each)

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
        exchanged = self.problem.exchanged.max() * costs.weight_s.sum()
        return 1e-9 + float(costs.time_s.sum() + costs.forward_s.sum() + costs.backward_s.sum() + exchanged)

    def first_plan(self) -> PiperPlan | None:
        """Quick bound: best plan along one linear order; None if the full search is as quick as this
        one.
        """
        if self.options.linear or not self.possible or len(self.downsets) < 4 * len(self.layers):
            return None
        straight = replace(self, options=replace(self.options, linear=True))
        return straight.best(self.cluster.devices, None)

    def best(self, devices: int, known: PiperPlan | None, faster_s: float = 0.0) -> PiperPlan | None:
        """Best plan on at most `devices` devices and no faster than `faster_s`, searched from a known one."""
        if not self.possible:
            return None
        lower = max(self.problem.sums.work_s[-1] / devices, faster_s)
        found = known or self._any(lower, devices, 1 / devices if faster_s else 0.02)
        while found is not None and found.time_per_sample_s > 0:
            upper = found.time_per_sample_s * BELOW
            near = lower * CLOSE >= upper
            threshold = upper if near else float(np.sqrt(max(lower, upper / 4) * upper))
            better = self.within(threshold, devices)
            if better is None and near:
                return found
            lower = lower if better else threshold
            found = better or found
        return found

    def _any(self, lower: float, devices: int, margin: float) -> PiperPlan | None:
        """First plan found as the time limit is raised from a lower bound; None if infeasible."""
        lower = max(lower, self.slowest_s * 1e-9)
        while lower * (1 + margin) < self.slowest_s:
            found = self.within(lower * (1 + margin), devices)
            if found is not None:
                return found
            margin *= 3
        return self.within(self.slowest_s, devices)

    def within(self, threshold_s: float, devices: int) -> PiperPlan | None:
        """Plan on the fewest devices whose stages all stay within the time threshold; None if infeasible."""
        known = self._known or empty_cache(self.problem)
        costs = costs_of(self.layers, self.cluster)
        self._known = fewest_devices(self.problem, costs, known, devices, threshold_s, self.table)
        exactly, last = self.cluster.exactly, self.table[-1]
        degree = self.cluster.microbatches if exactly else int(last.argmin())
        if last[degree] > devices:
            return None
        found = self._trace(self._known, threshold_s, degree)
        if found.time_per_sample_s > threshold_s / BELOW:
            raise AssertionError(f"a plan within {threshold_s} s takes {found.time_per_sample_s} s")
        return found

    def _trace(self, known: Known, threshold_s: float, degree: int) -> PiperPlan:
        """Trace the plan back from the table, starting with the first stage."""
        stages: list[PlannedStage] = []
        outer = len(self.downsets) - 1
        while outer:
            inner, t, index = last_stage(self.problem, known, threshold_s, self.table, outer, degree)
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


def why_no_plan(layers: ProfiledLayers, cluster: FlatCluster) -> str:
    """Reason why the planner found no plan."""
    single = layers.least(lambda _, one: one.stash_bytes + one.fixed_bytes, cluster.devices)
    total = layers.least(lambda width, one: width * (one.stash_bytes + one.fixed_bytes), cluster.devices)
    if np.isinf(single).any():
        v = int(np.isinf(single).argmax())
        widths = [str(t) for t, options in layers.options.items() if v in options.layer]
        return f"devices: {_name(layers, v)} needs t = {' or '.join(widths)} devices, {cluster.devices} given"
    batch = f"{'exactly' if cluster.exactly else 'at most'} {cluster.microbatches} microbatches"
    if cluster.exactly and cluster.microbatches > cluster.devices:
        return f"batch: {batch} are data parallel on as many devices, {cluster.devices} given"
    given = f"{_gib(cluster.memory_bytes)} given"
    if single.max() > cluster.memory_bytes:
        name = _name(layers, int(single.argmax()))
        return f"memory: {name} alone takes at least {_gib(single.max())} of a device, {given}"
    together = f"{cluster.devices} devices of {given}"
    if total.sum() > cluster.memory_bytes * cluster.devices:
        return f"memory: all layers together take at least {_gib(total.sum())}, {together}"
    return f"memory or batch: no stages, degrees and configurations fit with {batch}, {together}"


def _name(layers: ProfiledLayers, v: int) -> str:
    return f"layer {layers.ids[v]} ({layers.names[v]})"


def _gib(size: float) -> str:
    return f"{size / GIB:.4g} GiB"
