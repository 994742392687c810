"""The page of the plans: figures and tables of the Piper paper beside ours, its claims, and checks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from phaze.base.units import GIB
from phaze.papers.claims import check_claims
from phaze.papers.page import Paper, checked, paper_of, part
from phaze.papers.piper.inputs import (
    FUNCTIONS,
    PlanInputs,
    claimed_tables,
    considered,
    read_curve,
)
from phaze.papers.piper.sections import sections_of, stand_ins, unplanned
from phaze.report.plan_charts import GROUP
from phaze.report.verdicts import ROUNDING, Checklist, Verdicts, describe, each
from phaze.tables import TABLES


def piper_paper(inputs: PlanInputs) -> Paper:
    """The Piper paper beside the plans of a study."""
    claims = check_claims(inputs.published, claimed_tables(inputs), FUNCTIONS)
    checks, table = checked("case-checks", CHECKS, inputs)
    planned = {name: (TABLES[name], getattr(inputs, name)) for name in PLANNED}
    return paper_of(
        "piper",
        inputs.published,
        _answer(inputs, claims),
        (*part(sections_of(inputs)), *checks),
        {**planned, **table},
        claims=("case-claims", claims),
        missing=unplanned(inputs),
        notes=stand_ins(inputs),
    )


def _answer(inputs: PlanInputs, claims: pd.DataFrame) -> str:
    """Which of the claims hold, and of what."""
    planned = int((inputs.cases["status"] == "planned").sum())
    source = "the authors' inputs" if not inputs.study.stand_ins else "inputs of our own"
    return (
        f"{int(claims['holds'].sum())} of {len(claims)} claims hold for plans made from {source}; "
        f"{planned:,} plans are found on {len(inputs.cases):,} clusters."
    )


PLANNED = ("cases", "pipelines", "curves")
CHECKS: Checklist[PlanInputs] = Checklist()
SLACK = 1 + ROUNDING
_CLUSTER = [*GROUP, "devices"]
_PLAN = [*_CLUSTER, "planner"]


@CHECKS.hold("every cluster of every case has a row of every planner")
def _every_cluster_has_a_row(inputs: PlanInputs) -> Verdicts:
    ends = inputs.curves.assign(devices=inputs.curves["most_devices"])
    seen = {*inputs.cases[_PLAN].itertuples(index=False, name=None)}
    seen |= {*ends[_PLAN].itertuples(index=False, name=None)}
    for name, case in inputs.study.made.items():
        for point in case.points().values():
            wanted = (max(point.devices),) if point.show == "curve" else point.devices
            same = name, point.blocks, point.memory_gib, point.microbatches
            for mode, planner, k in product(point.modes, point.planners, wanted):
                key = (*same, mode, k, planner)
                # A curve of a planner that finds nothing has no step, and says so by that.
                yield key in seen or point.show == "curve", f"{key}: no row"


@CHECKS.hold("no baseline is better than Piper, and Piper fits wherever one does")
def _nothing_is_better_than_piper(inputs: PlanInputs) -> Verdicts:
    wide = inputs.cases.pivot_table(
        index=_CLUSTER, columns="planner", values="time_per_sample", aggfunc="min"
    )
    for planner in wide.columns.drop("piper", errors="ignore") if "piper" in wide else []:
        both = wide[np.isfinite(wide[planner])]
        for cluster, row in both.iterrows():
            yield row["piper"] <= row[planner] * SLACK, f"{planner}, {cluster}"


@CHECKS.hold("no curve of a baseline is below Piper's")
def _nothing_is_better_than_pipers_curve(inputs: PlanInputs) -> Verdicts:
    for key, rows in inputs.curves.groupby(GROUP):
        ks = considered(inputs, rows)
        times = {p: read_curve(mine, ks) for p, mine in rows.groupby("planner")}
        if "piper" in times:
            for planner in times.keys() - {"piper"}:
                fine = times["piper"] <= times[planner] * SLACK
                yield bool(fine.all()), f"{planner!r}, {key!r}, k = {ks[int(np.argmin(fine))]}"


@CHECKS.hold("more devices are never slower")
def _more_devices_are_never_slower(inputs: PlanInputs) -> Verdicts:
    ordered = inputs.cases.sort_values([*GROUP, "planner", "devices"])
    before = ordered.groupby([*GROUP, "planner"])["time_per_sample"].shift(fill_value=np.inf)
    first = ~ordered.duplicated([*GROUP, "planner"])
    fine = (ordered["time_per_sample"] <= before * SLACK) | np.isinf(before)
    yield from each(fine[~first], ordered[~first], tuple(_PLAN))


@CHECKS.hold("curves agree with plans of single clusters")
def _curves_agree_with_single_plans(inputs: PlanInputs) -> Verdicts:
    same = ["input", "blocks", "memory_gib", "microbatches", "mode", "planner"]
    bandwidths = {name: case.bandwidth_gib for name, case in inputs.study.cases.items()}
    by = dict(iter(inputs.curves.groupby(same)))
    for _, row in inputs.cases.iterrows():
        curve = by.get(tuple(row[key] for key in same))
        if curve is None or row["devices"] > curve["most_devices"].max():
            continue
        if bandwidths[str(curve["case"].iloc[0])] == row["bandwidth_gib_per_s"]:
            time = float(read_curve(curve, np.array([row["devices"]]))[0])
            yield _equal(time, row["time_per_sample"]), describe(row, _PLAN)


@CHECKS.hold("the stages of a plan hold every layer once and give its time")
def _stages_make_up_the_plan(inputs: PlanInputs) -> Verdicts:
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
def _stages_fit_into_memory(inputs: PlanInputs) -> Verdicts:
    for key, rows in inputs.pipelines.groupby(_PLAN):
        ordered = rows.sort_values("stage", ascending=False)
        in_flight = -(-ordered["data"].cumsum() // ordered["data"])
        fits = ordered["memory_bytes"] <= ordered["memory_gib"] * GIB * SLACK
        yield bool(fits.all() and (in_flight == ordered["in_flight"]).all()), str(key)


@CHECKS.hold("baselines forgo what they must, equal stages are equal")
def _planners_keep_their_rule(inputs: PlanInputs) -> Verdicts:
    rows = inputs.pipelines
    for planner, column in (("no-dp", "data"), ("no-tp", "tensor"), ("equi-no-tp", "tensor")):
        mine = rows[rows["planner"] == planner]
        yield from each(mine[column] == 1, mine, tuple(_PLAN))
    for key, stages in rows[rows["planner"].isin(["equi", "equi-no-tp"])].groupby(_PLAN):
        yield stages["data"].nunique() == stages["tensor"].nunique() == 1, str(key)


def _equal(a: float, b: float) -> bool:
    return bool(a == b or abs(a - b) <= ROUNDING * abs(b))
