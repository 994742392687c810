"""Rows for a page."""

from __future__ import annotations

import pytest

from phaze.tiles import published
from phaze.tiles.chip import load_tiled_machine
from phaze.tiles.grayskull import CASES, Case, Row
from phaze.tiles.inference import Family, fastest
from phaze.tiles.published import grayskull_beside, ratios_beside
from phaze.tiles.ratios import table_i


def test_ratios_become_rows() -> None:
    rows = ratios_beside()
    assert [row.ours for row in rows] == [ratio.ours for ratio in table_i()]
    assert [row.error for row in rows] == [ratio.error for ratio in table_i()]
    assert all(row.table == "I" and row.reading and row.simulated is None for row in rows)


def test_cases_of_grayskull_become_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one mapping only, so that it does not take long."""

    def one(case: Case) -> Row:
        machine = load_tiled_machine("grayskull")
        return Row(case, fastest(machine, case.operators(), case.numbers, Family((12,), (2,)), "analytical"))

    monkeypatch.setattr(published, "table_v", lambda *_: tuple(map(one, CASES)))
    rows = grayskull_beside()
    assert [(row.published, row.simulated) for row in rows] == [(case.published, case.palm) for case in CASES]
    assert all(row.error == row.ours / row.published - 1 for row in rows)
    assert all("12 stages of 10 cores, microbatch 2" in row.explanation for row in rows)
    assert {row.case for row in rows} == {"resnet-50", "bert-base"}
    assert len({(row.case, row.reading) for row in rows}) == len(rows)
