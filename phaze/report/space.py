"""Results on the whole space: the certificate of the best architectures, and the Pareto front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import altair as alt
import pandas as pd

from phaze.base.units import UM2_PER_MM2, digits
from phaze.report import winners
from phaze.report.checks import VERIFIED
from phaze.report.document import Block, Cell, Chart, Items, Prose, Section, Sheet, sheet_of
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.style import AMBER, BLUE, GREY, RED, SILVER, TEAL
from phaze.report.vega import coloured, panels, rule
from phaze.report.words import area, join, percent
from phaze.tables import CAUSES, COMMON
from phaze.tables.columns import layout_of

DIGITS = 7
"""Significant digits that distinguish the best from the largest bound of the excluded."""
_WORDS = {
    "memory": "fit no memory",
    "work": "are excluded by the work of their operators",
    "path": "by the longest path through them",
    "combined": "by the bound that combines both with barriers between operators",
    "tied": "are no better by that bound",
    "solved": "were scheduled and placed",
    "open": "are neither",
}


def certificate(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the proof of the best architectures, for a study with certificates."""
    table = findings.certificates
    if table.empty:
        return
    several = len(inputs.study.models) > 1
    shown = pd.concat([table[table["model"] != COMMON], table[(table["model"] == COMMON) & several]])
    caption = (
        "Points by the simplest reason that decides them; for one architecture for all, points are "
        "architectures with an HBM size, and their value is the mean over the workloads"
    )
    blocks = (
        Items(tuple(f"{_subject(row)}: {sentence(row)}" for _, row in shown.iterrows())),
        sheet_of(caption, shown, _POINTS, 2, shown["model"] == COMMON, "certificates"),
        Prose(_verification(findings.audits)),
    )
    about = (
        "Every architecture within the area limit, with every TMP width, microbatch, HBM size and "
        "recomputation, is either excluded by a bound or solved: nothing else can be better."
    )
    yield Section("certificate", "Certificate", about, blocks)


def _subject(row: pd.Series) -> str:
    return "one for all" if row["model"] == COMMON else str(row["model"])


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


_POINTS: dict[str, Cell] = {
    "workload": _subject, "best": "{architecture}", "points": "{points:,}",
    **{cause: f"{{{cause}:,}}" for cause in CAUSES},
    "samples/s": lambda row: digits(row["best"], DIGITS),
    "bound of the excluded": lambda row: digits(row["excluded"], DIGITS),
    "bound of all": lambda row: digits(row["bound"], DIGITS),
    "schedules not proven": "{unproven:,} / {schedules:,}", "largest gap": "{gap:percent2}",
}  # fmt: skip


def _verification(audits: pd.DataFrame) -> str:
    """Sentence on the re-solved points and their verdicts."""
    if audits.empty:
        return "No point was solved again."
    drawn = int(audits["chosen"].isin(["drawn", "nearest"]).sum())
    verdicts = audits["verdict"].value_counts()
    found = join(f"{number:,} {verdict}" for verdict, number in verdicts.items())
    programs = int(audits["programs"].sum())
    return (
        f"Verified by code that shares none with what screens and places: the best of every workload and "
        f"{drawn:,} excluded points, drawn by seed with the nearest ones among them, were bounded again from "
        f"operators and estimates, scheduled ({programs:,} times a program had to confirm the schedule of a "
        f"layer) and placed by another algorithm: {found}."
    )


def in_short(findings: Findings) -> Iterator[tuple[str, str]]:
    """Fact for the first screen: the number of points covered by the certificates."""
    table, audits = findings.certificates[findings.certificates["model"] != COMMON], findings.audits
    if len(table) and not table["open"].any():
        confirmed = f"{int(audits['verdict'].isin(VERIFIED).sum()):,} of {len(audits):,} solved again agree"
        points = int(table["points"].sum())
        yield f"{points:,}", f"points of the space, all excluded or solved ({confirmed})"


OBJECTIVES = {
    "throughput": "throughput",
    "throughput_per_area": "throughput per area",
    "energy": "energy per sample",
}


