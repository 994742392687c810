"""A study in which nothing fits has a report that states this and the shortfall."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phaze.pages.page import Report
from phaze.report.build import build_report
from phaze.report.inputs import Inputs
from phaze.search.winners import Outcome, choose
from phaze.tables import CAUSES, TABLES, Certificates, Placements

STASHING = "memory: the leanest placement (t = 1, 3 stages) needs 1.319 MiB, 524.3 KiB given: too little"
RECOMPUTING = "memory: the leanest placement (t = 1, 6 stages) needs 595.2 KiB, 524.3 KiB given: too little"
SOLVED_AGAIN = ("lower_s", "feasible_s", "plain_s", "bound_s", "exact_s", "best_s")
ABSENT = ("fronts", "trials", "sensitivities", "simulations")
NEVER = ("time_per_batch_s", "bound_s", "max_load_s", "sync_s", "joules_per_sample")


def infeasible(placements: pd.DataFrame) -> pd.DataFrame:
    """Return the same placements as infeasible, as written by stage place."""
    energies = [name for name in placements.columns if name.endswith("_j")]
    return Placements.check(
        placements.assign(
            status="infeasible",
            binding="memory",
            reason=np.where(placements["recompute"], RECOMPUTING, STASHING),
            **dict.fromkeys((*NEVER, *energies), np.inf),
            **dict.fromkeys(("samples_per_s", "tokens_per_s", "mfu", "mfu_paper"), 0.0),
            **dict.fromkeys(("data", "stages", "devices_used"), 0),
        )
    )


def excluded(certificates: pd.DataFrame) -> pd.DataFrame:
    """Return the same certificates if no point fits the memory."""
    nothing = dict.fromkeys([*CAUSES, "best", "excluded", "bound", "hbm_gib"], 0)
    return Certificates.check(
        certificates.assign(**nothing, architecture="").assign(memory=certificates["points"])
    )


@pytest.fixture(scope="module")
def report(inputs: Inputs) -> Report:
    """Return the report of the small study if no architecture has enough memory."""
    main = inputs.cluster
    cluster = Outcome(main.scenario, main.area_limit_um2, main.architectures, infeasible(main.placements))
    nothing = replace(
        inputs,
        clusters={"paper": cluster},
        certificates=excluded(inputs.certificates),
        audits=inputs.audits.assign(**dict.fromkeys(SOLVED_AGAIN, np.inf)),
        **{name: TABLES[name].empty() for name in ABSENT},
    )
    return build_report(nothing)


def test_a_study_in_which_nothing_fits_has_a_report_that_says_so(report: Report) -> None:
    answer = report.answer
    assert answer.sentence.startswith("Nothing fits: ")
    assert report.failures == []


def test_what_is_missing_is_said_for_every_workload(inputs: Inputs, report: Report) -> None:
    rows = report.answer.sheet.rows
    assert [row[0] for row in rows] == list(inputs.study.models)
    assert {row[1] for row in rows} == {f"fits nowhere: {RECOMPUTING}"}
    assert report.markdown.count(RECOMPUTING) >= len(rows)


def test_the_best_of_what_fits_nowhere_is_what_needs_least(inputs: Inputs) -> None:
    rows = infeasible(inputs.cluster.placements).assign(area_um2=1.0)
    found = choose(rows, 0.01)
    assert found is not None
    assert found["recompute"]
    assert found["hbm_gib"] == rows["hbm_gib"].max()
