"""Bounds with whole layers per stage: never above the best split, and above those with whole ranks."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.layout import Layout
from phaze.plan.layouts import division_search
from phaze.plan.layouts.division_program import DivisionProgram, SplitLimits
from phaze.plan.layouts.division_search import DivisionSearch
from phaze.plan.layouts.divisions import all_divisions
from tests.unit.plan.layouts.exhaustive import SmallCase

CASE = SmallCase("llama2-7b", 10, 2048, devices=8, hbm_gib=21.0)
ROUNDING = 1e-6
ALMOST = 1 - 1e-3
"""Share of the best time that bounds are raised to."""
MOST_PARTED = 60
"""Parts divided per layout."""


def pipelines() -> list[tuple[DivisionSearch, float]]:
    """Return searches of pipelines with two chunks, with the time of their best split that fits."""
    question, found = CASE.question("megatron"), []
    for zero in (0, 1):
        for recompute in ("none", "selective"):
            layout = Layout(pp=4, vp=2, dp=2, zero=zero, recompute=recompute)  # type: ignore[arg-type]
            divided, limit_bytes = question.divided(layout, "interleaved"), question.limit_bytes(layout)
            every = [divided.timeline(division) for division in all_divisions(divided)]
            best_s = min(one.time_s for one in every if (one.peak_bytes <= limit_bytes).all())
            found.append((DivisionSearch(divided, limit_bytes), best_s))
    return found


def test_parts_prove_more_than_whole_layers_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten layers on eight stages: a stage has one or two, while those of every rank may be equal."""
    monkeypatch.setattr(division_search, "FEW", 0)
    monkeypatch.setattr(division_search, "HOPEFUL", 0.0)
    gained = []
    for search, best_s in pipelines():
        wanted_s = best_s * ALMOST
        search.guess()
        search.relax(wanted_s)
        search.finish(wanted_s)
        ranks_s = search.bound_s
        for _ in range(MOST_PARTED):
            if search.done:
                break
            search.finish(wanted_s)
        assert ranks_s <= search.bound_s <= best_s * (1 + ROUNDING)
        assert search.found is not None
        assert search.found.time_s >= best_s * (1 - ROUNDING)
        gained.append((search.bound_s - ranks_s) / (best_s - ranks_s) if ranks_s < wanted_s else 1.0)
    assert len(gained) == 4
    assert min(gained) > 0.85


def test_memory_within_limits_is_that_of_the_splits_within_them() -> None:
    """The program's rows with limits at a split's own layers are at most its bytes, and often equal."""
    close = []
    for search, _ in pipelines():
        divided = search.divided
        program = DivisionProgram(divided, search.paths, search.limit_bytes, divided.layers)
        for division in list(all_divisions(divided))[::5]:
            point = np.array([division.blocks, division.recomputed], float).ravel()
            rows, room = program.memory_rows(SplitLimits(point, point))
            used = np.array([division.blocks[0] > 0, division.blocks[-1] > 0], float)
            excess = float((rows @ np.append(point, used) - room).max()) * 2**30
            own = float((divided.timeline(division).peak_bytes - search.limit_bytes).max())
            assert excess <= own + ROUNDING * search.limit_bytes
            close.append(excess >= own - ROUNDING * search.limit_bytes)
    assert np.mean(close) > 0.9
