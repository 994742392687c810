"""Tables for the page of measured runs: published runs with predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER
from phaze.spec.measured import PublishedRuns
from phaze.tables import FittedConstants, GroupRegrets, MeasuredRuns, SourceScores, Table, ToolErrors
from phaze.validate.refit import Refit, values_of
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.scoreboard import groups_of, joined, rows_of, runs_with_intervals, scoreboard
from phaze.validate.table import predict_rows, settled

TOOLS = "other-tools.csv"
"""File of other tools' predictions: tool, source, label, predicted_s, predicted_gib."""
ALL = "all"
"""Name for all sources together."""


def measured_tables(sources: Sequence[str], folder: Path = FOLDER) -> dict[str, pd.DataFrame]:
    """Tables for the page of measured runs, by name, from the configuration's files.

    Raises PhazeError for an unknown source.
    """
    published = PublishedRuns.load(folder)
    if unknown := [name for name in sources if name not in published.sources]:
        names = ", ".join(published.sources)
        raise PhazeError(
            f"measured.sources: {unknown[0]!r} is not in config/measured.yaml; known are {names}"
        )
    runs = runs_with_intervals(_predict_sources(sources, published, folder), folder)
    scores = scoreboard(runs, published.simulated)
    held_out = [_left_out_error(rows_of(line, runs, published.simulated)) for line in scores["source"]]
    return {
        MeasuredRuns.name: _as_table(MeasuredRuns, runs),
        SourceScores.name: _as_table(SourceScores, scores.assign(left_out_error=held_out)),
        GroupRegrets.name: _as_table(GroupRegrets, groups_of(runs)),
        ToolErrors.name: _as_table(ToolErrors, pd.DataFrame(_tool_errors(runs, published, folder))),
        FittedConstants.name: _as_table(
            FittedConstants, pd.DataFrame(_fitted_constants(sources, published, folder))
        ),
    }


def _as_table(table: type[Table], frame: pd.DataFrame) -> pd.DataFrame:
    """Convert a frame to a table, with infinity in place of missing numbers."""
    if frame.empty:
        return table.empty()
    return table.check(
        frame[list(table.fields())].fillna(dict.fromkeys(frame.select_dtypes("float"), np.inf))
    )


def left_out(source_name: str, folder: Path = FOLDER) -> pd.DataFrame:
    """Errors of a held-out source (or ALL) with constants fitted to the others; one row per source.

    Columns are source, rows, median_error and mean_error with the constants as they are, and left_out_median
    and left_out_mean, NaN if no constant of the source depends on another one.
    """
    published = PublishedRuns.load(folder)
    if source_name not in (ALL, *published.sources):
        raise PhazeError(
            f"--leave-out must be {ALL} or one of {', '.join(published.sources)}, got {source_name}"
        )
    chosen = list(published.sources) if source_name == ALL else [source_name]
    runs = _predict_sources(published.sources, published, folder, chosen)
    rows = []
    for source, source_runs in runs[runs["source"].isin(chosen)].groupby("source", sort=False):
        now, without = (
            (source_runs[name] / source_runs["measured_s"] - 1).abs()
            for name in ("predicted_s", "left_out_s")
        )
        rows.append(
            {
                "source": source,
                "rows": int(now.notna().sum()),
                "median_error": now.median(),
                "mean_error": now.mean(),
                "left_out_median": without.median(),
                "left_out_mean": without.mean(),
            }
        )
    return pd.DataFrame(rows)


def _predict_sources(
    sources: Iterable[str], published: PublishedRuns, folder: Path, refitted: Iterable[str] | None = None
) -> pd.DataFrame:
    """Predict the published runs of the given sources.

    Sources in `refitted`, by default all, also have predictions with constants fitted without their source.
    """
    frames, source_rows = dict[str, pd.DataFrame](), dict[str, list[RunRow]]()
    for source in sources:
        table, rows = read_rows(folder / "measured" / f"{source}.csv")
        out = predict_rows(rows, None, folder, prudent=True)
        frame = joined(source, table, rows, out).assign(number=range(1, len(rows) + 1), left_out_s=np.nan)
        timed = np.isfinite(frame["predicted_s"]) & np.isfinite(frame["measured_s"])
        timed_rows = [row for row, is_timed in zip(rows, timed, strict=True) if is_timed]
        frames[source], source_rows[source] = frame.assign(timed=timed), list(settled(timed_rows, out[timed]))
    refit = Refit(source_rows, published.fitted, folder)
    for source in frames if refitted is None else refitted:
        frame, times_s = frames[source], refit.times_s(source)
        if times_s is not None:
            frame.loc[frame["timed"], "left_out_s"] = times_s
    return pd.concat(frames.values(), ignore_index=True)


def _left_out_error(runs: pd.DataFrame) -> float:
    """Mean absolute error of runs whose source is held out; NaN without a refit."""
    return float((runs["left_out_s"] / runs["measured_s"] - 1).abs().mean())


def _fitted_constants(
    sources: Sequence[str], published: PublishedRuns, folder: Path
) -> list[dict[str, object]]:
    """Rows of table `FittedConstants`, for constants fitted to at least one of the sources."""
    return [
        {"of": owner, "key": c.key, "value": value, "sources": ", ".join(c.sources)}
        for c in published.fitted
        if set(c.sources) & set(sources)
        for owner, value in values_of(c, folder).items()
    ]


def _tool_errors(runs: pd.DataFrame, published: PublishedRuns, folder: Path) -> list[dict[str, object]]:
    """Rows of table `ToolErrors`: errors of another tool and of phaze on the runs that the tool predicts."""
    printed = pd.read_csv(folder / TOOLS)
    both = printed.merge(runs, on=["source", "label"], suffixes=("_tool", ""))
    return [
        {"tool": tool, "source": source, "rows": len(tool_runs), "published": published.tools[str(tool)]}
        | _errors(tool_runs)
        for (tool, source), tool_runs in both.groupby(["tool", "source"])
    ]


def _errors(runs: pd.DataFrame) -> dict[str, object]:
    """Mean and largest errors of a tool and of phaze over the same runs, in time and memory."""
    tool, ours = ((runs[f"predicted_s{of}"] / runs["measured_s"] - 1).abs() for of in ("_tool", ""))
    tool_gib, our_gib = (
        (runs[f"predicted_gib{of}"] / runs["measured_gib"] - 1).abs() for of in ("_tool", "")
    )
    return {
        "error": tool.mean(),
        "ours": ours.mean(),
        "worst": tool.max(),
        "our_worst": ours.max(),
        "memory_error": tool_gib.mean(),
        "our_memory_error": our_gib.mean(),
    }
