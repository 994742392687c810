"""Search of the design space: certificate, Pareto front, strategies, and search by descending area."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.ranking import name_ranks, order, tied
from phaze.base.units import UM2_PER_MM2, digits, percent
from phaze.pages.document import Block, Items, Prose, Section
from phaze.pages.page_words import words_of
from phaze.pages.style import AMBER, BLUE, GREY, RED, SILVER, TEAL
from phaze.pages.vega import WIDTH, coloured, panels, rule
from phaze.pages.words import file_name, join
from phaze.report.checks import VERIFIED
from phaze.report.findings import COMMON as COMMON_DESIGN
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs, table_of
from phaze.tables import COMMON, MILESTONES, Searches, Walks

WORDS = words_of("study")
DIGITS = 7
"""Significant digits, enough to distinguish the best value from the largest bound of excluded points."""
_WORDS = {
    "memory": "fit no memory",
    "work": "are excluded by the work of their operators",
    "path": "by the longest path through them",
    "combined": "by the bound that combines both with barriers between operators",
    "tied": "are no better by that bound",
    "solved": "were scheduled and placed",
    "open": "are neither",
}
OBJECTIVES = {
    "throughput": "throughput",
    "throughput_per_area": "throughput per area",
    "energy": "energy per sample",
}
Kinds = dict[str, tuple[str, pd.DataFrame]]
"""Colour and rows of each kind of point drawn."""
WALK = "hysteresis-"
"""Prefix of the strategy name of a search by descending area; its hysteresis level follows."""
_SCOPES = ("recomputing", "least-microbatch")
"""Restricted spaces that are searched by descending area, in the order of the legend."""
MOST_POINTS = 90
"""Maximum number of points of a curve, evenly spaced in the logarithm of the evaluations."""


def certificate(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the proof of the best architectures, for a study with certificates."""
    table = findings.certificates
    if table.empty:
        return
    several = len(inputs.study.models) > 1
    shown = pd.concat([table[table["model"] != COMMON], table[(table["model"] == COMMON) & several]])
    shown = shown.assign(subject=shown["model"].replace(COMMON, "one for all"))
    blocks = (
        Items(tuple(f"{row['subject']}: {sentence(row)}" for _, row in shown.iterrows())),
        WORDS.sheet("certificate", shown, shown["model"] == COMMON),
        Prose(_verification(findings.audits)),
    )
    yield WORDS.section("certificate", blocks)


def sentence(row: pd.Series) -> str:
    """Summary sentence of a certificate."""
    parts = [f"{int(row[cause]):,} {words}" for cause, words in _WORDS.items() if row[cause]]
    unit = "in the mean of all workloads" if row["model"] == COMMON else "samples/s"
    counted = f"{int(row['points']):,} points: {join(parts)}"
    if not row["best"]:
        return f"{counted}; none of them trains it."
    unproven = ""
    if row["unproven"]:
        least = percent(1.0 - row["best"] / row["bound"], 3)
        number = f"{int(row['unproven']):,}"
        unproven = f"; {number} schedules are not proven, so that up to {least} more is not ruled out"
    # all points are accounted for and no excluded one could be better: the best is proven
    proven = not row["open"] and row["excluded"] <= row["best"]
    most = digits(row["excluded" if proven else "bound"], DIGITS)
    what = "nothing excluded can exceed" if proven else "nothing can exceed"
    return f"{counted}; best {digits(row['best'], DIGITS)} {unit}, and {what} {most}{unproven}."


def _verification(audits: pd.DataFrame) -> str:
    """Sentence on the excluded points that were solved again, and their verdicts."""
    if audits.empty:
        return "No point was solved again."
    drawn = int(audits["chosen"].isin(["drawn", "nearest"]).sum())
    counts = audits["verdict"].value_counts().items()
    verdicts = join(f"{number:,} {verdict}" for verdict, number in counts)
    return WORDS.sentence("audited", drawn=drawn, programs=int(audits["programs"].sum()), found=verdicts)


