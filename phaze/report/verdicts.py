"""What a check of the results is: evidence in, a verdict on every row out; then as a table, and as shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import pandas as pd

from phaze.report.document import Section, Sheet
from phaze.tables import Checks

ROUNDING = 1e-9
"""Relative error that sums of the same numbers in another order may have."""

Verdicts = Iterator[tuple[bool, str]]
"""For every row checked whether it holds, and what the row is."""
Subject = TypeVar("Subject")


def each(holds: object, frame: pd.DataFrame, keys: tuple[str, ...]) -> Verdicts:
    """Yield (holds, description by keys) for the rows of a frame; descriptions only of those that fail."""
    flags = np.asarray(holds, dtype=bool)
    for flag, (_, row) in zip(flags[~flags], frame[~flags].iterrows(), strict=True):
        yield bool(flag), describe(row, keys)
    yield from ((True, "") for _ in range(int(flags.sum())))


def describe(row: pd.Series, keys: Iterable[str]) -> str:
    """Return which row it is, by its keys."""
    return ", ".join(f"{key} {row[key]}" for key in keys)


def run_checks(checks: Mapping[str, Callable[[Subject], Verdicts]], subject: Subject) -> pd.DataFrame:
    """Return table checks: one row for everything that must hold, with how many rows it was checked on."""
    return Checks.check(pd.DataFrame([_row(name, check(subject)) for name, check in checks.items()]))


def _row(name: str, verdicts: Verdicts) -> dict[str, object]:
    found = list(verdicts)
    failed = [what for holds, what in found if not holds]
    return {
        "check": name,
        "passed": not failed,
        "rows": len(found),
        "failures": len(failed),
        "example": failed[0] if failed else "",
    }


def failures(checks: pd.DataFrame) -> list[str]:
    """Return the checks that failed, each with its first example."""
    return [f"{row['check']}: {row['example']}" for _, row in checks[~checks["passed"]].iterrows()]


def checks_section(checks: pd.DataFrame, source: str, about: str) -> Section:
    """Return the section of the checks, from the result table of that name; those that failed stand out."""
    cells = [
        (_verdict(row), row["check"], row["example"], f"{row['rows']:,}", f"{row['failures']:,}")
        for _, row in checks.iterrows()
    ]
    marked = frozenset(i for i, passed in enumerate(checks["passed"]) if not passed)
    header = ("", "what must hold", "first failure", "rows", "failures")
    return Section("checks", "Checks", about, (Sheet("Checks", header, tuple(cells), 3, marked, source),))


def _verdict(row: pd.Series) -> str:
    if not row["rows"]:
        return "nothing to check"
    return "passed" if row["passed"] else "FAILED"
