r"""Time per sample for every number of devices and every sum of degrees, from one run (Figure 2).

This is the paper's own dynamic program (Section 4). For a downset D let time(D, s, k) be the least time per
sample of D in stages on at most k devices whose data-parallel degrees sum to exactly s:

    time(∅, 0, k) = 0,   time(D, s, k) = min of max(time(D', s - d, k - d t), TPS(D \ D', t, d, s))
                         over downsets D' of D, t, d

The planner needs none of it to find its one plan, which it does much faster. For n downsets, P widths and Q
degrees the table takes O(n² P Q K S) time and n (K + 1) (S + 1) states.
"""

from __future__ import annotations

import csv
from io import StringIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats
from phaze.base.bitsets import holds
from phaze.base.compiled import njit
from phaze.base.deadline import Deadline, slices
from phaze.base.room import refuse_beyond_memory
from phaze.formulas.piper.layers import FlatCluster, ProfiledLayers
from phaze.formulas.piper.planner import SearchOptions, ThresholdSearch
from phaze.formulas.piper.prices import SearchTables, saving_s, stage_base
from phaze.formulas.piper.requests import PiperRequest
from phaze.formulas.piper.stages import ConfigurationCosts, costs_of
from phaze.formulas.piper.sums import MISSING

STATE_BYTES = 10
"""Memory per state: a time and a number of stages."""


class TimeTable(NamedTuple):
    """Times of the best plans by sum of degrees s and number of devices k, (S + 1, K + 1)."""

    time_s: Floats
    """Time per sample with at most k devices; inf if nothing fits."""
    stages: NDArray[np.int16]
    """Number of stages of the plan with that time."""


def time_table(layers: ProfiledLayers, cluster: FlatCluster) -> TimeTable:
    """Times of the best plans for all sums of degrees up to N and all numbers of devices up to K."""
    search = ThresholdSearch(layers, cluster, SearchOptions())
    shape = (search.most_degree + 1, cluster.devices + 1)
    if not search.possible:
        return TimeTable(np.full(shape, np.inf), np.zeros(shape, np.int16))
    downsets = len(search.downsets)
    refuse_beyond_memory(
        float(STATE_BYTES * downsets * shape[0] * shape[1]),
        f"the table of {downsets:,} downsets, {shape[0] - 1:,} sums of degrees and {shape[1] - 1:,} devices",
        "plan for fewer devices",
    )
    times, stages = np.full((downsets, *shape), np.inf), np.zeros((downsets, *shape), np.int16)
    times[0, 0] = 0.0
    problem, costs = search.problem, costs_of(layers, cluster)
    for begin, end in slices(downsets, Deadline(), first=1):
        _fill(problem, costs, times, stages, begin, end)
    return TimeTable(times[-1], stages[-1])


def table_text(request: PiperRequest) -> str:
    """CSV of the times of a request for every microbatch size, number of devices and sum of degrees."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("microbatch", "devices", "degree", "stages", "time_per_sample_s"))
    for size, layers in request.models.items():
        table = time_table(layers, request.cluster(size))
        for k, s in zip(*np.isfinite(table.time_s.T).nonzero(), strict=True):
            writer.writerow((size, k, s, table.stages[s, k], float(table.time_s[s, k]) / size))
    return text.getvalue()


@njit
def _fill(
    problem: SearchTables,
    costs: ConfigurationCosts,
    times: Floats,
    stages: NDArray[np.int16],
    begin: int,
    end: int,
) -> None:
    """Compute the times and numbers of stages of the downsets from `begin` to `end`, from smaller ones."""
    sums = problem.sums
    for j in range(begin, end):
        for i in range(j):
            if not holds(sums.words, j, i):
                continue
            for t in range(len(problem.widths)):
                if sums.totals[t, i, MISSING] >= sums.totals[t, j, MISSING]:
                    _relax(problem, costs, times, stages, i, j, t)


@njit
def _relax(
    problem: SearchTables,
    costs: ConfigurationCosts,
    times: Floats,
    stages: NDArray[np.int16],
    i: int,
    j: int,
    t: int,
) -> None:
    """Relax the states of downset j with stage (i, j) at width t and every degree d."""
    # A threshold of 0 sums the stage layer by layer, without cancellation.
    base_s, weight_s = stage_base(problem.sums, t, i, j, 0.0)
    most = problem.steps.whose.shape[1] - 1
    for index in range(len(problem.degrees)):
        d = problem.degrees[index]
        used = d * problem.widths[t]
        checked, stage_s = -1, np.inf
        for s in range(d, times.shape[1]):
            in_flight = (s + d - 1) // d
            if in_flight > most:
                break
            if in_flight != checked:
                checked = in_flight
                added_s = saving_s(problem, costs, t, i, j, index, in_flight)
                stage_s = (base_s + problem.exchanged[index] * weight_s + added_s) / d
            if not np.isinf(stage_s):
                for k in range(used, times.shape[2]):
                    time_s = max(times[i, s - d, k - used], stage_s)
                    if time_s < times[j, s, k]:
                        times[j, s, k] = time_s
                        stages[j, s, k] = stages[i, s - d, k - used] + 1
