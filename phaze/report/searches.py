"""Comparison of search strategies, and the paper's walk down the areas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phaze.base.arrays import Floats
from phaze.base.ranking import Ranks, name_ranks, order, tied
from phaze.base.units import UM2_PER_MM2
from phaze.report.document import Block, Cell, Chart, Prose, Section, sheet_of
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs, table_of
from phaze.report.style import AMBER, BLUE, GREY, INK, PURPLE, RED, TEAL, WIDE, axes, legend_above
from phaze.report.words import file_name
from phaze.tables import MILESTONES, Searches, Walks

WALK = "hysteresis-"
"""Prefix of the name of a walk down the areas; its hysteresis level follows."""


def optima(trials: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Largest throughput by (model, scope), proven by the certified strategy."""
    proven = trials[trials["strategy"] == "certified"]
    best = proven.groupby(["model", "scope"])["samples_per_s"]
    return {(str(model), str(scope)): float(found.max()) for (model, scope), found in best}


def choose_by_hysteresis(trials: pd.DataFrame) -> pd.DataFrame:
    """Table `walks`: the architecture chosen by the walk down the areas at each hysteresis level.

    It is the best visited one by throughput, then area, then name.
    """
    rows = []
    walks = trials[trials["strategy"].str.startswith(WALK)]
    for (model, scope, strategy), seen in walks.groupby(["model", "scope", "strategy"]):
        with np.errstate(divide="ignore"):
            cost = 1.0 / seen["samples_per_s"].to_numpy()
        best = seen.iloc[order(cost, seen["area_um2"].to_numpy(), name_ranks(seen["architecture"]))[0]]
        of = {"model": model, "scope": scope, "hysteresis": int(str(strategy).removeprefix(WALK))}
        rows.append({**best[["architecture", "area_um2", "samples_per_s"]], **of, "visited": len(seen)})
    return table_of(Walks, rows)


