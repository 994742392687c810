"""Section of the Piper paper: figures, tables, claims, and checks of plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import pandas as pd

from phaze.papers.claims import Function, check_claims
from phaze.papers.page import Paper, checked, paper_of, part, words_of
from phaze.papers.publications import OUT_OF_MEMORY, PublishedPlans
from phaze.report import plan_charts
from phaze.report.case_checks import PLAN_CHECKS
from phaze.report.cases import PlanCases, considered, read_curve
from phaze.report.document import Block, Items, Section, Sheet
from phaze.report.plan_charts import PANEL, PLANNER_NAMES, by_values, panel_name, planners_of, relative
from phaze.report.words import join, percent, seconds
from phaze.spec.planning import PlanCase
from phaze.tables import TABLES


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


WORDS = words_of("piper")


def throughput(inputs: PlanInputs, name: str, case: PlanCase) -> Section:
    """Section of Figure 1 with its table."""
    rows = inputs.cases[inputs.cases["case"] == name]
    about = {"label": inputs.label(case.input), "batches": _batches(case)}
    blocks: list[Block] = []
    for mode in case.modes:
        mine = rows[rows["mode"] == mode]
        draw, how = partial(plan_charts.throughputs, mine), WORDS.sentences[mode]
        blocks.append(WORDS.chart("throughput", f"{name}-{mode}", draw, mode=mode, how=how, **about))
        blocks.append(_throughput_sheet(mine, inputs.scale_s(case.input), mode))
    return WORDS.section("throughput", blocks, **about)


def _throughput_sheet(rows: pd.DataFrame, scale_s: float, mode: str) -> Sheet:
    on_cluster = rows.groupby([*PANEL, "devices"])["time_per_sample"]
    shares = relative(rows)
    shown = rows.assign(
        panel=[panel_name(panel) for panel in rows[list(PANEL)].itertuples(index=False, name=None)],
        best=(on_cluster.transform("min") * scale_s).map(seconds),
        cell=shares.map("{:.3f}".format).where(shares > 0, "none"),
    ).sort_values([*PANEL, "devices"], kind="stable")
    return WORDS.sheet("throughput", shown, heads=_heads(rows), mode=mode)


def curve(inputs: PlanInputs, name: str, case: PlanCase) -> Section:
    """Section of Figure 2 with its table."""
    rows = inputs.curves[inputs.curves["case"] == name]
    label, scale = inputs.label(case.input), inputs.scale_s(case.input)
    every_k = all(len(point.devices) == 1 for point in case.points().values())
    blocks: list[Block] = []
    for mode in case.modes:
        mine = rows[rows["mode"] == mode]
        draw = partial(plan_charts.curves, mine, scale, every_k=every_k)
        how = {"mode": mode, "how": WORDS.sentences[mode]}
        kind = "line" if every_k else "dots"
        blocks.append(WORDS.chart(kind, f"{name}-{mode}", draw, label=label, **how))
        blocks.append(_curve_sheet(mine, case, scale, mode))
    return WORDS.section("curve", blocks, label=label)


def _curve_sheet(rows: pd.DataFrame, case: PlanCase, scale_s: float, mode: str) -> Sheet:
    cells = []
    for panel, some in by_values(rows, *PANEL):
        asked = {k for point in case.points().values() if point.memory_gib == panel[1] for k in point.devices}
        powers = [2**i for i in range(1, int(np.log2(max(asked))) + 1)]
        for k in sorted(asked) if len(asked) > 1 else powers:
            for planner, own in some.groupby("planner"):
                time = seconds(read_curve(own, np.array([k]))[0] * scale_s)
                cells.append({"panel": panel_name(panel), "devices": k, "planner": planner, "cell": time})
    return WORDS.sheet("curve", pd.DataFrame(cells), heads=_heads(rows), mode=mode)


def _heads(rows: pd.DataFrame) -> dict[str, str]:
    return {planner: PLANNER_NAMES[planner] for planner in planners_of(rows)}


def table(inputs: PlanInputs, name: str, case: PlanCase) -> Section:
    """Section of Table 1: printed times, and ours in each mode."""
    times = printed_times(inputs)
    times = times[times["input"] == case.input]
    mine = inputs.cases[inputs.cases["case"] == name]
    plain = mine.assign(named=mine["planner"].map(PLANNER_NAMES))
    sheet = _printed_sheet(times, case) if len(times) else WORDS.sheet("plain", plain)
    about = {
        "label": inputs.label(case.input),
        "batches": _batches(case),
        "unit": "milliseconds" if inputs.scale_s(case.input) < 1 else "seconds",
    }
    ways = Items(tuple(f"{mode}: as {WORDS.sentences[mode]}." for mode in case.modes))
    return WORDS.section("table", (sheet, ways), **about)


def _printed_sheet(times: pd.DataFrame, case: PlanCase) -> Sheet:
    """Table of printed times, our times in each mode, and the modes that match all digits of a row."""
    agree = times[times["ours"] == times["printed"]].groupby(["row", "mode"]).size() == 2
    same = times.assign(
        whose="same",
        cell=[join(m for m in case.modes if agree.get((row, m), False)) or "none" for row in times["row"]],
    )
    printed = times.assign(whose=times["planner"] + " printed", cell=times["printed"])
    ours = times.assign(whose=times["planner"] + " " + times["mode"], cell=times["ours"])
    heads = {
        f"{planner} {who}": f"{PLANNER_NAMES[planner]}, {who}"
        for planner in ("piper", "equi")
        for who in ("printed", *case.modes)
    }
    heads |= {"same": "printed digits from"}
    rows = pd.concat([printed, ours, same]).sort_values("row", kind="stable")
    return WORDS.sheet("printed", rows, heads=heads)


def unplanned(inputs: PlanInputs) -> tuple[str, ...]:
    """Sentences on cases that the study could not plan, with the reason."""
    rows = [
        {"name": name, "input": case.input, "file": inputs.study.inputs[case.input].file}
        for name, case in inputs.study.cases.items()
        if name not in inputs.study.made
    ]
    return WORDS.items("unplanned", pd.DataFrame(rows)).sentences


def stand_ins(inputs: PlanInputs) -> tuple[str, ...]:
    """Sentences on our models that replace inputs of the authors."""
    rows = [
        {"label": inputs.study.inputs[name].label, **own.model_dump()}
        for name, own in inputs.study.stand_ins.items()
    ]
    return WORDS.items("stand-in", pd.DataFrame(rows)).sentences


def _batches(case: PlanCase) -> str:
    return join(f"{n:,}" for n in case.microbatches)


PARTS: dict[str, Callable[[PlanInputs, str, PlanCase], Section]] = {
    "table": table, "throughput": throughput, "curve": curve,
}  # fmt: skip
"""Section builders by `show` value of a case, in the order of the page."""


def sections_of(inputs: PlanInputs) -> Iterator[Section]:
    """Yield the sections of all cases."""
    for show, section_of in PARTS.items():
        yield from (section_of(inputs, name, case) for name, case in inputs.of(show))


def piper_paper(inputs: PlanInputs) -> Paper:
    """Piper's section, comparing the paper with the plans of a study."""
    claims = check_claims(inputs.published, claimed_tables(inputs), FUNCTIONS)
    checks, table = checked("case-checks", PLAN_CHECKS, inputs)
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
    """Summary: number of claims that hold, source of the inputs, and number of plans."""
    planned = int((inputs.cases["status"] == "planned").sum())
    source = "the authors' inputs" if not inputs.study.stand_ins else "inputs of our own"
    told = {"held": int(claims["holds"].sum()), "claims": len(claims), "clusters": len(inputs.cases)}
    return WORDS.sentence("answer", source=source, planned=planned, **told)


PLANNED = ("cases", "pipelines", "curves")
