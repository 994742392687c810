"""Sections of the page of measured runs, and the section on them in a study's report."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from phaze.report import style
from phaze.report.document import Cell, Chart, Gallery, Prose, Section, Sheet, sheet_of
from phaze.report.measured.inputs import MeasuredInputs
from phaze.tables import ALL_SOURCES

COLOURS = (
    style.BLUE, style.AMBER, style.TEAL, style.RED, style.PURPLE, style.SKY, style.SAND, style.GREY,
    style.INK, style.SILVER,
)  # fmt: skip
MARKS = "osD^v"
NEAR = 0.15
"""Shaded band around the measured time, as a share of it."""


def scatter(runs: pd.DataFrame) -> Figure:
    """Draw predicted against measured times in s, one point per run, coloured by source."""
    figure, (ax,) = style.axes(6.5, 5.6)
    ends = np.array([runs["measured_s"].min() / 1.3, runs["measured_s"].max() * 1.3])
    ax.fill_between(ends, ends * (1 - NEAR), ends * (1 + NEAR), color=style.GRID, label="within 15 %")
    ax.plot(ends, ends, color=style.MUTED, linewidth=0.8)
    for number, (source, mine) in enumerate(_by_rows(runs)):
        ax.plot(
            mine["measured_s"], mine["predicted_s"], MARKS[number % len(MARKS)], ms=3, alpha=0.7,
            markeredgewidth=0, color=COLOURS[number % len(COLOURS)], label=source,
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("measured, seconds a batch")
    ax.set_ylabel("predicted")
    ax.grid(visible=True)
    return style.legend_above(figure, ax, 3)


def _by_rows(runs: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Sources with their runs; the largest first, so that smaller ones are drawn on top."""
    each = [(str(source), mine) for source, mine in runs.groupby("source")]
    return sorted(each, key=lambda pair: -len(pair[1]))


def ratios(runs: pd.DataFrame) -> Figure:
    """Draw predicted over measured times, one row per source: each run, the median and the middle half."""
    sources = list(dict.fromkeys(runs["source"]))
    figure, (ax,) = style.axes(style.WIDE, 0.8 + 0.3 * len(sources))
    for row, source in enumerate(sources):
        mine = runs.loc[runs["source"] == source, "ratio"].to_numpy(float)
        spread = (np.arange(len(mine)) * 0.618) % 1 * 0.6 - 0.3  # even and deterministic
        ax.plot(100 * (mine - 1), row + spread, "o", ms=2, alpha=0.5, markeredgewidth=0, color=style.SKY)
        low, middle, high = 100 * (np.quantile(mine, [0.25, 0.5, 0.75]) - 1)
        ax.plot([low, high], [row, row], color=style.BLUE, linewidth=2)
        ax.plot([middle], [row], "|", color=style.RED, ms=9)
    ax.axvline(0, color=style.MUTED, linewidth=0.8)
    style.name_rows(ax, sources)
    ax.set_xlabel("% that the predicted time is above the measured")
    return figure


WORST = 10
"""Number of worst runs and of worst groups shown."""
_ERRORS: dict[str, Cell] = {
    "source": "{source}", "runs": "{rows}", "answered": "{answered}", "mean error": "{mean_error:percent}",
    "median": "{median_error:percent}", "bias": lambda row: _signed(row["bias"]),
    "P90": "{p90_error:percent}", "worst": "{worst_error:percent}", "within 10 %": "{within_10:percent}",
    "within 15 %": "{within_15:percent}", "fitted without it": "{left_out_error:percent}",
    "in 80 % interval": "{covered:percent}", "memory": "{memory_error:percent}",
    "in its range": "{memory_covered:percent}", "fits or not, right": "{verdicts:percent}",
    "Spearman": "{rank_correlation:digits}",
    "in groups": "{group_correlation:digits}", "regret": "{regret:percent}",
    "worst regret": "{worst_regret:percent}",
}  # fmt: skip


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %" if abs(share) < float("inf") else "–"


def scores_sheet(scores: pd.DataFrame, source: str = "") -> Sheet:
    """Table of scores by source, with all runs last; `source` names the downloadable table."""
    last = scores["source"] == ALL_SOURCES
    shown = pd.concat([scores[~last], scores[last]])
    caption = (
        "Predicted over measured time of a batch, as shares of the measured: mean absolute error and others, "
        "memory of the fullest device, ranks of layouts, and the time lost by the layout predicted fastest"
    )
    return sheet_of(caption, shown, _ERRORS, 1, (shown["source"] == ALL_SOURCES).tolist(), source)


