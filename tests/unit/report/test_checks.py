"""A sound study passes every check, and each check catches the defect that it is for."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phaze.report.build import CHECKS
from phaze.report.checks import Evidence
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs, Only, Point
from phaze.report.verdicts import run_checks
from phaze.tables import Schedules, Stages, Table


@pytest.fixture(scope="module")
def evidence(inputs: Inputs, findings: Findings) -> Evidence:
    return Evidence(inputs, findings.results, findings.energies)


def test_a_sound_study_passes_every_check_and_every_check_looks_at_something(findings: Findings) -> None:
    assert findings.checks["passed"].all(), findings.checks[~findings.checks["passed"]]
    assert (findings.checks["rows"] > 0).all()
    assert set(findings.checks["check"]) == set(CHECKS)


def fails(evidence: Evidence, check: str) -> bool:
    """Return whether a check fails, and make sure that it says where."""
    failed = [what for holds, what in CHECKS[check](evidence) if not holds]
    assert all(failed)
    return bool(failed)


def with_placements(evidence: Evidence, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Evidence:
    """Return evidence with changed placements."""
    cluster = evidence.inputs.cluster
    changed = replace(cluster, placements=change(cluster.placements.copy()))
    return replace(evidence, inputs=replace(evidence.inputs, clusters={"paper": changed}))


def scaled(column: str, factor: float, where: str = "phaze") -> Callable[[pd.DataFrame], pd.DataFrame]:
    """Return a change that multiplies one column of the rows of one planner."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame[column] = frame[column].astype(float)
        frame.loc[frame["planner"] == where, column] *= factor
        return frame

    return change


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (scaled("devices_used", 100.0), "no placement uses more devices than there are"),
        (scaled("max_load_s", 1.01), "time per batch follows from load, microbatches and stages"),
        (scaled("samples_per_s", 1.01), "time per batch follows from load, microbatches and stages"),
        (scaled("bound_s", 1.1), "bounds are not above what was found"),
        (scaled("mfu", 1000.0), "utilisation is at most one"),
        (scaled("time_per_batch_s", 0.01, "expert"), "no expert placement beats the searched one"),
        (
            lambda f: f.assign(time_per_batch_s=f["time_per_batch_s"] * f["hbm_gib"]),
            "more HBM is never slower",
        ),
        (lambda f: f.assign(reason=""), "infeasible placements say why"),
        (
            lambda f: f[(f["model"] != "bert-large") | ~f["layout"].str.endswith("b2")],
            "every model, TMP width, microbatch and shard has placements",
        ),
    ],
)
def test_a_defect_in_the_placements_is_caught(
    evidence: Evidence, change: Callable[[pd.DataFrame], pd.DataFrame], check: str
) -> None:
    assert fails(with_placements(evidence, change), check)


class Changed:
    """Details with one table changed."""

    def __init__(
        self, inputs: Inputs, table: type[Table], change: Callable[[pd.DataFrame], pd.DataFrame]
    ) -> None:
        self.details, self.table, self.change = inputs.details, table, change

    def rows(self, table: type[Table], point: Point, shard: str, only: Only | None = None) -> pd.DataFrame:
        found = self.details.rows(table, point, shard, only)
        return self.change(found.copy()) if table is self.table else found


@pytest.mark.parametrize(
    ("table", "change", "check"),
    [
        (Stages, lambda f: f[f["stage"] != 1], "stages are the layers of the model, each once"),
        (Stages, lambda f: f.assign(last_layer=0), "stages are the layers of the model, each once"),
        (Stages, lambda f: f.assign(memory_bytes=1e15), "memory of every stage adds up and fits the HBM"),
        (Stages, lambda f: f.assign(stashed_bytes=2e7), "memory of every stage adds up and fits the HBM"),
        (Stages, lambda f: f.assign(load_s=f["load_s"] * 2), "loads and devices of the stages add up"),
        (Stages, lambda f: f.assign(devices=f["devices"] + 1), "loads and devices of the stages add up"),
        (Schedules, lambda f: f.assign(end_s=f["end_s"] * 1.1), "schedules end when their solve says"),
    ],
)  # fmt: skip
def test_a_defect_in_the_details_is_caught(
    evidence: Evidence, table: type[Table], change: Callable[[pd.DataFrame], pd.DataFrame], check: str
) -> None:
    changed = replace(evidence.inputs, details=Changed(evidence.inputs, table, change))
    assert fails(replace(evidence, inputs=changed), check)


def test_a_solve_whose_bound_exceeds_its_objective_is_caught(evidence: Evidence) -> None:
    solves = evidence.inputs.solves.assign(bound_s=lambda f: f["objective_s"] * 1.01)
    changed = replace(evidence, inputs=replace(evidence.inputs, solves=solves))
    assert fails(changed, "bounds are not above what was found")


