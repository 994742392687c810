"""Scoreboard of measured runs by source: errors in time and memory, and their effect on layout choice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.plan.plan import Machine
from phaze.plan.terms.memory import OK, UNFIT
from phaze.spec.files import FOLDER
from phaze.tables import ALL_MEASURED, ALL_SOURCES, GroupRegrets, SourceScores
from phaze.validate.intervals import INTERVAL, with_intervals
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.run_kinds import KEYS
from phaze.validate.table import measured_of, predict_rows, rank_correlation

MEASURED = FOLDER / "measured"
"""Folder of published runs, one CSV file per source."""
SAME = ("model", "hidden", "heads", "layers", "seq", "vocab", "gpus", "global_batch", "system")
"""Columns that define a group of comparable layouts, if present; so do stack, precision, and the number of
multi-token prediction layers, which are work of their own."""
LEFT_OUT = "left_out_error"
"""Column with a source's error if constants are fitted without it (held out)."""
LEAST_IN_GROUP = 3
"""Minimum number of runs in a group whose runs have one release of the software."""


def scoreboard(runs: pd.DataFrame, simulated: Collection[str] = ()) -> pd.DataFrame:
    """Table `SourceScores` from runs with intervals, one row per source; nan where a value is unknown.

    Several sources get a row of all runs, and a row without sources whose times look simulated if only some
    do.
    """
    lines = [str(source) for source in runs["source"].unique()]
    if len(lines) > 1:
        both = 0 < len(set(lines) - set(simulated)) < len(lines)
        lines += [ALL_MEASURED] * both + [ALL_SOURCES]
    groups = groups_of(runs)
    scores = [score(line, rows_of(line, runs, simulated), rows_of(line, groups, simulated)) for line in lines]
    return pd.DataFrame(scores, columns=[name for name in SourceScores.fields() if name != LEFT_OUT])


def rows_of(line: str, table: pd.DataFrame, simulated: Collection[str] = ()) -> pd.DataFrame:
    """Rows of a table that belong to one line of the scoreboard, selected by column `source`."""
    if line == ALL_SOURCES:
        return table
    if line == ALL_MEASURED:
        return table[~table["source"].isin(simulated)]
    return table[table["source"] == line]


def predict_files(paths: Sequence[Path], machine: Machine | None = None) -> pd.DataFrame:
    """Predict the runs of several files, next to their measurements (see `predicted_runs`)."""
    return pd.concat([predicted_runs(path, machine) for path in paths], ignore_index=True)


def runs_with_intervals(runs: pd.DataFrame, folder: Path = FOLDER) -> pd.DataFrame:
    """Add prediction intervals to the runs of several sources, each from the errors of the other sources."""
    sources = runs.groupby("source", sort=False)
    frames = [with_intervals(frame, "predicted_s", str(source), folder) for source, frame in sources]
    return pd.concat(frames, ignore_index=True)


def measured_files() -> list[Path]:
    """Paths of the files of published runs, sorted by name."""
    return sorted(MEASURED.glob("*.csv"))


def predicted_runs(path: Path, machine: Machine | None = None) -> pd.DataFrame:
    """Table of predictions and measurements for the runs of a file, one row per run.

    Columns are source, label, group, layout (a number, equal for repeats of a run), release, the properties
    that make runs similar (`intervals.KEYS`), mfu, predicted_s, prudent_s, measured_s, predicted_gib,
    measured_gib, the range of the memory, outcome and status.
    """
    table, rows = read_rows(path)
    if not rows:
        raise PhazeError(
            f"{path}: has no run below its headings; write one run per row, see config/formats.md"
        )
    return joined(path.stem, table, rows, predict_rows(rows, machine, prudent=True))


def joined(source: str, table: pd.DataFrame, rows: Sequence[RunRow], out: pd.DataFrame) -> pd.DataFrame:
    """Combine a table of runs with the predictions of `predict_rows` (columns: see `predicted_runs`)."""
    same = table[[name for name in SAME if name in table.columns]]
    same = same.assign(**{name: out[name].fillna("") for name in ("stack", "precision")})
    same = same.assign(mtp=[max((run.mtp for run in row.runs), default=0) for row in rows])
    layouts = {row.runs: number for number, row in enumerate(rows)}
    return pd.DataFrame(
        {
            "source": source,
            "label": table["label"] if "label" in table else [str(row + 2) for row in range(len(table))],
            "group": [_group(source, same.columns, texts) for texts in same.to_numpy()],
            "layout": [layouts[row.runs] for row in rows],
            "release": [row.release or row.date for row in rows],
            **{key: out[key].fillna("") for key in KEYS},
            "mfu": out["mfu"].astype(float),
            "years": out["years"].astype(float),
            "devices": out["devices"].fillna(0).astype(int),
            "calibrated": out["calibrated"],
            "predicted_s": out["time_s"].astype(float),
            "prudent_s": out["prudent_s"].astype(float),
            "measured_s": measured_of(rows, "measured_s"),
            "predicted_gib": out["memory_gib"].astype(float),
            "measured_gib": measured_of(rows, "measured_gib"),
            "memory_low_gib": out["memory_low_gib"].astype(float),
            "memory_high_gib": out["memory_high_gib"].astype(float),
            "outcome": [row.outcome for row in rows],
            "status": out["status"],
        }
    )


def _group(source: str, same: Iterable[str], texts: Iterable[str]) -> str:
    """Name of a group of layouts: its source, and the values of the columns that define it."""
    return f"{source}: " + ", ".join(f"{name} {text}" for name, text in zip(same, texts, strict=True))


