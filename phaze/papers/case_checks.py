"""Checks of plans for profiled inputs, of stage mappings, and of simulations on tiles."""

from __future__ import annotations

from itertools import product

import numpy as np

from phaze.base.units import GIB
from phaze.pages.verdicts import ROUNDING, Checklist, Verdicts, check_rows, close, describe
from phaze.papers.case_charts import GROUP
from phaze.papers.cases import RUN, MapCases, PlanCases, TiledCases, considered, read_curve
from phaze.papers.speed_ups import NETWORK, POINT, steps

SLACK = 1 + ROUNDING
PLAN_CHECKS: Checklist[PlanCases] = Checklist()
_CLUSTER = [*GROUP, "devices"]
_PLAN = [*_CLUSTER, "planner"]
MAP_CHECKS: Checklist[MapCases] = Checklist()
TILED_CHECKS: Checklist[TiledCases] = Checklist()


@PLAN_CHECKS.hold("every cluster of every case has a row of every planner")
def _every_cluster_has_a_row(inputs: PlanCases) -> Verdicts:
    ends = inputs.curves.assign(devices=inputs.curves["most_devices"])
    seen = {*inputs.cases[_PLAN].itertuples(index=False, name=None)}
    seen |= {*ends[_PLAN].itertuples(index=False, name=None)}
    for name, case in inputs.study.made.items():
        for point in case.points().values():
            device_counts = (max(point.devices),) if point.show == "curve" else point.devices
            point_key = name, point.blocks, point.memory_gib, point.microbatches
            for mode, planner, k in product(point.modes, point.planners, device_counts):
                key = (*point_key, mode, k, planner)
                # A curve whose planner finds no plan has no step, which states that already.
                yield key in seen or point.show == "curve", f"{key}: no row"


@PLAN_CHECKS.hold("no baseline is better than Piper, and Piper fits wherever one does")
def _nothing_is_better_than_piper(inputs: PlanCases) -> Verdicts:
    wide = inputs.cases.pivot_table(
        index=_CLUSTER, columns="planner", values="time_per_sample", aggfunc="min"
    )
    for planner in wide.columns.drop("piper", errors="ignore") if "piper" in wide else []:
        both = wide[np.isfinite(wide[planner])]
        for cluster, row in both.iterrows():
            yield row["piper"] <= row[planner] * SLACK, f"{planner}, {cluster}"


@PLAN_CHECKS.hold("no curve of a baseline is below Piper's")
def _nothing_is_better_than_pipers_curve(inputs: PlanCases) -> Verdicts:
    for key, rows in inputs.curves.groupby(GROUP):
        ks = considered(inputs, rows)
        times = {p: read_curve(curve, ks) for p, curve in rows.groupby("planner")}
        if "piper" in times:
            for planner in times.keys() - {"piper"}:
                fine = times["piper"] <= times[planner] * SLACK
                yield bool(fine.all()), f"{planner!r}, {key!r}, k = {ks[int(np.argmin(fine))]}"


@PLAN_CHECKS.hold("more devices are never slower")
def _more_devices_are_never_slower(inputs: PlanCases) -> Verdicts:
    ordered = inputs.cases.sort_values([*GROUP, "planner", "devices"])
    before = ordered.groupby([*GROUP, "planner"])["time_per_sample"].shift(fill_value=np.inf)
    first = ~ordered.duplicated([*GROUP, "planner"])
    fine = ordered["time_per_sample"] <= before * SLACK
    yield from check_rows(fine[~first], ordered[~first], tuple(_PLAN))


@PLAN_CHECKS.hold("curves agree with plans of single clusters")
def _curves_agree_with_single_plans(inputs: PlanCases) -> Verdicts:
    same = ["input", "blocks", "memory_gib", "microbatches", "mode", "planner"]
    bandwidths = {name: case.bandwidth_gib for name, case in inputs.study.cases.items()}
    by = dict(iter(inputs.curves.groupby(same)))
    for _, row in inputs.cases.iterrows():
        curve = by.get(tuple(row[key] for key in same))
        if curve is None or row["devices"] > curve["most_devices"].max():
            continue
        if bandwidths[str(curve["case"].iloc[0])] == row["bandwidth_gib_per_s"]:
            time = float(read_curve(curve, np.array([row["devices"]]))[0])
            yield bool(close(time, row["time_per_sample"])), describe(row, _PLAN)


@PLAN_CHECKS.hold("the stages of a plan hold every layer once and give its time")
def _stages_make_up_the_plan(inputs: PlanCases) -> Verdicts:
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
            # in the steady state of a pipeline, its slowest stage sets the time per sample
            and close(rows["time_per_sample"].max(), plan["time_per_sample"])
            and (rows["data"] * rows["tensor"]).sum() == plan["devices_used"]
            and rows["data"].sum() == plan["degree"]
        )
        yield bool(fine), str(key)


