"""Simulated plans: their times against the planners' times, and on networks before and after mapping."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from phaze.report import charts, style
from phaze.report.document import Block, Cell, Chart, Items, Prose, Section, in_form, sheet_of
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.pipeline_picture import left_out
from phaze.report.planners import TITLES, change, titled
from phaze.report.winners import PER_MODEL
from phaze.report.words import file_name, join, percent, times
from phaze.tables import BY_HAND
from phaze.tables.plans import PLAN


def replayed(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on simulated plans."""
    rows = titled(inputs.study, findings.results, findings.simulations)
    if rows.empty:
        return
    best, marked = rows[rows["design"] == PER_MODEL], rows["design"] == PER_MODEL
    rows["difference"] = rows["simulated_s"] / rows["planned_s"] - 1
    caption = "Time per batch as planned and as simulated, and the difference, of the planned"
    planned = sheet_of(caption, rows, _TIMES, 3, marked, "simulations")
    caption = "Where the device time of every simulated plan goes, what binds it, and its fullest device"
    spent = sheet_of(caption, rows, _SHARES, 5, source="simulations", folded=True)
    blocks: tuple[Block, ...] = (
        *_difference_chart(best, inputs), planned, Prose(_LEFT_OUT), *_facts(best),
        *_picture(best, inputs), spent, Prose(_MOVED),
    )  # fmt: skip
    about = (
        "Simulated time of every plan, next to its planner's. A planner's time is a formula; the simulator "
        "executes every microbatch on every stage and includes what the formula leaves out."
    )
    yield Section("simulated", "Simulated", about, blocks)


_TIMES: dict[str, Cell] = {
    "workload": "{model}", "design": "{design}", "planner": "{title}",
    "planner's time": "{planned_s:seconds}", "simulated": "{simulated_s:seconds}",
    "difference": in_form("difference", change),
}  # fmt: skip
_SHARES: dict[str, Cell] = {
    "workload": "{model}", "design": "{design}", "planner": "{title}", "schedule": "{schedule}",
    "bound by": "{bound_by}, stage {bound_stage}", "compute": "{compute_share:percent}",
    "exposed communication": "{exposed_communication_share:percent}", "bubbles": "{bubble_share:percent}",
    "HBM": "{hbm_share:percent}", "links": "{link_share:percent}", "samples/s": "{samples_per_s:digits4}",
    "most memory": "{peak_bytes:size}", "in stage": "{fullest_stage}",
}  # fmt: skip
_LEFT_OUT = (
    "What formulas leave out or charge otherwise: Phaze's takes every stage for as slow as the slowest while "
    "the pipeline fills and drains. Passes wait for each other differently than in an ideal pipeline. "
    "Planners charge tensors between stages to the passes, the simulator has them under way while devices go "
    "on. All stages exchange their gradients, with a flush after their last backward pass while the stages "
    "before still work, without one during the next batch; the simulator counts 2 (d − 1)/d in each "
    "direction, both at once, while planners with a flush charge the longest exchange of any stage (with "
    "`training.gradients: first-stage` the first stage's only) by the system's factor of an all-reduce, and "
    "Piper 4 (d − 1)/d a stage. Tensors that enter a stage together share its link, no link carries more "
    "than its bandwidth allows, and operators that run side by side share the HBM of their device."
)
_MOVED = (
    "HBM: what operators as they are scheduled move to and from memory, of what it could move in the time. "
    "Links: what they carry in one direction, of what they could. Bound by: what takes most of the longest "
    "chain of events; of a pass it is compute while the HBM rests, HBM while it works, or all-reduces of "
    "slices."
)


def _difference_chart(best: pd.DataFrame, inputs: Inputs) -> Iterator[Chart]:
    """Figure of simulated over planned times on the best accelerators; none without plans."""
    if best.empty:
        return
    order = [model for model in inputs.study.models if model in set(best["model"])]
    by_plan = best.set_index(["planner", "model"])
    ratios = by_plan["simulated_s"] / by_plan["planned_s"]
    wide = ratios.unstack("planner").reindex(index=order, columns=list(TITLES)).fillna(0.0)
    yield Chart(
        "simulated",
        "Simulated time per batch over the planner's, on each workload's best accelerator",
        "Above 1 a plan takes longer than its planner says.",
        partial(charts.titled_bars, wide, charts.PLANNERS.items(), "simulated over planned"),
    )


def _picture(best: pd.DataFrame, inputs: Inputs) -> Iterator[Chart]:
    """Picture over time of the first placement with several stages, else of the first placement."""
    plans = best[list(PLAN)].merge(inputs.plans[inputs.plans["planner"] == "phaze"], on=list(PLAN))
    if plans.empty or inputs.pictures is None:
        return
    plan = plans.iloc[int((plans["stages"] > 1).argmax())]
    shown = inputs.pictures(plan)
    yield Chart(
        "timeline",
        f"A batch of {plan['model']} on its best accelerator over time, as simulated",
        " ".join([f"{shown.title}.", *left_out(shown)]),
        shown.timeline,
    )
    about = "Of a device of each stage."
    yield Chart("timeline-memory", f"Memory of a batch of {plan['model']} over time", about, shown.memory)