def groups_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Table `GroupRegrets`: rank correlation per group, and time lost by the predicted best layout.

    A group has at least two layouts. A layout that was measured several times has its least time. Groups of
    several releases are smaller, and their layouts also differ by the release, which no mean should mix with
    the others.
    """
    timed = runs[np.isfinite(runs["predicted_s"]) & np.isfinite(runs["measured_s"])]
    rows = []
    grouped = timed.groupby(["source", "group"], sort=False)
    named, sizes = grouped[["layout", "release"]].nunique(), grouped.size()
    compared = (named["layout"] > 1) & ((named["release"] > 1) | (sizes >= LEAST_IN_GROUP))
    for source, group in named.index[compared]:
        members = grouped.get_group((source, group))
        layouts = members.groupby("layout", sort=False)[["predicted_s", "prudent_s", "measured_s"]].min()
        releases = int(named.loc[(source, group), "release"])
        figures = {
            "layouts": len(layouts),
            "releases": releases,
            "correlation": _correlation(layouts),
            "fastest_s": float(layouts["measured_s"].min()),
            "chosen_s": _chosen_s(layouts, "predicted_s"),
            "prudently_chosen_s": _chosen_s(layouts, "prudent_s"),
        }
        rows.append({"source": source, "group": group} | figures)
    table = pd.DataFrame(rows, columns=[name for name in GroupRegrets.fields() if name != "regret"])
    return table.assign(regret=table["chosen_s"] / table["fastest_s"] - 1)


def _chosen_s(runs: pd.DataFrame, by: str) -> float:
    """Measured time of the run with the smallest time in column `by`."""
    return float(runs["measured_s"].to_numpy()[np.argmin(runs[by].to_numpy())])


def score(source: str, runs: pd.DataFrame, every_group: pd.DataFrame) -> dict[str, object]:
    """Row of table `SourceScores` for runs and their groups (`groups_of`), without the held-out error."""
    timed = runs[np.isfinite(runs["predicted_s"]) & np.isfinite(runs["measured_s"])]
    low, high = INTERVAL
    errors = (timed["predicted_s"] / timed["measured_s"] - 1).to_numpy(float)
    absolute = np.abs(errors)
    bounded = timed[timed[high].notna()]
    width_s = bounded[high] - bounded[low]
    high_s = bounded["prudent_s"] * bounded[high] / bounded["predicted_s"]
    sizes = (runs["predicted_gib"] / runs["measured_gib"] - 1).dropna().to_numpy(float)
    weighed = runs[runs["predicted_gib"].notna() & runs["measured_gib"].notna()]
    inside = weighed["measured_gib"].between(weighed["memory_low_gib"], weighed["memory_high_gib"])
    judged = runs[runs["predicted_gib"].notna() & (runs["measured_gib"].notna() | (runs["outcome"] == "oom"))]
    wrong = np.where(judged["outcome"] == "ok", UNFIT, OK)
    # A status in between (memory may not suffice) counts as right for both outcomes.
    right = [not status.startswith(other) for status, other in zip(judged["status"], wrong, strict=True)]
    groups, across = (every_group[(every_group["releases"] > 1) == several] for several in (False, True))
    within, lost = (groups[name].to_numpy(float) for name in ("correlation", "regret"))
    prudently = (groups["prudently_chosen_s"] / groups["fastest_s"] - 1).to_numpy(float)
    lost_across = across["regret"].to_numpy(float)
    reasons = runs.loc[runs["status"].str.startswith("invalid"), "status"].value_counts()
    return {
        "source": source,
        "rows": len(runs),
        "answered": len(timed),
        "mean_error": _stat(np.mean, absolute),
        "median_error": _stat(np.median, absolute),
        "bias": _stat(np.mean, errors),
        "p90_error": _stat(lambda values: np.quantile(values, 0.9), absolute),
        "worst_error": _stat(np.max, absolute),
        "within_10": _stat(np.mean, (absolute <= 0.1).astype(float)),
        "within_15": _stat(np.mean, (absolute <= 0.15).astype(float)),
        "intervals": len(bounded),
        "covered": _stat(np.mean, bounded["measured_s"].between(bounded[low], bounded[high]).to_numpy(float)),
        "interval_width": _stat(np.mean, (width_s / bounded["predicted_s"]).to_numpy(float)),
        "within_prudent": _stat(np.mean, (timed["measured_s"] <= timed["prudent_s"]).to_numpy(float)),
        "prudent_over_expected": _stat(
            np.median, (timed["prudent_s"] / timed["predicted_s"]).to_numpy(float)
        ),
        "within_high": _stat(np.mean, (bounded["measured_s"] <= high_s).to_numpy(float)),
        "high_over_expected": _stat(np.median, (high_s / bounded["predicted_s"]).to_numpy(float)),
        "memory_error": _stat(np.mean, np.abs(sizes)),
        "memory_bias": _stat(np.mean, sizes),
        "memory_covered": _stat(np.mean, np.array(inside, float)),
        "verdicts": _stat(np.mean, np.array(right, float)),
        "rank_correlation": _correlation(timed),
        "groups": len(groups),
        "group_correlation": _stat(np.mean, within[np.isfinite(within)]),
        "regret": _stat(np.mean, lost),
        "worst_regret": _stat(np.max, lost),
        "prudent_regret": _stat(np.mean, prudently),
        "release_groups": len(across),
        "release_regret": _stat(np.mean, lost_across),
        "worst_release_regret": _stat(np.max, lost_across),
        "refused": "; ".join(
            f"{count} × {str(reason).removeprefix('invalid: ')}" for reason, count in reasons.items()
        ),
    }


def _stat(statistic: Callable[[Floats], object], values: Floats) -> float:
    return float(statistic(values)) if len(values) else float("nan")  # type: ignore[arg-type]


def _correlation(runs: pd.DataFrame) -> float:
    return rank_correlation(runs["predicted_s"].to_numpy(float), runs["measured_s"].to_numpy(float))
