"""Section of the Piper paper: figures, tables, claims, and checks of plans."""

from __future__ import annotations

import pandas as pd

from phaze.papers.claims import check_claims
from phaze.papers.page import Paper, checked, paper_of, part
from phaze.papers.piper.inputs import (
    FUNCTIONS,
    PlanInputs,
    claimed_tables,
)
from phaze.papers.piper.sections import sections_of, stand_ins, unplanned
from phaze.report.case_checks import PLAN_CHECKS
from phaze.tables import TABLES


def piper_paper(inputs: PlanInputs) -> Paper:
    """Piper's section, comparing the paper with the plans of a study."""
    claims = check_claims(inputs.published, claimed_tables(inputs), FUNCTIONS)
    checks, table = checked("case-checks", PLAN_CHECKS, inputs)
    planned = {name: (TABLES[name], getattr(inputs, name)) for name in PLANNED}
    return paper_of(
        "piper",
        inputs.published,
        _answer(inputs, claims),
        (*part(sections_of(inputs)), *checks),
        {**planned, **table},
        claims=("case-claims", claims),
        missing=unplanned(inputs),
        notes=stand_ins(inputs),
    )


def _answer(inputs: PlanInputs, claims: pd.DataFrame) -> str:
    """Summary: number of claims that hold, source of the inputs, and number of plans."""
    planned = int((inputs.cases["status"] == "planned").sum())
    source = "the authors' inputs" if not inputs.study.stand_ins else "inputs of our own"
    return (
        f"{int(claims['holds'].sum())} of {len(claims)} claims hold for plans made from {source}; "
        f"{planned:,} plans are found on {len(inputs.cases):,} clusters."
    )


PLANNED = ("cases", "pipelines", "curves")
