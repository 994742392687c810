"""A sound study passes every check, and each check detects its defect."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phaze.pages.verdicts import run_checks
from phaze.report.build import CHECKS
from phaze.report.checks import Evidence
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs, Only, Slicing
from phaze.tables import Table
from tests.unit.report.builder import Change, scaled


def test_a_sound_study_passes_every_check_and_every_check_looks_at_something(findings: Findings) -> None:
    assert findings.checks["passed"].all(), findings.checks[~findings.checks["passed"]]
    assert (findings.checks["rows"] > 0).all()
    assert set(findings.checks["check"]) == set(CHECKS)


class Changed:
    """Details with one table changed."""

    def __init__(self, inputs: Inputs, table: str, change: Change) -> None:
        self.details, self.table, self.change = inputs.details, table, change

    def rows(self, table: type[Table], point: Slicing, shard: str, only: Only | None = None) -> pd.DataFrame:
        found = self.details.rows(table, point, shard, only)
        return self.change(found.copy()) if table.name == self.table else found


def changed(e: Evidence, table: str, change: Change) -> Evidence:
    """Return evidence with one table changed, in any of its parts."""
    if table in ("results", "energies"):
        return replace(e, **{table: change(getattr(e, table).copy())})
    if table in ("placements", "architectures"):
        cluster = replace(e.inputs.cluster, **{table: change(getattr(e.inputs.cluster, table).copy())})
        return replace(e, inputs=replace(e.inputs, clusters={"paper": cluster}))
    if table in ("stages", "schedules"):
        return replace(e, inputs=replace(e.inputs, details=Changed(e.inputs, table, change)))
    return replace(e, inputs=replace(e.inputs, **{table: change(getattr(e.inputs, table).copy())}))


def fails(evidence: Evidence, check: str) -> bool:
    """Return whether a check fails, and assert that it gives the place."""
    failed = [what for holds, what in CHECKS[check](evidence) if not holds]
    assert all(failed)
    return bool(failed)


def second(**values: object) -> Change:
    """Return a change of columns of the second row."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype(dict.fromkeys(values, object))
        frame.loc[frame.index[1], list(values)] = list(values.values())
        return frame

    return change


def halved(frame: pd.DataFrame) -> pd.DataFrame:
    factor = np.where(frame["design"] == "per-model", 0.5, 1)
    return frame.assign(samples_per_s=frame["samples_per_s"] * factor)


def without_bert(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["model"] != "bert-large"]


def doubled(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(area_um2=frame["area_um2"] * 2)


DEFECTS: dict[str, list[tuple[str, Change]]] = {
    "no placement uses more devices than there are": [("placements", scaled("devices_used", 100.0, "phaze"))],
    "time per batch follows from load, microbatches and stages": [
        ("placements", scaled("max_load_s", 1.01, "phaze")), ("placements", scaled("samples_per_s", 1.01)),
    ],
    "bounds are not above what was found": [
        ("placements", scaled("bound_s", 1.1, "phaze")),
        ("solves", lambda f: f.assign(bound_s=f["objective_s"] * 1.01)),
    ],
    "utilisation is at most one": [
        ("placements", scaled("mfu", 1000.0, "phaze")), ("placements", scaled("mfu_paper", 1000.0, "phaze")),
    ],
    "no expert placement beats the searched one": [
        ("placements", scaled("time_per_batch_s", 0.01, "expert"))
    ],
    "more HBM is never slower": [
        ("placements", lambda f: f.assign(time_per_batch_s=f["time_per_batch_s"] * f["hbm_gib"]))
    ],
    "infeasible placements say why": [("placements", lambda f: f.assign(reason=""))],
    "every model, TMP width, microbatch and shard has placements": [
        ("placements", lambda f: f[(f["model"] != "bert-large") | ~f["layout"].str.endswith("b2")])
    ],
    "stages are the layers of the model, each once": [
        ("stages", lambda f: f[f["stage"] != 1]), ("stages", lambda f: f.assign(last_layer=0)),
    ],
    "memory of every stage adds up and fits the HBM": [
        ("stages", lambda f: f.assign(memory_bytes=1e15)), ("stages", lambda f: f.assign(stashed_bytes=2e7)),
    ],
    "loads and devices of the stages add up": [
        ("stages", lambda f: f.assign(load_s=f["load_s"] * 2)),
        ("stages", lambda f: f.assign(devices=f["devices"] + 1)),
    ],
    "schedules end when their solve says": [("schedules", lambda f: f.assign(end_s=f["end_s"] * 1.1))],
    "areas of the parts sum to the chip": [("architectures", doubled)],
    "searched architectures are within the area limit": [("architectures", doubled)],
    "members of a front beat each other": [("fronts", lambda f: f.assign(joules_per_sample=1.0))],
    "the fastest of the searched is on the front": [
        ("fronts", lambda f: f.assign(time_per_batch_s=f["time_per_batch_s"] * 1.1))
    ],
    "no placement beats the front": [("fronts", lambda f: f[~f["energy"]])],
    "no reported design beats the winner": [("results", halved)],
    "every model has a result or a reason for none": [("results", without_bert)],
    "energies by part and by layer agree": [
        ("energies", lambda f: f.assign(joules_per_sample=np.arange(len(f), dtype=float)))
    ],
    "every point of the space is excluded or solved": [
        ("certificates", second(work=3)), ("certificates", second(points=10)),
    ],
    "nothing is left that could be better than the best": [
        ("certificates", second(open=1)), ("certificates", second(contradictions=1)),
    ],
    "certificates are about the best placement": [
        ("certificates", second(best=1.0)), ("certificates", second(excluded=1e9)),
    ],
    "points solved again agree with the certificate": [
        *(
            ("audits", lambda f, said=said: f.assign(verdict=[*f["verdict"][:-1], said]))
            for said in ("beats the best", "fits the memory", "lower bound too high")
        ),
        ("audits", lambda f: f.iloc[:3]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("check", DEFECTS)
def test_a_defect_is_caught_by_its_check(evidence: Evidence, check: str) -> None:
    for table, change in DEFECTS[check]:
        assert fails(changed(evidence, table, change), check), table


def test_a_walk_may_leave_points_open(evidence: Evidence) -> None:
    study = evidence.inputs.study
    walking = study.model_copy(update={"screen": study.screen.model_copy(update={"strategy": "hysteresis"})})
    left = changed(evidence, "certificates", second(open=1))
    walked = replace(left, inputs=replace(left.inputs, study=walking))
    assert not fails(walked, "nothing is left that could be better than the best")


def test_a_failed_check_counts_its_failures_and_names_the_first(evidence: Evidence) -> None:
    said = "infeasible placements say why"
    found = run_checks({said: CHECKS[said]}, changed(evidence, "placements", lambda f: f.assign(reason="")))
    failed = found[~found["passed"]].iloc[0]
    assert failed["failures"] == failed["rows"] > 0
    assert "megatron-gpt3-175b" in failed["example"]