def test_areas_that_do_not_sum_or_exceed_the_limit_are_caught(evidence: Evidence) -> None:
    cluster = evidence.inputs.cluster
    chips = cluster.architectures.assign(area_um2=cluster.architectures["area_um2"] * 2)
    clusters = {"paper": replace(cluster, architectures=chips)}
    changed = replace(evidence, inputs=replace(evidence.inputs, clusters=clusters))
    assert fails(changed, "areas of the parts sum to the chip")
    assert fails(changed, "searched architectures are within the area limit")


def with_fronts(evidence: Evidence, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Evidence:
    fronts = change(evidence.inputs.fronts.copy())
    return replace(evidence, inputs=replace(evidence.inputs, fronts=fronts))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda f: f.assign(joules_per_sample=1.0), "members of a front beat each other"),
        (
            lambda f: f.assign(time_per_batch_s=f["time_per_batch_s"] * 1.1),
            "the fastest of the searched is on the front",
        ),
        (lambda f: f[~f["energy"]], "no placement beats the front"),
    ],
)
def test_a_defect_in_the_fronts_is_caught(
    evidence: Evidence, change: Callable[[pd.DataFrame], pd.DataFrame], check: str
) -> None:
    assert fails(with_fronts(evidence, change), check)


def test_a_winner_slower_than_another_design_is_caught(evidence: Evidence) -> None:
    results = evidence.results.copy()
    winner = results["design"] == "per-model"
    results.loc[winner, "samples_per_s"] *= 0.5
    assert fails(replace(evidence, results=results), "no reported design beats the winner")


def test_a_model_without_result_is_caught(evidence: Evidence) -> None:
    results = evidence.results[evidence.results["model"] != "bert-large"]
    energies = evidence.energies[evidence.energies["model"] != "bert-large"]
    changed = replace(evidence, results=results, energies=energies)
    assert fails(changed, "every model has a result or a reason for none")


def test_energies_that_do_not_sum_are_caught(evidence: Evidence) -> None:
    energies = evidence.energies.assign(joules_per_sample=np.arange(len(evidence.energies), dtype=float))
    assert fails(replace(evidence, energies=energies), "energies by part and by layer agree")


def certified(evidence: Evidence, **changes: object) -> Evidence:
    """Return evidence with one of the columns of the first certificate changed."""
    table = evidence.inputs.certificates.copy()
    for column, value in changes.items():
        table[column] = table[column].astype(object)
        table.loc[1, column] = value
    return replace(evidence, inputs=replace(evidence.inputs, certificates=table))


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"work": 3}, "every point of the space is excluded or solved"),
        ({"points": 10}, "every point of the space is excluded or solved"),
        ({"open": 1}, "nothing is left that could be better than the best"),
        ({"contradictions": 1}, "nothing is left that could be better than the best"),
        ({"best": 1.0}, "certificates are about the best placement"),
        ({"excluded": 1e9}, "certificates are about the best placement"),
    ],
)
def test_a_defect_in_a_certificate_is_caught(
    evidence: Evidence, changes: dict[str, object], check: str
) -> None:
    assert not fails(evidence, check)
    assert fails(certified(evidence, **changes), check)


def test_a_walk_may_leave_points_open(evidence: Evidence) -> None:
    study = evidence.inputs.study
    walking = study.model_copy(update={"screen": study.screen.model_copy(update={"strategy": "hysteresis"})})
    left = certified(evidence, open=1)
    walked = replace(left, inputs=replace(left.inputs, study=walking))
    assert not fails(walked, "nothing is left that could be better than the best")


@pytest.mark.parametrize("verdict", ["beats the best", "fits the memory", "lower bound too high"])
def test_a_point_that_disagrees_when_solved_again_is_caught(evidence: Evidence, verdict: str) -> None:
    audits = evidence.inputs.audits.copy()
    audits.loc[audits.index[-1], "verdict"] = verdict
    changed = replace(evidence, inputs=replace(evidence.inputs, audits=audits))
    assert fails(changed, "points solved again agree with the certificate")


def test_too_few_points_solved_again_are_caught(evidence: Evidence) -> None:
    changed = replace(evidence, inputs=replace(evidence.inputs, audits=evidence.inputs.audits.iloc[:3]))
    assert fails(changed, "points solved again agree with the certificate")


def test_a_failed_check_counts_its_failures_and_names_the_first(evidence: Evidence) -> None:
    found = run_checks(CHECKS, with_placements(evidence, lambda f: f.assign(reason="")))
    failed = found[~found["passed"]].iloc[0]
    assert failed["check"] == "infeasible placements say why"
    assert failed["failures"] == failed["rows"] > 0
    assert "megatron-gpt3-175b" in failed["example"]