def front(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the Pareto front of throughput, area and energy over the whole space."""
    fronts = findings.fronts
    if fronts.empty:
        return
    largest = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    several = fronts["area_limit_um2"].nunique() > 1
    designs, results = [inputs.study.architectures.baseline, "phaze-common", winners.COMMON], findings.results
    others = results[results["design"].isin(designs) & (results["status"] == "placed")]
    best = pd.concat([largest[largest[flag]].assign(of=name) for flag, name in OBJECTIVES.items()])
    blocks: list[Block] = [
        Chart(
            "front-area",
            "Best throughput against area limit",
            "The line is exact for every area limit at once, within the space of the largest. Dashed: the "
            "limits of the study; dots are the best of the spaces that smaller limits have."
            if several
            else "The line is exact for every area limit at once. Dashed: the limit of the study.",
            partial(area_chart, fronts, others),
        ),
        Chart(
            "front-energy",
            "Throughput and energy per sample",
            "Grey: members of the front of time, area and energy. Blue: no other is better in throughput, "
            "throughput per area and energy per sample.",
            partial(energy_chart, fronts, others),
        ),
        _members_sheet("The best of the whole space by every objective", "objective", best, inputs),
    ]
    if several:
        caption = "The best throughput within every area limit, as a study of that limit finds it"
        best = fronts[fronts["throughput"]].sort_values("area_limit_um2", ascending=False, kind="stable")
        best = best.assign(of=best["area_limit_um2"].map(area))
        blocks.append(_members_sheet(caption, "area limit", best, inputs))
    about = (
        "Every architecture, TMP width, microbatch, HBM size and recomputation that no other beats in time "
        f"per batch, area and energy per sample: {len(largest):,} in all, exact over the whole space."
    )
    yield Section("front", "Throughput, area and energy", about, tuple(blocks))


def _members_sheet(caption: str, what: str, members: pd.DataFrame, inputs: Inputs) -> Sheet:
    """Table of members of fronts, by model; `what` is the heading of the column of reasons."""
    rows = members.sort_values("model", key=lambda m: m.map(inputs.study.models.index), kind="stable")
    columns: dict[str, Cell] = {
        "workload": "{model}", what: "{of}", "accelerator": "{architecture}", "area": "{area_um2:area}",
        "samples/s": "{samples_per_s:digits}", "samples/s/mm²": "{samples_per_s_per_mm2:digits}",
        "energy per sample": "{joules_per_sample:J}", "HBM": "{hbm_gib:g} GiB, {recompute:storing}",
        "t, b": lambda row: f"{layout_of(row).tp}, {layout_of(row).microbatch}",
    }  # fmt: skip
    return sheet_of(caption, rows, columns, 3, source="fronts")


def area_chart(fronts: pd.DataFrame, others: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the best throughput within every area, a panel per model, and the results of other designs."""
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
    """Members of one front that are faster than all smaller ones, sorted by area."""
    rows = front.sort_values(["area_um2", "samples_per_s"], ascending=[True, False])
    before = rows["samples_per_s"].cummax().shift(fill_value=0.0)
    curve: pd.DataFrame = rows[rows["samples_per_s"] > before]
    return curve


def energy_chart(fronts: pd.DataFrame, others: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw throughput against energy per sample of the front, a panel per model, and other designs."""
    rows = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    looks = {
        "front with area": (SILVER, rows[~rows["objectives"]]),
        "objectives": (BLUE, rows[rows["objectives"]]),
        **_others(others),
    }
    points = alt.Chart().mark_point(filled=True, opacity=1)
    return _throughput(looks, "joules_per_sample", 1.0, "J/sample", (points,))


Kinds = dict[str, tuple[str, pd.DataFrame]]
"""Colour and rows of each drawn kind."""


def _others(others: pd.DataFrame) -> Kinds:
    """Results of designs that the study names."""
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
    """Panels of throughput against a column in a unit, and lines across them."""
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
