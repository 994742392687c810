"""Simulated plans: their times against the planned times, and on networks before and after mapping."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from phaze.report import charts, style
from phaze.report.document import Block, Chart, Items, Prose, Section
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.page_words import words_of
from phaze.report.pipeline_picture import left_out
from phaze.report.planners import TITLES, titled
from phaze.report.winners import PER_MODEL
from phaze.report.words import file_name, join
from phaze.tables import BY_HAND
from phaze.tables.plans import PLAN

WORDS = words_of("study")


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
        *_facts(best), *_picture(best, inputs), WORDS.sheet("spent", rows), moved,
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
    shown = inputs.pictures(plan)
    told = {
        "model": plan["model"],
        "title": shown.title,
        "left_out": "".join(f" {s}" for s in left_out(shown)),
    }
    yield WORDS.chart("timeline", shown.timeline, **told)
    yield WORDS.chart("timeline-memory", shown.memory, **told)


def _facts(best: pd.DataFrame) -> Iterator[Items]:
    """Yield a list of sentences on the planners' errors, and on plans that are faster in simulation."""
    sentences = []
    for title, mine in best.groupby("title", sort=False):
        ratio = mine["simulated_s"] / mine["planned_s"]
        largest = mine.iloc[int(np.argmax((ratio - 1).abs()))]
        told = {"title": title, "model": largest["model"], "least": ratio.min(), "most": ratio.max()}
        sentences.append(WORDS.sentence("slower", **told))
    if sentences:
        yield Items((*sentences, *_choices(best)))


def _choices(best: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the workloads whose fastest simulated flushing plan is not Phaze's."""
    flushing = best[best["schedule"] != "2bw"]
    wide = flushing.pivot(index="model", columns="planner", values="simulated_s")
    if "phaze" not in wide:
        return
    others = wide.drop(columns="phaze").min(axis=1)
    faster = list(wide.index[others < wide["phaze"] * (1 - 1e-9)])
    if faster:
        yield WORDS.sentence("faster", models=join(faster))


WAYS = {
    "cs-map": "all-reduce first",
    "p2p-map": "stages first",
    "blocks-of-2": "blocks of 2 stages",
    "blocks-of-4": "blocks of 4 stages",
    "local-search": "local search",
}
"""Display names of the methods of mapping a plan to devices."""
_PLACE = ["model", "architecture", "hbm_gib", "planner", "system"]


def on_networks(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on plans mapped to the devices of networks."""
    rows = side_by_side(inputs, findings)
    if rows.empty:
        return
    figures = [
        WORDS.chart(
            "network", partial(added, mine), f"network-{file_name(system)}",
            system=system, network=mine["network"].iloc[0],
        )
        for system, mine in rows.groupby("system", sort=False)
    ]  # fmt: skip
    told = (Prose(WORDS.sentences[name]) for name in ("mapped", "workers"))
    blocks: tuple[Block, ...] = (*figures, WORDS.sheet("networks", rows), Items(tuple(_gains(rows))), *told)
    yield WORDS.section("networks", blocks)


def side_by_side(inputs: Inputs, findings: Findings) -> pd.DataFrame:
    """Simulated times in both default orders and as mapped, one row per plan and network.

    A plan on several equally fast accelerators is shown once, on the accelerator in the results.
    """
    found = findings.plan_maps
    if found.empty:
        return found
    wide = found.pivot(index=_PLACE, columns="way", values="simulated_s").reindex(columns=list(BY_HAND))
    chosen = found[found["chosen"]].set_index(_PLACE)
    rows = chosen.assign(**{name.replace("-", "_"): wide[name] for name in BY_HAND}).reset_index()
    rows = rows.assign(
        gain=1 - rows["simulated_s"] / rows["cs_map"],
        gain_over_p2p=1 - rows["simulated_s"] / rows["p2p_map"],
        title=rows["planner"].map(TITLES),
        mapping=rows["way"].map(WAYS),
    )
    designs = titled(inputs.study, findings.results, rows[_PLACE])
    best = designs[designs["design"] == PER_MODEL][_PLACE].assign(best=True)
    order = {name: place for place, name in enumerate((*inputs.study.models, *TITLES))}
    return (
        rows.merge(best, on=_PLACE, how="left")
        .sort_values(
            ["system", "model", "planner", "best", "architecture"],
            key=lambda column: column.map(order) if column.name in ("model", "planner") else column,
            kind="stable",
        )
        .drop_duplicates(["system", "model", "planner"])
        .reset_index(drop=True)
    )


def _gains(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence per network on the gain of mapping, and on the difference of the default orders."""
    for system, mine in rows.groupby("system", sort=False):
        gain, cost = mine["gain"], mine["p2p_map"] / mine["cs_map"] - 1
        most, least, worst = (mine.iloc[int(at)] for at in (gain.argmax(), cost.argmin(), cost.argmax()))
        told = {"system": system, "mean": gain.mean(), "most": gain.max(), "mapping": most["mapping"]}
        told |= {"faster": int((gain > 0).sum()), "count": len(mine), "low": cost.min(), "high": cost.max()}
        told |= {"most_of": _plan(most), "low_of": _plan(least), "high_of": _plan(worst)}
        yield WORDS.sentence("mapping", **told)


def _plan(row: pd.Series) -> str:
    return f"{row['model']} by {row['title']}"


_ORDERS = {
    "cs_map": ("all-reduce first", style.GREY),
    "p2p_map": ("stages first", style.SILVER),
    "simulated_s": ("mapped", style.BLUE),
}


def added(rows: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the time added by communication in %, one bar per plan and device order."""
    names = [f"{row.model}, {row.title}" for row in rows.itertuples()]
    table = 100 * (rows[[*_ORDERS]].div(rows["alone_s"], axis=0) - 1).set_axis(names)
    colours = dict(_ORDERS.values())
    return charts.bars(table.set_axis([*colours], axis="columns"), "added, %", colours)