def certificate_fact(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield a key figure for the first screen: the number of points covered by the certificates."""
    table, audits = findings.certificates[findings.certificates["model"] != COMMON], findings.audits
    if len(table) and not table["open"].any():
        confirmed = f"{int(audits['verdict'].isin(VERIFIED).sum()):,} of {len(audits):,} solved again agree"
        points = int(table["points"].sum())
        evaluated = bool((table["solved"] == table["points"]).all())
        what = "designs, all evaluated exactly" if evaluated else "designs, each evaluated or proven worse"
        yield f"{points:,}", f"{what} ({confirmed})"


def front(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the Pareto front of throughput, area and energy over the whole space."""
    fronts = findings.fronts
    if fronts.empty:
        return
    largest = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    several = fronts["area_limit_um2"].nunique() > 1
    designs, results = [inputs.study.architectures.baseline, "phaze-common", COMMON_DESIGN], findings.results
    others = results[results["design"].isin(designs) & (results["status"] == "placed")]
    best = pd.concat([largest[largest[flag]].assign(of=name) for flag, name in OBJECTIVES.items()])
    name = "front-areas" if several else "front-area"
    area = WORDS.chart(name, partial(area_chart, fronts, others), "front-area")
    energy = WORDS.chart("front-energy", partial(energy_chart, fronts, others))
    tables = {"objectives": best}
    if several:
        fastest = fronts[fronts["throughput"]]
        tables["limits-of-area"] = fastest.sort_values("area_limit_um2", ascending=False, kind="stable")
    place = inputs.study.models.index
    sheets = [
        WORDS.sheet(name, rows.sort_values("model", key=lambda models: models.map(place), kind="stable"))
        for name, rows in tables.items()
    ]
    yield WORDS.section("front", (area, energy, *sheets), count=len(largest))


def area_chart(fronts: pd.DataFrame, others: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the best throughput within every area limit, with other designs, one panel per model."""
    largest = fronts["area_limit_um2"].max()
    curves = [
        # the last step reaches to the area limit
        pd.concat([curve, curve.tail(1).assign(area_um2=largest)])
        for _, members in fronts[fronts["area_limit_um2"] == largest].groupby("model", sort=False)
        if len(curve := curve_of(members))
    ]
    smaller = fronts[fronts["throughput"] & (fronts["area_limit_um2"] < largest)]
    looks = {
        "best of every area limit": (BLUE, pd.concat(curves)),
        "best of a smaller limit": (TEAL, smaller.assign(area_um2=smaller["area_limit_um2"])),
        **_others(others),
    }
    first = next(iter(looks))
    line = alt.Chart().mark_line(interpolate="step-after").transform_filter(alt.datum.kind == first)
    points = alt.Chart().mark_point(filled=True, opacity=1).transform_filter(alt.datum.kind != first)
    limits = [rule("x", limit / UM2_PER_MM2, dashed=True) for limit in fronts["area_limit_um2"].unique()]
    return _throughput(looks, "area_um2", 1 / UM2_PER_MM2, "area, mm²", (line, points), limits)


def curve_of(front: pd.DataFrame) -> pd.DataFrame:
    """Members of a Pareto front that are faster than all smaller members, sorted by area."""
    rows = front.sort_values(["area_um2", "samples_per_s"], ascending=[True, False])
    before = rows["samples_per_s"].cummax().shift(fill_value=0.0)
    return rows.loc[rows["samples_per_s"] > before]


def energy_chart(fronts: pd.DataFrame, others: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw throughput against energy per sample, for the front and other designs, one panel per model."""
    rows = fronts[fronts["area_limit_um2"] == fronts["area_limit_um2"].max()]
    looks = {
        "front with area": (SILVER, rows[~rows["objectives"]]),
        "objectives": (BLUE, rows[rows["objectives"]]),
        **_others(others),
    }
    points = alt.Chart().mark_point(filled=True, opacity=1)
    return _throughput(looks, "joules_per_sample", 1.0, "J/sample", (points,))


def _others(others: pd.DataFrame) -> Kinds:
    """Results of the named designs, by design, each with a colour."""
    return {
        str(design): (colour, rows)
        for colour, (design, rows) in zip((RED, AMBER, GREY), others.groupby("design"), strict=False)
    }


def _throughput(
    looks: Kinds,
    column: str,
    unit: float,
    title: str,
    marks: Sequence[alt.Chart],
    lines: Sequence[alt.Chart] = (),
) -> alt.TopLevelMixin:
    """Draw throughput against a column in a unit, one panel per model, with reference lines."""
    table = pd.concat([rows.assign(kind=kind) for kind, (_, rows) in looks.items()])
    table = table[["model", "kind", "architecture", column, "samples_per_s"]]
    table[column] *= unit
    scale = alt.Scale(type="log", nice=False, padding=4)
    encoding = (
        alt.X(f"{column}:Q", title=title, scale=scale),
        alt.Y("samples_per_s:Q", title="samples/s", scale=scale),
        coloured("kind", {kind: colour for kind, (colour, rows) in looks.items() if len(rows)}),
    )
    numbers = [alt.Tooltip(f"{name}:Q", format=",.4~g") for name in (column, "samples_per_s")]
    drawn = [mark.encode(*encoding, tooltip=["kind:N", "architecture:N", *numbers]) for mark in marks]
    return panels(table, "model", *drawn, *lines, independent="xy")


def optima(trials: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Largest throughput by (model, scope), proven by the certified strategy."""
    proven = trials[trials["strategy"] == "certified"]
    best = proven.groupby(["model", "scope"])["samples_per_s"]
    return {(str(model), str(scope)): float(rates.max()) for (model, scope), rates in best}


def choose_by_hysteresis(trials: pd.DataFrame) -> pd.DataFrame:
    """Table `walks`: the architecture that the search by descending area selects at each hysteresis level.

    It is the best visited one by throughput, then area, then name.
    """
    rows = []
    walks = trials[trials["strategy"].str.startswith(WALK)]
    for (model, scope, strategy), seen in walks.groupby(["model", "scope", "strategy"]):
        with np.errstate(divide="ignore"):
            # an architecture that cannot train the model has no throughput, and infinite cost
            cost = 1.0 / seen["samples_per_s"].to_numpy()
        best = seen.iloc[order(cost, seen["area_um2"].to_numpy(), name_ranks(seen["architecture"]))[0]]
        keys = {"model": model, "scope": scope, "hysteresis": int(str(strategy).removeprefix(WALK))}
        rows.append({**best[["architecture", "area_um2", "samples_per_s"]], **keys, "visited": len(seen)})
    return table_of(Walks, rows)


def summarise_searches(trials: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Table `searches`, for searches of the whole space; omits models that no architecture can train."""
    best = optima(trials)
    whole_space = trials[trials["scope"] == "whole"]
    rows = [
        {"model": model, "strategy": strategy, **_summary(runs, best[str(model), "whole"], tolerance)}
        for (model, strategy), runs in whole_space.groupby(["model", "strategy"])
        if (model, "whole") in best
    ]
    return table_of(Searches, rows)


def _summary(trials: pd.DataFrame, optimum: float, tolerance: float) -> dict[str, float]:
    best = _curve(trials)
    return {
        "evaluations": len(best),
        # a search that ended earlier keeps its best value
        **{f"after_{m}": best[min(m, len(best)) - 1] / optimum for m in MILESTONES},
        "final": best[-1] / optimum,
        "near": _first(best >= (1.0 - tolerance) * optimum),
        # equal up to the rounding by which ties are decided
        "optimal": _first(tied(best) >= tied(np.array([optimum]))),
    }


def _first(reached: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> float:
    """Number of evaluations until the flag is first True; inf if never."""
    return float(np.argmax(reached)) + 1.0 if reached.any() else np.inf


def searches(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on search strategies, with a figure and a table per compared model."""
    blocks: list[Block] = []
    best, whole_space = optima(inputs.trials), inputs.trials[inputs.trials["scope"] == "whole"]
    for model, table in findings.searches.groupby("model", sort=False):
        trials, optimum = whole_space[whole_space["model"] == model], best[str(model), "whole"]
        # first the certified strategy, then the paper's walks
        rows = table.loc[(table["strategy"] != "certified").sort_values(kind="stable").index]
        draw = partial(found_by_strategies, trials, optimum, inputs.study.screen.tolerance)
        blocks += [
            WORDS.chart("strategies", draw, f"strategies-{file_name(model)}", model=model),
            WORDS.sheet("strategies", rows, rows["strategy"] == "certified", model=model),
        ]
    if blocks:
        yield WORDS.section("strategies", (*blocks, Prose(WORDS.sentences["evaluations"])))


def walk(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the search by descending area, with two figures for each searched model."""
    blocks: list[Block] = []
    best = optima(inputs.trials)
    for model, walks in findings.walks.groupby("model", sort=False):
        optimum = {scope: rate for (name, scope), rate in best.items() if name == model}
        chosen = walks[walks["scope"] == "least-microbatch"]
        blocks += _choices(inputs, str(model), chosen, optimum.get("least-microbatch"))
        shown = {
            WORDS.sentences[scope]: rows.assign(relative=rows["samples_per_s"] / optimum[scope])
            for scope in _SCOPES
            # without a certified optimum there is nothing to be relative to
            if scope in optimum and len(rows := walks[walks["scope"] == scope])
        }
        blocks += _savings(str(model), shown) if shown else ()
    if blocks:
        yield WORDS.section("walk", blocks)


def _choices(inputs: Inputs, model: str, chosen: pd.DataFrame, optimum: float | None) -> Iterator[Block]:
    """Yield all architectures visited by the longest search, and the choice at each level."""
    if optimum is not None:
        every, pes = inputs.trials, inputs.cluster.chips["pe_x"] * inputs.cluster.chips["pe_y"]
        # a higher level visits all that a lower one does; 8 is the highest
        longest = (every["scope"] == "least-microbatch") & (every["strategy"] == "hysteresis-8")
        visits = every[longest & (every["model"] == model)]
        visits = visits.assign(pes=visits["architecture"].map(pes))
        draw = partial(walked, visits, chosen, optimum, inputs.cluster.area_limit_um2)
        yield WORDS.chart("walk", draw, f"walk-{file_name(model)}", model=model)
    yield WORDS.sheet("walk", chosen, model=model)


def _savings(model: str, shown: dict[str, pd.DataFrame]) -> Iterator[Block]:
    """Yield the architectures visited at each level, and the distance from the optimum."""
    yield WORDS.chart("levels", partial(levels_reached, shown), f"levels-{file_name(model)}", model=model)
    rows = next(iter(shown.values()))
    saved = rows["visited"].max() / rows["visited"]
    yield WORDS.sheet("levels", rows.assign(saved=saved), model=model)


PARTS: tuple[Part, ...] = (searches, walk)
"""Functions that yield the sections of this part, in order."""


def found_by_strategies(trials: pd.DataFrame, optimum: float, tolerance: float) -> alt.TopLevelMixin:
    """Draw each strategy's best throughput, relative to the optimum, against its number of exact evaluations.

    Marks with numbers are where the levels of the walk end.
    """
    by_name = {str(name): strategy_trials for name, strategy_trials in trials.groupby("strategy")}
    levels = sorted(int(name.removeprefix(WALK)) for name in by_name if name.startswith(WALK))
    parts = []
    if levels:
        # of levels that end at the same number, the smallest is labelled: it comes last in the dictionary
        ends = {len(by_name[f"{WALK}{level}"]): str(level) for level in reversed(levels)}
        walk = _best_after("hysteresis", by_name[f"{WALK}{levels[-1]}"], optimum, [*ends])
        parts.append(walk.assign(level=walk["evaluations"].map(ends)))
    sure = _best_after("certified", by_name["certified"], optimum)
    last = sure["evaluations"] == sure["evaluations"].max()
    rows = pd.concat([*parts, sure.assign(level=last.map({True: "proof", False: None}))])
    looks = {"hysteresis": AMBER, "certified": BLUE}
    base = alt.Chart(rows).encode(
        alt.X("evaluations:Q", title="exact evaluations", scale=alt.Scale(type="log", nice=False)),
        alt.Y("best:Q", title="best found over the optimum"),
        coloured("strategy", {name: looks[name] for name in looks if (rows["strategy"] == name).any()}),
        tooltip=["strategy:N", "level:N", "evaluations:Q", "best:Q"],
    )
    ends_only = base.transform_filter("isValid(datum.level)")
    return alt.layer(
        base.mark_line(strokeWidth=2),
        ends_only.mark_point(filled=True, opacity=1, shape="square", size=40),
        ends_only.mark_text(dy=14, fontWeight="bold").encode(text="level:N"),
        rule("y", 1.0),
        rule("y", 1.0 - tolerance, dashed=True),
    ).properties(width=WIDTH, height=320)


def _best_after(name: str, trials: pd.DataFrame, optimum: float, extra: Sequence[int] = ()) -> pd.DataFrame:
    """Best throughput over the optimum after numbers of evaluations, evenly spaced on a logarithmic scale."""
    best = _curve(trials) / optimum
    spaced = np.rint(np.geomspace(1, len(best), MOST_POINTS)).astype(np.int64)
    # the union also drops small numbers that round to the same integer
    evaluations = np.union1d(spaced, np.array(extra, dtype=np.int64))
    return pd.DataFrame({"strategy": name, "evaluations": evaluations, "best": best[evaluations - 1]})


def levels_reached(walks: dict[str, pd.DataFrame]) -> alt.TopLevelMixin:
    """Draw visits and throughput of each hysteresis level; `walks` is keyed by search space."""
    rows = pd.concat([rows.assign(space=label) for label, rows in walks.items()])
    names = {"visited": "architectures visited", "relative": "throughput over the certified optimum"}
    table = rows.rename(columns=names).melt(["space", "hysteresis"], [*names.values()], "what")
    marks = alt.Chart().mark_line(point=True)
    lines = marks.encode(
        alt.X("hysteresis:Q", title="hysteresis level", axis=alt.Axis(tickMinStep=1, format="d")),
        alt.Y("value:Q", title=None),
        coloured("space", dict(zip(walks, (BLUE, TEAL), strict=False))),
        tooltip=["space:N", "what:N", "hysteresis:Q", alt.Tooltip("value:Q", format=",.4~g")],
    )
    return panels(table, "what", lines, height=220, independent="y")


def walked(visits: pd.DataFrame, walks: pd.DataFrame, optimum: float, limit_um2: float) -> alt.TopLevelMixin:
    """Draw area, throughput and tensor-core size of visited architectures; rings mark choices."""
    shown = visits.drop_duplicates(["area_um2", "pes", "samples_per_s"])
    levels = walks.groupby("architecture")["hysteresis"].agg(lambda numbers: ", ".join(map(str, numbers)))
    chosen = walks.drop_duplicates("architecture")
    chosen = chosen.assign(levels=chosen["architecture"].map(levels))
    table = pd.concat([shown, chosen])[["architecture", "area_um2", "samples_per_s", "pes", "levels"]]
    table = table.assign(area=table.pop("area_um2") / UM2_PER_MM2)
    axis, title = alt.Axis(titleAnchor="start", titleAlign="right"), "area, mm² (the walk goes to the right)"
    area = alt.X("area:Q", title=title, axis=axis, scale=alt.Scale(reverse=True, zero=False))
    base = alt.Chart(table).encode(
        area,
        alt.Y("samples_per_s:Q", title="samples/s", scale=alt.Scale(zero=False)),
        tooltip=["architecture:N", "levels:N", "pes:Q", *(f"{name}:Q" for name in ("area", "samples_per_s"))],
    )
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


def _curve(trials: pd.DataFrame) -> Floats:
    """Best throughput of a strategy after 1, 2, … evaluations, (evaluations,)."""
    return trials.sort_values("evaluation")["best_samples_per_s"].to_numpy(np.float64)
