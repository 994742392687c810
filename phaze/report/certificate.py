"""The part of the report that proves its best architectures: the certificate, and its verification."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.report.checks import VERIFIED
from phaze.report.document import Block, Items, Prose, Section, Sheet
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
    ours = f"best {digits(row['best'], DIGITS)} {unit}"
    if not row["open"] and row["excluded"] <= row["best"]:
        most = digits(row["excluded"], DIGITS)
        return f"{counted}; {ours}, and nothing excluded can exceed {most}{_gap(row)}."
    return f"{counted}; {ours}, and nothing can exceed {digits(row['bound'], DIGITS)}{_gap(row)}."


def _gap(row: pd.Series) -> str:
    """Return what unproven schedules leave open, nothing if all are proven."""
    if not row["unproven"]:
        return ""
    least = percent(1.0 - row["best"] / row["bound"], 3)
    return f"; {int(row['unproven']):,} schedules are not proven, so that up to {least} more is not ruled out"


def _sheet(table: pd.DataFrame) -> Sheet:
    rows = [
        (
            _subject(row), row["architecture"], f"{int(row['points']):,}",
            *(f"{int(row[cause]):,}" for cause in CAUSES),
            digits(row["best"], DIGITS), digits(row["excluded"], DIGITS), digits(row["bound"], DIGITS),
            f"{int(row['unproven']):,} / {int(row['schedules']):,}", percent(row["gap"], 2),
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    header = (
        "workload", "best", "points", *CAUSES, "samples/s", "bound of the excluded", "bound of all",
        "schedules not proven", "largest gap",
    )  # fmt: skip
    caption = (
        "Points by the simplest reason that decides them; for one architecture for all, points are "
        "architectures with an HBM size, and their value is the mean over the workloads"
    )
    marked = frozenset(i for i, row in enumerate(rows) if row[0] == "one for all")
    return Sheet(caption, header, tuple(rows), 2, marked, "certificates")


def _verification(audits: pd.DataFrame) -> str:
    """Return how many points were solved again, and what came of it."""
    if audits.empty:
        return "No point was solved again."
    counts = audits["chosen"].value_counts()
    drawn = int(counts.get("drawn", 0) + counts.get("nearest", 0))
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
    table = findings.certificates[findings.certificates["model"] != COMMON]
    if len(table) and not table["open"].any():
        points = int(table["points"].sum())
        yield f"{points:,}", f"points of the space, all excluded or solved ({_confirmed(findings.audits)})"


def _confirmed(audits: pd.DataFrame) -> str:
    number = int(audits["verdict"].isin(VERIFIED).sum())
    return f"{number:,} of {len(audits):,} solved again agree"