def _facts(best: pd.DataFrame) -> Iterator[Items]:
    """List of sentences on the errors of planners, and on plans that are faster in simulation."""
    sentences = []
    for title, mine in best.groupby("title", sort=False):
        ratio = mine["simulated_s"] / mine["planned_s"]
        largest = mine.iloc[int(np.argmax((ratio - 1).abs()))]
        sentences.append(
            f"{title}: simulated plans take {times(ratio.min())} to {times(ratio.max())} the "
            f"planner's time; the farthest is {largest['model']}."
        )
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
        yield (
            f"On {join(faster)} a plan with equal or experts' stages is simulated to be faster than Phaze's, "
            "although Phaze's formula puts it behind."
        )


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
    """Section on plans mapped to the devices of networks."""
    rows = side_by_side(inputs, findings)
    if rows.empty:
        return
    figures = [
        Chart(
            f"network-{file_name(system)}",
            f"What communication adds to a simulated batch on {system}, by the order of its devices",
            f"{mine['network'].iloc[0]}, over a network that takes no time. Where two bars of a plan differ, "
            "the order of the devices matters; the third is the mapping that is chosen.",
            partial(added, mine),
        )
        for system, mine in rows.groupby("system", sort=False)
    ]
    caption = "Simulated time per batch on networks, before and after mapping"
    sheet = sheet_of(caption, rows, _MAPS, 5, source="plan_maps")
    blocks: tuple[Block, ...] = (*figures, sheet, Items(tuple(_gains(rows))), Prose(_MAPPED), Prose(_WORKERS))
    about = (
        "Simulated time of the plans on networks of several levels, before and after topology-aware mapping. "
        "Planners assume a flat network; here plans are mapped to the devices in the default orders and by "
        "topology."
    )
    yield Section("networks", "On networks", about, blocks)


_MAPS: dict[str, Cell] = {
    "workload": "{model}", "planner": "{title}", "system": "{system}", "network": "{network}",
    "mapping": "{mapping}", "workers × lanes × unit": "{workers} × {lanes} × {unit}",
    "without communication": "{alone_s:seconds}", "all-reduce first": "{cs_map:seconds}",
    "stages first": "{p2p_map:seconds}", "mapped": "{simulated_s:seconds}",
    "gain over all-reduce first": "{gain:percent}", "gain over stages first": "{gain_over_p2p:percent}",
}  # fmt: skip
_MAPPED = (
    "Every plan is executed event by event on the part of the network that has the study's devices; a link "
    "carries one message at a time, all-reduces go around inside nodes first, and the devices compute as "
    "those that were planned on. All-reduce first puts the replicas of a stage on consecutive devices, as "
    "Megatron-LM numbers them; stages first those of a pipeline. With the network in mind, the devices of a "
    "node or of a row of a torus hold 2 or 4 stages of some pipelines, or a local search makes short what a "
    "step takes without contention; of these the one with the least estimate is simulated. What is simulated "
    "to be the shortest of the three is the mapping, so that it is never slower than a default order."
)
_WORKERS = (
    "A stage of the mapping is a worker, a replica a lane: as many lanes run beside each other as the data "
    "widths have as a common divisor, and the replicas of a stage inside a lane are workers of their own. "
    "The devices of a tensor parallel group are a unit with consecutive numbers; what they send each other "
    "is part of the passes, as planners charge it. Table plan_maps has every mapping that was tried, "
    "results/plan_devices the devices of the one that was chosen."
)


def side_by_side(inputs: Inputs, findings: Findings) -> pd.DataFrame:
    """Times of both default orders and of the chosen mapping, one row per plan and network.

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
        lowest, highest = (
            f"{'+' if value > 0 else ''}{percent(value)}" for value in (cost.min(), cost.max())
        )
        yield (
            f"{system}: over all-reduce first, mapping saves {percent(gain.mean())} of a batch on average, "
            f"and at most {percent(gain.max())} ({_plan(most)}, {most['mapping']}); it makes "
            f"{int((gain > 0).sum())} of {len(mine)} plans faster. Stages first differs from all-reduce "
            f"first by {lowest} ({_plan(least)}) to {highest} ({_plan(worst)})."
        )


def _plan(row: pd.Series) -> str:
    return f"{row['model']} by {row['title']}"


_ORDERS = {
    "cs_map": ("all-reduce first", style.GREY),
    "p2p_map": ("stages first", style.SILVER),
    "simulated_s": ("mapped", style.BLUE),
}


def added(rows: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the time added by communication in %, one bar per plan and order of devices."""
    names = [f"{row.model}, {row.title}" for row in rows.itertuples()]
    table = 100 * (rows[[*_ORDERS]].div(rows["alone_s"], axis=0) - 1).set_axis(names)
    colours = dict(_ORDERS.values())
    return charts.bars(table.set_axis([*colours], axis="columns"), "added, %", colours)
