"""The page of the plans: figures and tables of the Piper paper beside ours, claims and checks."""

from __future__ import annotations

import pandas as pd

from phaze.report.document import Answer
from phaze.report.plans.checks import CHECKS
from phaze.report.plans.claims import check_claims
from phaze.report.plans.inputs import PlanInputs
from phaze.report.plans.sections import notes, sections_of
from phaze.report.report import Report, page_of
from phaze.report.verdicts import checks_section, claims_sheet, run_checks
from phaze.tables import Cases, Checks, Claims, Curves, Durations, Pipelines

_CHECKS = "What must hold of any plans, checked on these; `snakemake check` fails if one does not."


def build_plan_report(inputs: PlanInputs) -> Report:
    """Return the page of the plans of a study."""
    claims, checks = check_claims(inputs), run_checks(CHECKS, inputs)
    tables = {
        "cases": (Cases, inputs.cases),
        "pipelines": (Pipelines, inputs.pipelines),
        "curves": (Curves, inputs.curves),
        "durations": (Durations, inputs.durations),
        "case-claims": (Claims, claims),
        "case-checks": (Checks, checks),
    }
    sections = (*sections_of(inputs), checks_section(checks, "case-checks", _CHECKS), notes(inputs))
    return page_of("plans.html", "plans of Piper", _answer(inputs, claims, checks), sections, tables)


def _answer(inputs: PlanInputs, claims: pd.DataFrame, checks: pd.DataFrame) -> Answer:
    """Return the first screen: which of the claims hold."""
    held = int(claims["holds"].sum())
    planned = int((inputs.cases["status"] == "planned").sum())
    title = "its publication" if inputs.published is None else f"“{inputs.published.title}”"
    source = "the authors' inputs" if not inputs.plans.stand_ins else "inputs of our own"
    sentence = (
        f"{held} of {len(claims)} claims of {title} hold for these plans, made from {source}; "
        f"{int(checks['passed'].sum())} of {len(checks)} checks of the plans themselves pass."
    )
    facts = (
        (f"{held} of {len(claims)}", "claims of the paper that hold here"),
        (f"{planned:,}", f"plans found on {len(inputs.cases):,} clusters asked"),
        (f"{inputs.durations['seconds'].sum():,.0f} s", "of one core to find all plans and curves"),
    )
    sheet = claims_sheet(claims, "case-claims")
    return Answer("Do Piper's plans come out as printed?", sentence, facts, sheet)
