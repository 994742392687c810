"""The page of the plans: figures and tables of the Piper paper beside ours, its claims, and checks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pandas as pd

from phaze.base.units import GIB
from phaze.report import verdicts
from phaze.report.document import Answer
from phaze.report.plans.inputs import GROUP, PlanInputs, by_values, printed_rows, read_curve, relative
from phaze.report.plans.sections import notes, sections_of
from phaze.report.report import Report, page_of
from phaze.report.words import join, percent, seconds
from phaze.spec.published_plans import PublishedPlans
from phaze.tables import Cases, Checks, Claims, Curves, Durations, Pipelines


def build_plan_report(inputs: PlanInputs) -> Report:
    """Return the page of the plans of a study."""
    claims, checks = check_claims(inputs), verdicts.run_checks(CHECKS, inputs)
    tables = {
        "cases": (Cases, inputs.cases),
        "pipelines": (Pipelines, inputs.pipelines),
        "curves": (Curves, inputs.curves),
        "durations": (Durations, inputs.durations),
        "case-claims": (Claims, claims),
        "case-checks": (Checks, checks),
    }
    about = "What must hold of any plans, checked on these; `snakemake check` fails if one does not."
    sections = (*sections_of(inputs), verdicts.checks_section(checks, "case-checks", about), notes(inputs))
    return page_of("plans.html", "plans of Piper", _answer(inputs, claims, checks), sections, tables)


def _answer(inputs: PlanInputs, claims: pd.DataFrame, checks: pd.DataFrame) -> Answer:
    """Return the first screen: which of the claims hold."""
    held = int(claims["holds"].sum())
    planned = int((inputs.cases["status"] == "planned").sum())
    title = "its publication" if inputs.published is None else f"“{inputs.published.title}”"
    source = "the authors' inputs" if not inputs.plans.stand_ins else "inputs of our own"
    sentence = (
        f"{held} of {len(claims)} claims of {title} hold for these plans, made from {source}; "
        f"{int(checks['passed'].sum())} of {len(checks)} checks of the plans themselves pass."
    )
    facts = (
        (f"{held} of {len(claims)}", "claims of the paper that hold here"),
        (f"{planned:,}", f"plans found on {len(inputs.cases):,} clusters asked"),
        (f"{inputs.durations['seconds'].sum():,.0f} s", "of one core to find all plans and curves"),
    )
    sheet = verdicts.claims_sheet(claims, "case-claims")
    return Answer("Do Piper's plans come out as printed?", sentence, facts, sheet)


CHECKS: verdicts.Checklist[PlanInputs] = verdicts.Checklist()
SLACK = 1 + verdicts.ROUNDING
_CLUSTER = [*GROUP, "devices"]
_PLAN = [*_CLUSTER, "planner"]


@CHECKS.hold("every cluster of every case has a row of every planner")
def _every_cluster_has_a_row(inputs: PlanInputs) -> verdicts.Verdicts:
    ends = inputs.curves.assign(devices=inputs.curves["most_devices"])
    seen = {*inputs.cases[_PLAN].itertuples(index=False, name=None)}
    seen |= {*ends[_PLAN].itertuples(index=False, name=None)}
    for name, case in inputs.plans.made.items():
        for point in case.points().values():
            wanted = (max(point.devices),) if point.show == "curve" else point.devices
            same = name, point.blocks, point.memory_gib, point.microbatches
            for mode, planner, k in product(point.modes, point.planners, wanted):
                key = (*same, mode, k, planner)
                # A curve of a planner that finds nothing has no step, and says so by that.
                yield key in seen or point.show == "curve", f"{key}: no row"


@CHECKS.hold("no baseline is better than Piper, and Piper fits wherever one does")
def _nothing_is_better_than_piper(inputs: PlanInputs) -> verdicts.Verdicts:
    wide = inputs.cases.pivot_table(
        index=_CLUSTER, columns="planner", values="time_per_sample", aggfunc="min"
    )
    for planner in wide.columns.drop("piper", errors="ignore") if "piper" in wide else []:
        both = wide[np.isfinite(wide[planner])]
        for cluster, row in both.iterrows():
            yield row["piper"] <= row[planner] * SLACK, f"{planner}, {cluster}"


@CHECKS.hold("no curve of a baseline is below Piper's")
def _nothing_is_better_than_pipers_curve(inputs: PlanInputs) -> verdicts.Verdicts:
    for key, rows in inputs.curves.groupby(GROUP):
        ks = considered(inputs, rows)
        times = {p: read_curve(mine, ks) for p, mine in rows.groupby("planner")}
        if "piper" in times:
            for planner in times.keys() - {"piper"}:
                fine = times["piper"] <= times[planner] * SLACK
                yield bool(fine.all()), f"{planner!r}, {key!r}, k = {ks[int(np.argmin(fine))]}"


@CHECKS.hold("more devices are never slower")
def _more_devices_are_never_slower(inputs: PlanInputs) -> verdicts.Verdicts:
    ordered = inputs.cases.sort_values([*GROUP, "planner", "devices"])
    before = ordered.groupby([*GROUP, "planner"])["time_per_sample"].shift(fill_value=np.inf)
    first = ~ordered.duplicated([*GROUP, "planner"])
    fine = (ordered["time_per_sample"] <= before * SLACK) | np.isinf(before)
    yield from verdicts.each(fine[~first], ordered[~first], tuple(_PLAN))


@CHECKS.hold("curves agree with plans of single clusters")
def _curves_agree_with_single_plans(inputs: PlanInputs) -> verdicts.Verdicts:
    same = ["input", "blocks", "memory_gib", "microbatches", "mode", "planner"]
    bandwidths = {name: case.bandwidth_gib for name, case in inputs.plans.cases.items()}
    by = dict(iter(inputs.curves.groupby(same)))
    for _, row in inputs.cases.iterrows():
        curve = by.get(tuple(row[key] for key in same))
        if curve is None or row["devices"] > curve["most_devices"].max():
            continue
        if bandwidths[str(curve["case"].iloc[0])] == row["bandwidth_gib_per_s"]:
            time = float(read_curve(curve, np.array([row["devices"]]))[0])
            yield _equal(time, row["time_per_sample"]), verdicts.describe(row, _PLAN)


@CHECKS.hold("the stages of a plan hold every layer once and give its time")
def _stages_make_up_the_plan(inputs: PlanInputs) -> verdicts.Verdicts:
    plans = inputs.cases[inputs.cases["status"] == "planned"].set_index(_PLAN)
    for key, rows in inputs.pipelines.groupby(_PLAN):
        if key not in plans.index:
            yield False, f"{key!r}: stages without a plan"
            continue
        plan = plans.loc[key]  # type: ignore[index]
        layers = [layer for text in rows["layers"] for layer in text.split()]
        fine = (
            len(layers) == len(set(layers)) == plan["layers"]
            and len(rows) == plan["stages"]
            and _equal(rows["time_per_sample"].max(), plan["time_per_sample"])
            and (rows["data"] * rows["tensor"]).sum() == plan["devices_used"]
            and rows["data"].sum() == plan["degree"]
        )
        yield bool(fine), str(key)


@CHECKS.hold("every stage fits into memory with the microbatches in flight")
def _stages_fit_into_memory(inputs: PlanInputs) -> verdicts.Verdicts:
    for key, rows in inputs.pipelines.groupby(_PLAN):
        ordered = rows.sort_values("stage", ascending=False)
        in_flight = -(-ordered["data"].cumsum() // ordered["data"])
        fits = ordered["memory_bytes"] <= ordered["memory_gib"] * GIB * SLACK
        yield bool(fits.all() and (in_flight == ordered["in_flight"]).all()), str(key)


@CHECKS.hold("baselines forgo what they must, equal stages are equal")
def _planners_keep_their_rule(inputs: PlanInputs) -> verdicts.Verdicts:
    rows = inputs.pipelines
    for planner, column in (("no-dp", "data"), ("no-tp", "tensor"), ("equi-no-tp", "tensor")):
        mine = rows[rows["planner"] == planner]
        yield from verdicts.each(mine[column] == 1, mine, tuple(_PLAN))
    for key, stages in rows[rows["planner"].isin(["equi", "equi-no-tp"])].groupby(_PLAN):
        yield stages["data"].nunique() == stages["tensor"].nunique() == 1, str(key)


def _equal(a: float, b: float) -> bool:
    return bool(a == b or abs(a - b) <= verdicts.ROUNDING * abs(b))


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
        else verdicts.tabulate(c for part in parts for c in part(inputs, published))
    )


def _table_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[verdicts.Claim]:
    """Yield for every input whether its printed rows come out to the printed digits."""
    for _, case in inputs.of("table"):
        rows = list(printed_rows(inputs, case.input))
        if not rows or "table-1" not in case.modes:
            continue
        same = sum(row.agrees("table-1") for row in rows)
        yield verdicts.Claim(
            f"{inputs.label(case.input)}: times of Piper and equi, out of memory included, mode table-1",
            published.sources["table"], f"{len(rows)} rows", f"{same} to the printed digits",
            same == len(rows),
        )  # fmt: skip


def _share_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[verdicts.Claim]:
    """Yield the mean throughput of equal stages over Piper's, over the printed rows."""
    for name, share in published.equi_share.items():
        times = [row.ours["table-1"] for row in printed_rows(inputs, name) if "table-1" in row.ours]
        found = [t["piper"] / t["equi"] for t in times if np.isfinite(t["equi"])]
        if found:
            mean = float(np.mean(found))
            yield verdicts.Claim(
                f"{inputs.label(name)}: mean throughput of equi over Piper's where equi finds a plan",
                published.sources["equi_share"], percent(share, 0), percent(mean),
                abs(mean - share) <= HALF_A_PERCENT,
            )  # fmt: skip


