"""Planners side by side on the same architectures: as planned, as simulated, and mapped to networks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.ranking import tied
from phaze.base.units import percent
from phaze.pages import charts, style
from phaze.pages.document import Block, Chart, Items, Prose, Section
from phaze.pages.page_words import words_of
from phaze.pages.pipeline_picture import left_out
from phaze.pages.words import file_name, fill, join, times
from phaze.report.findings import COMMON, PER_MODEL, Findings
from phaze.report.inputs import Inputs
from phaze.search.winners import with_areas
from phaze.spec.study import Study
from phaze.tables import BY_HAND, PLANNERS
from phaze.tables.plans import PLAN

TITLES = {planner: title for planner, (title, _) in charts.PLANNERS.items()}
"""Display names of planners."""
NEAR = 0.05
"""Relative difference of times above which the report explains the difference."""
WORDS = words_of("study")
CHIP = ["model", "architecture", "hbm_gib"]
METHODS = {
    "cs-map": "all-reduce first",
    "p2p-map": "stages first",
    "blocks-of-2": "blocks of 2 stages",
    "blocks-of-4": "blocks of 4 stages",
    "local-search": "local search",
}
"""Display names of the methods of mapping a plan to devices."""
_PLACE = [*CHIP, "planner", "system"]
_ORDERS = {
    "cs_map": ("all-reduce first", style.GREY),
    "p2p_map": ("stages first", style.SILVER),
    "simulated_s": ("mapped", style.BLUE),
}


def titled(study: Study, results: pd.DataFrame, planned: pd.DataFrame) -> pd.DataFrame:
    """Join plans with the results: one row per plan and per design that uses the plan's accelerator.

    Column `title` is the display name of the planner.
    """
    designs = {PER_MODEL, COMMON, study.architectures.baseline}
    plans = results.loc[results["design"].isin(designs), [*CHIP, "design"]].merge(planned, on=CHIP)
    order = {name: place for place, name in enumerate(study.models)}
    # the baseline has no rank here, and comes after both (2)
    rank = {name: place for place, name in enumerate(PLANNERS)} | {PER_MODEL: 0, COMMON: 1}
    return plans.assign(title=plans["planner"].map(TITLES)).sort_values(
        ["model", "design", "planner"],
        key=lambda column: column.map(order if column.name == "model" else rank).fillna(2),
        kind="stable",
        ignore_index=True,
    )


def compared(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section that compares planners on the same accelerators."""
    plans = titled(inputs.study, findings.results, findings.plans)
    if plans.empty:
        return
    wide, words = _ratios(plans), study_planner_sentence(inputs, findings)
    best = wide[wide.index.get_level_values("design") == PER_MODEL].droplevel("design")
    best = best.reindex(inputs.study.models).fillna(0.0)
    phaze, *others = charts.PLANNERS.items()
    looks = [phaze, ("unflushed", ("Phaze in Piper's model", style.TEAL)), *others]
    draw = partial(charts.titled_bars, best, looks, "throughput over Phaze's planner")
    planned = plans[plans["planner"] == "phaze"].set_index(["model", "design"])["samples_per_s"]
    rows = wide.assign(planned=planned).reset_index()
    every = plans.assign(
        activations=plans["memory"].where(plans["status"] == "placed", plans["reason"]),
        under_piper=1.0 / plans["piper_time_per_sample_s"],
    )
    blocks = (
        *((Prose(words),) if words else ()), WORDS.chart("planners", draw),
        WORDS.sheet("ratios", rows, rows["design"] == PER_MODEL),
        *(Prose(WORDS.sentences[name]) for name in ("models", "communication")),
        *_facts(plans, findings), WORDS.sheet("plans", every),
    )  # fmt: skip
    yield WORDS.section("planners", blocks)


def _ratios(plans: pd.DataFrame) -> pd.DataFrame:
    """Throughput relative to Phaze's plan, by (model, design) and planner; 0 without a plan.

    Column `unflushed` is Phaze's own plan under Piper's model.
    """
    keys = ["model", "design"]
    wide = plans.pivot(index=keys, columns="planner", values="samples_per_s").reindex(columns=PLANNERS)
    phaze = plans[plans["planner"] == "phaze"].set_index(keys)
    wide["unflushed"] = (1.0 / phaze["piper_time_per_sample_s"]).reindex(wide.index)
    # without a plan of Phaze's there is nothing to compare with: NaN instead of a division by 0
    base = wide["phaze"].where(wide["phaze"] > 0)
    return wide.div(base, axis=0).fillna(0.0).reindex(plans.drop_duplicates(keys).set_index(keys).index)


def _facts(plans: pd.DataFrame, findings: Findings) -> Iterator[Items]:
    best = plans[(plans["design"] == PER_MODEL) & (plans["status"] == "placed")]
    sentences = []
    for model, model_plans in best.groupby("model", sort=False):
        by_planner = {row["planner"]: row for _, row in model_plans.iterrows()}
        if {"phaze", "piper"} <= by_planner.keys():
            sentences.append(_fact(str(model), by_planner["phaze"], by_planner["piper"]))
    if sentences:
        yield Items((*sentences, *_heterogeneity(findings)))


