"""Constants of a system fitted to a user's own runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.commands.calibrate import verdict
from phaze.plan.machines import load_machine
from phaze.spec.systems import flat_scenario, load_cluster, load_stack_of
from phaze.validate.calibration import Calibrated, FittedConstant, calibrated
from phaze.validate.constants import OF_DEVICE, OF_STACK, RESERVED, Site
from phaze.validate.rows import read_rows
from phaze.validate.table import predict_rows
from phaze.validate.user_runs import user_runs
from tests.commands import assert_refused, invoke, invoke_json
from tests.effort import DRAWS

SYSTEM = "a100-vtrain"
TRUE = {"device.sustained_clock": 0.88, "stack.launch_s": 1.9e-5}
"""Constants of the cluster that ran the runs; its other constants are those of the system."""
RUNS = """hidden,heads,layers,seq,vocab,gpus,global_batch,tp,microbatch,note
1024,16,2,512,51200,4,16,1,1,
4096,32,2,1024,51200,4,16,4,4,
8192,64,1,1024,51200,4,16,2,2,
2048,16,2,1024,51200,4,16,2,1,
"""


def measured(folder: Path, **columns: str | pd.Series) -> Path:
    """Write runs with their times on the true cluster, and more columns."""
    path = folder / "runs.csv"
    path.write_text(RUNS)
    site = Site.load(SYSTEM)
    true = site.with_values({one: TRUE[one.name] for one in site.constants if one.name in TRUE})
    table, rows = read_rows(path)
    times = predict_rows(rows, true.machine)["time_s"]
    table.assign(measured_s=times, **columns).to_csv(path, index=False)
    return path


@pytest.fixture(name="fitted", scope="module")
def fitted_system(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict]:
    folder = tmp_path_factory.mktemp("calibrate")
    dated = dict(zip(range(4), ("2025-01", "2025-03", "2024-12", "2025-02"), strict=True))
    runs, out = measured(folder, date=pd.Series(dated)), folder / "mine.yaml"
    return runs, out, invoke_json("calibrate", runs, "--system", SYSTEM, "-o", out)


@pytest.mark.slow
def test_the_constants_of_the_cluster_are_found_again_and_others_stay(
    fitted: tuple[Path, Path, dict],
) -> None:
    _, _, found = fitted
    constants = {one["name"]: one for one in found["constants"]}
    for name, value in TRUE.items():
        assert constants[name]["after"] == pytest.approx(value, rel=0.03)
        assert abs(value / constants[name]["after"] - 1) < 2 * constants[name]["uncertainty"]
    assert found["error"] < 0.01 < found["error_left_out"] < found["error_before"]
    for name in ("levels.1.sustained", "levels.1.start_s"):  # all runs are on one node
        assert not constants[name]["identifiable"]
        assert constants[name]["after"] == constants[name]["before"]


@pytest.mark.slow
def test_the_file_says_device_stack_and_runs_and_is_the_same_each_time(
    fitted: tuple[Path, Path, dict], tmp_path: Path
) -> None:
    runs, out, found = fitted
    written = yaml.safe_load(out.read_text())
    assert (written["device"], written["stack"]) == ("a100-80gb", "megatron-deepspeed")
    assert (written["calibrated"]["runs"], written["calibrated"]["rows"]) == ("runs.csv", 4)
    cluster, device = load_cluster(str(out))
    assert device.sustained_clock == found["constants"][0]["after"]
    assert load_stack_of(cluster).launch_s == found["constants"][2]["after"]
    invoke("calibrate", runs, "--system", SYSTEM, "-o", tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == out.read_text()


@pytest.mark.slow
def test_the_profile_names_software_cluster_and_date_with_uncertainty_and_residuals(
    fitted: tuple[Path, Path, dict],
) -> None:
    _, out, shown = fitted
    profile = yaml.safe_load(out.read_text())["calibrated"]
    assert (profile["cluster"], profile["software"]) == (SYSTEM, "megatron-deepspeed")
    assert profile["date"] == "2025-03"  # of the newest run
    determined = {c["name"]: c["uncertainty"] for c in shown["constants"] if c["identifiable"]}
    assert profile["uncertainty"] == pytest.approx(determined, rel=0.01)
    # The kinds of layout partition the runs.
    assert sum(errors["runs"] for errors in profile["layouts"].values()) == len(RUNS.splitlines()) - 1
    assert set(profile["layouts"]) == {"dp", "tp", "tp+dp"}
    assert 0 <= profile["covered"] <= 1


@pytest.mark.slow
def test_elementwise_kernels_and_buffers_of_the_framework_are_recovered_within_their_uncertainty(
    tmp_path: Path,
) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(RUNS)
    site, (frame, rows) = Site.load(SYSTEM), read_rows(table)
    constants = {constant.key: constant for constant in (*site.constants, RESERVED)}
    for seed in range(DRAWS // 20):
        rng = np.random.default_rng(seed)
        elementwise, reserved_gib = float(rng.uniform(1.5, 3.0)), float(rng.uniform(0.5, 4.0))
        true = site.with_values({constants["elementwise"]: elementwise, RESERVED: reserved_gib})
        priced = predict_rows(rows, true.machine)
        frame.assign(measured_s=priced["time_s"], measured_gib=priced["memory_gib"]).to_csv(
            table, index=False
        )
        measured_rows = read_rows(table)[1]
        calibration = calibrated(site, measured_rows)
        assert calibration.error < 0.02 < calibration.error_before
        fit = {fitted.constant.key: fitted for fitted in calibration.constants}
        for key, value in (("elementwise", elementwise), ("reserved_gib", reserved_gib)):
            # Uncertainties are standard deviations of logarithms. HBM bandwidth has nearly the same effect as
            # elementwise traffic, so that the uncertainty of both is large.
            assert abs(np.log(value / fit[key].after)) < 2 * fit[key].uncertainty, (seed, key)
        assert fit["reserved_gib"].after == pytest.approx(reserved_gib, abs=0.05)
        assert not fit["permuted"].identifiable  # no run has experts
        assert not fit["permuted"].effect


@pytest.mark.slow
def test_buffers_are_not_fitted_where_the_gap_grows_with_the_predicted_memory(tmp_path: Path) -> None:
    table, out = tmp_path / "runs.csv", tmp_path / "fitted.yaml"
    table.write_text(RUNS)
    site, (frame, rows) = Site.load(SYSTEM), read_rows(table)
    priced = predict_rows(rows, site.machine)
    for share, grows in ((0.0, False), (0.3, True)):
        measured_gib = priced["memory_gib"] * (1 + share) + 1.0
        frame.assign(measured_s=priced["time_s"], measured_gib=measured_gib).to_csv(table, index=False)
        (buffers,) = (c for c in calibrated(site, read_rows(table)[1]).constants if c.constant == RESERVED)
        assert (buffers.growth > 0) == grows
        assert (buffers.after == buffers.before) == grows
        assert buffers.identifiable != grows
    assert buffers.growth == pytest.approx(share, rel=0.2)
    printed = invoke("calibrate", table, "--system", SYSTEM, "-o", out).output
    assert "unchanged: measured memory misses its prediction by a share" in " ".join(printed.split())


def test_every_command_takes_the_file_for_a_system(fitted: tuple[Path, Path, dict], tmp_path: Path) -> None:
    runs, out, found = fitted
    invoke("simulate --runs", runs, "--system", out, "-o", tmp_path / "out.csv")
    table = pd.read_csv(tmp_path / "out.csv")
    assert (table["time_s"] / table["measured_s"] - 1).abs().mean() == pytest.approx(found["error"], rel=1e-3)
    (score,) = invoke_json("validate", runs, "--system", out)
    assert score["mean_error"] == pytest.approx(found["error"], rel=1e-3)
    # Planners have devices without constants.
    assert flat_scenario(str(out), flat=1e10) == flat_scenario(SYSTEM, flat=1e10)


def test_experts_of_runs_without_a_load_are_routed_as_in_training(tmp_path: Path) -> None:
    """Runs are the user's own, not benchmarks: a stack's load counts unless the row has one."""
    path = tmp_path / "runs.csv"
    columns = "model,seq,gpus,global_batch,tp,ep,microbatch,zero,flash_attention,measured_s,load,capacity"
    row = "qwen3-30b-a3b,4096,16,64,1,8,1,1,true,9.0"
    dense = "llama-3.1-8b,4096,16,64,2,1,1,1,true,9.0"
    lines = [f"{row},,", f"{row},balanced,", f"{row},,1.5", f"{dense},,"]
    path.write_text("\n".join([columns, *lines]))
    loads = [row.runs[0].layout.load for row in user_runs(path, "h100").rows]
    assert loads == ["natural", "balanced", "1.5", "balanced"]
    path.write_text("\n".join([columns.removesuffix(",load,capacity"), *[row] * 3]))
    assert {row.runs[0].layout.load for row in user_runs(path, "h100").rows} == {"natural"}


def test_a_run_of_another_stack_keeps_the_constants_of_its_stack(fitted: tuple[Path, Path, dict]) -> None:
    _, out, _ = fitted
    own, other = load_machine(str(out)), load_machine(str(out), stack="llm-foundry")
    assert own.stack.launch_s != load_machine(SYSTEM).stack.launch_s
    assert other.stack == load_machine(SYSTEM, stack="llm-foundry").stack
    assert other.device == own.device


def test_a_number_that_no_device_has_is_named_with_its_file(
    fitted: tuple[Path, Path, dict], tmp_path: Path
) -> None:
    _, out, _ = fitted
    for part, key, value, message in (
        (
            "device",
            "sustained_clock",
            1.5,
            "device: sustained_clock: should be less than or equal to 1, got 1.5",
        ),
        ("stack", "wings", 2, "stack: wings: is not a known key, got 2"),
    ):
        written = yaml.safe_load(out.read_text())
        written["calibrated"][part][key] = value
        (tmp_path / "bad.yaml").write_text(yaml.safe_dump(written))
        with pytest.raises(PhazeError, match=f"calibrated.{message}"):
            load_machine(str(tmp_path / "bad.yaml"))


def test_what_is_no_table_of_three_runs_is_one_message_and_writes_nothing(tmp_path: Path) -> None:
    runs, out = measured(tmp_path), tmp_path / "mine.yaml"
    table = pd.read_csv(runs, dtype=str)
    two = table.assign(measured_s=[*table["measured_s"][:2], *[""] * 2])
    wrong = table.assign(tp=[*table["tp"][:1], *["3"] * 3])
    for changed, message in (
        (two, r"runs\.csv: 2 runs on a100-vtrain .* at least 3 are needed; not used: 2 × measured_s"),
        (wrong, r": 1 runs on a100-vtrain .*; not used: 3 × tp \* pp \* dp must be gpus 4"),
        (table.assign(system="h100"), r": 0 runs .*; not used: 4 × system is h100"),
        (
            table.assign(stack=["megatron-lm", *["torchtitan"] * 3]),
            "column stack: must be the same for all runs",
        ),
        (table.drop(columns="hidden"), r"runs\.csv: columns hidden are missing"),
    ):
        changed.to_csv(runs, index=False)
        assert_refused(message, "calibrate", runs, "--system", SYSTEM, "-o", out)
    assert_refused(r"must end in \.yaml", "calibrate", runs, "--system", SYSTEM, "-o", tmp_path / "mine.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.csv"]


@pytest.mark.slow
def test_runs_that_cannot_fit_as_described_are_refused_with_the_likeliest_column(tmp_path: Path) -> None:
    """Attention scores in memory would need more than the device has, and the runs ran."""
    runs, out = tmp_path / "runs.csv", tmp_path / "mine.yaml"
    said = ("model,gpus,global_batch,seq,tp,microbatch,sequence_parallel,zero,measured_s,flash_attention",)
    rows = [f"llama-3.1-8b,64,512,8192,{tp},1,{tp > 1},1,{8 + tp}" for tp in (1, 2, 4, 8)]
    runs.write_text("\n".join([*said, *(f"{row},false".lower() for row in rows)]))
    with pytest.raises(
        PhazeError,
        match=r": 2 runs .* 2 × does not fit the memory as described, .*flash_attention true 2 of these 2",
    ):
        invoke("calibrate", runs, "--system", "h100", "-o", out)
    assert not out.exists()
    runs.write_text("\n".join([*said, *(f"{row},".lower() for row in rows)]))
    assert invoke("calibrate", runs, "--system", "h100", "-o", out).exit_code == 0


@pytest.mark.slow
def test_a_constant_that_ends_at_an_end_of_its_range_is_reported(tmp_path: Path) -> None:
    """Runs a third as long as any device allows give the highest clock."""
    runs, out = measured(tmp_path), tmp_path / "mine.yaml"
    table = pd.read_csv(runs)
    table.assign(measured_s=table["measured_s"] / 3).to_csv(runs, index=False)
    found = invoke_json("calibrate", runs, "--system", SYSTEM, "-o", out)
    ends = {one["name"]: one["at_end"] for one in found["constants"]}
    assert ends["device.sustained_clock"]
    for one in Site.load(SYSTEM).constants:
        for value, at_end in (
            (one.high, True),
            (0.995 * one.high, True),
            ((one.low * one.high) ** 0.5, False),
        ):
            assert FittedConstant(one, value, value, 1.0, 0.1).at_end == at_end


def test_a_fitted_constant_outside_of_the_device_files_is_implausible() -> None:
    """The device files state clock shares from that of h100-96gb to 1."""
    clock, hbm = OF_DEVICE
    assert clock.usual() == (0.697, 1.0)
    fitted = FittedConstant(clock, 0.8, 0.47, 1.0, 0.05)
    assert fitted.implausible == (0.697, 1.0)
    assert replace(fitted, after=0.68).implausible is None, "within one standard deviation"
    assert replace(fitted, uncertainty=1.5).implausible is None, "not determined"
    assert replace(fitted, constant=hbm, after=0.95).implausible == (0.58, 0.77)
    assert replace(fitted, constant=OF_STACK[0]).implausible is None


@pytest.mark.slow
def test_calibrate_prints_groups_and_names_the_implausible_constant(tmp_path: Path) -> None:
    runs, out = measured(tmp_path), tmp_path / "mine.yaml"
    table = pd.read_csv(runs)
    table.assign(measured_s=table["measured_s"] * 2).to_csv(runs, index=False)
    lines = invoke("calibrate", runs, "--system", SYSTEM, "-o", out).stdout.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(f"{out}:"))
    verdict = " ".join(" ".join(lines[start:]).split())
    assert "on runs left out of the fit" in verdict
    assert "check the columns of the runs first" in verdict or "no improvement shown" in verdict
    lines = lines[:start]
    titles = [line.partition(" ")[0] for line in lines if not line.startswith(" ")]
    assert titles[:2] == ["Constants", "Mean"]
    assert sum("implausible: device files have 0.697 to 1." in line for line in lines) == 1
    assert sum("only their combined effect is known" in line for line in lines) <= 1
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("left_out", "after", "words"),
    [
        (0.2, 0.8, "keep h100"),
        (0.05, 0.8, "plan with it"),
        (0.05, 0.47, "check the columns of the runs first"),
    ],
)
def test_the_last_line_says_whether_to_plan_with_the_fit(left_out: float, after: float, words: str) -> None:
    constants = (FittedConstant(OF_DEVICE[0], 0.8, after, 1.0, 0.05),)
    errors = {"error_before": 0.1, "error": 0.04, "error_left_out": left_out, "covered": 0.8}
    fit = Calibrated(Site.load(SYSTEM), constants, (), 5, layouts=(), **errors)
    assert words in verdict(fit, "h100")
