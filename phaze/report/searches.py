"""The search: what the trials of strategies say, side by side, and the paper's walk down the areas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from phaze.base.ranking import name_ranks, order, tied
from phaze.report import search_charts
from phaze.report.document import Block, Cell, Chart, Prose, Section, Sheet, sheet_of
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs
from phaze.report.search_charts import WALK, curves
from phaze.report.words import times
from phaze.tables import MILESTONES, Searches, Walks


def optima(trials: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return the largest throughput by (model, scope), as the certified strategy proves it."""
    proven = trials[trials["strategy"] == "certified"]
    return {
        (str(model), str(scope)): float(mine["samples_per_s"].max())
        for (model, scope), mine in proven.groupby(["model", "scope"])
    }


def choose_by_hysteresis(trials: pd.DataFrame) -> pd.DataFrame:
    """Return table walks: what the walk down the areas chooses at every level, among what it visits."""
    walks = trials[trials["strategy"].str.startswith(WALK)]
    rows = [
        {
            **_best(seen)[["architecture", "area_um2", "samples_per_s"]],
            "model": model,
            "scope": scope,
            "hysteresis": int(str(strategy).removeprefix(WALK)),
            "visited": len(seen),
        }
        for (model, scope, strategy), seen in walks.groupby(["model", "scope", "strategy"])
    ]
    return Walks.check(pd.DataFrame(rows)[list(Walks.fields())]) if rows else Walks.empty()


def _best(seen: pd.DataFrame) -> pd.Series:
    """Return the best of what was evaluated: throughput, then area, then name."""
    with np.errstate(divide="ignore"):
        cost = 1.0 / seen["samples_per_s"].to_numpy()
    first = order(cost, seen["area_um2"].to_numpy(), name_ranks(seen["architecture"]))[0]
    best: pd.Series = seen.iloc[first]
    return best


