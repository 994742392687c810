"""What a study recommends: the plan with the least simulated time, and what the certified plan loses to it.

The certificate proves that by the planner's formula no plan is better; the simulator also executes what the
formula leaves out. So of the certified plan, equal stages and the experts' stages, on the same accelerator,
the one with the least simulated time is recommended. Piper's plans do not flush their pipeline, which trains
with stale weights: they are recommended only where Piper's is the planner of the study.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.ranking import tied
from phaze.cost.memory import Gradients
from phaze.report.document import Cell, Items, Prose, Section, in_form, sheet_of
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs, table_of
from phaze.report.planners import CHIP, NAMES, NEAR, TITLES, change, in_parts, titled
from phaze.report.winners import PER_MODEL
from phaze.report.words import join, percent, samples, seconds, widths
from phaze.tables import PARTS, Recommendations
from phaze.tables.plans import PLAN

CERTIFIED = "phaze"
FLUSHING = (CERTIFIED, "equal", "expert")
"""Planners whose pipelines flush after every batch; of equal times the first counts."""
SHAPE = ["tensor", "data", "stages", "microbatch", "memory"]
"""Columns of table plans that say what a plan is."""
_OF_BEST = (*CHIP[1:], "planner", *SHAPE, "bound_by", "planned_s", "simulated_s", "samples_per_s")
LEFT_OUT = {
    "imbalance_s": "takes all stages for as slow as the slowest while the pipeline fills and drains",
    "bubbles_s": "knows no waits but those of an ideal pipeline",
    "transfers_s": "has devices wait for tensors that are under way while they go on",
    "contention_s": "gives every tensor its own link and every operator the whole HBM",
}
"""What the planner's formula does about every part of a time otherwise than the simulator."""
EXCHANGE = {
    "first-stage": "charges the gradients of the first stage only",
    "every-stage": (
        "charges the longest exchange of gradients in full, even where links carry both directions at once "
        "or other stages still work"
    ),
}
"""What it does about gradients, by `training.gradients`."""


def loss(certified: pd.Series, other: pd.Series, gradients: Gradients) -> dict[str, object]:
    """Loss of the certified plan to another in the simulator, given rows of table simulations: what is lost
    and what of it is unexplained, in parts of the other's time, and the reason why it is more than a little.

    Both simulated times are the planned one and its parts. So the certified plan, which is planned to take no
    longer, loses by what the formula leaves out, and what that does not account for is a defect. A formula
    that charges the gradients of every stage may charge too much for the other plan, but never too little for
    the certified one: that is no reason.
    """
    taken_s, parts = float(other["simulated_s"]), dict[str, tuple[float, float]]()
    for part in PARTS:
        parts[part] = float(certified[part]), float(other[part])
    if gradients == "every-stage":
        ours, theirs = parts["synchronisation_s"]
        parts["synchronisation_s"] = min(ours, 0.0), min(theirs, 0.0)
    causes = {part: max(ours - theirs, 0.0) for part, (ours, theirs) in parts.items()}
    left_s = float(certified["simulated_s"]) - taken_s
    lost = max(float(certified["simulated_s"]) / taken_s - 1, 0.0)
    unexplained, reasons = max(left_s - sum(causes.values()), 0.0) / taken_s, list[str]()
    words = LEFT_OUT | {"synchronisation_s": EXCHANGE[gradients]}
    for part, cause_s in sorted(causes.items(), key=lambda cause: -cause[1]):
        if lost > NEAR >= unexplained and left_s > NEAR * taken_s and cause_s:  # the largest cause first
            reasons.append(f"{NAMES[part]}, {seconds(cause_s)}: the planner's formula {words[part]}")
            left_s -= cause_s
    return {"lost": lost, "unexplained": unexplained, "reason": "; ".join(reasons)}


