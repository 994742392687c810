"""The page of the plans: figures and tables of the Piper paper, claims, and checks."""

from phaze.report.plans.build import build_plan_report
from phaze.report.plans.inputs import PlanInputs

__all__ = ["PlanInputs", "build_plan_report"]
