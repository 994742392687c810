"""Checks of results: a verdict per row, table `checks`, and its section in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats
from phaze.pages.document import Section, sheet_of
from phaze.tables import Checks

ROUNDING = 1e-9
"""Relative rounding error of sums of the same numbers in another order."""

Verdicts = Iterator[tuple[bool, str]]
"""Verdict on each checked row: True if it passes, and a description of the row."""
Subject = TypeVar("Subject")
Numbers = float | Floats | pd.Series


class Checklist(dict[str, Callable[[Subject], Verdicts]]):
    """Checks, keyed by the sentence that must hold; each check yields its verdicts on a subject."""

    def hold(self, sentence: str) -> Callable[[Callable[[Subject], Verdicts]], Callable[[Subject], Verdicts]]:
        """Decorator that registers a check under its sentence."""
        return partial(self.setdefault, sentence)


def check_rows(holds: object, frame: pd.DataFrame, keys: tuple[str, ...]) -> Verdicts:
    """Yield verdicts on the rows of a frame; only failed rows are described, by their keys."""
    # descriptions are slow, and a row that passes needs none
    flags = np.asarray(holds, dtype=bool)
    for flag, (_, row) in zip(flags[~flags], frame[~flags].iterrows(), strict=True):
        yield bool(flag), describe(row, keys)
    yield from ((True, "") for _ in range(int(flags.sum())))


def describe(row: pd.Series, keys: Iterable[str]) -> str:
    """Description of a row: its keys with their values."""
    return ", ".join(f"{key} {row[key]}" for key in keys)


def close(numbers: Numbers, others: Numbers) -> Bools:
    """True where numbers are equal up to rounding of sums."""
    return np.isclose(numbers, others, rtol=ROUNDING, atol=0)


def at_most(numbers: Numbers, others: Numbers) -> Bools:
    """True where the first numbers are at most the others, up to rounding of sums."""
    return np.asarray(np.asarray(numbers) <= np.asarray(others) * (1 + ROUNDING))


def run_checks(checks: Mapping[str, Callable[[Subject], Verdicts]], subject: Subject) -> pd.DataFrame:
    """Run checks and build table `checks`: one row per check, with counts of checked rows and failures."""
    return Checks.check(pd.DataFrame([_row(name, check(subject)) for name, check in checks.items()]))


def _row(name: str, verdicts: Verdicts) -> dict[str, object]:
    checked = list(verdicts)
    failed = [what for holds, what in checked if not holds]
    counts = {"rows": len(checked), "failures": len(failed)}
    return {"check": name, "passed": not failed, **counts, "example": failed[0] if failed else ""}


def failures(checks: pd.DataFrame) -> list[str]:
    """Failed checks, each with its first example."""
    return [f"{row['check']}: {row['example']}" for _, row in checks[~checks["passed"]].iterrows()]


def checks_section(checks: pd.DataFrame, source: str, about: str) -> Section:
    """Build the section on the checks, failed ones highlighted; `source` names their result table."""
    verdict = checks["passed"].map({True: "passed", False: "FAILED"})
    verdict = verdict.where(checks["rows"] > 0, "nothing to check")
    columns = {
        "verdict": "{verdict}", "what must hold": "{check}", "first failure": "{example}", "rows": "{rows:,}",
        "failures": "{failures:,}",
    }  # fmt: skip
    sheet = sheet_of("Checks", checks.assign(verdict=verdict), columns, 3, ~checks["passed"], source)
    return Section("checks", "Checks", about, (sheet,))
