"""Claims of the Piper paper, checked against the plans of a study."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from phaze.report.plans.inputs import PlanInputs, by_values, printed_rows, read_curve, relative
from phaze.report.verdicts import Claim, tabulate
from phaze.report.words import join, percent, seconds
from phaze.spec.published_plans import PublishedPlans
from phaze.tables import Claims

MOST = 0.5
"""`Most` of the numbers of devices are more than half of those at which the planners have a plan."""
SMALL_GIB = 2.0
"""Memories that the paper calls small in the caption of Figure 1."""
HALF_A_PERCENT = 0.005
"""A share that is printed in whole percent agrees within half of one."""


def check_claims(inputs: PlanInputs) -> pd.DataFrame:
    """Return table claims; empty without a publication."""
    parts = (_table_claims, _share_claims, _best_claims, _flat_claims, _worse_claims, _running_time_claims)
    published = inputs.published
    return (
        Claims.empty()
        if published is None
        else tabulate(c for part in parts for c in part(inputs, published))
    )


def _table_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[Claim]:
    """Yield for every input whether its printed rows come out to the printed digits."""
    for _, case in inputs.of("table"):
        rows = list(printed_rows(inputs, case.input))
        if not rows or "table-1" not in case.modes:
            continue
        same = sum(row.agrees("table-1") for row in rows)
        yield Claim(
            f"{inputs.label(case.input)}: times of Piper and equi, out of memory included, mode table-1",
            published.sources["table"], f"{len(rows)} rows", f"{same} to the printed digits",
            same == len(rows),
        )  # fmt: skip


def _share_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[Claim]:
    """Yield the mean throughput of equal stages over Piper's, over the printed rows."""
    for name, share in published.equi_share.items():
        times = [row.ours["table-1"] for row in printed_rows(inputs, name) if "table-1" in row.ours]
        found = [t["piper"] / t["equi"] for t in times if np.isfinite(t["equi"])]
        if found:
            mean = float(np.mean(found))
            yield Claim(
                f"{inputs.label(name)}: mean throughput of equi over Piper's where equi finds a plan",
                published.sources["equi_share"], percent(share, 0), percent(mean),
                abs(mean - share) <= HALF_A_PERCENT,
            )  # fmt: skip


def _best_claims(inputs: PlanInputs, _: PublishedPlans) -> Iterator[Claim]:
    """Yield whether Piper's throughput is the best everywhere, and whether it fits where others do not."""
    cluster = ["memory_gib", "microbatches", "devices"]
    for name, case, mode in ((n, c, m) for n, c in inputs.of("throughput") for m in c.modes):
        rows = inputs.cases[(inputs.cases["case"] == name) & (inputs.cases["mode"] == mode)]
        label, piper = f"{inputs.label(case.input)}, mode {mode}", rows["planner"] == "piper"
        fits = rows[piper & (rows["status"] == "planned")]
        share = relative(rows)[fits.index]
        yield Claim(
            f"{label}: Piper always obtains the highest throughput", "Figure 1", "1.000×",
            f"at least {share.min():.3f}× on {len(fits)} clusters with a plan",
            bool((share > 1 - 1e-9).all()),
        )  # fmt: skip
        small = rows[~piper & (rows["memory_gib"] <= SMALL_GIB)]
        others = small[small.set_index(cluster).index.isin(fits.set_index(cluster).index)]
        without = int((others["status"] == "infeasible").sum())
        if len(others):
            yield Claim(
                f"{label}: with at most 2 GB, baselines find no plan where Piper does",
                "caption of Figure 1", "often", f"{without} of {len(others)} times", without > 0,
            )  # fmt: skip


def _flat_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[Claim]:
    """Yield where plans without tensor or without data parallelism stop to gain."""
    for label, rows in _curves(inputs):
        no_tp, no_dp = (rows[rows["planner"] == p] for p in ("no-tp", "no-dp"))
        n = int(rows["microbatches"].iloc[0])
        if len(no_tp) and n < rows["most_devices"].max():
            last = int(no_tp["devices"].max())
            statement = f"{label}: without TP nothing is gained beyond k = N"
            yield Claim(statement, "Figure 2", f"k = {n}", f"k = {last}", last <= n)
        if len(no_dp) and published.no_dp_stops is not None:
            last = int(no_dp["devices"].max())
            stops = published.no_dp_stops
            source = published.sources["no_dp_stops"]
            statement = f"{label}: without DP nothing is gained beyond a few devices"
            yield Claim(statement, source, f"k = {stops}", f"k = {last}", last == stops)


def _worse_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[Claim]:
    """Yield how much more time equal stages take than Piper, over all numbers of devices."""
    if published.equi_worse is None:
        return
    low, high = published.equi_worse
    for label, rows in _curves(inputs):
        more = extra_time(rows, considered(inputs, rows))
        if not len(more):
            continue
        within = float(np.mean((more >= low) & (more <= high)))
        quarters = [percent(float(q)) for q in np.quantile(more, (0.25, 0.5, 0.75))]
        yield Claim(
            f"{label}: equi takes {100 * low:.0f} to {100 * high:.0f} % more time than Piper for most k",
            published.sources["equi_worse"], f"{percent(low, 0)} to {percent(high, 0)}",
            f"quartiles {join(quarters)}; {percent(within, 0)} of {len(more):,} k within", within > MOST,
        )  # fmt: skip


def considered(inputs: PlanInputs, rows: pd.DataFrame) -> np.ndarray:
    """Return the numbers of devices of a panel of curves: all up to the largest, unless several are given."""
    points = inputs.plans.cases[str(rows["case"].iloc[0])].points().values()
    devices = next(p.devices for p in points if p.memory_gib == rows["memory_gib"].iloc[0])
    return np.arange(1, devices[0] + 1) if len(devices) == 1 else np.array(devices)


def extra_time(rows: pd.DataFrame, ks: np.ndarray) -> np.ndarray:
    """Return how much more time equi takes than Piper with so many devices, where both have a plan."""
    piper, equi = (read_curve(rows[rows["planner"] == p], ks) for p in ("piper", "equi"))
    both = np.isfinite(piper) & np.isfinite(equi)
    more: np.ndarray = equi[both] / piper[both] - 1
    return more


def _curves(inputs: PlanInputs) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield label and rows of every panel of curves."""
    for name, case in inputs.of("curve"):
        for mode in case.modes:
            mine = inputs.curves[(inputs.curves["case"] == name) & (inputs.curves["mode"] == mode)]
            for (memory, n), rows in by_values(mine, "memory_gib", "microbatches"):
                yield f"{inputs.label(case.input)}, {memory:g} GB, N = {n:.0f}, mode {mode}", rows


def _running_time_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[Claim]:
    """Yield running times beside those of the authors' program."""
    for name, case in inputs.of("runtime"):
        mean_s = (
            inputs.durations[inputs.durations["case"] == name]
            .groupby(["blocks", "devices", "microbatches"])["seconds"]
            .mean()
        )
        for told in published.running_times:
            ours = float(mean_s.get((told.blocks, told.devices, told.microbatches), np.nan))
            if np.isfinite(ours):
                limit = f"{told.seconds / 60:g} min" if told.seconds < 7200 else f"{told.seconds / 3600:g} h"
                yield Claim(
                    f"{inputs.label(case.input)} with {told.blocks} layers: planning {told.devices} devices, "
                    f"N = {told.microbatches}",
                    published.sources["running_times"], f"within {limit}", seconds(ours),
                    ours <= told.seconds,
                )  # fmt: skip
