"""Comparison of search strategies, and the paper's walk down the areas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.ranking import Ranks, name_ranks, order, tied
from phaze.base.units import UM2_PER_MM2
from phaze.report.document import Block, Cell, Chart, Prose, Section, sheet_of
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs, table_of
from phaze.report.style import AMBER, BLUE, PURPLE, RED, TEAL
from phaze.report.vega import WIDTH, coloured, panels, rule
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
            "that has ended keeps what it found. Bands are ranges over seeds. Numbers are the hysteresis "
            "levels, where they end; the dashed line is the tolerance.",
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
    "recomputing": "recomputing (Figure 8)",
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
            "what the levels with these numbers choose; the dashed line is the area "
            "limit, the other one the optimum.",
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
        "Every architecture visited is estimated, scheduled and placed. Microbatches are the smallest; "
        "recomputing with the largest HBM.",
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


def found_by_strategies(trials: pd.DataFrame, optimum: float, tolerance: float) -> alt.TopLevelMixin:
    """Draw the best throughput of each strategy against exact evaluations, relative to the optimum.

    A band is the range over seeds. Marks with numbers are where the levels of the walk end.
    """
    by_name = {str(name): mine for name, mine in trials.groupby("strategy")}
    levels = sorted(int(name.removeprefix(WALK)) for name in by_name if name.startswith(WALK))
    parts = [_range(name, by_name[name], optimum) for name in ("random", "bayesian") if name in by_name]
    if levels:
        ends = {len(by_name[f"{WALK}{level}"]): str(level) for level in reversed(levels)}
        walk = _range("hysteresis", by_name[f"{WALK}{levels[-1]}"], optimum, [*ends])
        parts.append(walk.assign(level=walk["evaluations"].map(ends)))
    sure = _range("certified", by_name["certified"], optimum)
    last = sure["evaluations"] == sure["evaluations"].max()
    rows = pd.concat([*parts, sure.assign(level=last.map({True: "proof", False: None}))])
    looks = {"random": TEAL, "bayesian": PURPLE, "hysteresis": AMBER, "certified": BLUE}
    base = alt.Chart(rows).encode(
        alt.X("evaluations:Q", title="exact evaluations", scale=alt.Scale(type="log", nice=False)),
        alt.Y("median:Q", title="best found over the optimum"),
        coloured("strategy", {name: looks[name] for name in looks if (rows["strategy"] == name).any()}),
        tooltip=[
            "strategy:N",
            "level:N",
            *(f"{name}:Q" for name in ("evaluations", "median", "low", "high")),
        ],
    )
    ends_only = base.transform_filter("isValid(datum.level)")
    return alt.layer(
        base.mark_area(opacity=0.18).encode(alt.Y("low:Q"), alt.Y2("high")),
        base.mark_line(strokeWidth=2),
        ends_only.mark_point(filled=True, opacity=1, shape="square", size=40),
        ends_only.mark_text(dy=14, fontWeight="bold").encode(text="level:N"),
        rule("y", 1.0),
        rule("y", 1.0 - tolerance, dashed=True),
    ).properties(width=WIDTH, height=320)


def _range(name: str, trials: pd.DataFrame, optimum: float, more: Sequence[int] = ()) -> pd.DataFrame:
    """Median and range over seeds; a finished run counts with its best, also after `more` evaluations."""
    runs = [run / optimum for run in curves(trials)]
    at = np.union1d(_logarithmic(max(map(len, runs))), np.array(more, dtype=np.int64))
    found = np.array([run[np.minimum(at, len(run)) - 1] for run in runs])
    return pd.DataFrame(
        {
            "strategy": name, "evaluations": at, "median": np.median(found, axis=0),
            "low": found.min(axis=0), "high": found.max(axis=0),
        }
    )  # fmt: skip


def _logarithmic(most: int) -> Ranks:
    """Numbers of evaluations from 1 to `most`, logarithmically spaced."""
    return np.unique(np.rint(np.geomspace(1, most, MOST_POINTS)).astype(np.int64))


def levels_reached(walks: dict[str, pd.DataFrame]) -> alt.TopLevelMixin:
    """Draw Figure 8: visits and throughput of each hysteresis level; `walks` is keyed by search space."""
    rows = pd.concat([rows.assign(space=label) for label, rows in walks.items()])
    names = {"visited": "architectures visited", "relative": "throughput over the certified optimum"}
    table = rows.rename(columns=names).melt(["space", "hysteresis"], [*names.values()], "what")
    lines = (
        alt.Chart()
        .mark_line(point=True)
        .encode(
            alt.X("hysteresis:Q", title="hysteresis level", axis=alt.Axis(tickMinStep=1, format="d")),
            alt.Y("value:Q", title=None),
            coloured("space", dict(zip(walks, (BLUE, TEAL), strict=False))),
            tooltip=["space:N", "what:N", "hysteresis:Q", alt.Tooltip("value:Q", format=",.4~g")],
        )
    )
    return panels(table, "what", lines, height=220, own="y")


def walked(visits: pd.DataFrame, walks: pd.DataFrame, optimum: float, limit_um2: float) -> alt.TopLevelMixin:
    """Draw Figure 9: area, throughput and tensor-core size of all visited architectures; rings: chosen."""
    shown = visits.drop_duplicates(["area_um2", "pes", "samples_per_s"])
    levels = walks.groupby("architecture")["hysteresis"].agg(lambda mine: ", ".join(map(str, mine)))
    chosen = walks.drop_duplicates("architecture").assign(
        levels=lambda rows: rows["architecture"].map(levels)
    )
    table = pd.concat([shown, chosen])[["architecture", "area_um2", "samples_per_s", "pes", "levels"]]
    table = table.assign(area=table.pop("area_um2") / UM2_PER_MM2)
    area = alt.X(
        "area:Q",
        title="area, mm² (the walk goes to the right)",
        axis=alt.Axis(titleAnchor="start", titleAlign="right"),
        scale=alt.Scale(reverse=True, zero=False),
    )
    base = alt.Chart(table).encode(
        area, alt.Y("samples_per_s:Q", title="samples/s", scale=alt.Scale(zero=False)),
        tooltip=["architecture:N", "levels:N", "pes:Q", *(f"{name}:Q" for name in ("area", "samples_per_s"))],
    )  # fmt: skip
    rings = base.transform_filter("isValid(datum.levels)")
    shades = alt.Scale(scheme="viridis", reverse=True)
    return alt.layer(
        base.mark_point(filled=True, opacity=1, size=20)
        .encode(alt.Color("pes:O", title="PEs a tensor core", scale=shades, legend=alt.Legend(format=",d")))
        .transform_filter("!isValid(datum.levels)"),
        rings.mark_point(size=160, strokeWidth=2, color=RED),
        rings.mark_text(dy=-14, align="right").encode(text="levels:N"),
        rule("y", optimum),
        rule("x", limit_um2 / UM2_PER_MM2, dashed=True),
    ).properties(width=WIDTH, height=320)


def curves(trials: pd.DataFrame) -> Iterator[Floats]:
    """Yield the best throughput after 1, 2, … evaluations for each seed, (evaluations,)."""
    for _, run in trials.groupby("seed"):
        yield run.sort_values("evaluation")["best_samples_per_s"].to_numpy(np.float64)
