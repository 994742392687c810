"""What a check of the results is: evidence in, a verdict on every row out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.report.inputs import Inputs
from phaze.tables import Checks

ROUNDING = 1e-9
"""Relative error that sums of the same numbers in another order may have."""
KEYS = ("model", "tensor", "microbatch", "architecture", "hbm_gib", "recompute", "planner")
"""Columns that say which placement it is."""


@dataclass(frozen=True)
class Evidence:
    """What the checks look at."""

    inputs: Inputs
    results: pd.DataFrame
    energies: pd.DataFrame


Verdicts = Iterator[tuple[bool, str]]
"""For every row checked whether it holds, and what the row is."""
Check = Callable[[Evidence], Verdicts]


def each(holds: object, frame: pd.DataFrame, keys: tuple[str, ...]) -> Verdicts:
    """Yield (holds, description by keys) for the rows of a frame; descriptions only of those that fail."""
    flags = np.asarray(holds, dtype=bool)
    for flag, (_, row) in zip(flags[~flags], frame[~flags].iterrows(), strict=True):
        yield bool(flag), ", ".join(f"{key} {row[key]}" for key in keys)
    yield from ((True, "") for _ in range(int(flags.sum())))


def tabulate(checked: Iterable[tuple[str, Verdicts]]) -> pd.DataFrame:
    """Return table checks from the names of checks and their verdicts."""
    return Checks.check(pd.DataFrame([_row(name, verdicts) for name, verdicts in checked]))


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
