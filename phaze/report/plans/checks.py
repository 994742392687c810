"""Checks of the plans of a study; one that fails is a defect of ours, not a finding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from phaze.base.units import GIB
from phaze.report.plans.claims import considered
from phaze.report.plans.inputs import GROUP, PlanInputs, read_curve
from phaze.report.verdicts import ROUNDING, Verdicts, describe, run_checks

Check = Callable[[PlanInputs], Verdicts]
_CLUSTER = [*GROUP, "devices"]
_PLAN = [*_CLUSTER, "planner"]


def check_plans(inputs: PlanInputs) -> pd.DataFrame:
    """Return table checks of the plans."""
    return run_checks(CHECKS, inputs)


def every_cluster_has_a_row(inputs: PlanInputs) -> Verdicts:
    """Yield for every cluster, planner and mode of the cases whether there is a row or a curve."""
    rows = pd.concat(
        [inputs.cases[_PLAN], inputs.curves.assign(devices=inputs.curves["most_devices"])[_PLAN]]
    )
    seen = set(rows.itertuples(index=False, name=None))
    for name, case in inputs.plans.made.items():
        for point in case.points().values():
            wanted = (max(point.devices),) if point.show == "curve" else point.devices
            for mode in point.modes:
                for planner in point.planners:
                    for k in wanted:
                        key = (name, point.blocks, point.memory_gib, point.microbatches, mode, k, planner)
                        # A curve of a planner that finds nothing has no step, and says so by that.
                        yield key in seen or point.show == "curve", f"{key}: no row"


def nothing_is_better_than_piper(inputs: PlanInputs) -> Verdicts:
    """Yield for every plan of a baseline whether Piper has one on the same cluster that is no worse."""
    wide = inputs.cases.pivot_table(
        index=_CLUSTER, columns="planner", values="time_per_sample", aggfunc="min"
    )
    for planner in wide.columns.drop("piper", errors="ignore") if "piper" in wide else []:
        both = wide[np.isfinite(wide[planner])]
        for cluster, row in both.iterrows():
            yield row["piper"] <= row[planner] * (1 + ROUNDING), f"{planner}, {cluster}"


def nothing_is_better_than_pipers_curve(inputs: PlanInputs) -> Verdicts:
    """Yield the same for every number of devices of the curves."""
    for key, rows in inputs.curves.groupby(GROUP):
        ks = considered(inputs, rows)
        times = {p: read_curve(mine, ks) for p, mine in rows.groupby("planner")}
        if "piper" in times:
            for planner in times.keys() - {"piper"}:
                fine = times["piper"] <= times[planner] * (1 + ROUNDING)
                yield bool(fine.all()), f"{planner!r}, {key!r}, k = {ks[int(np.argmin(fine))]}"


def more_devices_are_never_slower(inputs: PlanInputs) -> Verdicts:
    """Yield for every plan but the one on fewest devices whether it is as good as that on fewer."""
    for _, rows in inputs.cases.groupby([*GROUP, "planner"]):
        ordered = rows.sort_values("devices")
        times = ordered["time_per_sample"].to_numpy()
        for number in range(1, len(ordered)):
            fine = times[number] <= times[number - 1] * (1 + ROUNDING) or np.isinf(times[number - 1])
            yield bool(fine), describe(ordered.iloc[number], _PLAN)


def curves_agree_with_single_plans(inputs: PlanInputs) -> Verdicts:
    """Yield for every plan of a cluster that a curve of the same input covers whether both are equal."""
    same = ["input", "blocks", "memory_gib", "microbatches", "mode", "planner"]
    bandwidths = {name: case.bandwidth_gib for name, case in inputs.plans.cases.items()}
    by = dict(iter(inputs.curves.groupby(same)))
    for _, row in inputs.cases.iterrows():
        curve = by.get(tuple(row[key] for key in same))
        if curve is None or row["devices"] > curve["most_devices"].max():
            continue
        if bandwidths[str(curve["case"].iloc[0])] != row["bandwidth_gib_per_s"]:
            continue
        time = float(read_curve(curve, np.array([row["devices"]]))[0])
        yield _equal(time, row["time_per_sample"]), describe(row, _PLAN)


def stages_make_up_the_plan(inputs: PlanInputs) -> Verdicts:
    """Yield for every plan whether its stages hold every layer once and give its time, devices and degree."""
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


def stages_fit_into_memory(inputs: PlanInputs) -> Verdicts:
    """Yield for every stage whether a device holds it, with the microbatches that are in flight."""
    for key, rows in inputs.pipelines.groupby(_PLAN):
        ordered = rows.sort_values("stage", ascending=False)
        degree = ordered["data"].cumsum()
        in_flight = -(-degree // ordered["data"])
        fits = ordered["memory_bytes"] <= ordered["memory_gib"] * GIB * (1 + ROUNDING)
        yield bool(fits.all() and (in_flight == ordered["in_flight"]).all()), str(key)


def planners_keep_their_rule(inputs: PlanInputs) -> Verdicts:
    """Yield for every stage of a baseline whether it forgoes what the baseline forgoes."""
    rows = inputs.pipelines
    for planner, column in (("no-dp", "data"), ("no-tp", "tensor"), ("equi-no-tp", "tensor")):
        for _, row in rows[rows["planner"] == planner].iterrows():
            yield row[column] == 1, describe(row, _PLAN)
    for key, stages in rows[rows["planner"].isin(["equi", "equi-no-tp"])].groupby(_PLAN):
        yield stages["data"].nunique() == stages["tensor"].nunique() == 1, str(key)


def _equal(a: float, b: float) -> bool:
    return bool(a == b or abs(a - b) <= ROUNDING * abs(b))


CHECKS: dict[str, Check] = {
    "every cluster of every case has a row of every planner": every_cluster_has_a_row,
    "no baseline is better than Piper, and Piper fits wherever one does": nothing_is_better_than_piper,
    "no curve of a baseline is below Piper's": nothing_is_better_than_pipers_curve,
    "more devices are never slower": more_devices_are_never_slower,
    "curves agree with plans of single clusters": curves_agree_with_single_plans,
    "the stages of a plan hold every layer once and give its time": stages_make_up_the_plan,
    "every stage fits into memory with the microbatches in flight": stages_fit_into_memory,
    "baselines forgo what they must, equal stages are equal": planners_keep_their_rule,
}
