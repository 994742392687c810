"""Recommended plans of a study, with the least simulated time, and how much the certified plans lose.

The certificate proves that no plan is better by the planner's formula. The simulator also covers effects that
the formula ignores. Of the certified plan, equal stages and the hand-designed stages on the same
accelerator, the plan with the least simulated time is recommended. Piper's plans do not flush their pipeline,
so they train with stale weights. They are recommended only if Piper's is the planner of the study.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.ranking import tied
from phaze.base.units import percent
from phaze.pages.document import Items, Prose, Section
from phaze.pages.page_words import words_of
from phaze.pages.verdicts import ROUNDING
from phaze.pages.words import join, samples, seconds, widths
from phaze.report.findings import PER_MODEL, Findings
from phaze.report.inputs import Inputs, table_of
from phaze.report.planners import CHIP, NEAR, TITLES, titled
from phaze.tables import Recommendations
from phaze.tables.plans import PLAN

WORDS = words_of("study")
CERTIFIED = "phaze"
FLUSHING = (CERTIFIED, "equal", "expert")
"""Planners whose pipelines flush after every batch, in order of preference for equal times."""
SHAPE = ["tensor", "data", "stages", "microbatch", "memory"]
"""Columns of table `plans` that define a plan."""
_OF_BEST = (*CHIP[1:], "planner", *SHAPE, "bound_by", "planned_s", "simulated_s", "samples_per_s")
PLANS = {**TITLES, CERTIFIED: "certified", "piper": "Piper (no flush)"}
"""Display names of plans, by planner."""


def loss(certified: pd.Series, other: pd.Series) -> dict[str, float]:
    """Extra time of the certified plan over another plan in the simulator, relative to the other plan.

    Both arguments are rows of table `simulations`. `lost` is explained by effects that the planner's formula
    ignores, because the certified plan has the least planned time. If its planned time is longer than the
    other's, the difference is `unexplained`: a defect.
    """
    taken_s, planned_s = float(other["simulated_s"]), float(other["planned_s"])
    longer_s = float(certified["planned_s"]) - planned_s
    return {
        "lost": max(float(certified["simulated_s"]) / taken_s - 1, 0.0),
        "unexplained": longer_s / taken_s if longer_s > ROUNDING * planned_s else 0.0,
    }


def recommend(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Table `recommendations`: one row per compared result with a simulated certified plan."""
    plans = inputs.plans.loc[inputs.plans["status"] == "placed", [*PLAN, *SHAPE]]
    compared = titled(inputs.study, results, inputs.simulations.merge(plans, on=list(PLAN)))
    baseline = compared[compared["design"] == inputs.study.architectures.baseline]
    reference = baseline[baseline["planner"] == "expert"].set_index("model")["simulated_s"]
    also = ("piper",) if inputs.study.place.planner == "piper" else ()
    rows = [
        {"model": model, "design": design, **_row(design_plans, reference.get(model, 0.0), also)}
        for (model, design), design_plans in compared.groupby(["model", "design"])
        if CERTIFIED in set(design_plans["planner"])
    ]
    return table_of(Recommendations, rows)


def _row(plans: pd.DataFrame, reference_s: float, also: tuple[str, ...]) -> dict[str, object]:
    """Row of table `recommendations` for one accelerator; `plans` has one row per planner."""
    certified, best = fastest(plans, (CERTIFIED,)), fastest(plans, (*FLUSHING, *also))
    taken = dict(zip(plans["planner"], plans["simulated_s"], strict=True))
    return {
        **{name: best[name] for name in _OF_BEST},
        "speedup": reference_s / float(best["simulated_s"]),
        "certified_planned_s": certified["planned_s"],
        "certified_simulated_s": certified["simulated_s"],
        **{f"{planner}_s": taken.get(planner, np.inf) for planner in ("equal", "expert", "piper")},
        # FLUSHING includes the certified plan: if it is the fastest, its loss is 0
        **loss(certified, fastest(plans, FLUSHING)),
    }