def _best_claims(inputs: PlanInputs, _: PublishedPlans) -> Iterator[verdicts.Claim]:
    """Yield whether Piper's throughput is the best everywhere, and whether it fits where others do not."""
    cluster = ["memory_gib", "microbatches", "devices"]
    for name, case, mode in ((n, c, m) for n, c in inputs.of("throughput") for m in c.modes):
        rows = inputs.cases[(inputs.cases["case"] == name) & (inputs.cases["mode"] == mode)]
        label, piper = f"{inputs.label(case.input)}, mode {mode}", rows["planner"] == "piper"
        fits = rows[piper & (rows["status"] == "planned")]
        share = relative(rows)[fits.index]
        yield verdicts.Claim(
            f"{label}: Piper always obtains the highest throughput", "Figure 1", "1.000×",
            f"at least {share.min():.3f}× on {len(fits)} clusters with a plan",
            bool((share > 1 - 1e-9).all()),
        )  # fmt: skip
        small = rows[~piper & (rows["memory_gib"] <= SMALL_GIB)]
        others = small[small.set_index(cluster).index.isin(fits.set_index(cluster).index)]
        without = int((others["status"] == "infeasible").sum())
        if len(others):
            yield verdicts.Claim(
                f"{label}: with at most 2 GB, baselines find no plan where Piper does",
                "caption of Figure 1", "often", f"{without} of {len(others)} times", without > 0,
            )  # fmt: skip


