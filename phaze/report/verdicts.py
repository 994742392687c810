"""Checks of results: a verdict on every row, as a table and as shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats
from phaze.report.document import Cell, Section, sheet_of
from phaze.tables import Checks

ROUNDING = 1e-9
"""Relative error that sums of the same numbers in another order may have."""

Verdicts = Iterator[tuple[bool, str]]
"""For every row checked whether it holds, and what the row is."""
Subject = TypeVar("Subject")


class Checklist(dict[str, Callable[[Subject], Verdicts]]):
    """What must hold, as sentences, each with the check that finds out."""

    def hold(self, sentence: str) -> Callable[[Callable[[Subject], Verdicts]], Callable[[Subject], Verdicts]]:
        """Decorator that adds a check under its sentence."""

        def add(check: Callable[[Subject], Verdicts]) -> Callable[[Subject], Verdicts]:
            return self.setdefault(sentence, check)

        return add


def each(holds: object, frame: pd.DataFrame, keys: tuple[str, ...]) -> Verdicts:
    """(Holds, description by keys) for the rows of a frame; descriptions only of those that fail."""
    flags = np.asarray(holds, dtype=bool)
    for flag, (_, row) in zip(flags[~flags], frame[~flags].iterrows(), strict=True):
        yield bool(flag), describe(row, keys)
    yield from ((True, "") for _ in range(int(flags.sum())))


def describe(row: pd.Series, keys: Iterable[str]) -> str:
    """Keys of a row with their values, in words."""
    return ", ".join(f"{key} {row[key]}" for key in keys)


Numbers = float | Floats | pd.Series


def close(one: Numbers, other: Numbers) -> Bools:
    """Where numbers are equal but for the rounding of sums."""
    return np.isclose(one, other, rtol=ROUNDING, atol=0)


def at_most(one: Numbers, other: Numbers) -> Bools:
    """Where the first numbers are not larger than the others but for the rounding of sums."""
    return np.asarray(np.asarray(one) <= np.asarray(other) * (1 + ROUNDING))


def run_checks(checks: Mapping[str, Callable[[Subject], Verdicts]], subject: Subject) -> pd.DataFrame:
    """Table checks: one row for everything that must hold, with how many rows it was checked on."""
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
    """The checks that failed, each with its first example."""
    return [f"{row['check']}: {row['example']}" for _, row in checks[~checks["passed"]].iterrows()]


def checks_section(checks: pd.DataFrame, source: str, about: str) -> Section:
    """The section of the checks, from the result table of that name; those that failed stand out."""
    columns: dict[str, Cell] = {
        "": lambda row: ("passed" if row["passed"] else "FAILED") if row["rows"] else "nothing to check",
        "what must hold": "{check}", "first failure": "{example}", "rows": "{rows:,}",
        "failures": "{failures:,}",
    }  # fmt: skip
    sheet = sheet_of("Checks", checks, columns, 3, ~checks["passed"], source)
    return Section("checks", "Checks", about, (sheet,))
