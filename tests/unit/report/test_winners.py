"""The winner is the fastest, then the smallest, then the first by name, with the smallest sufficient HBM."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phaze.report.findings import PER_MODEL, Findings, geometric_means, ranking_table, result_table, row_of
from phaze.report.inputs import Inputs
from phaze.search.winners import Outcome, best_of_each_hbm, candidates, choose, choose_winner, in_order
from phaze.tables import Placements


def rows(*times: float, **columns: list[object]) -> pd.DataFrame:
    """Return placements as `search.winners` sees them, one for every time."""
    frame = pd.DataFrame(
        {
            "time_per_batch_s": times,
            "samples_per_s": [256 / time for time in times],
            "status": "placed",
            "architecture": "a",
            "hbm_gib": 32.0,
            "area_um2": 1.0,
            "recompute": False,
            "layout": "tp1-b1",
        }
    )
    return frame.assign(**columns)


def test_order_is_time_then_area_then_name() -> None:
    for columns, first in (
        ({}, 1),
        ({"time_per_batch_s": [2.0, 2.0, 3.0], "area_um2": [9.0, 8.0, 1.0]}, 1),
        ({"time_per_batch_s": [2.0, 2.0, 2.0], "architecture": ["c", "b", "a"]}, 2),
        ({"time_per_batch_s": [2.0 * (1 + 1e-13), 2.0, 3.0], "area_um2": [1.0, 2.0, 1.0]}, 0),
        ({"time_per_batch_s": [2.0, 2.0, 2.0], "recompute": [True, False, True]}, 1),
    ):
        assert in_order(rows(3.0, 1.0, 2.0).assign(**columns)).index[0] == first


def test_the_smallest_hbm_within_the_tolerance_is_chosen() -> None:
    frame = rows(1.0, 0.905, 0.9, hbm_gib=[32.0, 64.0, 80.0])
    best = best_of_each_hbm(frame, 0.01)
    assert best.loc[best["chosen"], "hbm_gib"].tolist() == [64.0]
    assert best["relative"].tolist() == pytest.approx([0.9, 0.9 / 0.905, 1.0])


def test_an_infeasible_capacity_is_never_chosen() -> None:
    frame = rows(np.inf, 1.0, hbm_gib=[32.0, 64.0])
    chosen = choose(frame, 0.01)
    assert chosen is not None
    assert chosen["hbm_gib"] == 64.0


def test_a_model_that_fits_nowhere_keeps_the_row_of_its_largest_memory() -> None:
    frame = rows(np.inf, np.inf, hbm_gib=[32.0, 64.0], status="infeasible", binding="memory")
    chosen = choose(frame, 0.01)
    assert chosen is not None
    assert (chosen["hbm_gib"], chosen["status"]) == (64.0, "infeasible")


def test_every_design_of_figure_4_has_a_row_for_every_model(inputs: Inputs, findings: Findings) -> None:
    designs = findings.results.groupby("model")["design"].agg(set)
    expected = {"tpu-v4 expert", "tpu-v4 expert-even", "tpu-v4", "spotlight expert", "spotlight"}
    expected |= {"phaze-common", "per-model", "common"}
    assert all(designs[model] == expected for model in inputs.study.models)


def test_named_accelerators_run_the_workload_they_are_for_and_the_baseline_with_its_own_hbm(
    findings: Findings,
) -> None:
    mine = findings.results[findings.results["design"] == "spotlight"]
    assert (mine["architecture"] == "spotlight-" + mine["model"]).all()
    baseline = findings.results[findings.results["design"].str.startswith("tpu-v4")]
    assert set(baseline["hbm_gib"]) == {32.0}


def test_speedups_are_relative_to_the_baseline_with_expert_placement(findings: Findings) -> None:
    for _, models in findings.results.groupby("model"):
        base = models.loc[models["design"] == "tpu-v4 expert", "samples_per_s"].iloc[0]
        assert models["speedup"].tolist() == pytest.approx((models["samples_per_s"] / base).tolist())


def test_the_geometric_mean_leaves_out_what_has_no_speedup() -> None:
    frame = pd.DataFrame({"design": "d", "speedup": [2.0, 8.0, 0.0]})
    mean = geometric_means(frame).iloc[0]
    assert (mean["speedup"], mean["models"]) == (pytest.approx(4.0), 2)


def test_the_winner_is_the_fastest_row_within_the_area_limit(inputs: Inputs, findings: Findings) -> None:
    cluster = inputs.cluster
    for model in inputs.study.models:
        searched = cluster.placements[
            (cluster.placements["model"] == model) & (cluster.placements["planner"] == "phaze")
        ]
        allowed = cluster.architectures[cluster.architectures["area_um2"] <= cluster.area_limit_um2]
        fastest = searched[searched["architecture"].isin(allowed["architecture"])]["time_per_batch_s"].min()
        winner = row_of(findings.results, model, PER_MODEL)
        assert winner is not None
        assert winner["time_per_batch_s"] <= fastest / (1 - inputs.study.screen.tolerance)


def test_an_architecture_beyond_the_area_limit_is_no_candidate(inputs: Inputs) -> None:
    small = replace(inputs.cluster, area_limit_um2=1.2e8)
    names = set(candidates(small)["architecture"])
    areas = small.architectures.set_index("architecture")["area_um2"]
    assert names
    assert (areas[list(names)] <= 1.2e8).all()


def test_a_named_architecture_that_lies_in_the_grid_counts_once(inputs: Inputs) -> None:
    cluster = inputs.cluster
    twin = cluster.architectures[cluster.architectures["architecture"] == "2-512-256-256-256-glb32"]
    named = cluster.architectures["architecture"] == "phaze-common"
    assert cluster.architectures.loc[named, "area_um2"].iloc[0] == twin["area_um2"].iloc[0]
    assert "phaze-common" not in set(candidates(cluster)["architecture"])


def test_rankings_start_at_one_and_hold_the_smallest_within_the_tolerance(
    inputs: Inputs, findings: Findings
) -> None:
    for _, ranked in findings.rankings.groupby("model"):
        assert ranked["rank"].tolist()[:2] == [1, 2]
        assert ranked["time_per_batch_s"].is_monotonic_increasing
        smallest = ranked[ranked["smallest_area"]]
        near = ranked[ranked["relative"] >= 1 - inputs.study.screen.tolerance]
        assert smallest["area_um2"].tolist() == [near["area_um2"].min()]


def test_the_smallest_area_is_ranked_even_behind_the_best(inputs: Inputs) -> None:
    screen = inputs.study.screen.model_copy(update={"best": 1, "tolerance": 0.5})
    few = replace(inputs, study=inputs.study.model_copy(update={"screen": screen}))
    ranked = ranking_table(few)
    bert = ranked[ranked["model"] == "bert-large"]
    assert bert["rank"].tolist()[0] == 1
    assert bert["smallest_area"].tolist() == [False, True]


def test_a_study_without_baseline_has_no_speedups(inputs: Inputs) -> None:
    choice = inputs.study.architectures.model_copy(update={"baseline": None})
    bare = replace(inputs, study=inputs.study.model_copy(update={"architectures": choice}), families={})
    found = result_table(bare, bare.cluster)
    assert (found["speedup"] == 0).all()
    assert {"tpu-v4", "per-model"} <= set(found["design"])


def of_model(cluster: Outcome, model: str) -> Outcome:
    """Return a cluster with the placements of one model."""
    return replace(cluster, placements=cluster.placements[cluster.placements["model"] == model])


def test_the_winner_of_one_model_is_that_of_the_report(inputs: Inputs, findings: Findings) -> None:
    found = choose_winner(of_model(inputs.cluster, "megatron-gpt3-175b"), 0.01)
    shown = row_of(findings.results, "megatron-gpt3-175b", PER_MODEL)
    assert found is not None
    assert shown is not None
    keys = ["architecture", "hbm_gib", "layout", "recompute", "data", "stages"]
    assert found[keys].to_dict() == shown[keys].to_dict()


def test_a_workload_that_fits_nowhere_is_a_row_with_a_reason_and_has_no_winner(inputs: Inputs) -> None:
    cluster = unplaced(inputs.cluster, "bert-large")
    found = result_table(inputs, cluster)
    row = found[(found["model"] == "bert-large") & (found["design"] == PER_MODEL)].iloc[0]
    assert (row["status"], row["reason"]) == ("infeasible", "memory: too little")
    assert choose_winner(of_model(cluster, "bert-large"), 0.01) is None


def unplaced(cluster: Outcome, model: str) -> Outcome:
    """Return a cluster on which a model fits nowhere."""
    frame = cluster.placements.copy()
    mine = frame["model"] == model
    frame.loc[mine, ["status", "reason"]] = ["infeasible", "memory: too little"]
    frame.loc[mine, ["time_per_batch_s", "bound_s", "max_load_s", "sync_s"]] = np.inf
    frame.loc[mine, ["samples_per_s", "tokens_per_s", "mfu", "mfu_paper"]] = 0.0
    return replace(cluster, placements=Placements.check(frame))
