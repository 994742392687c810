"""Tables for the page of measured runs: published runs with predictions.

Leave-one-source-out predictions are times of a source with constants fitted to the other sources. The
logarithm of a time is nearly linear in the logarithms of the constants, so a fit without a source is one
linear problem. The source is then predicted in full. Sources have equal weight, and some evenly spread rows
represent a long source. A constant that depends on one source only keeps its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER
from phaze.spec.measured import LIST, KnownFrom, PublishedRuns
from phaze.spec.systems import load_device, load_stack
from phaze.tables import FittedConstants, GroupRegrets, MeasuredRuns, SourceScores, Table, ToolErrors
from phaze.validate.constants import Constant, Site
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.scoreboard import groups_of, joined, rows_of, runs_with_intervals, scoreboard
from phaze.validate.table import measured_of, predict_rows, settled

MOST_ROWS = 40
"""Maximum number of rows per source in a fit."""
STEP = 0.01
"""Step in a constant's logarithm for finite differences."""
WIDTH, NOISE = 0.3, 0.05
"""Prior standard deviation of a constant's logarithm, and standard deviation of a source's mean error."""
Changes = Mapping[KnownFrom, float]
"""Change in the logarithm of each constant."""
TOOLS = "other-tools.csv"
"""File of other tools' predictions: tool, source, label, predicted_s, predicted_gib."""
ALL = "all"
"""Name for all sources together."""


@dataclass(frozen=True)
class Refit:
    """Measured rows by source, and constants to fit again with one source held out at a time."""

    rows: Mapping[str, Sequence[RunRow]]
    """Rows with a system, a measured time and a predicted time, by source."""
    fitted: Sequence[KnownFrom]
    folder: Path = FOLDER
    _logs_of: dict[tuple[str, KnownFrom | None], Floats] = field(default_factory=dict)
    """Cache of a source's log errors on representative rows, and of their derivatives by a constant."""

    def times_s(self, source: str) -> Floats | None:
        """Predicted times of a source with constants fitted to the others; None if no constant is shared."""
        shared = [c for c in self.fitted if source in c.sources and self._others(c, source)]
        if not shared:
            return None
        changes = dict(zip(shared, self._changes(shared, source).tolist(), strict=True))
        return np.exp(self._logs(self.rows[source], changes))

    def _others(self, constant: KnownFrom, source: str) -> list[str]:
        return [name for name in constant.sources if name != source and name in self.rows]

    def _changes(self, constants: Sequence[KnownFrom], source: str) -> Floats:
        """Least-squares changes in the logarithms of constants, (C,), fitted without a source."""
        # Prior: a change of WIDTH in a logarithm costs as much as an error of NOISE in all rows of one
        # source.
        factors, targets = [np.eye(len(constants)) / WIDTH], [np.zeros(len(constants))]
        for name in dict.fromkeys(name for c in constants for name in self._others(c, source)):
            errors = self._errors(name)
            effects = [self._effect(name, c) if name in c.sources else 0 * errors for c in constants]
            # The root gives every source the same weight, whatever its number of rows.
            scale = NOISE * np.sqrt(len(errors))
            factors.append(np.stack(effects, axis=1) / scale)
            targets.append(-errors / scale)
        return np.linalg.lstsq(np.vstack(factors), np.concatenate(targets))[0]

    def _errors(self, source: str) -> Floats:
        """Logarithms of predicted over measured times of a source's representative rows."""
        if (source, None) not in self._logs_of:
            rows = self._sampled_rows(source)
            self._logs_of[source, None] = self._logs(rows, {}) - np.log(measured_of(rows, "measured_s"))
        return self._logs_of[source, None]

    def _effect(self, source: str, constant: KnownFrom) -> Floats:
        """Derivatives of a source's log errors with respect to the logarithm of a constant."""
        if (source, constant) not in self._logs_of:
            rows = self._sampled_rows(source)
            ends = [self._logs(rows, {constant: step}) for step in (-STEP, 0.0)]
            self._logs_of[source, constant] = (ends[1] - ends[0]) / STEP
        return self._logs_of[source, constant]

    def _sampled_rows(self, source: str) -> list[RunRow]:
        rows = self.rows[source]
        return [rows[k] for k in np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int)]

    def _logs(self, rows: Sequence[RunRow], changes: Changes) -> Floats:
        """Logarithms of the predicted times of rows, with changed constants."""
        logs = np.zeros(len(rows))
        systems = [(row.system, row.stack) for row in rows]
        for system, stack in dict.fromkeys(systems):
            indices = [k for k, place in enumerate(systems) if place == (system, stack)]
            site = changed(Site.load(system, stack or None, self.folder), changes)
            # Names in a row would load the files again, without the changed constants.
            site_rows = [replace(rows[k], system="", stack="") for k in indices]
            logs[indices] = np.log(predict_rows(site_rows, site.machine)["time_s"].to_numpy(float))
        return logs


def changed(site: Site, changes: Changes) -> Site:
    """Site with changes to the constants of its own device and stack, each capped at its upper limit."""
    names = {"device": site.device.name, "stack": site.stack.name}
    values = {}
    for fitted, change in changes.items():
        if names[fitted.part] == fitted.of:
            constant = Constant(fitted.part, fitted.key, 0.0, fitted.most)
            values[constant] = min(site.value(constant) * float(np.exp(change)), fitted.most)
    return site.with_values(values)


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
        {"of": c.of, "key": c.key, "value": _value(c, folder), "sources": ", ".join(c.sources)}
        for c in published.fitted
        if set(c.sources) & set(sources)
    ]


def _value(constant: KnownFrom, folder: Path) -> float:
    """Value of a constant in its file; dots in the key lead to nested values."""
    noun = (load_device if constant.part == "device" else load_stack)(constant.of, folder)
    value: object = noun.model_dump()
    for key in constant.key.split("."):
        value = value[key] if isinstance(value, dict) else None
    if not isinstance(value, float | int):
        raise PhazeError(f"{LIST}: fitted: {constant.of} has no numeric constant {constant.key}")
    return float(value)


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