def summarise_searches(trials: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Return table searches, of what searches everything; none of a model that fits nowhere."""
    best = optima(trials)
    whole = trials[trials["scope"] == "whole"]
    rows = [
        {"model": model, "strategy": strategy, **_summary(mine, best[str(model), "whole"], tolerance)}
        for (model, strategy), mine in whole.groupby(["model", "strategy"])
        if (model, "whole") in best
    ]
    return Searches.check(pd.DataFrame(rows)) if rows else Searches.empty()


def _summary(trials: pd.DataFrame, optimum: float, tolerance: float) -> dict[str, float]:
    """Return what all runs of a strategy have in common."""
    runs = list(curves(trials))
    near = [_first(run >= (1.0 - tolerance) * optimum) for run in runs]
    optimal = [_first(tied(run) >= tied(np.array([optimum]))) for run in runs]
    best_after = {m: [run[min(m, len(run)) - 1] for run in runs] for m in MILESTONES}
    return {
        "seeds": len(runs),
        "evaluations": int(np.median([len(run) for run in runs])),
        **{f"after_{m}": float(np.median(found)) / optimum for m, found in best_after.items()},
        "final": float(np.median([run[-1] for run in runs])) / optimum,
        "near": float(np.median(near)),
        "optimal": float(np.median(optimal)),
        "share_near": float(np.isfinite(near).mean()),
        "share_optimal": float(np.isfinite(optimal).mean()),
    }


def _first(reached: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Return after how many evaluations this first holds, infinite if never."""
    return float(np.argmax(reached)) + 1.0 if reached.any() else np.inf


_FIGURE_8 = {
    "recomputing": "smallest microbatch, largest HBM, recomputation (Figure 8)",
    "least-microbatch": "smallest microbatch (Figure 9)",
}
"""What the walks of the paper's figures search, by scope."""


def searches(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on search strategies, a figure and a table for each model that was compared."""
    blocks: list[Block] = []
    best, whole = optima(inputs.trials), inputs.trials[inputs.trials["scope"] == "whole"]
    for model, table in findings.searches.groupby("model", sort=False):
        trials, optimum = whole[whole["model"] == model], best[str(model), "whole"]
        blocks += [
            Chart(
                f"strategies-{_file_name(model)}",
                f"What search strategies find for {model}, by exact evaluations",
                "Throughput of the best architecture found so far over that of the certified optimum. A run "
                "that has ended keeps what it found.",
                partial(search_charts.strategies, trials, optimum, inputs.study.screen.tolerance),
            ),
            _searches_sheet(str(model), table),
        ]
    if blocks:
        about = "The best that each strategy has found after so many exact evaluations, on equal estimates."
        yield Section("strategies", "Search strategies", about, (*blocks, Prose(_HOW)))


def _file_name(model: object) -> str:
    return str(model).replace(".", "-")


_HOW = (
    "An exact evaluation is the throughput of one architecture, the best over HBM, recomputation, TMP "
    "widths and microbatches, with exact schedules and placement; it counts once for a run, however often "
    "it is asked for. Certified has bounds of every architecture from the screen, which are not counted; "
    "it evaluates what they cannot exclude, and then it has a proof, while no other strategy knows how far "
    "it is from the optimum. Hysteresis is Algorithm 1 of the Phaze paper, random draws without "
    "replacement, and Bayesian is the tree-structured Parzen estimator of Optuna on the places of the sizes "
    "in the grid; a combination that the area rules leave out costs it no evaluation, only one of its "
    "suggestions."
)


def _searches_sheet(model: str, table: pd.DataFrame) -> Sheet:
    # first what knows the optimum, then the paper's walks, then what depends on chance
    places = table["strategy"].map({"certified": 0, "random": 2, "bayesian": 3}).fillna(1)
    rows = table.loc[places.sort_values(kind="stable").index]
    columns: dict[str, Cell] = {
        "strategy": "{strategy}", "runs": "{seeds}", "evaluations": "{evaluations:,}",
        **{f"best after {milestone:,}": f"{{after_{milestone}:percent2}}" for milestone in MILESTONES},
        "at the end": "{final:percent2}", "near after": lambda row: _count(row["near"]),
        "optimum after": lambda row: _count(row["optimal"]), "runs that find it": "{share_optimal:percent0}",
    }  # fmt: skip
    caption = (
        f"Search strategies for {model}, relative to the certified optimum, medians over the runs; a run "
        "that ends earlier keeps its best; near is within the tolerance of the study"
    )
    return sheet_of(caption, rows, columns, 1, rows["strategy"] == "certified", "searches")


def _count(evaluations: float) -> str:
    return f"{evaluations:,.0f}" if np.isfinite(evaluations) else "–"


def walk(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the walk down the areas, two figures for each model that walked."""
    blocks: list[Block] = []
    for model, walks in findings.walks.groupby("model", sort=False):
        blocks += _walk_blocks(inputs, str(model), walks)
        blocks += _level_blocks(inputs, str(model), walks)
    if blocks:
        about = (
            "Algorithm 1 visits architectures by decreasing area until throughput falls so often in a row."
        )
        yield Section("walk", "The walk down the areas", about, tuple(blocks))


def _walk_blocks(inputs: Inputs, model: str, walks: pd.DataFrame) -> Iterator[Block]:
    """Yield Figure 9: the smallest microbatch."""
    chosen = walks[walks["scope"] == "least-microbatch"]
    optimum = optima(inputs.trials).get((model, "least-microbatch"))
    if optimum is not None:
        yield Chart(
            f"walk-{_file_name(model)}",
            f"The walk down the areas for {model}: area, size of a tensor core, throughput",
            "Every architecture visited with the largest hysteresis, at the smallest microbatch; rings are "
            "what each level chooses.",
            partial(
                search_charts.walk, _visits(inputs, model), chosen, optimum, inputs.cluster.area_limit_um2
            ),
        )
    printed = inputs.published.walks.get(model, {}) if inputs.published else {}
    columns: dict[str, Cell] = {
        "hysteresis": "{hysteresis}", "chosen": "{architecture}",
        "paper": lambda row: printed.get(int(row["hysteresis"]), "–"), "area": "{area_um2:area}",
        "samples/s": "{samples_per_s:digits4}", "visited": "{visited:,}",
    }  # fmt: skip
    beside = _printed_in(inputs, "walk") if printed else ""
    caption = f"What each hysteresis level chooses for {model}{beside}"
    yield sheet_of(caption, chosen, columns, 3, source="walks")


def _printed_in(inputs: Inputs, figure: str) -> str:
    """Return where the numbers beside ours are printed."""
    return f" beside {inputs.published.sources.get(figure, 'the paper')}" if inputs.published else ""


def _visits(inputs: Inputs, model: str) -> pd.DataFrame:
    """Return what the longest walk visits, with the size of a tensor core."""
    every, chips = inputs.trials, inputs.cluster.architectures.drop_duplicates("architecture")
    mine = every[(every["model"] == model) & (every["scope"] == "least-microbatch")]
    longest = mine[mine["strategy"] == "hysteresis-8"]
    pes = chips["pe_x"] * chips["pe_y"]
    return longest.assign(pes=longest["architecture"].map(pes.set_axis(chips["architecture"])))


def _level_blocks(inputs: Inputs, model: str, walks: pd.DataFrame) -> Iterator[Block]:
    """Yield Figure 8: what every level visits, and how near it comes."""
    best = optima(inputs.trials)
    shown = {
        label: rows.assign(relative=rows["samples_per_s"] / best[model, scope])
        for scope, label in _FIGURE_8.items()
        if (model, scope) in best and len(rows := walks[walks["scope"] == scope])
    }
    if not shown:
        return
    yield Chart(
        f"levels-{_file_name(model)}",
        f"What the hysteresis level costs and brings for {model}",
        "The paper shows convergence time; every architecture visited is estimated, scheduled and placed.",
        partial(search_charts.levels, shown),
    )
    printed, rows = inputs.published.walk_savings if inputs.published else {}, next(iter(shown.values()))
    longest = rows["visited"].max()
    columns: dict[str, Cell] = {
        "hysteresis": "{hysteresis}", "visited": "{visited:,}",
        "fewer than at the largest": lambda row: times(longest / row["visited"]),
        "paper, time": lambda row: times(printed.get(int(row["hysteresis"]), 0.0)),
        "of the optimum": "{relative:percent2}",
    }  # fmt: skip
    beside = _printed_in(inputs, "walk_savings") if printed else ""
    caption = (
        f"What each hysteresis level saves for {model} at the smallest microbatch, with the largest HBM and "
        f"recomputation{beside}, which is over all models"
    )
    yield sheet_of(caption, rows, columns, 1, source="walks")


PARTS: tuple[Part, ...] = (searches, walk)
"""The sections in order."""
