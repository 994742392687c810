"""Tables of the page of measured runs: published runs with predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER
from phaze.spec.measured import LIST, KnownFrom, PublishedRuns
from phaze.spec.systems import load_device, load_stack
from phaze.tables import FittedConstants, GroupRegrets, MeasuredRuns, SourceScores, Table, ToolErrors
from phaze.validate.refit import Refit
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.scoreboard import beside, groups_of, runs_with_intervals, scoreboard
from phaze.validate.table import predict_rows, settled

TOOLS = "other-tools.csv"
"""Predictions of other tools: tool, source, label, predicted_s, predicted_gib."""


def measured_tables(sources: Sequence[str], folder: Path = FOLDER) -> dict[str, pd.DataFrame]:
    """Tables of the page of measured runs by name, from files of the configuration.

    Raises PhazeError for an unknown source.
    """
    published = PublishedRuns.load(folder)
    if unknown := [name for name in sources if name not in published.sources]:
        known = ", ".join(published.sources)
        raise PhazeError(
            f"measured.sources: {unknown[0]!r} is not in config/measured.yaml; known are {known}"
        )
    runs = runs_with_intervals(_predicted(sources, published, folder), folder)
    return {
        MeasuredRuns.name: _stored(MeasuredRuns, runs),
        SourceScores.name: _stored(SourceScores, scoreboard(runs).assign(left_out_error=_left_out(runs))),
        GroupRegrets.name: _stored(GroupRegrets, groups_of(runs)),
        ToolErrors.name: _stored(ToolErrors, pd.DataFrame(_tools(runs, published, folder))),
        FittedConstants.name: _stored(FittedConstants, pd.DataFrame(_fitted(sources, published, folder))),
    }


def _stored(table: type[Table], frame: pd.DataFrame) -> pd.DataFrame:
    """Frame as a table, with infinity in place of missing numbers."""
    if frame.empty:
        return table.empty()
    return table.check(
        frame[list(table.fields())].fillna(dict.fromkeys(frame.select_dtypes("float"), np.inf))
    )


ALL = "all"
"""Name that denotes all sources."""


def left_out(asked: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Errors of a source, or of ALL, with constants fitted to the other sources; one row per source.

    Columns are source, rows, median_error and mean_error with the constants as they are, and left_out_median
    and left_out_mean, NaN if no constant of the source depends on another one.
    """
    published = PublishedRuns.load(folder)
    if asked not in (ALL, *published.sources):
        raise PhazeError(f"--leave-out must be {ALL} or one of {', '.join(published.sources)}, got {asked}")
    chosen = list(published.sources) if asked == ALL else [asked]
    runs = _predicted(published.sources, published, folder, chosen)
    found = []
    for source, mine in runs[runs["source"].isin(chosen)].groupby("source", sort=False):
        now, without = ((mine[name] / mine["measured_s"] - 1).abs() for name in ("predicted_s", "left_out_s"))
        found.append(
            {
                "source": source,
                "rows": int(now.notna().sum()),
                "median_error": now.median(),
                "mean_error": now.mean(),
                "left_out_median": without.median(),
                "left_out_mean": without.mean(),
            }
        )
    return pd.DataFrame(found)


def _predicted(
    sources: Iterable[str], published: PublishedRuns, folder: Path, refitted: Iterable[str] | None = None
) -> pd.DataFrame:
    """Runs of sources with predictions.

    Sources in `refitted`, by default all, also have predictions with constants fitted without their source.
    """
    frames, known = dict[str, pd.DataFrame](), dict[str, list[RunRow]]()
    for source in sources:
        table, rows = read_rows(folder / "measured" / f"{source}.csv")
        out = predict_rows(rows, None, folder, prudent=True)
        frame = beside(source, table, rows, out).assign(number=range(1, len(rows) + 1), left_out_s=np.nan)
        timed = np.isfinite(frame["predicted_s"]) & np.isfinite(frame["measured_s"])
        asked = [row for row, one in zip(rows, timed, strict=True) if one]
        frames[source], known[source] = frame.assign(timed=timed), list(settled(asked, out[timed]))
    refit = Refit(known, published.fitted, folder)
    for source in frames if refitted is None else refitted:
        frame, times_s = frames[source], refit.times_s(source)
        if times_s is not None:
            frame.loc[frame["timed"], "left_out_s"] = times_s
    return pd.concat(frames.values(), ignore_index=True)


def _left_out(runs: pd.DataFrame) -> list[float]:
    """Mean absolute errors with constants fitted without the source, NaN if none is refitted."""
    errors = (runs["left_out_s"] / runs["measured_s"] - 1).abs()
    found = errors.groupby(runs["source"], sort=False).mean().tolist()
    return found if len(found) == 1 else [*found, float(errors.mean())]


def _fitted(sources: Sequence[str], published: PublishedRuns, folder: Path) -> list[dict[str, object]]:
    """Rows of the constants that are fitted to at least one of the sources."""
    return [
        {"of": one.of, "key": one.key, "value": _value(one, folder), "sources": ", ".join(one.sources)}
        for one in published.fitted
        if set(one.sources) & set(sources)
    ]


def _value(constant: KnownFrom, folder: Path) -> float:
    """Value of a constant in its file; dots in its key lead to nested values."""
    noun = (load_device if constant.part == "device" else load_stack)(constant.of, folder)
    value: object = noun.model_dump()
    for key in constant.key.split("."):
        value = value[key] if isinstance(value, dict) else None
    if not isinstance(value, float | int):
        raise PhazeError(f"{LIST}: fitted: {constant.of} has no numeric constant {constant.key}")
    return float(value)


def _tools(runs: pd.DataFrame, published: PublishedRuns, folder: Path) -> list[dict[str, object]]:
    """Errors of the other tools and of phaze on the runs that a tool predicts."""
    printed = pd.read_csv(folder / TOOLS)
    both = printed.merge(runs, on=["source", "label"], suffixes=("_tool", ""))
    return [
        {"tool": tool, "source": source, "rows": len(mine), "published": published.tools[str(tool)]}
        | _errors(mine)
        for (tool, source), mine in both.groupby(["tool", "source"])
    ]


def _errors(both: pd.DataFrame) -> dict[str, object]:
    """Errors of a tool and of phaze on the same runs."""
    tool, ours = ((both[f"predicted_s{of}"] / both["measured_s"] - 1).abs() for of in ("_tool", ""))
    sizes, own = ((both[f"predicted_gib{of}"] / both["measured_gib"] - 1).abs() for of in ("_tool", ""))
    return {
        "error": tool.mean(),
        "ours": ours.mean(),
        "worst": tool.max(),
        "our_worst": ours.max(),
        "memory_error": sizes.mean(),
        "our_memory_error": own.mean(),
    }