def _fact(model: str, phaze: pd.Series, piper: pd.Series) -> str:
    """Sentence on the causes of the difference between Phaze's and Piper's plan."""
    ratio = piper["samples_per_s"] / phaze["samples_per_s"]
    plans = f"{_widths(piper)} against {_widths(phaze)}"
    start = f"{model}: Piper reaches {times(ratio)} Phaze's throughput ({plans})"
    unflushed = phaze["time_per_sample_s"] / phaze["piper_time_per_sample_s"]
    if not unflushed:
        return f"{start}; Piper's model does not admit Phaze's plan ({phaze['piper_reason']})."
    reaches = f"{start}; Phaze's plan reaches {times(unflushed)} of it under Piper's model"
    if phaze["piper_reason"]:
        return f"{reaches}, but is none of Piper's ({phaze['piper_reason']})."
    return f"{reaches}, so that Piper's choice of stages brings {percent(ratio / unflushed - 1)} more."


def _heterogeneity(findings: Findings) -> Iterator[str]:
    """Yield a sentence on how many of Piper's plans use features that Phaze's planner lacks."""
    plans = findings.plans[(findings.plans["planner"] == "piper") & (findings.plans["status"] == "placed")]
    counts = {
        "several tensor widths": plans["tensor"].str.contains(","),
        "several data widths": plans["data"].str.contains(","),
        "layers that recompute beside layers that stash": plans["memory"] == "mixed",
    }
    if len(plans):
        parts = (f"{int(flags.sum())} have {name}" for name, flags in counts.items())
        yield f"Of Piper's plans, {len(plans)} in all, {join(parts)}."


def _widths(plan: pd.Series) -> str:
    return fill("t = {tensor}, d = {data}, s = {stages}, microbatch {microbatch}, {memory}", plan)


def chosen(inputs: Inputs, findings: Findings) -> pd.DataFrame:
    """Plan of each model with the least simulated time, by the planner of the study.

    Ties are broken by area, then name. Empty if the planner is Phaze's, because the results are its answer.
    """
    planner = inputs.study.place.planner
    plans = findings.plans[(findings.plans["planner"] == planner) & (findings.plans["status"] == "placed")]
    if planner == "phaze" or plans.empty:
        return plans.iloc[:0]
    times_s = findings.simulations[[*PLAN, "planned_s", "simulated_s"]]
    rows = with_areas(inputs.cluster, plans.merge(times_s, on=list(PLAN)))
    rows = rows[rows["area_um2"] <= inputs.cluster.area_limit_um2 * (1 + 1e-9)]
    # times that differ by rounding only are equal, so that area decides
    rows = rows.assign(tied_s=tied(rows["simulated_s"].to_numpy()))
    return rows.sort_values(["tied_s", "area_um2", "architecture"]).drop_duplicates("model")


def study_planner_sentence(inputs: Inputs, findings: Findings) -> str:
    """Sentence on the result of the study's planner; empty if the planner is Phaze's."""
    best = chosen(inputs, findings).set_index("model").reindex(inputs.study.models).dropna(how="all")
    if best.empty:
        return ""
    rows = best.assign(widths=[_widths(row) for _, row in best.iterrows()]).rename_axis("model").reset_index()
    plans = join(WORDS.items("planned", rows).sentences)
    return WORDS.sentence("planner", title=TITLES[inputs.study.place.planner], plans=plans)


