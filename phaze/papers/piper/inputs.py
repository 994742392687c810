"""Inputs of Piper's section, its printed table compared with ours, and the tables of its claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd

from phaze.papers.claims import Function
from phaze.papers.piper.published import OUT_OF_MEMORY, PublishedPlans
from phaze.report.cases import PlanCases, considered, read_curve
from phaze.report.plan_charts import by_values, relative
from phaze.report.words import join, percent


@dataclass(frozen=True)
class PlanInputs(PlanCases):
    """Plans of a study, with Piper's publication to compare with."""

    published: PublishedPlans | None = None

    def label(self, name: str) -> str:
        """Display name of an input; marks inputs made from our own models."""
        given = self.study.inputs[name]
        own = self.study.stand_ins.get(name)
        return given.label if own is None else f"{given.label} (ours, on {own.architecture})"

    def scale_s(self, name: str) -> float:
        """Seconds per unit of time of an input."""
        ours = name in self.study.stand_ins
        return 1e-3 if self.study.inputs[name].unit == "ms" and not ours else 1.0


_DIGITS = 6
"""Significant digits of the printed table, without trailing zeros: the default of C++ streams."""


def as_printed(value: float) -> str:
    """Time in the format of the printed table; a dash for NaN, if nothing was planned."""
    if np.isnan(value):
        return "–"
    return f"{value:.{_DIGITS}g}" if np.isfinite(value) else OUT_OF_MEMORY


def printed_times(inputs: PlanInputs) -> pd.DataFrame:
    """Printed times of planned rows, with our times in each mode as numbers and in printed format.

    One row per input, row of the printed table, mode and planner. Our time is NaN if nothing was planned.
    """
    table = inputs.published.table if inputs.published else {}
    told = [
        {
            "input": name,
            "row": number,
            **row.model_dump(include={"devices", "memory_gib"}),
            "planner": planner,
            "printed": getattr(row, planner),
        }
        for name, rows in table.items()
        for number, row in enumerate(rows)
        for planner in ("piper", "equi")
    ]
    made = inputs.cases[inputs.cases["case"].isin([name for name, _ in inputs.of("table")])]
    keys = ["input", "devices", "memory_gib"]
    if not told:
        return made.iloc[:0].assign(row=0, printed="", ours="")
    times = made.groupby([*keys, "mode", "planner"])["time_per_sample"].first().reset_index()
    found = pd.DataFrame(told).merge(times[[*keys, "mode"]].drop_duplicates(), on=keys)
    found = found.merge(times, on=[*keys, "mode", "planner"], how="left")
    return found.assign(ours=[as_printed(time) for time in found["time_per_sample"]])


def extra_time(rows: pd.DataFrame, ks: np.ndarray) -> np.ndarray:
    """Relative extra time of equi over Piper at the numbers of devices `ks` where both have a plan."""
    piper, equi = (read_curve(rows[rows["planner"] == p], ks) for p in ("piper", "equi"))
    both = np.isfinite(piper) & np.isfinite(equi)
    more: np.ndarray = equi[both] / piper[both] - 1
    return more


def claimed_tables(inputs: PlanInputs) -> Mapping[str, pd.DataFrame]:
    """Tables that claims are checked on, by their name in the publication, with display labels."""
    times = printed_times(inputs)
    times = times[times["mode"] == "table-1"].assign(agrees=lambda f: f["ours"] == f["printed"])
    printed = times.pivot(index=["input", "row"], columns="planner", values="time_per_sample")
    printed = printed.reindex(columns=["piper", "equi"]).assign(
        agrees=times.groupby(["input", "row"])["agrees"].all(), share=lambda f: f["piper"] / f["equi"]
    )
    asked = [
        {"case": name, "input": case.input, "label": inputs.label(case.input)}
        for name, case in inputs.of("table")
        if "table-1" in case.modes
    ]
    throughput, curves, slower = [inputs.cases.iloc[:0]], [inputs.curves.iloc[:0]], [inputs.curves.iloc[:0]]
    for name, case in inputs.of("throughput"):
        for mode in case.modes:
            rows = inputs.cases[(inputs.cases["case"] == name) & (inputs.cases["mode"] == mode)]
            none = rows["status"] == "infeasible"
            fits = ~none & (rows["planner"] == "piper")
            anywhere = rows.assign(fits=fits).groupby(["memory_gib", "microbatches", "devices"])["fits"]
            throughput.append(
                rows.assign(
                    label=inputs.label(case.input),
                    relative=relative(rows),
                    infeasible=none,
                    piper_fits=anywhere.transform("any"),
                )
            )
    for label, rows in _panels(inputs):
        curves.append(rows.assign(label=label, most_of_all=rows["most_devices"].max()))
        more = extra_time(rows, considered(inputs, rows))
        slower.append(rows.iloc[[0] * len(more)].assign(label=label, more=more))
    return {
        "printed": pd.DataFrame(asked, columns=["case", "input", "label"]).merge(printed.reset_index()),
        "throughput": pd.concat(throughput),
        "curves": pd.concat(curves),
        "slower": pd.concat(slower),
    }


def _panels(inputs: PlanInputs) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield label and rows of each panel of curves."""
    for name, case in inputs.of("curve"):
        for mode in case.modes:
            mine = inputs.curves[(inputs.curves["case"] == name) & (inputs.curves["mode"] == mode)]
            for (memory, n), rows in by_values(mine, "memory_gib", "microbatches"):
                yield f"{inputs.label(case.input)}, {memory:g} GB, N = {n:.0f}, mode {mode}", rows


def _quartiles(rows: pd.DataFrame, printed: object) -> dict[str, object]:
    """Quartiles of equi's extra time, and the share of device counts within the printed range."""
    low, high = map(float, cast("tuple[float, float]", printed))
    more = rows["more"].to_numpy()
    quarters = [percent(float(q)) for q in np.quantile(more, (0.25, 0.5, 0.75))]
    within = float(np.mean((more >= low) & (more <= high)))
    return {"quartiles": join(quarters), "within": within, "count": len(more)}


FUNCTIONS: dict[str, Function] = {"quartiles": _quartiles}
"""Functions that claims refer to by name."""
