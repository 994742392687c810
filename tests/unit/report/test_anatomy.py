"""Time, energy and area of a placement add up to its totals, and follow from its schedules."""

from dataclasses import replace

import pandas as pd
import pytest

from phaze.report import anatomy
from phaze.report.findings import PER_MODEL, Findings, row_of
from phaze.report.inputs import Inputs, Only
from phaze.tables import Estimates, Stages, Table
from phaze.tables.columns import layout_of


def winner(findings: Findings, model: str, design: str = PER_MODEL) -> pd.Series:
    row = row_of(findings.results, model, design)
    assert row is not None
    return row


@pytest.mark.slow
def test_parts_of_the_time_sum_to_the_time_per_batch(findings: Findings) -> None:
    parts = ["forward_s", "backward_s", "transfer_s", "fill_s", "sync_s"]
    times = findings.results.set_index(["model", "design"])["time_per_batch_s"]
    for _, row in findings.breakdowns.iterrows():
        assert row[parts].sum() == pytest.approx(times[row["model"], row["design"]], rel=1e-9)


def test_the_useful_time_is_the_utilisation(findings: Findings) -> None:
    row = winner(findings, "bert-large")
    mine = findings.breakdowns[
        (findings.breakdowns["model"] == "bert-large") & (findings.breakdowns["design"] == PER_MODEL)
    ]
    assert mine["useful_s"].iloc[0] == pytest.approx(row["mfu_paper"] * row["time_per_batch_s"])


def test_microbatches_of_a_pipeline_are_rounded_up(inputs: Inputs) -> None:
    row = pd.Series({"layout": "tp1-b2", "data": 3})
    assert anatomy.microbatches_of(inputs, row) == 43  # 256 / 2 / 3


def test_only_stages_before_the_last_run_forward_again(inputs: Inputs, findings: Findings) -> None:
    row = winner(findings, "megatron-gpt3-175b")
    stages = anatomy.stages_of(inputs, row)
    assert len(stages) > 1
    blocks = 24
    assert anatomy.executions(inputs, row)["block", "forward"] == blocks
    again = row.copy()
    again["recompute"], again["hbm_gib"] = True, 32.0
    placed = anatomy.stages_of(inputs, again)
    before = int(placed["first_layer"].iloc[-1]) - 1  # the embedding is no block
    assert anatomy.executions(inputs, again)["block", "forward"] == blocks + before
    assert anatomy.executions(inputs, again)["block", "backward"] == blocks


def test_every_operator_has_latency_and_limit_of_its_estimate(inputs: Inputs, findings: Findings) -> None:
    row = winner(findings, "bert-large", "tpu-v4")
    operators = anatomy.operators_of(inputs, row)
    busy = operators[operators["core"] != "none"]
    assert busy["all_cores"].nunique() == 2, "some run on one core, some on all"
    chip = inputs.cluster.architectures.set_index("architecture").loc["tpu-v4"]
    estimates = inputs.details.rows(Estimates, anatomy.point_of(row), "named").set_index(["work", "design"])
    for _, operator in busy.iterrows():
        estimate = estimates.loc[(operator["work"], chip[f"{operator['core']}_design"])]
        which = "_all" if operator["all_cores"] else ""
        assert operator["latency_s"] == pytest.approx(estimate[f"latency{which}_s"])
        assert operator["limit"] == estimate[f"limit{which}"]
        assert operator["hbm_j"] == pytest.approx(estimate[f"hbm{which}_j"])


def test_shares_of_the_busy_time_sum_to_one(findings: Findings) -> None:
    assert findings.bindings.groupby("model")["share"].sum().tolist() == pytest.approx([1.0] * 3)


def test_energy_per_sample_is_what_every_execution_adds(inputs: Inputs, findings: Findings) -> None:
    """One MAC figure at a time: FLOPs of forward and backward passes of all layers and ranks times its
    energy.
    """
    row = winner(findings, "bert-large")
    operators = anatomy.operators_of(inputs, row)
    counts = anatomy.layer_counts(inputs, "bert-large")
    by_hand = (operators["mac_j"] * operators["layer"].map(counts)).sum() / layout_of(row).microbatch
    mine = findings.energies.set_index(["model", "design", "part"])["joules_per_sample"]
    assert mine["bert-large", PER_MODEL, "mac"] == pytest.approx(by_hand)


