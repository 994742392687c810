"""Many runs at once: a table of runs in, the same table with predictions out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.errors import PhazeError
from phaze.base.files import atomic_path
from phaze.plan.runs.machine import Machine
from phaze.plan.runs.predict import Prediction, predict
from phaze.plan.runs.run import Run
from phaze.validate.accuracy import Accuracy, accuracy_of
from phaze.validate.rows import Row, read_rows

CHOSEN = ("microbatch_used", "chunks_used", "slowest_s")
"""What a row left open and was chosen, and the time of the worst choice."""
ADDED = (*(field.name for field in fields(Prediction)), *CHOSEN, "status")
"""Columns that predictions add."""
OK = "ok"


def predict_table(path: Path, machine: Machine) -> tuple[pd.DataFrame, Accuracy | None]:
    """Return a table of runs with predictions, and how they compare with `measured_s` where that is given.

    A row that cannot be right has a status that says why, and the others go on. Raises PhazeError where the
    file is no table of runs.
    """
    table, rows = read_rows(path)
    clash = [name for name in ADDED if name in table.columns]
    if clash:
        raise PhazeError(
            f"{path}: columns {', '.join(clash)} are those of predictions; rename or leave them out"
        )
    out = pd.concat([table, predict_rows(rows, machine)], axis=1)
    return out, _accuracy(rows, out)


def predict_rows(rows: Sequence[Row], machine: Machine) -> pd.DataFrame:
    """Return the columns that predictions add to rows."""
    found = [_predict(row, machine) for row in rows]
    return pd.DataFrame(found, columns=list(ADDED)).astype(dict.fromkeys(CHOSEN[:2], "Int64"))


def write_table(table: pd.DataFrame, out: Path) -> None:
    """Write a table as CSV, whole or not at all."""
    with atomic_path(out) as temporary:
        table.to_csv(temporary, index=False)


def _predict(row: Row, machine: Machine) -> dict[str, object]:
    """Return the added columns of a row; of what it leaves open the fastest that fits."""
    found, problem = _all(row.runs, machine), row.problem
    if not found:
        problem = problem or _problem(row.runs[0], machine)
        return {"status": f"invalid: {problem}"}
    limit = machine.device.hbm_gib
    run, best = min(found, key=lambda pair: (max(pair[1].memory_gib - limit, 0.0), pair[1].time_s))
    slowest_s = max(other.time_s for _, other in found)
    chosen = dict(zip(CHOSEN, (run.microbatch, run.chunks, slowest_s), strict=True))
    return {**asdict(best), **chosen, "status": _status(best, limit)}


def _all(runs: tuple[Run, ...], machine: Machine) -> list[tuple[Run, Prediction]]:
    """Return the predictions of those runs that are possible."""
    found = []
    for run in runs:
        with suppress(PhazeError):
            found.append((run, predict(run, machine)))
    return found


def _problem(run: Run, machine: Machine) -> str:
    """Return why a run is not possible."""
    try:
        predict(run, machine)
    except PhazeError as error:
        return str(error)
    return ""


def _status(found: Prediction, hbm_gib: float) -> str:
    if found.memory_gib > hbm_gib:
        return f"does not fit: needs {found.memory_gib:.1f} GiB of {hbm_gib:g} GiB"
    return OK


def _accuracy(rows: tuple[Row, ...], out: pd.DataFrame) -> Accuracy | None:
    """Return the accuracy over the rows that are predicted and measured, None if there is none."""
    measured = np.array([np.nan if row.measured_s is None else row.measured_s for row in rows], float)
    predicted = out["time_s"].to_numpy(float)
    both = np.isfinite(measured) & np.isfinite(predicted)
    return accuracy_of(predicted[both], measured[both]) if both.any() else None