def fastest(plans: pd.DataFrame, planners: tuple[str, ...]) -> pd.Series:
    """Plan with the least simulated time among some planners; ties go to the first planner."""
    candidates = pd.concat([plans[plans["planner"] == planner] for planner in planners])
    return candidates.iloc[int(np.argmin(tied(candidates["simulated_s"].to_numpy())))]


def recommended(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on recommended plans, for a study with simulated plans."""
    rows = findings.recommendations
    if rows.empty:
        return
    rows = rows.sort_values("design", key=lambda name: name != PER_MODEL, kind="stable")
    rows = rows.sort_values("model", key=lambda name: name.map(inputs.study.models.index), kind="stable")
    marked = rows["design"] == PER_MODEL
    rows = rows.assign(
        certified_differs=rows["certified_simulated_s"] / rows["certified_planned_s"] - 1,
        differs=rows["simulated_s"] / rows["planned_s"] - 1,
        plan=rows["planner"].map(PLANS),
    )
    sheets = (WORDS.sheet(name, rows, marked) for name in ("recommended", "certified"))
    losses = Items(tuple(_losses(rows[marked])))
    yield WORDS.section("recommended", (losses, *sheets, Prose(WORDS.sentences["piper"])))


@dataclass(frozen=True)
class Recommended:
    """Recommended plan on the accelerator of a result, formatted for display."""

    whose: str
    shape: str
    microbatch: str
    planned: str
    simulated: str
    """Simulated time per batch; empty without a simulation."""
    bound_by: str
    gain: float
    """Planned time of the certified plan over the simulated time of this plan."""


def recommended_on(findings: Findings, result: pd.Series) -> Recommended:
    """Recommended plan on the accelerator of a placed result; without simulations, its placement."""
    rows = findings.recommendations
    rows = rows[(rows["model"] == result["model"]) & (rows["design"] == result["design"])]
    if rows.empty:
        return Recommended(
            PLANS[CERTIFIED], widths(result), samples(result["layout"]),
            with_bound(result), "", str(result["binding"]), 1.0,
        )  # fmt: skip
    row = rows.iloc[0]
    return Recommended(
        PLANS[row["planner"]], shape(row), str(row["microbatch"]),
        with_bound(result) if row["planner"] == CERTIFIED else seconds(row["planned_s"]),
        seconds(row["simulated_s"]), str(row["bound_by"]),
        float(result["time_per_batch_s"] / row["simulated_s"]),
    )  # fmt: skip


def with_bound(row: pd.Series) -> str:
    """Time per batch of a result, with its lower bound unless the time is proven optimal."""
    time, bound = row["time_per_batch_s"], row["bound_s"]
    return seconds(time) if bound >= time * (1 - 1e-6) else f"{seconds(bound)} to {seconds(time)}"


def shape(row: pd.Series) -> str:
    """Format the widths of a plan as {p, d, t}; d and t may list several widths."""
    return f"{{{row['stages']}, {row['data']}, {row['tensor']}}}"


def _losses(rows: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on how much the certified plans lose in the simulator, on the best accelerators."""
    losing = rows[rows["lost"] > NEAR]
    is_single = len(rows) == 1
    plans = "The certified plan loses" if is_single else f"{len(losing)} of {len(rows)} certified plans lose"
    if len(rows) and losing.empty:
        yield f"No certified plan of a best accelerator loses more than {percent(NEAR, 0)} in the simulator."
    for _, row in losing.sort_values("lost", ascending=False, kind="stable").head(1).iterrows():
        others_s = min(row["equal_s"], row["expert_s"])
        yield WORDS.sentence("loses", **{**row, "plans": plans, "near": NEAR, "others_s": others_s})
    wrong = losing[losing["unexplained"] > 0]
    if len(wrong):
        yield f"It is planned to take longer, too, on {join(wrong['model'])}: a defect."


def loss_fact(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield a key figure for the first screen: the largest loss of a certified plan in the simulator."""
    rows = findings.recommendations
    rows = rows[rows["design"] == PER_MODEL]
    for _, most in rows.sort_values("lost", ascending=False, kind="stable").head(1).iterrows():
        where = f", on {most['model']}" if len(rows) > 1 else ""
        yield (
            percent(most["lost"]),
            f"most that the proven plan loses to simpler ones in simulation{where}",
        )