def recommend(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Table recommendations: a row for every compared result whose certified plan is simulated."""
    plans = inputs.plans.loc[inputs.plans["status"] == "placed", [*PLAN, *SHAPE]]
    found = titled(inputs.study, results, inputs.simulations.merge(plans, on=list(PLAN)))
    baseline = found[found["design"] == inputs.study.architectures.baseline]
    reference = baseline[baseline["planner"] == "expert"].set_index("model")["simulated_s"]
    also = ("piper",) if inputs.study.place.planner == "piper" else ()
    gradients = inputs.study.training.gradients
    rows = [
        {"model": model, "design": design, **_row(mine, reference.get(model, 0.0), also, gradients)}
        for (model, design), mine in found.groupby(["model", "design"])
        if CERTIFIED in set(mine["planner"])
    ]
    return table_of(Recommendations, rows)


def _row(
    plans: pd.DataFrame, reference_s: float, also: tuple[str, ...], gradients: Gradients
) -> dict[str, object]:
    """The recommended plan of one accelerator, given a row for each planner."""
    certified, best = fastest(plans, (CERTIFIED,)), fastest(plans, (*FLUSHING, *also))
    taken = dict(zip(plans["planner"], plans["simulated_s"], strict=True))
    return {
        **{name: best[name] for name in _OF_BEST},
        "speedup": reference_s / float(best["simulated_s"]),
        "certified_planned_s": certified["planned_s"],
        "certified_simulated_s": certified["simulated_s"],
        **{f"{planner}_s": taken.get(planner, np.inf) for planner in ("equal", "expert", "piper")},
        **loss(certified, fastest(plans, FLUSHING), gradients),
    }


def fastest(plans: pd.DataFrame, planners: tuple[str, ...]) -> pd.Series:
    """The row of the plan with the least simulated time of some planners."""
    mine = pd.concat([plans[plans["planner"] == planner] for planner in planners])
    return mine.iloc[int(np.argmin(tied(mine["simulated_s"].to_numpy())))]


PLANS = {**TITLES, CERTIFIED: "certified", "piper": "Piper (no flush)"}
"""Whose plans they are, for readers."""
_ABOUT = (
    "The certificate is about the planner's formula. Recommended is the plan with the least simulated time, "
    "of the certified plan, equal stages and the experts' stages on the same accelerator."
)
_PIPER = (
    "Piper's plans do not flush the pipeline after a batch: they train with weights that are one batch stale "
    "(PipeDream-2BW), which is another training. So they are shown beside, and recommended only where the "
    "planner of the study is Piper's (place.planner: piper)."
)
_PARTS = (
    "Where times differ by more than 5 %, the parts of the difference are given, of the planned time; they "
    "are explained with the simulated plans below. A positive synchronisation says that gradients are "
    "exchanged that the formula does not charge, a negative one that it charges more than links need."
)


def recommended(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Recommended plans, for a study with simulated ones."""
    rows = findings.recommendations
    if rows.empty:
        return
    rows = rows.sort_values("design", key=lambda name: name != PER_MODEL, kind="stable")
    rows = rows.sort_values("model", key=lambda name: name.map(inputs.study.models.index), kind="stable")
    simulated, marked = findings.simulations.set_index(list(PLAN)), rows["design"] == PER_MODEL
    certified: dict[str, Cell] = {
        "workload": "{model}", "design": "{design}",
        "simulated over planned": lambda row: in_parts(simulated.loc[(*row[CHIP], CERTIFIED)]),
        "why it loses": (
            lambda row: row["reason"] or ("" if row["lost"] <= NEAR else "nothing that is known")
        ),
        "planned": "{certified_planned_s:seconds}", "simulated": "{certified_simulated_s:seconds}",
        "equal stages": "{equal_s:seconds}", "experts": "{expert_s:seconds}",
        "Piper (no flush)": "{piper_s:seconds}", "loses": in_form("lost", change),
    }  # fmt: skip
    best: dict[str, Cell] = {
        "workload": "{model}", "design": "{design}", "plan": lambda row: PLANS[row["planner"]],
        "{p, d, t}": shape, "microbatch": "{microbatch}", "activations": "{memory}",
        "simulated over planned": lambda row: in_parts(simulated.loc[(*row[CHIP], row["planner"])]),
        "planned": "{planned_s:seconds}", "simulated": "{simulated_s:seconds}", "speed-up": "{speedup:times}",
    }  # fmt: skip
    blocks = (
        Items(tuple(_losses(rows[marked]))),
        sheet_of(_BEST, rows, best, 7, marked, "recommendations"),
        Prose(_PARTS),
        sheet_of(_CERTIFIED, rows, certified, 4, marked, "recommendations"),
        Prose(_PIPER),
    )
    yield Section("recommended", "Recommended plans", _ABOUT, blocks)


_BEST = (
    "The recommended plan with its time per batch as planned and as simulated, and why they differ; "
    "speed-up as simulated, over the experts' plan on the baseline"
)
_CERTIFIED = (
    "The certified plan as planned and as simulated, beside the simulated times of the others, and what "
    "it loses to the best of equal and experts' stages"
)


@dataclass(frozen=True)
class Recommended:
    """The recommended plan on the accelerator of a result, for readers."""

    whose: str
    shape: str
    microbatch: str
    planned: str
    simulated: str
    """Empty without a simulation."""
    bound_by: str
    gain: float
    """Planned time of the certified plan over the simulated time of this one."""


def recommended_on(findings: Findings, result: pd.Series) -> Recommended:
    """The plan on the accelerator of a placed result: its placement unless plans are simulated."""
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
    """Time per batch of a result, with the bound below it where a layer is not proven."""
    time, bound = row["time_per_batch_s"], row["bound_s"]
    return seconds(time) if bound >= time * (1 - 1e-6) else f"{seconds(bound)} to {seconds(time)}"


def shape(row: pd.Series) -> str:
    """{p, d, t} of a plan, whose stages may have several widths."""
    return f"{{{row['stages']}, {row['data']}, {row['tensor']}}}"


def _losses(rows: pd.DataFrame) -> Iterator[str]:
    """Losses of the certified plans of best accelerators in the simulator."""
    losing = rows[rows["lost"] > NEAR]
    one = len(rows) == 1
    plans = "The certified plan loses" if one else f"{len(losing)} of {len(rows)} certified plans lose"
    if len(rows) and losing.empty:
        yield f"No certified plan of a best accelerator loses more than {percent(NEAR, 0)} in the simulator."
    for _, row in losing.sort_values("lost", ascending=False, kind="stable").head(1).iterrows():
        yield (
            f"{plans} more than {percent(NEAR, 0)} in the simulator to equal or experts' stages on the "
            f"best accelerator, most on {row['model']}: {percent(row['lost'])} "
            f"({seconds(row['certified_planned_s'])} as planned, {seconds(row['certified_simulated_s'])} as "
            f"simulated; theirs {seconds(min(row['equal_s'], row['expert_s']))} as simulated)."
        )
    silent = losing[losing["reason"] == ""]
    if len(silent):
        yield f"Nothing that is known of the formula says why on {join(silent['model'])}: a defect."


def in_short(findings: Findings) -> Iterator[tuple[str, str]]:
    """The fact for the first screen: what certified plans lose in the simulator."""
    rows = findings.recommendations
    rows = rows[rows["design"] == PER_MODEL]
    for _, most in rows.sort_values("lost", ascending=False, kind="stable").head(1).iterrows():
        where = f", on {most['model']}" if len(rows) > 1 else ""
        yield (
            percent(most["lost"]),
            f"at most lost by the certified plan in the simulator to equal or experts' stages{where}",
        )