def test_slices_of_a_tensor_parallel_layer_all_count(inputs: Inputs, findings: Findings) -> None:
    row = winner(findings, "megatron-gpt3-175b")
    one = anatomy.operators_of(inputs, row)
    block = one[(one["layer"] == "block") & (one["direction"] == "backward")]["mac_j"].sum()
    found = anatomy.energy_by_layer(inputs, row).set_index(["layer", "direction"])["mac_j"]
    assert found["block", "backward"] == pytest.approx(
        block * 24 * layout_of(row).tp / layout_of(row).microbatch
    )


def test_leakage_is_power_of_the_devices_in_use_over_the_time_of_a_sample(findings: Findings) -> None:
    row = winner(findings, "bert-large")
    watts = 0.15 * row["area_um2"] / 1e6 * row["devices_used"]
    mine = findings.energies.set_index(["model", "design", "part"])["joules_per_sample"]
    assert mine["bert-large", PER_MODEL, "leakage"] == pytest.approx(watts / row["samples_per_s"])


def test_a_single_stage_and_pipeline_send_nothing(inputs: Inputs, findings: Findings) -> None:
    row = winner(findings, "bert-large").copy()
    row["data"] = 1
    alone = replace(inputs, details=OneStage(inputs))
    assert anatomy.link_j_between_stages(alone, row) == 0


class OneStage:
    """Details in which every placement has a single stage."""

    def __init__(self, inputs: Inputs) -> None:
        self.details = inputs.details

    def rows(
        self, table: type[Table], point: anatomy.Slicing, shard: str, only: Only | None = None
    ) -> pd.DataFrame:
        found = self.details.rows(table, point, shard, only)
        return found[found["stage"] == 0] if table is Stages else found


class WithoutEstimates(OneStage):
    """Details without estimates, as after clearing a study."""

    def rows(
        self, table: type[Table], point: anatomy.Slicing, shard: str, only: Only | None = None
    ) -> pd.DataFrame:
        if table is Estimates:
            return Estimates.empty()
        return self.details.rows(table, point, shard, only)


def test_energy_of_links_by_hand(inputs: Inputs, findings: Findings) -> None:
    row = winner(findings, "bert-large")
    stages = anatomy.stages_of(inputs, row)
    edge = 2.0 * layout_of(row).microbatch * 512 * 1024
    sent = 2 * edge * (len(stages) - 1) / layout_of(row).microbatch
    around = 2 * (row["data"] - 1) * stages["gradient_bytes"].sum() / 256
    by_hand = 8e-11 * (sent + around)
    assert anatomy.link_j_between_stages(inputs, row) == pytest.approx(by_hand)


def test_without_estimates_nothing_is_said_to_bind(inputs: Inputs, findings: Findings) -> None:
    bare = replace(inputs, details=WithoutEstimates(inputs))
    operators = anatomy.operators_of(bare, winner(findings, "bert-large"))
    assert set(operators["limit"]) == {"none"}


def test_complexity_of_a_model_is_its_layers_times_their_counts(findings: Findings) -> None:
    mine = findings.complexities.set_index("model").loc["megatron-bert"]
    assert (mine["layers"], mine["layout"]) == (12, "tp1-b1")
    assert mine["parameters"] == mine["held_parameters"] == 2 * 3000 * 1024 + 12 * 12 * 1024**2
    assert mine["block_parameter_bytes"] == 2 * 12 * 1024**2
    gemm = 2.0 * 512 * 1024 * 1024
    assert mine["block_tensor_flops"] == pytest.approx(12 * gemm + 2.0 * 512 * 512 * 1024)


def test_published_parameters_stand_beside_what_the_layers_hold(inputs: Inputs) -> None:
    counted = anatomy.complexities(replace(inputs, parameters={"bert-large": 335141888}))
    mine = counted.set_index("model").loc["bert-large"]
    assert (mine["parameters"], mine["held_parameters"]) == (335141888, 157138944)


def test_parts_of_the_area_sum_to_the_chip(findings: Findings) -> None:
    total = findings.areas.groupby(["model", "design"])["share"].sum()
    assert total.tolist() == pytest.approx([1.0] * len(total))
