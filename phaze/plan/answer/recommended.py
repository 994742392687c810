"""Plan that a study of accelerators recommends: the fastest layout on any of its chips, with a bound.

It is the answer of `phaze plan --architecture` to the study's workload, batch and network, for expected
times: those are the times of the prices of a study's placements.
"""

from __future__ import annotations

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
    planner = TrainingPlanner(request, _without_interval, GAP, folder)
    return planner.answer(planner.best(1), 1, alone=True)


def _without_interval(_: PricedLayout) -> MeasuredInterval:
    """No interval, as no measured run has a chip of a study."""
    return MeasuredInterval(None)


def recommendation_row(model: str, scenario: str, answer: TrainingPlan | UnfitPlan) -> pd.DataFrame:
    """Row of table `recommendations` for a workload's answer; figures are 0 or infinite if nothing fits."""
    fits = isinstance(answer, TrainingPlan)
    chip, layout = answer.question.stored_machine().device, answer.layout if fits else None
    row = {
        "model": model,
        "scenario": scenario,
        "status": "planned" if fits else "unfit",
        "chips": len(answer.question.chips or (chip,)),
        "architecture": chip.name if fits else "",
        "hbm_gib": chip.hbm_gib if fits else 0.0,
        "shape": shape(layout, answer.recomputed_layers) if fits and layout else "",
        **{name: getattr(layout, name) if layout else 0 for name in (*SIZES, "zero")},
        "recompute": layout.recompute if layout else "",
        "expected_s": answer.time_s if fits else float("inf"),
        "prudent_s": answer.by("prudent") if fits else float("inf"),
        "bound_s": float("inf") if answer.certificate.bound_s is None else answer.certificate.bound_s,
        "gap": answer.certificate.gap,
        "reason": "" if fits else answer.reason,
    }
    return Recommendations.check(pd.DataFrame([row]))
