"""The sections of the page of the plans, with their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from phaze.base.units import digits
from phaze.papers.piper.inputs import MODE_NAMES, PlanInputs, printed_times, read_curve
from phaze.report import plan_charts
from phaze.report.document import Block, Cell, Chart, Items, Section, Sheet, sheet_of
from phaze.report.pages import wide
from phaze.report.plan_charts import PANEL, PLANNER_NAMES, by_values, panel_name, planners_of, relative
from phaze.report.words import join, seconds
from phaze.spec.planning import PlanCase


def throughput(inputs: PlanInputs, name: str, case: PlanCase) -> Section:
    """Figure 1 with its table."""
    rows = inputs.cases[inputs.cases["case"] == name]
    label, scale = inputs.label(case.input), inputs.scale_s(case.input)
    blocks: list[Block] = []
    for mode in case.modes:
        mine = rows[rows["mode"] == mode]
        figure = Chart(
            f"{name}-{mode}",
            f"Throughput of {label} over the best planner's, mode {mode}",
            f"Planned as {MODE_NAMES[mode]}. A cross: no plan fits.",
            partial(plan_charts.throughputs, mine),
        )
        blocks += [figure, _throughput_sheet(mine, scale, mode)]
    about = (
        "Piper and planners that forgo something, by memory and devices; "
        f"N = {_batches(case)} microbatches in a batch."
    )
    return Section(name, f"Throughput: {label} (Figure 1)", about, tuple(blocks))


def _throughput_sheet(rows: pd.DataFrame, scale_s: float, mode: str) -> Sheet:
    cells = []
    for (*panel, devices), some in by_values(rows, *PANEL, "devices"):
        shares = relative(some).set_axis(some["planner"])
        best = seconds(some["time_per_sample"].min() * scale_s)
        found = {str(p): f"{share:.3f}" if share > 0 else "none" for p, share in shares.items()}
        cells.append(((panel_name(tuple(panel)),), {"k": f"{devices:.0f}", "best": best} | found))
    columns = {"k": "devices", "best": "best time per sample"} | _names(rows)
    caption = f"Throughput over the best, mode {mode}; none: no plan fits"
    return wide(caption, ("clusters",), columns, cells, "cases", folded=True)


def curve(inputs: PlanInputs, name: str, case: PlanCase) -> Section:
    """Figure 2 with its table."""
    rows = inputs.curves[inputs.curves["case"] == name]
    label, scale = inputs.label(case.input), inputs.scale_s(case.input)
    every_k = all(len(point.devices) == 1 for point in case.points().values())
    whole = "for every number of devices" if every_k else "by number of devices"
    lines = "A line is one run of a planner." if every_k else "Dots are plans."
    blocks: list[Block] = []
    for mode in case.modes:
        mine = rows[rows["mode"] == mode]
        figure = Chart(
            f"{name}-{mode}",
            f"Time per sample of {label} {whole}, mode {mode}",
            f"Planned as {MODE_NAMES[mode]}. {lines}",
            partial(plan_charts.curves, mine, scale, every_k=every_k),
        )
        blocks += [figure, _curve_sheet(mine, case, scale, mode)]
    about = "What more devices give; beyond k = N only tensor parallelism can use them."
    return Section(name, f"Every number of devices: {label} (Figure 2)", about, tuple(blocks))


def _curve_sheet(rows: pd.DataFrame, case: PlanCase, scale_s: float, mode: str) -> Sheet:
    cells = []
    for panel, some in by_values(rows, *PANEL):
        asked = {k for point in case.points().values() if point.memory_gib == panel[1] for k in point.devices}
        powers = [2**i for i in range(1, int(np.log2(max(asked))) + 1)]
        for k in sorted(asked) if len(asked) > 1 else powers:
            times = {str(p): read_curve(own, np.array([k]))[0] for p, own in some.groupby("planner")}
            found = {planner: seconds(time * scale_s) for planner, time in times.items()}
            cells.append(((panel_name(panel),), {"k": str(k)} | found))
    columns = {"k": "devices"} | _names(rows)
    caption = f"Best time per sample, mode {mode}"
    return wide(caption, ("clusters",), columns, cells, "curves", folded=True)


def _names(rows: pd.DataFrame) -> dict[str, str]:
    return {planner: PLANNER_NAMES[planner] for planner in planners_of(rows)}


def table(inputs: PlanInputs, name: str, case: PlanCase) -> Section:
    """Table 1: printed and ours in every mode."""
    label = inputs.label(case.input)
    times = printed_times(inputs)
    times = times[times["input"] == case.input]
    sheet = _printed_sheet(times, case) if len(times) else _plain_sheet(inputs, name)
    unit = "milliseconds" if inputs.scale_s(case.input) < 1 else "seconds"
    about = f"Time per sample beside what is printed, N = {_batches(case)}; the profile is in {unit}."
    ways = Items(tuple(f"{mode}: as {MODE_NAMES[mode]}." for mode in case.modes))
    return Section(name, f"Printed plans: {label} (Table 1)", about, (sheet, ways))


def _printed_sheet(times: pd.DataFrame, case: PlanCase) -> Sheet:
    columns = {"devices": "devices", "memory": "memory"}
    for planner, name in (("piper", "Piper"), ("equi", "equi")):
        columns |= {f"{planner} {who}": f"{name}, {who}" for who in ("printed", *case.modes)}
    rows = []
    for _, mine in times.groupby("row"):
        first = mine.iloc[0]
        cells = {"devices": f"{first['devices']}", "memory": f"{first['memory_gib']:g} GB"}
        for _, one in mine.iterrows():
            cells |= {
                f"{one['planner']} printed": one["printed"],
                f"{one['planner']} {one['mode']}": one["ours"],
            }
        same = (mine["ours"] == mine["printed"]).groupby(mine["mode"]).all()
        cells["same"] = join(mode for mode in case.modes if same.get(mode, False)) or "none"
        rows.append(((), cells))
    columns["same"] = "printed digits from"
    return wide("Time per sample, six digits as printed; OOM: no plan fits", (), columns, rows, "cases")


def _plain_sheet(inputs: PlanInputs, name: str) -> Sheet:
    columns: dict[str, Cell] = {
        "devices": "{devices}", "memory": "{memory_gib:g} GB", "mode": "{mode}",
        "planner": lambda row: PLANNER_NAMES[row["planner"]],
        "time": lambda row: digits(row["time_per_sample"], 6),
    }  # fmt: skip
    mine = inputs.cases[inputs.cases["case"] == name]
    return sheet_of("Time per sample", mine, columns, 0, source="cases")


def unplanned(inputs: PlanInputs) -> Iterator[str]:
    """What the study could not plan, with the reasons."""
    for name, case in inputs.study.cases.items():
        if name not in inputs.study.made:
            yield (
                f"{name}: its input {case.input} is only in the authors' file "
                f"{inputs.study.inputs[case.input].file}; set plans.folder to the folder that holds it. Its "
                "claims and checks are absent."
            )


def stand_ins(inputs: PlanInputs) -> Iterator[str]:
    """What of ours stands in for inputs of the authors."""
    for name in inputs.study.stand_ins:
        yield _stand_in(inputs, name)


def _stand_in(inputs: PlanInputs, name: str) -> str:
    own = inputs.study.stand_ins[name]
    return (
        f"{inputs.study.inputs[name].label} is ours: {own.workload} with microbatch {own.microbatch} as "
        f"{own.architecture} runs it by our estimates and schedules; the authors profiled NVIDIA A100s. What "
        "depends on the memory of a layer, or on computation against communication, differs from theirs for "
        "that reason."
    )


def _batches(case: PlanCase) -> str:
    return join(f"{n:,}" for n in case.microbatches)


PARTS: dict[str, Callable[[PlanInputs, str, PlanCase], Section]] = {
    "table": table, "throughput": throughput, "curve": curve,
}  # fmt: skip
"""How cases are shown, in the order of the page."""


def sections_of(inputs: PlanInputs) -> Iterator[Section]:
    """The sections of all cases."""
    for show, part in PARTS.items():
        yield from (part(inputs, name, case) for name, case in inputs.of(show))
