"""The part of the report that proves its best architectures: the certificate, and its verification."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.report.checks import VERIFIED
from phaze.report.document import Block, Cell, Items, Prose, Section, Sheet, sheet_of
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.words import digits, join, percent
from phaze.tables import CAUSES, COMMON

DIGITS = 7
"""Enough to tell the best from the largest bound among the others."""
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
    """Yield the section on what proves the best architectures, for a study that certified them."""
    table = findings.certificates
    if table.empty:
        return
    several = len(inputs.study.models) > 1
    shown = pd.concat([table[table["model"] != COMMON], table[(table["model"] == COMMON) & several]])
    blocks: list[Block] = [
        Items(tuple(f"{_subject(row)}: {sentence(row)}" for _, row in shown.iterrows())),
        _sheet(shown),
        Prose(_verification(findings.audits)),
    ]
    about = (
        "Every architecture within the area limit, with every TMP width, microbatch, HBM size and "
        "recomputation, is either excluded by a bound or solved: nothing else can be better."
    )
    yield Section("certificate", "Certificate", about, tuple(blocks))


def _subject(row: pd.Series) -> str:
    return "one for all" if row["model"] == COMMON else str(row["model"])


def sentence(row: pd.Series) -> str:
    """Return a certificate in words."""
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


def _sheet(table: pd.DataFrame) -> Sheet:
    columns: dict[str, Cell] = {
        "workload": _subject, "best": "{architecture}", "points": "{points:,}",
        **{cause: f"{{{cause}:,}}" for cause in CAUSES},
        "samples/s": lambda row: digits(row["best"], DIGITS),
        "bound of the excluded": lambda row: digits(row["excluded"], DIGITS),
        "bound of all": lambda row: digits(row["bound"], DIGITS),
        "schedules not proven": "{unproven:,} / {schedules:,}", "largest gap": "{gap:percent2}",
    }  # fmt: skip
    caption = (
        "Points by the simplest reason that decides them; for one architecture for all, points are "
        "architectures with an HBM size, and their value is the mean over the workloads"
    )
    return sheet_of(caption, table, columns, 2, table["model"] == COMMON, "certificates")


def _verification(audits: pd.DataFrame) -> str:
    """Return how many points were solved again, and what came of it."""
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
    """Yield the fact for the first screen: how much of the space the certificates cover."""
    table, audits = findings.certificates[findings.certificates["model"] != COMMON], findings.audits
    if len(table) and not table["open"].any():
        confirmed = f"{int(audits['verdict'].isin(VERIFIED).sum()):,} of {len(audits):,} solved again agree"
        points = int(table["points"].sum())
        yield f"{points:,}", f"points of the space, all excluded or solved ({confirmed})"