def _flat_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[verdicts.Claim]:
    """Yield where plans without tensor or without data parallelism stop to gain."""
    for label, rows in _curves(inputs):
        no_tp, no_dp = (rows[rows["planner"] == p] for p in ("no-tp", "no-dp"))
        n = int(rows["microbatches"].iloc[0])
        if len(no_tp) and n < rows["most_devices"].max():
            last = int(no_tp["devices"].max())
            statement = f"{label}: without TP nothing is gained beyond k = N"
            yield verdicts.Claim(statement, "Figure 2", f"k = {n}", f"k = {last}", last <= n)
        if len(no_dp) and published.no_dp_stops is not None:
            last = int(no_dp["devices"].max())
            stops = published.no_dp_stops
            source = published.sources["no_dp_stops"]
            statement = f"{label}: without DP nothing is gained beyond a few devices"
            yield verdicts.Claim(statement, source, f"k = {stops}", f"k = {last}", last == stops)


def _worse_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[verdicts.Claim]:
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
        yield verdicts.Claim(
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


def _running_time_claims(inputs: PlanInputs, published: PublishedPlans) -> Iterator[verdicts.Claim]:
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
                yield verdicts.Claim(
                    f"{inputs.label(case.input)} with {told.blocks} layers: planning {told.devices} devices, "
                    f"N = {told.microbatches}",
                    published.sources["running_times"], f"within {limit}", seconds(ours),
                    ours <= told.seconds,
                )  # fmt: skip
