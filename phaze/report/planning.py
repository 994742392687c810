"""A model planned by several planners: on the architectures of the results, from its own schedules."""

from __future__ import annotations

import pandas as pd

from phaze.plan.piper.planner import plan
from phaze.plan.planners import Asked
from phaze.plan.side_by_side import plan_model
from phaze.report.inputs import Cluster
from phaze.report.planned import Choice, choose_chips
from phaze.search.cosearch import Subject, Terms, look_up_architectures
from phaze.tables import PLANNERS, Plans, PlanStages


def plan_subject(
    subject: Subject, terms: Terms, cluster: Cluster, choice: Choice, planner: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return tables plans and plan_stages of a model; `cluster` holds its placements.

    All planners plan on its winner, the common architecture and the baseline. Where the planner of the study
    is not Phaze's, it plans on all that may be its answer as well.
    """
    asked = ask_for(cluster, choice, planner)
    known = cluster.architectures
    wanted = known[known["architecture"].isin({one.architecture for one in asked})]
    if wanted.empty:
        return Plans.empty(), PlanStages.empty()
    solves = look_up_architectures(subject, wanted, terms, ["solves"])["solves"]
    layers = pd.concat([point.layers for point in subject.points], ignore_index=True)
    conditions = terms.conditions(subject)
    return plan_model(layers, subject.graph, solves, wanted, asked, conditions, subject.expert, plan)


def ask_for(cluster: Cluster, choice: Choice, planner: str) -> list[Asked]:
    """Return what to plan on, and by whom."""
    chips = choose_chips(cluster, choice)
    others = () if planner == "phaze" else chips.others
    return [
        *(Asked(*chip, PLANNERS) for chip in chips.compared),
        *(Asked(*chip, (planner,)) for chip in others),
    ]
