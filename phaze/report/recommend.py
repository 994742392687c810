"""What a study recommends: the plan with the least simulated time, and what the certified plan loses to it.

The certificate proves that by the planner's formula no plan is better; the simulator also executes what the
formula leaves out. So of the certified plan, equal stages and the experts' stages, on the same accelerator,
the one with the least simulated time is recommended. Piper's plans do not flush their pipeline, which trains
with stale weights: they are recommended only where Piper's is the planner of the study.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from phaze.base.ranking import tied
from phaze.cost.memory import Gradients
from phaze.report.designs import CHIP, NAMES, NEAR, titled
from phaze.report.inputs import Inputs
from phaze.report.words import seconds
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


@dataclass(frozen=True)
class Loss:
    """What the certified plan loses in the simulator to another, and for what reasons.

    Both simulated times are the planned one and its parts. So the certified plan, which is planned to take no
    longer, loses by what the formula leaves out, and what that does not account for is a defect. A formula
    that charges the gradients of every stage may charge too much for the other plan, but never too little for
    the certified one: that is no reason.
    """

    certified: pd.Series
    """Row of table simulations."""
    other: pd.Series
    """The same of the plan that it loses to."""
    gradients: Gradients

    @property
    def seconds(self) -> float:
        """Return the difference of the simulated times."""
        return float(self.certified["simulated_s"] - self.other["simulated_s"])

    @property
    def share(self) -> float:
        """Return the loss of the other's time, 0 where there is none."""
        return max(float(self.certified["simulated_s"] / self.other["simulated_s"] - 1), 0.0)

    @cached_property
    def causes(self) -> dict[str, float]:
        """Return for every part by how many seconds the formula favours the certified plan with it."""
        return {part: max(self._off(part), 0.0) for part in PARTS}

    def _off(self, part: str) -> float:
        ours, theirs = float(self.certified[part]), float(self.other[part])
        if part == "synchronisation_s" and self.gradients == "every-stage":
            return min(ours, 0.0) - min(theirs, 0.0)
        return ours - theirs

    @property
    def unexplained(self) -> float:
        """Return the part of the other's time that is lost for no reason that is known."""
        return max(self.seconds - sum(self.causes.values()), 0.0) / float(self.other["simulated_s"])

    @property
    def reason(self) -> str:
        """Return why it is more than a little, empty if it is not or if something remains unexplained."""
        return "; ".join(self._reasons()) if self.share > NEAR >= self.unexplained else ""

    def _reasons(self) -> Iterator[str]:
        """Yield the largest cause first, until what is left needs no word."""
        left_s, words = self.seconds, LEFT_OUT | {"synchronisation_s": EXCHANGE[self.gradients]}
        for part in sorted(self.causes, key=lambda part: -self.causes[part]):
            if left_s <= NEAR * self.other["simulated_s"] or not self.causes[part]:
                return
            yield f"{NAMES[part]}, {seconds(self.causes[part])}: the planner's formula {words[part]}"
            left_s -= self.causes[part]


def recommend(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return table recommendations: a row for every compared result whose certified plan is simulated."""
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
    return Recommendations.check(pd.DataFrame(rows)) if rows else Recommendations.empty()


def _row(
    plans: pd.DataFrame, reference_s: float, also: tuple[str, ...], gradients: Gradients
) -> dict[str, object]:
    """Return what is recommended of the plans of one accelerator, a row for each planner."""
    certified, best = fastest(plans, (CERTIFIED,)), fastest(plans, (*FLUSHING, *also))
    loss = Loss(certified, fastest(plans, FLUSHING), gradients)
    taken = dict(zip(plans["planner"], plans["simulated_s"], strict=True))
    return {
        **{name: best[name] for name in _OF_BEST},
        "speedup": reference_s / float(best["simulated_s"]),
        "certified_planned_s": certified["planned_s"],
        "certified_simulated_s": certified["simulated_s"],
        **{f"{planner}_s": taken.get(planner, np.inf) for planner in ("equal", "expert", "piper")},
        "lost": loss.share,
        "unexplained": loss.unexplained,
        "reason": loss.reason,
    }


def fastest(plans: pd.DataFrame, planners: tuple[str, ...]) -> pd.Series:
    """Return the row of the plan with the least simulated time of some planners."""
    mine = pd.concat([plans[plans["planner"] == planner] for planner in planners])
    return mine.iloc[int(np.argmin(tied(mine["simulated_s"].to_numpy())))]