def replayed(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on simulated plans."""
    rows = titled(inputs.study, findings.results, findings.simulations)
    if rows.empty:
        return
    best, marked = rows[rows["design"] == PER_MODEL], rows["design"] == PER_MODEL
    rows["difference"] = rows["simulated_s"] / rows["planned_s"] - 1
    formulas, moved = (Prose(WORDS.sentences[name]) for name in ("formulas", "moved"))
    blocks: tuple[Block, ...] = (
        *_difference_chart(best, inputs), WORDS.sheet("simulated", rows, marked), formulas,
        *_errors_of(best), *_picture(best, inputs), WORDS.sheet("spent", rows), moved,
    )  # fmt: skip
    yield WORDS.section("simulated", blocks)


def _difference_chart(best: pd.DataFrame, inputs: Inputs) -> Iterator[Chart]:
    """Yield the chart of simulated over planned times on the best accelerators; nothing without plans."""
    if best.empty:
        return
    order = [model for model in inputs.study.models if model in set(best["model"])]
    by_plan = best.set_index(["planner", "model"])
    ratios = by_plan["simulated_s"] / by_plan["planned_s"]
    wide = ratios.unstack("planner").reindex(index=order, columns=list(TITLES)).fillna(0.0)
    draw = partial(charts.titled_bars, wide, charts.PLANNERS.items(), "simulated over planned")
    yield WORDS.chart("simulated", draw)


def _picture(best: pd.DataFrame, inputs: Inputs) -> Iterator[Chart]:
    """Yield charts over time of the first placement with several stages, else of the first placement."""
    plans = best[list(PLAN)].merge(inputs.plans[inputs.plans["planner"] == "phaze"], on=list(PLAN))
    if plans.empty or inputs.pictures is None:
        return
    plan = plans.iloc[int((plans["stages"] > 1).argmax())]
    drawn = inputs.pictures(plan)
    omitted = "".join(f" {sentence}" for sentence in left_out(drawn))
    placeholders = {"model": plan["model"], "title": drawn.title, "left_out": omitted}
    yield WORDS.chart("timeline", drawn.timeline, **placeholders)
    yield WORDS.chart("timeline-memory", drawn.memory, **placeholders)


def _errors_of(best: pd.DataFrame) -> Iterator[Items]:
    """Yield a list of sentences on the planners' errors, and on plans that are faster in simulation."""
    sentences = []
    for title, plans in best.groupby("title", sort=False):
        ratio = plans["simulated_s"] / plans["planned_s"]
        largest = plans.iloc[int(np.argmax((ratio - 1).abs()))]
        placeholders = {"title": title, "model": largest["model"], "least": ratio.min(), "most": ratio.max()}
        sentences.append(WORDS.sentence("slower", **placeholders))
    if sentences:
        yield Items((*sentences, *_choices(best)))


def _choices(best: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on workloads where another planner's flushing plan beats Phaze's in simulation."""
    # 2BW does not flush and so trains with stale weights: a faster step is not the same training
    flushing = best[best["schedule"] != "2bw"]
    wide = flushing.pivot(index="model", columns="planner", values="simulated_s")
    if "phaze" not in wide:
        return
    others = wide.drop(columns="phaze").min(axis=1)
    faster = list(wide.index[others < wide["phaze"] * (1 - 1e-9)])
    if faster:
        yield WORDS.sentence("faster", models=join(faster))


def on_networks(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on plans mapped to the devices of networks."""
    rows = side_by_side(inputs, findings)
    if rows.empty:
        return
    figures = []
    for system, plans in rows.groupby("system", sort=False):
        draw, anchor = partial(added, plans), f"network-{file_name(system)}"
        network = plans["network"].iloc[0]
        figures.append(WORDS.chart("network", draw, anchor, system=system, network=network))
    notes = (Prose(WORDS.sentences[name]) for name in ("mapped", "workers"))
    blocks: tuple[Block, ...] = (*figures, WORDS.sheet("networks", rows), Items(tuple(_gains(rows))), *notes)
    yield WORDS.section("networks", blocks)


def side_by_side(inputs: Inputs, findings: Findings) -> pd.DataFrame:
    """Simulated times in both default device orders and as mapped, one row per plan and network.

    A plan on several equally fast accelerators is shown once, on the accelerator in the results.
    """
    maps = findings.plan_maps
    if maps.empty:
        return maps
    wide = maps.pivot(index=_PLACE, columns="way", values="simulated_s").reindex(columns=list(BY_HAND))
    chosen = maps[maps["chosen"]].set_index(_PLACE)
    rows = chosen.assign(**{name.replace("-", "_"): wide[name] for name in BY_HAND}).reset_index()
    rows = rows.assign(
        gain=1 - rows["simulated_s"] / rows["cs_map"],
        gain_over_p2p=1 - rows["simulated_s"] / rows["p2p_map"],
        title=rows["planner"].map(TITLES),
        mapping=rows["way"].map(METHODS),
    )
    designs = titled(inputs.study, findings.results, rows[_PLACE])
    best = designs[designs["design"] == PER_MODEL][_PLACE].assign(best=True)
    order = {name: place for place, name in enumerate((*inputs.study.models, *TITLES))}
    # `best` is missing off the results' accelerator, and missing values sort last
    rows = rows.merge(best, on=_PLACE, how="left").sort_values(
        ["system", "model", "planner", "best", "architecture"],
        key=lambda column: column.map(order) if column.name in ("model", "planner") else column,
        kind="stable",
    )
    return rows.drop_duplicates(["system", "model", "planner"]).reset_index(drop=True)


def _gains(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per network on the gain from mapping, and on how much the default orders differ."""
    for system, plans in rows.groupby("system", sort=False):
        gain, cost = plans["gain"], plans["p2p_map"] / plans["cs_map"] - 1
        most, least, worst = (plans.iloc[int(at)] for at in (gain.argmax(), cost.argmin(), cost.argmax()))
        yield WORDS.sentence(
            "mapping", system=system, mean=gain.mean(), most=gain.max(), mapping=most["mapping"],
            faster=int((gain > 0).sum()), count=len(plans), low=cost.min(), high=cost.max(),
            most_of=_plan(most), low_of=_plan(least), high_of=_plan(worst),
        )  # fmt: skip


def _plan(row: pd.Series) -> str:
    return f"{row['model']} by {row['title']}"


def added(rows: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the time added by communication in %, one bar per plan and device order."""
    names = [f"{row.model}, {row.title}" for row in rows.itertuples()]
    table = 100 * (rows[[*_ORDERS]].div(rows["alone_s"], axis=0) - 1).set_axis(names)
    colours = dict(_ORDERS.values())
    return charts.bars(table.set_axis([*colours], axis="columns"), "added, %", colours)
