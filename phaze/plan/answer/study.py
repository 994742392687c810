"""Convert the training plans of a study to rows of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path

import pandas as pd

from phaze.plan.chips import load_chips
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.spec.files import FOLDER
from phaze.spec.layout_study import LayoutPoint, LayoutStudy
from phaze.spec.systems import load_cluster, runtime_for, stack_for
from phaze.spec.training_plan import AskedPlan, RankedPlan, TrainingPlan, UnfitPlan
from phaze.tables.layouts import LayoutProofs, RankedLayouts

PLAN_COLUMNS = tuple(name for name in RankedLayouts.columns if name in RankedPlan.model_fields)
"""Columns that are fields of a ranked plan; the others are fields of its layout."""


def request(
    study: LayoutStudy, point: LayoutPoint, model: Mapping[str, object], folder: Path = FOLDER
) -> AskedPlan:
    """Planning request of a study's job, with the defaults that `phaze plan` has."""
    architecture = study.architecture
    machine, chips = (None, None) if architecture is None else load_chips(architecture, point.system, folder)
    runtime = "chip" if machine else runtime_for(point.system, folder, study.runtime)
    stack = study.stack or stack_for(load_cluster(point.system, folder)[0], runtime, folder)
    sizes = {"devices": point.devices, "global_batch": study.global_batch, "sequence": study.sequence}
    fields = {"model": model, "system": point.system, "stack": stack, "runtime": runtime, **sizes}
    return AskedPlan.parse({**fields, "machine": machine, "chips": chips}, "layouts")


def ranked_rows(point: LayoutPoint, answer: TrainingPlan | UnfitPlan) -> pd.DataFrame:
    """Rows of table `ranked_layouts` for one planning request; empty if nothing fits."""
    plans = answer.alternatives if isinstance(answer, TrainingPlan) else ()
    rows = [
        {**_keys(point, answer), "rank": rank, "fullest_gib": plan.fullest_gib, **_columns(plan)}
        for rank, plan in enumerate(plans, start=1)
    ]
    return RankedLayouts.check(pd.DataFrame(rows)) if rows else RankedLayouts.empty()


def _keys(point: LayoutPoint, answer: TrainingPlan | UnfitPlan) -> dict[str, object]:
    """Key columns of a request's rows: its design point, and the kind of time by which plans are ranked."""
    return {**point.model_dump(), "ranking": answer.question.rank}


def _columns(plan: RankedPlan) -> dict[str, object]:
    layout = plan.layout.model_dump()
    columns = {name: getattr(plan, name) for name in PLAN_COLUMNS}
    # Columns are numbers: inf stands for no interval.
    columns |= {name: inf for name in ("time_s_low", "time_s_high") if columns[name] is None}
    return columns | {name: layout[name] for name in RankedLayouts.columns if name in layout}


def proof_row(point: LayoutPoint, answer: TrainingPlan | UnfitPlan, machine: Machine) -> pd.DataFrame:
    """Row of table `layout_proofs` for one planning request."""
    certificate, unfit = answer.certificate, isinstance(answer, UnfitPlan)
    names = ("layouts", "same", "unfit", "simulated", "divisions")
    counts = {name: getattr(certificate, name) for name in names}
    row = {
        **_keys(point, answer),
        **counts,
        "status": "unfit" if unfit else "planned",
        "illegal": sum(certificate.illegal.values()),
        "bounded": sum(certificate.bounded.values()),
        "hbm_gib": device_of(machine).hbm_gib,
        "bound_s": float("inf") if certificate.bound_s is None else certificate.bound_s,
        "gap": certificate.gap,
        "reason": answer.reason if isinstance(answer, UnfitPlan) else "",
    }
    return LayoutProofs.check(pd.DataFrame([row]))
