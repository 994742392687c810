"""What a study recommends: the plan with the least simulated time, and what the certified plan loses to it.

The certificate proves that by the planner's formula no plan is better; the simulator also executes what the
formula leaves out. So of the certified plan, equal stages and the experts' stages, on the same accelerator,
the one with the least simulated time is recommended. Piper's plans do not flush their pipeline, which trains
with stale weights: they are recommended only where Piper's is the planner of the study.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from phaze.report.designs import CHIP, NAMES, NEAR, titled
from phaze.report.inputs import Inputs
from phaze.report.words import seconds
from phaze.tables import PARTS, Recommendations
from phaze.tables.plans import PLAN
from phaze.theory.ranking import tied

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
    "synchronisation_s": "charges the gradients of the first stage only",
    "contention_s": "gives every tensor its own link and every operator the whole HBM",
}
"""What the planner's formula does about every part of a time otherwise than the simulator."""


def recommend(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return table recommendations: a row for every compared result whose certified plan is simulated."""
    plans = inputs.plans.loc[inputs.plans["status"] == "placed", [*PLAN, *SHAPE]]
    found = titled(inputs.study, results, inputs.simulations.merge(plans, on=list(PLAN)))
    baseline = found[found["design"] == inputs.study.architectures.baseline]
    reference = baseline[baseline["planner"] == "expert"].set_index("model")["simulated_s"]
    also = ("piper",) if inputs.study.place.planner == "piper" else ()
    rows = [
        {"model": model, "design": design, **_row(mine, reference.get(model, 0.0), also)}
        for (model, design), mine in found.groupby(["model", "design"])
        if CERTIFIED in set(mine["planner"])
    ]
    return Recommendations.check(pd.DataFrame(rows)) if rows else Recommendations.empty()


def _row(plans: pd.DataFrame, reference_s: float, also: tuple[str, ...]) -> dict[str, object]:
    """Return what is recommended of the plans of one accelerator, a row for each planner."""
    certified, flushing = fastest(plans, (CERTIFIED,)), fastest(plans, FLUSHING)
    best = fastest(plans, (*FLUSHING, *also))
    taken = dict(zip(plans["planner"], plans["simulated_s"], strict=True))
    lost = float(certified["simulated_s"] / flushing["simulated_s"] - 1)
    unexplained = _unexplained(certified, flushing)
    return {
        **{name: best[name] for name in _OF_BEST},
        "speedup": reference_s / float(best["simulated_s"]),
        "certified_planned_s": certified["planned_s"],
        "certified_simulated_s": certified["simulated_s"],
        **{f"{planner}_s": taken.get(planner, np.inf) for planner in ("equal", "expert", "piper")},
        "lost": max(lost, 0.0),
        "unexplained": unexplained,
        "reason": "; ".join(_reasons(certified, flushing)) if lost > NEAR >= unexplained else "",
    }


def fastest(plans: pd.DataFrame, planners: tuple[str, ...]) -> pd.Series:
    """Return the row of the plan with the least simulated time of some planners."""
    mine = pd.concat([plans[plans["planner"] == planner] for planner in planners])
    return mine.iloc[int(np.argmin(tied(mine["simulated_s"].to_numpy())))]


def _gaps(certified: pd.Series, other: pd.Series) -> dict[str, float]:
    """Return for every part by how many seconds the formula favours the certified plan with it."""
    return {part: max(float(certified[part] - other[part]), 0.0) for part in PARTS}


def _unexplained(certified: pd.Series, other: pd.Series) -> float:
    """Return what the certified plan loses to another for no reason that is known, of the other's time.

    Both simulated times are the planned one and its parts. So the certified plan, which is planned to take
    no longer, loses by what the formula leaves out, and what that does not account for is a defect.
    """
    lost_s = float(certified["simulated_s"] - other["simulated_s"])
    return max(lost_s - sum(_gaps(certified, other).values()), 0.0) / float(other["simulated_s"])


def _reasons(certified: pd.Series, other: pd.Series) -> Iterator[str]:
    """Yield why the certified plan loses, the largest reason first, until what is left needs no word."""
    lost_s = float(certified["simulated_s"] - other["simulated_s"])
    gaps = _gaps(certified, other)
    for part in sorted(gaps, key=lambda part: -gaps[part]):
        if lost_s <= NEAR * other["simulated_s"] or not gaps[part]:
            return
        yield f"{NAMES[part]}, {seconds(gaps[part])}: the planner's formula {LEFT_OUT[part]}"
        lost_s -= gaps[part]