def summarise_searches(trials: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Table `searches`, for searches of the whole space; without models that nothing can train."""
    best = optima(trials)
    whole = trials[trials["scope"] == "whole"]
    rows = [
        {"model": model, "strategy": strategy, **_summary(mine, best[str(model), "whole"], tolerance)}
        for (model, strategy), mine in whole.groupby(["model", "strategy"])
        if (model, "whole") in best
    ]
    return table_of(Searches, rows)


def _summary(trials: pd.DataFrame, optimum: float, tolerance: float) -> dict[str, float]:
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
    """Number of evaluations until the flag is first True; inf if never."""
    return float(np.argmax(reached)) + 1.0 if reached.any() else np.inf


def searches(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on search strategies, with a figure and a table per compared model."""
    blocks: list[Block] = []
    best, whole = optima(inputs.trials), inputs.trials[inputs.trials["scope"] == "whole"]
    for model, table in findings.searches.groupby("model", sort=False):
        trials, optimum = whole[whole["model"] == model], best[str(model), "whole"]
        # first the certified strategy, then the paper's walks, then random strategies
        places = table["strategy"].map({"certified": 0, "random": 2, "bayesian": 3}).fillna(1)
        rows = table.loc[places.sort_values(kind="stable").index]
        caption = (
            f"Search strategies for {model}, relative to the certified optimum, medians over the runs; a run "
            "that ends earlier keeps its best; near is within the tolerance of the study"
        )
        figure = Chart(
            f"strategies-{file_name(model)}",
            f"What search strategies find for {model}, by exact evaluations",
            "Throughput of the best architecture found so far over that of the certified optimum. A run "
            "that has ended keeps what it found.",
            partial(found_by_strategies, trials, optimum, inputs.study.screen.tolerance),
        )
        marked = rows["strategy"] == "certified"
        blocks += [figure, sheet_of(caption, rows, _STRATEGY, 1, marked, "searches")]
    if blocks:
        about = "Throughput found by each search strategy over its exact evaluations, on equal estimates."
        yield Section("strategies", "Search strategies", about, (*blocks, Prose(_HOW)))


_STRATEGY: dict[str, Cell] = {
    "strategy": "{strategy}", "runs": "{seeds}", "evaluations": "{evaluations:,}",
    **{f"best after {milestone:,}": f"{{after_{milestone}:percent2}}" for milestone in MILESTONES},
    "at the end": "{final:percent2}", "near after": lambda row: _count(row["near"]),
    "optimum after": lambda row: _count(row["optimal"]), "runs that find it": "{share_optimal:percent0}",
}  # fmt: skip


def _count(evaluations: float) -> str:
    return f"{evaluations:,.0f}" if np.isfinite(evaluations) else "–"


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


_SCOPES = {
    "recomputing": "smallest microbatch, largest HBM, recomputation (Figure 8)",
    "least-microbatch": "smallest microbatch (Figure 9)",
}
"""Titles of the restricted spaces searched by the walks in the paper's figures."""


def walk(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the walk down the areas, with Figures 9 and 8 for each model with a walk."""
    blocks: list[Block] = []
    for model, walks in findings.walks.groupby("model", sort=False):
        optimum = {scope: best for (of, scope), best in optima(inputs.trials).items() if of == model}
        chosen = walks[walks["scope"] == "least-microbatch"]
        blocks += _choices(inputs, str(model), chosen, optimum.get("least-microbatch"))
        shown = {
            label: rows.assign(relative=rows["samples_per_s"] / optimum[scope])
            for scope, label in _SCOPES.items()
            if scope in optimum and len(rows := walks[walks["scope"] == scope])
        }
        blocks += _savings(str(model), shown) if shown else ()
    if blocks:
        about = (
            "Algorithm 1 visits architectures by decreasing area until throughput falls so often in a row."
        )
        yield Section("walk", "The walk down the areas", about, tuple(blocks))


def _choices(inputs: Inputs, model: str, chosen: pd.DataFrame, optimum: float | None) -> Iterator[Block]:
    """Figure 9: all architectures visited by the longest walk, and the choice of each level."""
    if optimum is not None:
        every, pes = inputs.trials, inputs.cluster.chips["pe_x"] * inputs.cluster.chips["pe_y"]
        longest = (every["scope"] == "least-microbatch") & (every["strategy"] == "hysteresis-8")
        visits = every[longest & (every["model"] == model)]
        visits = visits.assign(pes=visits["architecture"].map(pes))
        yield Chart(
            f"walk-{file_name(model)}",
            f"The walk down the areas for {model}: area, size of a tensor core, throughput",
            "Every architecture visited with the largest hysteresis, at the smallest microbatch; rings are "
            "what each level chooses.",
            partial(walked, visits, chosen, optimum, inputs.cluster.area_limit_um2),
        )
    columns: dict[str, Cell] = {
        "hysteresis": "{hysteresis}", "chosen": "{architecture}", "area": "{area_um2:area}",
        "samples/s": "{samples_per_s:digits4}", "visited": "{visited:,}",
    }  # fmt: skip
    yield sheet_of(f"What each hysteresis level chooses for {model}", chosen, columns, 2, source="walks")


def _savings(model: str, shown: dict[str, pd.DataFrame]) -> Iterator[Block]:
    """Figure 8: the number of architectures visited by each level, and its distance from the optimum."""
    yield Chart(
        f"levels-{file_name(model)}",
        f"What the hysteresis level costs and brings for {model}",
        "Every architecture visited is estimated, scheduled and placed.",
        partial(levels_reached, shown),
    )
    rows = next(iter(shown.values()))
    rows = rows.assign(saved=rows["visited"].max() / rows["visited"])
    columns: dict[str, Cell] = {
        "hysteresis": "{hysteresis}", "visited": "{visited:,}", "fewer than at the largest": "{saved:times}",
        "of the optimum": "{relative:percent2}",
    }  # fmt: skip
    caption = (
        f"What each hysteresis level saves for {model} at the smallest microbatch, with the largest HBM and "
        "recomputation"
    )
    yield sheet_of(caption, rows, columns, 1, source="walks")


PARTS: tuple[Part, ...] = (searches, walk)
"""Sections of this part, in order."""
MOST_POINTS = 90
"""Maximum number of points of a curve, evenly spaced in the logarithm of the evaluations."""
_CHANCE = {"random": TEAL, "bayesian": PURPLE}


def found_by_strategies(trials: pd.DataFrame, optimum: float, tolerance: float) -> Figure:
    """Draw the best throughput of each strategy against exact evaluations, relative to the optimum."""
    figure, (ax,) = axes(WIDE, 4.0)
    by_name = {str(name): mine for name, mine in trials.groupby("strategy")}
    for name, colour in _CHANCE.items():
        if name in by_name:
            _draw_runs(ax, name, [run / optimum for run in curves(by_name[name])], colour)
    levels = sorted(int(name.removeprefix(WALK)) for name in by_name if name.startswith(WALK))
    if levels:
        ends = {level: len(by_name[f"{WALK}{level}"]) for level in levels}
        longest = next(curves(by_name[f"{WALK}{levels[-1]}"])) / optimum
        _draw_walk(ax, longest, ends)
    sure = next(curves(by_name["certified"])) / optimum
    ax.plot(
        np.arange(1, len(sure) + 1), sure, color=BLUE, lw=2.4, marker="o", ms=6, markevery=[-1],
        label="certified, to its proof", zorder=4,
    )  # fmt: skip
    ax.axhline(1.0, color=INK, lw=0.8, label="certified optimum")
    ax.axhline(1.0 - tolerance, color=INK, lw=0.8, ls=":", label=f"within {tolerance:.0%} of it")
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_ylim(0, 1.06)
    ax.set_xlabel("exact evaluations")
    ax.set_ylabel("best found over the optimum")
    ax.grid()
    return legend_above(figure, ax, 3)


def _draw_runs(ax: Axes, name: str, runs: list[Floats], colour: str) -> None:
    """Draw the median and range over seeds; a finished run counts with its best."""
    at = _logarithmic(max(map(len, runs)))
    found = np.array([run[np.minimum(at, len(run)) - 1] for run in runs])
    ax.fill_between(at, found.min(axis=0), found.max(axis=0), color=colour, alpha=0.18, lw=0)
    label = f"{name}, median and range of {len(runs)} seeds"
    ax.plot(at, np.median(found, axis=0), color=colour, lw=1.8, label=label)


def _logarithmic(most: int) -> Ranks:
    """Numbers of evaluations from 1 to `most`, logarithmically spaced."""
    return np.unique(np.rint(np.geomspace(1, most, MOST_POINTS)).astype(np.int64))


def _draw_walk(ax: Axes, walk: Floats, ends: dict[int, int]) -> None:
    """Draw the walk down the areas with a mark at the end of each level.

    Of marks that are close together, only the first is numbered.
    """
    at = np.union1d(_logarithmic(len(walk)), list(ends.values()))
    ax.plot(at, walk[at - 1], color=AMBER, lw=1.8, label="hysteresis, marks: where levels 1 to 8 end")
    numbered = 0.0
    for level, end in ends.items():
        ax.plot(end, walk[end - 1], "s", color=AMBER, ms=5, zorder=5)
        if end >= 1.25 * numbered:
            ax.annotate(
                str(level), (end, walk[end - 1]), (4, -12), textcoords="offset points", ha="left",
                fontsize=8, color=AMBER, fontweight="bold",
            )  # fmt: skip
            numbered = end


def levels_reached(walks: dict[str, pd.DataFrame]) -> Figure:
    """Draw Figure 8: visits and throughput of each hysteresis level; `walks` is keyed by search space."""
    figure, (visited, reached) = axes(WIDE, 2.9, 1, 2)
    for (label, rows), (form, colour, size) in zip(
        walks.items(), (("o-", BLUE, 8), ("s--", TEAL, 4)), strict=False
    ):
        visited.plot(rows["hysteresis"], rows["visited"], form, color=colour, ms=size, label=label)
        reached.plot(rows["hysteresis"], rows["relative"], form, color=colour, ms=size, label=label)
    visited.set_yscale("log")
    visited.yaxis.set_major_formatter("{x:,.0f}")
    visited.set_title("architectures visited")
    reached.set_ylim(0, 1.06)
    reached.axhline(1.0, color=INK, lw=0.8)
    reached.set_title("throughput over the certified optimum")
    for ax in (visited, reached):
        ax.set_xticks(range(1, 1 + int(max(rows["hysteresis"].max() for rows in walks.values()))))
        ax.set_xlabel("hysteresis level")
        ax.grid()
    return legend_above(figure, visited, 2)


def walked(visits: pd.DataFrame, walks: pd.DataFrame, optimum: float, limit_um2: float) -> Figure:
    """Draw Figure 9: area, throughput and tensor-core size of all visited architectures; rings: chosen."""
    figure, (ax,) = axes(WIDE, 3.9)
    shown = visits.drop_duplicates(["area_um2", "pes", "samples_per_s"])
    shades = mpl.colormaps["viridis_r"](np.linspace(0.1, 0.95, shown["pes"].nunique()))
    for shade, (pes, some) in zip(shades, shown.groupby("pes"), strict=True):
        area_mm2, label = some["area_um2"] / UM2_PER_MM2, f"{pes:,} PEs a tensor core"
        ax.plot(area_mm2, some["samples_per_s"], "o", color=shade, ms=3.5, mew=0, label=label)
    for number, (_, rows) in enumerate(walks.groupby("architecture", sort=False)):
        chosen, levels = rows.iloc[0], ", ".join(str(level) for level in rows["hysteresis"])
        ax.plot(
            chosen["area_um2"] / UM2_PER_MM2, chosen["samples_per_s"], "osD^vP*X"[number % 8], ms=10,
            mfc="none", mec=RED, mew=1.6, label=f"chosen at hysteresis {levels}",
        )  # fmt: skip
    ax.axhline(optimum, color=INK, lw=0.8, label="certified optimum")
    ax.axvline(limit_um2 / UM2_PER_MM2, color=GREY, lw=0.9, ls=":", label="area limit")
    ax.invert_xaxis()
    ax.set_xlabel("area, mm² (the walk goes to the right)")
    ax.set_ylabel("samples/s")
    ax.grid()
    return legend_above(figure, ax, 4)


def curves(trials: pd.DataFrame) -> Iterator[Floats]:
    """Yield the best throughput after 1, 2, … evaluations for each seed, (evaluations,)."""
    for _, run in trials.groupby("seed"):
        yield run.sort_values("evaluation")["best_samples_per_s"].to_numpy(np.float64)
