"""The page of the plans: figures, tables, claims and checks as one HTML page, and as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from phaze.report.document import Answer, Document
from phaze.report.files import write_report
from phaze.report.plans.checks import check_plans, failures
from phaze.report.plans.claims import check_claims
from phaze.report.plans.inputs import PlanInputs
from phaze.report.plans.sections import checks_section, claims_sheet, notes, sections_of
from phaze.tables import Cases, Checks, Claims, Curves, Durations, Pipelines, Table

TABLES: dict[str, type[Table]] = {
    "cases": Cases,
    "pipelines": Pipelines,
    "curves": Curves,
    "durations": Durations,
    "case-claims": Claims,
    "case-checks": Checks,
}
"""The tables beside the page, by file name."""


@dataclass(frozen=True)
class PlanReport:
    """A finished page with its tables."""

    document: Document
    tables: dict[str, pd.DataFrame]

    @property
    def failures(self) -> list[str]:
        """Return the checks that failed, each with its first example."""
        return list(failures(self.tables["case-checks"]))


def build_plan_report(inputs: PlanInputs) -> PlanReport:
    """Return the page of the plans of a study."""
    claims, checks = check_claims(inputs), check_plans(inputs)
    tables = {
        "cases": inputs.cases,
        "pipelines": inputs.pipelines,
        "curves": inputs.curves,
        "durations": inputs.durations,
        "case-claims": claims,
        "case-checks": checks,
    }
    document = Document(
        title="phaze",
        subtitle="plans of Piper",
        answer=_answer(inputs, claims, checks),
        sections=(*sections_of(inputs), checks_section(checks), notes(inputs)),
        tables=tables,
        page="plans.html",
    )
    return PlanReport(document, tables)


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
    return Answer("Do Piper's plans come out as printed?", sentence, facts, claims_sheet(claims))


def write_plan_report(report: PlanReport, folder: Path) -> None:
    """Write every table as Parquet and CSV, then Markdown and the page."""
    write_report(report.document, {name: (TABLES[name], report.tables[name]) for name in TABLES}, folder)
