"""Section of the Piper paper: published times next to ours, figures, claims, and checks of plans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import pandas as pd

from phaze.base.units import percent
from phaze.pages.document import Chart, Items, Section, Sheet
from phaze.pages.verdicts import run_checks
from phaze.pages.words import join
from phaze.papers import case_charts
from phaze.papers.case_charts import PLANNER_NAMES, relative
from phaze.papers.case_checks import PLAN_CHECKS
from phaze.papers.cases import PlanCases, considered, read_curve
from phaze.papers.claims import Function, check_claims
from phaze.papers.page import Paper, paper_of, words_of
from phaze.papers.publications import OUT_OF_MEMORY, PublishedPlans
from phaze.spec.planning import PlanCase
from phaze.tables import TABLES, Checks, Claims

_DIGITS = 6
"""Number of significant digits in the published table, the default of C++ streams (no trailing zeros)."""
PANEL = ["case", "mode", "memory_gib", "microbatches"]
"""Key columns of a panel of Figures 1 and 2."""
WORDS = words_of("piper")
PLANNED = ("cases", "pipelines", "curves")


@dataclass(frozen=True)
class PlanInputs(PlanCases):
    """Plans of a study, and Piper's publication to compare them with."""

    published: PublishedPlans | None = None

    def label(self, name: str) -> str:
        """Display name of an input; marks inputs made from our own models."""
        profile = self.study.inputs[name]
        stand_in = self.study.stand_ins.get(name)
        return profile.label if stand_in is None else f"{profile.label} (ours, on {stand_in.architecture})"

    def scale_s(self, name: str) -> float:
        """Seconds per time unit of an input."""
        ours = name in self.study.stand_ins
        return 1e-3 if self.study.inputs[name].unit == "ms" and not ours else 1.0


def as_printed(value: float) -> str:
    """Time in the format of the paper's table; a dash for NaN, which marks a missing plan."""
    if np.isnan(value):
        return "–"
    return f"{value:.{_DIGITS}g}" if np.isfinite(value) else OUT_OF_MEMORY


def printed_times(inputs: PlanInputs) -> pd.DataFrame:
    """Published times of planned rows, with our times in each mode as numbers and in the paper's format.

    One row per input, row of the printed table, mode and planner. Our time is NaN if nothing was planned.
    """
    printed_rows = [
        {"input": name, "row": number, **dict(row)}
        for name, rows in (inputs.published.table if inputs.published else {}).items()
        for number, row in enumerate(rows)
    ]
    planned = inputs.cases[inputs.cases["case"].isin([name for name, _ in inputs.showing("table")])]
    keys = ["input", "devices", "memory_gib"]
    if not printed_rows:
        return planned.iloc[:0].assign(row=0, printed="", ours="")
    printed = pd.DataFrame(printed_rows).melt([*keys, "row"], var_name="planner", value_name="printed")
    times = planned.groupby([*keys, "mode", "planner"])["time_per_sample"].first().reset_index()
    compared = printed.merge(times[[*keys, "mode"]].drop_duplicates(), on=keys)
    compared = compared.merge(times, on=[*keys, "mode", "planner"], how="left")
    return compared.assign(ours=[as_printed(time) for time in compared["time_per_sample"]])


def extra_time(rows: pd.DataFrame, ks: np.ndarray) -> np.ndarray:
    """Relative extra time of equal stages over Piper's plans, at the device counts `ks` where both exist."""
    piper, equi = (read_curve(rows[rows["planner"] == p], ks) for p in ("piper", "equi"))
    both = np.isfinite(piper) & np.isfinite(equi)
    extra: np.ndarray = equi[both] / piper[both] - 1
    return extra


def claimed_tables(inputs: PlanInputs) -> Mapping[str, pd.DataFrame]:
    """Tables on which claims are checked, by their name in the publication, with display labels."""
    times = printed_times(inputs)
    times = times[times["mode"] == "table-1"].assign(agrees=lambda f: f["ours"] == f["printed"])
    printed = times.pivot(index=["input", "row"], columns="planner", values="time_per_sample")
    printed = printed.reindex(columns=["piper", "equi"]).assign(
        agrees=times.groupby(["input", "row"])["agrees"].all(), share=lambda f: f["piper"] / f["equi"]
    )
    table_cases = _shown(inputs, inputs.cases, "table").query("mode == 'table-1'").drop_duplicates("case")
    rows, curves = _shown(inputs, inputs.cases, "throughput"), _shown(inputs, inputs.curves, "curve")
    rows = rows.assign(relative=relative(rows), infeasible=rows["status"] == "infeasible")
    fits = rows.assign(fits=~rows["infeasible"] & (rows["planner"] == "piper"))
    # One row per device count, with the columns of its panel, so that claims can group by them.
    slower = [curves.iloc[:0].assign(more=0.0)]
    for _, panel in curves.groupby(PANEL, sort=False):
        extra = extra_time(panel, considered(inputs, panel))
        slower.append(panel.iloc[[0] * len(extra)].assign(more=extra))
    return {
        "printed": table_cases[["case", "input", "label"]].merge(printed.reset_index()),
        "throughput": rows.assign(piper_fits=fits.groupby([*PANEL, "devices"])["fits"].transform("any")),
        "curves": curves.assign(most_of_all=curves.groupby(PANEL)["most_devices"].transform("max")),
        "slower": pd.concat(slower),
    }


