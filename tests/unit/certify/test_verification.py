"""Points are solved again only if an input of their times has changed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import phaze.certify.verification
from phaze.base.store import Store
from phaze.certify.audit import judge_points
from phaze.certify.verification import AuditConditions, audit_slice, find_slices, solve_points
from phaze.tables import Architectures, Edges, Estimates, Layers, Operators
from tests.unit.certify.study import SHARDS, given, results, shard, subject

BEST_S = 1e-3


def conditions() -> AuditConditions:
    return AuditConditions(subject("wide").graph, given().scenario, given().training, given().schedule)


@cache
def points() -> pd.DataFrame:
    """Return points of every slice; some do not fit."""
    chosen = []
    for screen in results("wide").screens:
        fits = np.isfinite(screen["lower_s"])
        chosen += [screen[fits].iloc[::97].head(3), screen[~fits].head(1)]
    return pd.concat(chosen, ignore_index=True).assign(chosen="drawn")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, list[str]]:
    """Return the files of the slices."""
    slices = results("wide").slices
    found: dict[str, list[str]] = {}

    def save(kind: str, table: type, frame: pd.DataFrame) -> None:
        path = tmp_path / f"{kind}-{len(found.setdefault(kind, []))}.parquet"
        table.save(frame, path)
        found[kind].append(str(path))

    for name in SHARDS:
        save("architectures", Architectures, shard(name))
    for one in slices:
        save("estimates", Estimates, one.estimates)
    for one in slices[:: len(SHARDS)]:
        save("operators", Operators, one.operators)
        save("edges", Edges, one.edges)
        save("layers", Layers, one.layers)
    return found


@dataclass
class Auditor:
    """Auditor that counts the solved points per slice."""

    files: dict[str, list[str]]
    kept: Path
    solved: list[int] = field(default_factory=list)

    def audit(
        self,
        rows: pd.DataFrame,
        asked: AuditConditions | None = None,
        best_s: float = BEST_S,
        code: str = "one",
    ) -> pd.DataFrame:
        """Return table audits, recording the solved points."""
        self.solved.clear()
        with Store(self.kept, code) as store:
            found = [
                audit_slice(mine, stored, asked or conditions(), best_s, store)
                for mine, stored in find_slices(rows, self.files)
            ]
        return pd.concat(found, ignore_index=True)


@pytest.fixture
def auditor(files: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Auditor:
    found = Auditor(files, tmp_path / "kept")

    def note(rows: pd.DataFrame, *rest: object) -> object:
        found.solved.append(len(rows))
        return solve_points(rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(phaze.certify.verification, "solve_points", note)
    return found


def test_what_is_recalled_is_what_was_found(auditor: Auditor) -> None:
    """Tables in memory give the same result; the second time nothing is solved."""
    expected, sizes = [], []
    for one in results("wide").slices:
        mine = points()[one.has(points())]
        model = conditions().model(one.layers)
        sizes.append(len(mine))
        times = solve_points(mine, one, model, given().schedule)
        expected.append(judge_points(mine, times, BEST_S))
    for solved in (sizes, []):
        found = auditor.audit(points())
        pd.testing.assert_frame_equal(found, pd.concat(expected, ignore_index=True), check_exact=True)
        assert auditor.solved == solved
    assert np.isinf(found["exact_s"]).any()


def test_only_new_points_are_solved_and_old_ones_judged_anew(auditor: Auditor) -> None:
    """Of one more point only that point is solved; the best and the verdicts do not matter."""
    first = auditor.audit(points().drop(index=[0]))
    assert sum(auditor.solved) == len(points()) - 1
    assert set(first["verdict"]) <= {"confirmed", "beats the best"}
    auditor.audit(points())
    assert auditor.solved == [1]
    assert set(auditor.audit(points(), best_s=np.inf)["verdict"]) == {"beats the best", "confirmed"}
    higher = points().assign(lower_s=lambda rows: rows["lower_s"] * 2)
    assert "lower bound too high" in set(auditor.audit(higher)["verdict"])
    assert auditor.solved == []


def test_what_is_not_proven_is_solved_again(auditor: Auditor, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a time limit ended the search, it may do better next time."""
    few = points()[np.isfinite(points()["lower_s"])].head(2)
    proven = {"plain_s": 1.0, "bound_s": 1.0, "exact_s": 1.0, "programs": 1}
    monkeypatch.setattr(
        phaze.certify.verification, "solve_points", lambda *_: [proven, proven | {"exact_s": 1.1}]
    )
    assert list(auditor.audit(few)["exact_s"]) == [1.0, 1.1]
    better = proven | {"programs": 2}
    monkeypatch.setattr(phaze.certify.verification, "solve_points", lambda rows, *_: [better] * len(rows))
    found = auditor.audit(few)
    assert list(found["exact_s"]) == [1.0, 1.0]
    assert list(found["programs"]) == [1, 2]


@pytest.mark.slow
def test_all_that_times_depend_on_counts(auditor: Auditor) -> None:
    """Code, cluster, training, tables, and whether a point is stated to fit; not the set of points."""
    asked = conditions()
    auditor.audit(points())
    others = asked.training.model_copy(update={"microbatches": (2, 4), "hbm_gib": (2.0,)})
    auditor.audit(points(), replace(asked, training=others))
    assert auditor.solved == []
    slow = asked.scenario.model_copy(update={"network_bandwidth_bytes_per_s": 1e9})
    adam = asked.training.model_copy(update={"optimizer": "adam"})
    for other in (
        replace(asked, scenario=slow),
        replace(asked, training=adam),
        replace(asked, graph=asked.graph.assign(count=asked.graph["count"] + 1)),
    ):
        auditor.audit(points(), other)
        assert sum(auditor.solved) == len(points())
    auditor.audit(points(), code="other")
    assert sum(auditor.solved) == len(points())
    estimates = Estimates.load(auditor.files["estimates"][1])
    Estimates.save(estimates.assign(latency_s=estimates["latency_s"] * 2), auditor.files["estimates"][1])
    auditor.audit(points(), code="other")
    assert auditor.solved == [results("wide").slices[1].has(points()).sum()]
    unfit = ~np.isfinite(points()["lower_s"])
    auditor.audit(points().assign(lower_s=1.0), code="other")
    assert sum(auditor.solved) == unfit.sum() > 0
