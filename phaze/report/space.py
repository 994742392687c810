"""Results on the whole design space: the certificate of the best architectures, and the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import altair as alt
import pandas as pd

from phaze.base.units import UM2_PER_MM2, digits
from phaze.report import winners
from phaze.report.checks import VERIFIED
from phaze.report.document import Items, Prose, Section
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.page_words import words_of
from phaze.report.style import AMBER, BLUE, GREY, RED, SILVER, TEAL
from phaze.report.vega import coloured, panels, rule
from phaze.report.words import join, percent
from phaze.tables import COMMON

WORDS = words_of("study")
DIGITS = 7
"""Significant digits, enough to distinguish the best value from the largest bound of excluded points."""
_WORDS = {
    "memory": "fit no memory",
    "work": "are excluded by the work of their operators",
    "path": "by the longest path through them",
    "combined": "by the bound that combines both with barriers between operators",
    "tied": "are no better by that bound",
    "solved": "were scheduled and placed",
    "open": "are neither",
}
OBJECTIVES = {
    "throughput": "throughput",
    "throughput_per_area": "throughput per area",
    "energy": "energy per sample",
}


def certificate(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the proof of the best architectures, for a study with certificates."""
    table = findings.certificates
    if table.empty:
        return
    several = len(inputs.study.models) > 1
    shown = pd.concat([table[table["model"] != COMMON], table[(table["model"] == COMMON) & several]])
    shown = shown.assign(subject=shown["model"].replace(COMMON, "one for all"))
    blocks = (
        Items(tuple(f"{row['subject']}: {sentence(row)}" for _, row in shown.iterrows())),
        WORDS.sheet("certificate", shown, shown["model"] == COMMON),
        Prose(_verification(findings.audits)),
    )
    yield WORDS.section("certificate", blocks)


def sentence(row: pd.Series) -> str:
    """Summary sentence of a certificate."""
    parts = [f"{int(row[cause]):,} {words}" for cause, words in _WORDS.items() if row[cause]]
    unit = "in the mean of all workloads" if row["model"] == COMMON else "samples/s"
    counted = f"{int(row['points']):,} points: {join(parts)}"
    if not row["best"]:
        return f"{counted}; none of them trains it."
    unproven = ""
    if row["unproven"]:
        least = percent(1.0 - row["best"] / row["bound"], 3)
        number = f"{int(row['unproven']):,}"
        unproven = f"; {number} schedules are not proven, so that up to {least} more is not ruled out"
    proven = not row["open"] and row["excluded"] <= row["best"]
    most = digits(row["excluded" if proven else "bound"], DIGITS)
    what = "nothing excluded can exceed" if proven else "nothing can exceed"
    return f"{counted}; best {digits(row['best'], DIGITS)} {unit}, and {what} {most}{unproven}."


def _verification(audits: pd.DataFrame) -> str:
    """Sentence on the excluded points that were solved again, and their verdicts."""
    if audits.empty:
        return "No point was solved again."
    drawn = int(audits["chosen"].isin(["drawn", "nearest"]).sum())
    verdicts = audits["verdict"].value_counts()
    found = join(f"{number:,} {verdict}" for verdict, number in verdicts.items())
    programs = int(audits["programs"].sum())
    return WORDS.sentence("audited", drawn=drawn, programs=programs, found=found)


