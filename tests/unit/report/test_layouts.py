"""The page of training plans recognises equally fast plans, and begins with failed checks."""

from __future__ import annotations

from typing import get_args

import pandas as pd

from phaze.pages.verdicts import failures, run_checks
from phaze.report.layouts import CHECKS, LayoutInputs, build_layout_report
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.names import Rank
from phaze.spec.training_plan import TIE
from phaze.tables.layouts import LayoutProofs, RankedLayouts

SIZE = {"model": "gpt2", "system": "h100", "devices": 2}


def ranked(*times_s: float) -> LayoutInputs:
    """Return inputs with plans of these times, the first one ahead."""
    filled = {"text": "", "float64": 0.5, "int64": 1, "bool": False}
    both = get_args(Rank)
    rows = [
        {
            **{name: filled.get(str(column.dtype), "") for name, column in RankedLayouts.columns.items()},
            **SIZE, "ranking": ranking, "rank": rank, "time_s": time_s, "prudent_s": time_s,
            "time_s_low": 0.9 * time_s, "time_s_high": 1.1 * time_s, "dp": 2,
        }
        for ranking in both
        for rank, time_s in enumerate(times_s, 1)
    ]  # fmt: skip
    proof = {name: filled.get(str(column.dtype), "") for name, column in LayoutProofs.columns.items()}
    proof |= {**SIZE, "status": "planned", "layouts": 5, "bound_s": 0.9, "gap": 0.1, "hbm_gib": 80.0}
    study = LayoutStudy(models=("gpt2",), systems=("h100",), devices=(2,))
    return LayoutInputs(
        study,
        RankedLayouts.check(pd.DataFrame(rows)),
        LayoutProofs.check(pd.DataFrame([{**proof, "ranking": one} for one in both])),
    )


def test_simpler_plans_may_be_ahead_of_those_that_count_as_equally_fast() -> None:
    assert failures(run_checks(CHECKS, ranked(1 + 0.9 * TIE, 1.0, 1.1))) == []
    for times_s in (
        (1 + 1.1 * TIE, 1.0),
        (1.0 + 0.9 * TIE, 1.1, 1.0),
        (1 + 0.9 * TIE, 1 + 0.5 * TIE, 1 - TIE),
    ):
        assert len(failures(run_checks(CHECKS, ranked(*times_s)))) == 1, times_s


def test_the_page_begins_with_a_check_that_failed() -> None:
    right, wrong = (build_layout_report(ranked(*times_s)) for times_s in ((1.0, 1.1), (1.1, 1.0)))
    assert right.lead == right.answer.sentence
    (failed,) = wrong.failures
    assert wrong.lead.startswith(f"1 check of these results FAILED, so that they may be wrong ({failed})")
    for text in (wrong.markdown, wrong.page):
        assert "1 check of these results FAILED" in text
