"""Plan that a study of accelerators recommends: the fastest layout on any of its chips, with a bound.

It is the answer of `phaze plan --architecture` to the study's workload, batch and network, for expected
times: those are the times of the prices of a study's placements.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

import pandas as pd

from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.priced import MeasuredInterval, PricedLayout
from phaze.plan.answer.ranked_table import shape
from phaze.plan.chips import Chips
from phaze.spec.files import FOLDER
from phaze.spec.model import Model
from phaze.spec.names import GAP
from phaze.spec.system import Device, Scenario, Stack
from phaze.spec.systems import one_level
from phaze.spec.training_plan import AskedPlan, StoredMachine, TrainingPlan, UnfitPlan
from phaze.tables.layouts import SIZES, Recommendations


def study_request(
    model: Model, sequence: int, scenario: Scenario, name: str, chips: Chips, stack: Stack
) -> AskedPlan:
    """Planning request of a model on any of the chips, in the network of the scenario with this name."""
    cluster = one_level(scenario, f"scenarios.{name}", chips[0].name)
    device = Device.of_architecture(chips[0], scenario, stack)
    machine = StoredMachine(cluster=cluster, device=device, stack=stack).on_architecture(chips[0], stack)
    fields = {
        "model": model, "system": name, "stack": stack.name, "devices": scenario.devices,
        "global_batch": scenario.global_batch, "sequence": sequence, "runtime": "chip", "rank": "expected",
        "machine": machine, "chips": chips if len(chips) > 1 else None,
    }  # fmt: skip
    return AskedPlan.parse(fields, "recommend")


def recommended(request: AskedPlan, folder: Path = FOLDER) -> TrainingPlan | UnfitPlan:
    """Fastest plan of a request, without comparisons; `folder` has the configuration.

    The search is limited by its work, not by a clock, so that equal requests have equal answers.
    """
    planner = TrainingPlanner(request, without_interval, GAP, folder)
    return planner.answer(planner.best(1), 1, alone=True)


def without_interval(_: PricedLayout) -> MeasuredInterval:
    """No interval, as no measured run has a chip of a study."""
    return MeasuredInterval(None)


def recommendation_row(model: str, scenario: str, answer: TrainingPlan | UnfitPlan) -> pd.DataFrame:
    """Row of table `recommendations` for a workload's answer; figures are 0 or infinite if nothing fits."""
    chip, certificate = answer.question.stored_machine().device, answer.certificate
    plan = answer if isinstance(answer, TrainingPlan) else None
    row = {
        "model": model,
        "scenario": scenario,
        "status": "planned" if plan else "unfit",
        "chips": len(answer.question.chips or (chip,)),
        "architecture": chip.name if plan else "",
        "hbm_gib": chip.hbm_gib if plan else 0.0,
        "shape": shape(plan.layout, plan.recomputed_layers) if plan else "",
        **{name: getattr(plan.layout, name) if plan else 0 for name in (*SIZES, "zero")},
        "recompute": plan.layout.recompute if plan else "",
        "expected_s": plan.time_s if plan else inf,
        "prudent_s": plan.by("prudent") if plan else inf,
        "bound_s": inf if certificate.bound_s is None else certificate.bound_s,
        "gap": certificate.gap,
        "reason": answer.reason if isinstance(answer, UnfitPlan) else "",
    }
    return Recommendations.check(pd.DataFrame([row]))
