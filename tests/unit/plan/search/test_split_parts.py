"""Bounds with whole layers per stage: never above the best split, and above those with whole ranks."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.layout import Layout
from phaze.plan import effort
from phaze.plan.splits.program import SplitLimits, SplitProgram
from phaze.plan.splits.search import SplitSearch
from phaze.plan.splits.split import all_splits
from tests.unit.plan.search.exhaustive import SmallCase

CASE = SmallCase("llama2-7b", 10, 2048, devices=8, hbm_gib=21.0)
ROUNDING = 1e-6
ALMOST = 1 - 1e-3
"""Share of the best time that bounds are raised to."""
MOST_PARTED = 60
"""Parts divided per layout."""


def pipelines() -> list[tuple[SplitSearch, float]]:
    """Return searches of pipelines with two chunks, with the time of their best split that fits."""
    question, found = CASE.question("megatron"), []
    for zero in (0, 1):
        for recompute in ("none", "selective"):
            layout = Layout(pp=4, vp=2, dp=2, zero=zero, recompute=recompute)  # type: ignore[arg-type]
            staged, limit_bytes = question.staged(layout, "interleaved"), question.limit_bytes(layout)
            every = [staged.timeline(split) for split in all_splits(staged)]
            best_s = min(one.time_s for one in every if (one.peak_bytes <= limit_bytes).all())
            found.append((SplitSearch(staged, limit_bytes), best_s))
    return found


def test_parts_prove_more_than_whole_layers_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten layers on eight stages: a stage has one or two, while those of every rank may be equal."""
    monkeypatch.setattr(effort, "FEW_SPLITS", 0)
    monkeypatch.setattr(effort, "HOPEFUL", 0.0)
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
        assert search.best is not None
        assert search.best.time_s >= best_s * (1 - ROUNDING)
        gained.append((search.bound_s - ranks_s) / (best_s - ranks_s) if ranks_s < wanted_s else 1.0)
    assert len(gained) == 4
    assert min(gained) > 0.85


def test_memory_within_limits_is_that_of_the_splits_within_them() -> None:
    """The program's rows with limits at a split's own layers are at most its bytes, and often equal."""
    close = []
    for search, _ in pipelines():
        staged = search.staged
        program = SplitProgram(staged, search.paths, search.limit_bytes, staged.layers)
        for split in list(all_splits(staged))[::5]:
            point = np.array([split.blocks, split.recomputed], float).ravel()
            rows, room = program.memory_rows(SplitLimits(point, point))
            used = np.array([split.blocks[0] > 0, split.blocks[-1] > 0], float)
            excess = float((rows @ np.append(point, used) - room).max()) * 2**30
            own = float((staged.timeline(split).peak_bytes - search.limit_bytes).max())
            assert excess <= own + ROUNDING * search.limit_bytes
            close.append(excess >= own - ROUNDING * search.limit_bytes)
    assert np.mean(close) > 0.9
