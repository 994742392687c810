"""Planners side by side on the same architectures: as planned, and as simulated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from phaze.base.ranking import tied
from phaze.pages import charts
from phaze.pages.document import Block, Chart, Items, Prose, Section
from phaze.pages.page_words import words_of
from phaze.pages.pipeline_picture import left_out
from phaze.pages.words import fill, join
from phaze.report.findings import COMMON, PER_MODEL, Findings
from phaze.report.inputs import Inputs
from phaze.search.winners import with_areas
from phaze.spec.study import Study
from phaze.tables import PLANNERS
from phaze.tables.plans import PLAN

TITLES = {planner: title for planner, (title, _) in charts.PLANNERS.items()}
"""Display names of planners."""
NEAR = 0.05
"""Relative difference of times above which the report explains the difference."""
WORDS = words_of("study")
CHIP = ["model", "architecture", "hbm_gib"]


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
    draw = partial(charts.titled_bars, best, charts.PLANNERS.items(), "throughput over Phaze's planner")
    planned = plans[plans["planner"] == "phaze"].set_index(["model", "design"])["samples_per_s"]
    rows = wide.assign(planned=planned).reset_index()
    every = plans.assign(
        activations=plans["memory"].where(plans["status"] == "placed", plans["reason"]),
    )
    blocks = (
        *((Prose(words),) if words else ()), WORDS.chart("planners", draw),
        WORDS.sheet("ratios", rows, rows["design"] == PER_MODEL),
        *(Prose(WORDS.sentences[name]) for name in ("models", "communication")),
        WORDS.sheet("plans", every),
    )  # fmt: skip
    yield WORDS.section("planners", blocks)


def _ratios(plans: pd.DataFrame) -> pd.DataFrame:
    """Throughput relative to Phaze's plan, by (model, design) and planner; 0 without a plan."""
    keys = ["model", "design"]
    wide = plans.pivot(index=keys, columns="planner", values="samples_per_s").reindex(columns=PLANNERS)
    # without a plan of Phaze's there is nothing to compare with: NaN instead of a division by 0
    base = wide["phaze"].where(wide["phaze"] > 0)
    return wide.div(base, axis=0).fillna(0.0).reindex(plans.drop_duplicates(keys).set_index(keys).index)


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