def _shown(inputs: PlanInputs, rows: pd.DataFrame, show: str) -> pd.DataFrame:
    """Labelled rows of the cases with the given `show` value, in order of case, mode and panel."""
    parts = [rows.iloc[:0].assign(label="")]
    for name, case in inputs.showing(show):
        for mode in case.modes:
            chosen = rows[(rows["case"] == name) & (rows["mode"] == mode)]
            chosen = chosen.sort_values(PANEL, kind="stable")
            parts.append(chosen.assign(label=inputs.label(case.input)))
    return pd.concat(parts)


def _quartiles(rows: pd.DataFrame, printed: object) -> dict[str, object]:
    """Quartiles of the extra time of equal stages, and the share of device counts in the published range."""
    low, high = map(float, cast("tuple[float, float]", printed))
    extra = rows["more"].to_numpy()
    quarters = [percent(float(q)) for q in np.quantile(extra, (0.25, 0.5, 0.75))]
    within = float(np.mean((extra >= low) & (extra <= high)))
    return {"quartiles": join(quarters), "within": within, "count": len(extra)}


FUNCTIONS: dict[str, Function] = {"quartiles": _quartiles}
"""Functions that claims refer to by name."""


def figure(inputs: PlanInputs, name: str, case: PlanCase) -> Iterator[Chart]:
    """Yield the charts of Figure 1 or 2, one per mode."""
    label, scale_s = inputs.label(case.input), inputs.scale_s(case.input)
    every_k = all(len(point.devices) == 1 for point in case.points().values())
    rows, kind, draw = inputs.cases, "throughput", case_charts.throughputs
    if case.show == "curve":
        draw = partial(case_charts.curves, scale_s=scale_s, every_k=every_k)
        rows, kind = inputs.curves, "line" if every_k else "dots"
    for mode in case.modes:
        plot = partial(draw, rows[(rows["case"] == name) & (rows["mode"] == mode)])
        yield WORDS.chart(kind, plot, f"{name}-{mode}", label=label, mode=mode, how=WORDS.sentences[mode])


def table(inputs: PlanInputs, case: PlanCase) -> Iterator[Sheet | Items]:
    """Yield the paper's Table 1 for one input with our times in each mode, and a description of the modes."""
    times = printed_times(inputs)
    yield _printed_sheet(times[times["input"] == case.input], case)
    yield Items(tuple(f"{mode}: as {WORDS.sentences[mode]}." for mode in case.modes))


def _printed_sheet(times: pd.DataFrame, case: PlanCase) -> Sheet:
    """Report table of published times, and our times in each mode."""
    printed = times.assign(whose=times["planner"] + " printed", cell=times["printed"])
    ours = times.assign(whose=times["planner"] + " " + times["mode"], cell=times["ours"])
    heads = {
        f"{planner} {who}": f"{PLANNER_NAMES[planner]}, {who}"
        for planner in ("piper", "equi")
        for who in ("printed", *case.modes)
    }
    rows = pd.concat([printed, ours]).sort_values("row", kind="stable")
    return WORDS.sheet("printed", rows, heads=heads)


def unplanned(inputs: PlanInputs) -> Iterator[str]:
    """Yield a sentence per case that the study could not plan, with the reason."""
    for name, case in inputs.study.cases.items():
        if name not in inputs.study.made:
            file = inputs.study.inputs[case.input].file
            yield WORDS.sentence("unplanned", name=name, input=case.input, file=file)


def stand_ins(inputs: PlanInputs) -> Iterator[str]:
    """Yield a sentence per model of ours that replaces an input of the authors."""
    for name, stand_in in inputs.study.stand_ins.items():
        yield WORDS.sentence("stand-in", label=inputs.study.inputs[name].label, **stand_in.model_dump())


def sections_of(inputs: PlanInputs) -> Iterator[Section]:
    """Yield a section per case, except table cases without published results for their input."""
    printed = inputs.published.table if inputs.published else {}
    for show in ("table", "throughput", "curve"):
        for name, case in inputs.showing(show):
            about = {
                "label": inputs.label(case.input),
                "batches": join(f"{n:,}" for n in case.microbatches),
                "unit": "milliseconds" if inputs.scale_s(case.input) < 1 else "seconds",
            }
            if show != "table":
                yield WORDS.section(show, figure(inputs, name, case), **about)
            elif case.input in printed:
                yield WORDS.section(show, table(inputs, case), **about)


def piper_paper(inputs: PlanInputs) -> Paper:
    """Build Piper's section, which compares the paper with the plans of a study."""
    claims = check_claims(inputs.published, claimed_tables(inputs), FUNCTIONS)
    planned = {name: (TABLES[name], getattr(inputs, name)) for name in PLANNED}
    return paper_of(
        "piper",
        inputs.published,
        _answer(inputs, claims),
        sections_of(inputs),
        {
            **planned,
            "case-checks": (Checks, run_checks(PLAN_CHECKS, inputs)),
            "case-claims": (Claims, claims),
        },
        missing=unplanned(inputs),
        notes=stand_ins(inputs),
    )


def _answer(inputs: PlanInputs, claims: pd.DataFrame) -> str:
    """Summary: number of claims that hold, source of the inputs, and number of plans."""
    planned = int((inputs.cases["status"] == "planned").sum())
    source = "the authors' inputs" if not inputs.study.stand_ins else "inputs of our own"
    counts = {"held": int(claims["holds"].sum()), "claims": len(claims), "clusters": len(inputs.cases)}
    return WORDS.sentence("answer", source=source, planned=planned, **counts)