@PLAN_CHECKS.hold("every stage fits into memory with the microbatches in flight")
def _stages_fit_into_memory(inputs: PlanCases) -> Verdicts:
    for key, rows in inputs.pipelines.groupby(_PLAN):
        ordered = rows.sort_values("stage", ascending=False)
        # In flight at stage i: ceil(sum of d_j / d_i), where d_j are the data widths of the stages from i on;
        # in integers, because a quotient of floats may round to the wrong side.
        in_flight = -(-ordered["data"].cumsum() // ordered["data"])
        fits = ordered["memory_bytes"] <= ordered["memory_gib"] * GIB * SLACK
        yield bool(fits.all() and (in_flight == ordered["in_flight"]).all()), str(key)


@PLAN_CHECKS.hold("baselines forgo what they must, equal stages are equal")
def _planners_keep_their_rule(inputs: PlanCases) -> Verdicts:
    rows = inputs.pipelines
    for planner, column in (("no-dp", "data"), ("no-tp", "tensor"), ("equi-no-tp", "tensor")):
        planner_stages = rows[rows["planner"] == planner]
        yield from check_rows(planner_stages[column] == 1, planner_stages, tuple(_PLAN))
    for key, stages in rows[rows["planner"].isin(["equi", "equi-no-tp"])].groupby(_PLAN):
        yield stages["data"].nunique() == stages["tensor"].nunique() == 1, str(key)


@MAP_CHECKS.hold("every case is mapped for every seed")
def _every_case_is_mapped(inputs: MapCases) -> Verdicts:
    seen = set(inputs.mappings[[*POINT, *NETWORK]].itertuples(index=False, name=None))
    for case in inputs.study.cases.keys() - inputs.study.showing("gaps"):
        for reading in (None, *inputs.study.cases[case].readings.values()):
            for point, topology in inputs.study.mapped(case, reading):
                sizes = inputs.study.topologies[topology]
                for seed, _ in sizes.drawn(point.stages * point.replicas):
                    key = (*point.model_dump().values(), topology, seed)
                    yield key in seen, f"{key!r}"


@MAP_CHECKS.hold("searching is never worse than CS map or p2p map")
def _ours_is_never_worse_than_by_hand(inputs: MapCases) -> Verdicts:
    rows = steps(inputs.mappings).dropna(subset="ours")
    yield from check_rows(rows["ours"] <= rows["heuristics"] * (1 + ROUNDING), rows, (*POINT, *NETWORK))


@MAP_CHECKS.hold("no mapping is below a bound")
def _bounds_hold_for_every_way(inputs: MapCases) -> Verdicts:
    for key, rows in inputs.mappings.groupby([*POINT, *NETWORK, "counted"]):
        yield rows["bound_s"].max() <= rows["value_s"].min() * (1 + 1e-9), f"{key!r}"


@MAP_CHECKS.hold("uniform_dist: at least five times as fast as CS map")
def _five_times_on_uniform_dist(inputs: MapCases) -> Verdicts:
    """Check that the median speed-up over CS map is at least 5 on uniform_dist, for every shape."""
    random = [
        name
        for name, topology in inputs.study.topologies.items()
        if topology.sizes[0].kind == "uniform-dist" and len(topology.seeds) >= 10
    ]
    mappings = inputs.mappings[inputs.mappings["topology"].isin(random)]
    rows = steps(mappings).dropna(subset="ours") if len(mappings) else mappings
    if len(rows):
        speed_ups = (rows["cs-map"] / rows["ours"]).groupby([rows[key] for key in POINT])
        for key, median in speed_ups.median().items():
            yield median >= 5, f"{key!r}: {median:.2f}"


@TILED_CHECKS.hold("every combination of a case is simulated")
def _every_combination_has_a_row(inputs: TiledCases) -> Verdicts:
    counts = inputs.tiled_runs.groupby(["case", "system", "model"]).size().to_dict()
    for name, case in inputs.study.cases.items():
        expected = len(case.layouts) * len(case.placed) * len(case.tensor) * len(case.microbatches)
        for point in case.points().values():
            count = counts.get((name, point.system, point.model), 0)
            yield count == expected, f"{name}, {point.system}, {point.model}: {count} runs of {expected}"


@TILED_CHECKS.hold("neither traffic nor contention makes a batch faster")
def _contention_never_helps(inputs: TiledCases) -> Verdicts:
    runs = inputs.tiled_runs
    both = (runs["alone_s"] <= runs["uncontended_s"] * SLACK) & (runs["alone_s"] <= runs["time_s"] * SLACK)
    yield from check_rows(both & (runs["uncontended_s"] <= runs["time_s"] * SLACK), runs, RUN)


@TILED_CHECKS.hold("nothing is busy for longer than a batch takes")
def _nothing_is_busy_for_longer(inputs: TiledCases) -> Verdicts:
    shares = ["compute_share", "most_link_share", "most_dram_share", "model_share"]
    yield from check_rows((inputs.tiled_runs[shares] <= SLACK).all(axis=1), inputs.tiled_runs, RUN)


@TILED_CHECKS.hold("every byte that is sent is received")
def _every_byte_arrives(inputs: TiledCases) -> Verdicts:
    sent, received = inputs.tiled_runs["sent_bytes"], inputs.tiled_runs["received_bytes"]
    yield from check_rows((sent - received).abs() <= ROUNDING * sent, inputs.tiled_runs, RUN)


@TILED_CHECKS.hold("jobs of a stage follow each other")
def _jobs_of_a_stage_follow_each_other(inputs: TiledCases) -> Verdicts:
    for key, rows in inputs.tiled_jobs.groupby([*RUN, "resource"]):
        ordered = rows.sort_values("number")
        # starts and ends are sums over the batch, so that they round relative to its length
        gaps = ordered["start_s"].to_numpy()[1:] - ordered["end_s"].to_numpy()[:-1]
        yield bool((gaps >= -ROUNDING * ordered["end_s"].max()).all()), str(key)