def in_short(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield a key figure for the first screen: the number of points covered by the certificates."""
    table, audits = findings.certificates[findings.certificates["model"] != COMMON], findings.audits
    if len(table) and not table["open"].any():
        confirmed = f"{int(audits['verdict'].isin(VERIFIED).sum()):,} of {len(audits):,} solved again agree"
        points = int(table["points"].sum())
        yield f"{points:,}", f"points of the space, all excluded or solved ({confirmed})"


def front(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the Pareto front of throughput, area and energy over the whole space."""
    fronts = findings.fronts
    if fronts.empty:
        return
    largest = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    several = fronts["area_limit_um2"].nunique() > 1
    designs, results = [inputs.study.architectures.baseline, "phaze-common", winners.COMMON], findings.results
    others = results[results["design"].isin(designs) & (results["status"] == "placed")]
    best = pd.concat([largest[largest[flag]].assign(of=name) for flag, name in OBJECTIVES.items()])
    area = WORDS.chart(
        "front-areas" if several else "front-area", partial(area_chart, fronts, others), "front-area"
    )
    energy = WORDS.chart("front-energy", partial(energy_chart, fronts, others))
    tables = {"objectives": best}
    if several:
        fastest = fronts[fronts["throughput"]]
        tables["limits-of-area"] = fastest.sort_values("area_limit_um2", ascending=False, kind="stable")
    place = inputs.study.models.index
    sheets = [
        WORDS.sheet(name, rows.sort_values("model", key=lambda models: models.map(place), kind="stable"))
        for name, rows in tables.items()
    ]
    yield WORDS.section("front", (area, energy, *sheets), count=len(largest))


def area_chart(fronts: pd.DataFrame, others: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the best throughput within every area limit, with other designs, one panel per model."""
    largest = fronts["area_limit_um2"].max()
    curves = [
        pd.concat([curve, curve.tail(1).assign(area_um2=largest)])
        for _, mine in fronts[fronts["area_limit_um2"] == largest].groupby("model", sort=False)
        if len(curve := curve_of(mine))
    ]
    smaller = fronts[fronts["throughput"] & (fronts["area_limit_um2"] < largest)]
    looks = {
        "best of every area limit": (BLUE, pd.concat(curves)),
        "best of a smaller limit": (TEAL, smaller.assign(area_um2=smaller["area_limit_um2"])),
        **_others(others),
    }
    first = next(iter(looks))
    line = alt.Chart().mark_line(interpolate="step-after").transform_filter(alt.datum.kind == first)
    points = alt.Chart().mark_point(filled=True, opacity=1).transform_filter(alt.datum.kind != first)
    limits = [rule("x", limit / UM2_PER_MM2, dashed=True) for limit in fronts["area_limit_um2"].unique()]
    return _throughput(looks, "area_um2", 1 / UM2_PER_MM2, "area, mm²", (line, points), limits)


def curve_of(front: pd.DataFrame) -> pd.DataFrame:
    """Members of a Pareto front that are faster than all smaller members, sorted by area."""
    rows = front.sort_values(["area_um2", "samples_per_s"], ascending=[True, False])
    before = rows["samples_per_s"].cummax().shift(fill_value=0.0)
    curve: pd.DataFrame = rows[rows["samples_per_s"] > before]
    return curve


def energy_chart(fronts: pd.DataFrame, others: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw throughput against energy per sample, for the front and other designs, one panel per model."""
    rows = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    looks = {
        "front with area": (SILVER, rows[~rows["objectives"]]),
        "objectives": (BLUE, rows[rows["objectives"]]),
        **_others(others),
    }
    points = alt.Chart().mark_point(filled=True, opacity=1)
    return _throughput(looks, "joules_per_sample", 1.0, "J/sample", (points,))


Kinds = dict[str, tuple[str, pd.DataFrame]]
"""Colour and rows of each kind of point drawn."""


def _others(others: pd.DataFrame) -> Kinds:
    """Results of the named designs, by design, each with a colour."""
    return {
        str(design): (colour, rows)
        for colour, (design, rows) in zip((RED, AMBER, GREY), others.groupby("design"), strict=False)
    }


def _throughput(
    looks: Kinds,
    column: str,
    unit: float,
    title: str,
    marks: Sequence[alt.Chart],
    lines: Sequence[alt.Chart] = (),
) -> alt.TopLevelMixin:
    """Draw throughput against a column in a unit, one panel per model, with reference lines."""
    table = pd.concat([rows.assign(kind=kind) for kind, (_, rows) in looks.items()])
    table = table[["model", "kind", "architecture", column, "samples_per_s"]]
    table[column] *= unit
    scale = alt.Scale(type="log", nice=False, padding=4)
    encoding = (
        alt.X(f"{column}:Q", title=title, scale=scale),
        alt.Y("samples_per_s:Q", title="samples/s", scale=scale),
        coloured("kind", {kind: colour for kind, (colour, rows) in looks.items() if len(rows)}),
    )
    numbers = [alt.Tooltip(f"{name}:Q", format=",.4~g") for name in (column, "samples_per_s")]
    drawn = [mark.encode(*encoding, tooltip=["kind:N", "architecture:N", *numbers]) for mark in marks]
    return panels(table, "model", *drawn, *lines, own="xy")