def measured_section(scores: pd.DataFrame) -> Iterator[Section]:
    """Section on measured runs in a study's report; none without sources."""
    if len(scores):
        about = (
            "Published training runs, predicted by the price that plans have; validate.html shows them all."
        )
        yield Section("measured", "Beside measured runs", about, (scores_sheet(scores, "source_scores"),))


def sections_of(inputs: MeasuredInputs) -> Iterator[Section]:
    """Sections of the page below its first screen."""
    runs = inputs.timed
    charts = (
        Chart(
            "measured-runs", "Predicted against measured time, a point a run",
            "Both axes are logarithmic; the band is 15 % around the measured time.",
            partial(scatter, runs),
        ),
        Chart(
            "measured-ratios", "Errors by source",
            "A point a run; the bar holds the middle half, the red line is the median.",
            partial(ratios, runs),
        ),
    )  # fmt: skip
    about = "Every run of the sources; validate -o FILE writes them with their intervals."
    yield Section("runs", "Runs", about, (Gallery(charts),))
    yield _fitted(inputs)
    yield _tools(inputs)
    yield _worst(runs)
    yield _choices(inputs.group_regrets)


def _fitted(inputs: MeasuredInputs) -> Section:
    columns: dict[str, Cell] = {
        "of": "{of}", "constant": "{key}", "fitted to": "{sources}", "value": "{value:digits}",
    }  # fmt: skip
    sheet = sheet_of(
        "Constants that are fitted to measured runs", inputs.fitted_constants, columns, 3,
        source="fitted_constants",
    )  # fmt: skip
    told = Prose(
        "The column “fitted without it” of the scores is the mean error of a source with these constants "
        "fitted again to their other sources; where a constant is known from one source alone, it stays, and "
        "a source that shares none with another has no such error. Other constants are published or assumed, "
        "as their files in config say."
    )
    return Section("fitted", "What is fitted to what", "And what each source says of itself.", (sheet, told))


def _tools(inputs: MeasuredInputs) -> Section:
    columns: dict[str, Cell] = {
        "tool": "{tool}", "source": "{source}", "published in": "{published}", "runs": "{rows}",
        "its mean error": "{error:percent}", "ours": "{ours:percent}", "its worst": "{worst:percent}",
        "our worst": "{our_worst:percent}", "its memory": "{memory_error:percent}",
        "our memory": "{our_memory_error:percent}",
    }  # fmt: skip
    sheet = sheet_of("Errors of the same runs", inputs.tool_errors, columns, 3, source="tool_errors")
    about = "Predictions that other tools publish of some of these runs, beside ours."
    return Section("tools", "Other tools", about, (sheet,))


def _worst(runs: pd.DataFrame) -> Section:
    columns: dict[str, Cell] = {
        "source": "{source}", "row": "{number}", "run": "{label}", "layout": "{parallelism}",
        "measured": "{measured_s:seconds}", "predicted": "{predicted_s:seconds}",
        "off": lambda row: _signed(row["ratio"] - 1),
        "interval": "{time_low_s:seconds} to {time_high_s:seconds}",
    }  # fmt: skip
    furthest = (runs["ratio"] - 1).abs().sort_values(ascending=False, kind="stable").index[:WORST]
    sheet = sheet_of(f"The {WORST} runs furthest off", runs.loc[furthest], columns, 4, source="measured_runs")
    return Section("worst", "Furthest off", "Runs that are predicted worst, and their intervals.", (sheet,))


def _choices(groups: pd.DataFrame) -> Section:
    columns: dict[str, Cell] = {
        "group": "{group}", "layouts": "{layouts}", "Spearman": "{correlation:digits}",
        "fastest": "{fastest_s:seconds}", "the predicted fastest": "{chosen_s:seconds}",
        "regret": "{regret:percent}",
    }  # fmt: skip
    worst = groups.sort_values("regret", ascending=False, kind="stable")
    sheets = (
        sheet_of(f"The {WORST} groups that lose most", worst.head(WORST), columns, source="group_regrets"),
        sheet_of("All groups", groups, columns, source="group_regrets", folded=True),
    )
    lost = float((groups["regret"] > 0).mean()) if len(groups) else 0.0
    told = Prose(
        f"In {100 * (1 - lost):.0f} % of {len(groups)} groups the layout that is predicted fastest is the "
        "fastest measured one."
    )
    about = (
        "Measured layouts of one model, batch and number of devices: what taking the predicted fastest costs."
    )
    return Section("choices", "Choices", about, (told, *sheets))
