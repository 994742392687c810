"""Tables as text for other programs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.tables import read_any

FORMATS = ("csv", "json")


def export_table(path: Path, form: str) -> str:
    """Return any table of phaze as CSV or JSON (a list of rows), with all columns and digits."""
    if form not in FORMATS:
        raise PhazeError(f"format {form!r} is not known; there are {', '.join(FORMATS)}")
    frame = read_any(path)
    return as_csv(frame) if form == "csv" else as_json(frame)


def as_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV; infinity is `inf`."""
    return frame.to_csv(index=False, lineterminator="\n")


def as_json(frame: pd.DataFrame) -> str:
    """Return a frame as JSON; infinity is null, since JSON has none."""
    return frame.to_json(orient="records", indent=1, double_precision=15) + "\n"
