"""`plan` answers with a ranked table and a certificate; its file is replayed at the same price."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from typer import BadParameter
from typer.testing import Result

from phaze.base.printed import PIPED
from phaze.base.units import digits
from phaze.commands.options import money
from phaze.commands.plan import prepared
from phaze.commands.plan_options import PlanOptions
from phaze.plan.answer.ranked_table import ranked_table
from phaze.plan.answer.words import (
    explained,
    fewest_in_words,
    in_words,
    sizes_in_words,
    sizes_table,
    why_first,
)
from phaze.runtimes.layout_string import blocks_of
from phaze.spec.documents import read_as, text_of
from phaze.spec.mapping import StoredMapping
from phaze.spec.systems import load_cluster
from phaze.spec.training_plan import TIE, FewestNodes, NearRun, TrainingPlan
from tests.commands import assert_refused, invoke, invoke_json

QUICK = ("--tries", "2000", "--steps", "500")
H100 = "--system h100 --devices 8 --global-batch 16"


@pytest.fixture(scope="module", name="planned")
def plan_with_file(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    out = tmp_path_factory.mktemp("plans") / "plan.json"
    options = ("--fix", "pp=2", "--explain", "tp=2", "--tokens", "1e9", "--json", "-o", str(out))
    return invoke(f"plan {model} {H100}", *options), out


def system_of_small_devices(folder: Path, project_root: Path, hbm_gib: float) -> str:
    """File of a system whose devices have so little memory, none of it reserved."""
    device = (project_root / "config/devices/h100-80gb.yaml").read_text()
    for old, new in (("hbm_gib: 80", f"hbm_gib: {hbm_gib}"), ("reserve_gib: 2.7", "reserve_gib: 0")):
        device = device.replace(old, new)
    (folder / "small.yaml").write_text(device)
    system = (project_root / "config/systems/h100.yaml").read_text()
    path = folder / "system.yaml"
    path.write_text(system.replace("device: h100-80gb", "device: small.yaml"))
    return str(path)


@pytest.mark.slow
def test_the_answer_is_the_file_and_accounts_for_every_layout(planned: tuple[Result, Path]) -> None:
    result, out = planned
    plan = read_as(TrainingPlan, out)
    assert result.stdout == out.read_text() == text_of(plan)
    told = [float(one) for one in re.findall(r"plan after \S+ s: prudent (\S+) s a step", result.stderr)]
    assert "first plan after" in result.stderr
    assert max(map(len, result.stderr.splitlines())) <= PIPED
    assert all(later < 0.95 * earlier * 1.001 for earlier, later in pairwise(told))
    assert 0.949 * told[-1] < plan.by("prudent") <= told[-1] * 1.001  # figures are printed with four digits
    counts, layout = plan.certificate, plan.layout
    excluded = sum(counts.illegal.values()) + sum(counts.bounded.values())
    assert counts.layouts == excluded + counts.same + counts.unfit + counts.simulated
    assert counts.bound_s is not None
    assert counts.bound_s >= plan.by("prudent") * (1 - 0.005)
    assert plan.question.rank == "prudent"
    times_s = [row.by("prudent") for row in plan.alternatives]
    assert all(row.prudent_s >= row.time_s for row in plan.alternatives if row.prudent_s is not None)
    assert all(other <= later for other, later in pairwise(times_s[1:]))
    assert times_s[0] <= min(times_s) * (1 + TIE)  # of those that tie with the fastest the simplest is first
    assert plan.alternatives[0].time_s == plan.time_s
    assert (plan.time_s_low, plan.evidence) == (None, ())  # so small a model is like nothing measured
    assert (layout.pp, len(plan.memory_gib), layout.tp * layout.cp * layout.pp * layout.dp) == (2, 2, 8)
    assert blocks_of(layout.pipeline_layout) == tuple(stage.layers for stage in plan.stages)
    assert sum(plan.times_s.values()) == pytest.approx(plan.time_s, rel=1e-6)
    tokens_per_day = plan.tokens_per_s_per_device * 8 * 86400
    assert plan.run is not None
    assert plan.run.days == pytest.approx(1e9 / tokens_per_day)
    assert (plan.run.cost, plan.run.in_time) == (None, None)
    for rank, tensors_gib in zip(plan.memory, plan.memory_gib, strict=True):
        assert rank.in_use_gib is not None
        assert rank.in_use_gib.expected == pytest.approx(tensors_gib + sum(rank.parts_gib.values()))
        assert rank.in_use_gib.low <= rank.in_use_gib.expected <= rank.in_use_gib.high
    assert plan.in_use_gib == max(plan.memory, key=lambda rank: rank.peak_gib).in_use_gib


def test_the_proof_counts_the_layouts_that_the_runtime_can_run(planned: tuple[Result, Path]) -> None:
    plan = read_as(TrainingPlan, planned[1])
    counts = plan.certificate
    legal = sum(counts.bounded.values()) + counts.unfit + counts.simulated
    said = " ".join(in_words(plan, load_cluster("h100")[1]).split())
    assert f"({legal:,} checked, proven)" in said
    assert legal < counts.layouts


def test_tables_of_layouts_and_of_sizes_have_the_memory_in_use(planned: tuple[Result, Path]) -> None:
    plan = read_as(TrainingPlan, planned[1])
    assert plan.in_use_gib is not None
    used = f"{plan.in_use_gib.expected:.1f}"
    assert used != f"{plan.fullest_gib:.1f}"
    assert f"% {used} " in [*ranked_table(plan.alternatives, plan.question.stored_machine().device)][1]
    head, cells = sizes_table([plan])
    assert dict(zip(head, cells, strict=True))["GiB"] == used
    tensors = ", ".join(f"{one:.3g}" for one in plan.memory_gib)
    assert f"GiB of tensors by pipeline rank: {tensors}\n" in invoke("simulate", planned[1]).stdout


def test_a_tenth_more_of_something_never_costs_time(planned: tuple[Result, Path]) -> None:
    plan = read_as(TrainingPlan, planned[1])
    assert {one.change.rpartition(" +")[0] for one in plan.what_if} >= {"clock", "bandwidth of HBM"}
    ranked_s = plan.by(plan.question.rank)
    assert all(one.time_s <= ranked_s * (1 + 1e-9) for one in plan.what_if)
    assert "Prudent time saved by more of one thing: " in in_words(plan, load_cluster("h100")[1], why=True)


def test_parts_add_up_to_what_the_next_plan_takes_longer(planned: tuple[Result, Path]) -> None:
    plan = read_as(TrainingPlan, planned[1])
    one, other = plan.alternatives[:2]
    slower = other.model_copy(update={"prudent_s": 2 * one.by("prudent")})
    parts_s = {"a": 4.0, "b": -2.0, "c": 1.0, "d": 0.5, "e": -0.25}
    (said,) = why_first(plan.model_copy(update={"alternatives": (one, slower), "next_longer_s": parts_s}))
    assert said.endswith("longer: a +4 s, b -2 s, c +1 s, other parts +0.25 s.")


def test_nothing_is_said_of_fewer_nodes_than_one() -> None:
    assert fewest_in_words(FewestNodes(nodes=1, devices=8)) == "Fewest: 1 node (8 devices)."
    said = fewest_in_words(FewestNodes(nodes=2, devices=16))
    assert said.endswith("; fewer have less memory than the weights.")


def test_what_is_explained_loses_time_or_has_a_reason(model: str, planned: tuple[Result, Path]) -> None:
    plan = read_as(TrainingPlan, planned[1])
    assert plan.explained is not None
    assert plan.explained.best is not None
    assert plan.explained.best.layout.tp == 2
    assert plan.explained.best.by("prudent") >= plan.by("prudent") * (1 - 0.005)
    prudent_s, expected_s = plan.explained.best.by("prudent"), plan.explained.best.time_s
    said = " ".join(explained(plan.explained, plan))
    assert re.match(rf"tp=2: prudent {prudent_s:.4g} s \(.*\), expected {expected_s:.4g} s, with tp 2", said)
    refused = invoke(f"plan {model} {H100} --explain tp=8").stdout
    assert "tp=8: megatron: heads 4 must be a multiple of tp, got 8" in refused


def test_an_explanation_after_an_early_end_does_not_contradict_the_table(
    planned: tuple[Result, Path],
) -> None:
    plan = read_as(TrainingPlan, planned[1])
    assert plan.explained is not None
    assert plan.explained.best is not None
    limit = "its time limit of 1 s was reached"
    early = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"stopped": limit})})
    assert len([*explained(plan.explained, plan)]) == 1
    assert [*explained(plan.explained, early)][-1].startswith(
        "tp=2: a faster plan with these fields may exist"
    )
    faster_s = 0.9 * plan.by("prudent")
    faster = plan.explained.best.model_copy(update={"prudent_s": faster_s, "time_s": faster_s})
    better = plan.explained.model_copy(update={"best": faster})
    assert [*explained(better, early)][-1].startswith("tp=2: faster than plan 1, whose search ended early")


def test_a_file_is_replayed_to_the_same_time(planned: tuple[Result, Path], tmp_path: Path) -> None:
    _, out = planned
    trace = tmp_path / "trace.json"
    found = invoke_json("simulate", out, "--trace", trace)
    plan = read_as(TrainingPlan, out)
    assert (found["time_s"], found["same"]) == (plan.time_s, True)
    assert found["memory_gib"] == list(plan.memory_gib)
    assert json.loads(trace.read_text())["traceEvents"]


def test_planners_of_the_literature_are_rows_of_the_table(model: str) -> None:
    found = invoke(f"plan {model} {H100} --fix pp=2 --planners --precision fp8-cs")
    said = " ".join(found.stdout.split())
    claim = r"claims [\d.]+ s, the optimum of its formula.*Priced [\d.]+ s: .* against plan 1"
    assert re.search(rf"phaze {claim}.* 1f1b.* piper {claim}.* 2bw.* no runtime runs it", said)
    assert "fp8-cs" in found.stdout.splitlines()[0]


def test_the_files_of_piper_are_read_back_as_the_same_plan(model: str, tmp_path: Path) -> None:
    layers, instance, table = (tmp_path / name for name in ("layers.csv", "input.json", "table.csv"))
    asked = f"plan {model} {H100} --fix pp=2 --planners"
    invoke(f"{asked} --write-layers {layers} --write-input {instance} --table -o", table)
    answer = invoke_json(f"{asked} --layers", layers)
    row = next(row for row in answer["planners"] if row["planner"] == "piper")
    placed = invoke_json(f"place {instance} --planner piper")
    assert [stage["t"] for stage in placed["stages"]] == [stage["tp"] for stage in row["stages"]]
    sample_s = row["planned_s"] / answer["question"]["global_batch"]
    assert placed["time_per_sample"] == pytest.approx(sample_s * row["microbatch"])
    times = pd.read_csv(table)
    assert times["time_per_sample_s"].min() == pytest.approx(sample_s)
    assert list(times) == ["microbatch", "devices", "degree", "stages", "time_per_sample_s"]
    assert_refused("plan: --table needs --planners; pass", f"plan {model} {H100} --table -o", table)
    assert_refused(r"plan: --table: needs -o FILE.csv, got None", f"{asked} --table")
    layers.write_text(layers.read_text().replace("whole", "rows"))
    assert_refused("layers.csv: row 1: kind: ", f"{asked} --layers", layers)


def test_stages_of_a_planner_are_emitted_with_one_message_on_all_else(model: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    invoke(f"plan {model} {H100} --fix pp=2 --planners -o", plan)
    emit = f"emit {plan} --planner piper --for"
    assert_refused("plan.json: planner piper has one stage, and no split to write", f"{emit} torchtitan")
    assert_refused("--planner piper: must be --for torchtitan, .* got megatron", f"{emit} megatron")
    changed = json.loads(plan.read_text())
    stage = changed["planners"][1]["stages"][0]
    first, second = (
        {**stage, "layers": 1},
        {**stage, "first_layer": 1, "layers": stage["layers"] - 1, "dp": 1},
    )
    changed["planners"][1]["stages"] = [first, second]
    del changed["sha256"]
    plan.write_text(json.dumps(changed))
    emitted = invoke(f"{emit} torchtitan")
    assert "module_fqns_per_model_part = [['tok_embeddings'], ['layers.0'" in emitted.stdout
    assert re.fullmatch(r"emit: \S*plan.json: --planner piper: no runtime has widths .*\n", emitted.stderr)


def test_a_plan_is_mapped_to_its_own_system_or_a_topology(
    planned: tuple[Result, Path], tmp_path: Path
) -> None:
    plan, out = read_as(TrainingPlan, planned[1]), tmp_path / "map.json"
    for options in ((), ("--topology", "two-level")):
        said = invoke("map", planned[1], *options, *QUICK, "-o", out).stdout
        ranks = read_as(StoredMapping, out).ranks
        assert ranks is not None
        assert len({*ranks.devices}) == plan.question.devices
        assert ranks.time_s == min(one.time_s for one in ranks.times) <= ranks.default_s
        assert f"{ranks.default_s:.6g} s in the runtime's own order" in said
        assert bool(options) or ranks.default_s == pytest.approx(plan.time_s, rel=0.02)
    assert_refused("--topology is missing", "map", out)


@pytest.mark.slow
def test_a_reader_gets_a_recommendation_a_table_and_the_certificate_on_one_screen(model: str) -> None:
    command = f"plan {model} {H100} --fix tp=2,zero=1,vp=1"
    lines = invoke(command, "--evidence").stdout.splitlines()
    assert "on 8 h100" in lines[0]
    said = " ".join(line.strip() for line in lines)
    assert re.search(r"MFU, [\d.]+ GiB \([\d.]+ to [\d.]+\) of 80, bound by", said)
    words = (
        "Train with tp 2",
        "No 80 % interval: no measured run is like it.",
        "Next best",
        "checked, proven)",
    )
    assert all(word in said for word in words)
    assert "no measured run is similar to this plan" in lines
    head = next(i for i, line in enumerate(lines) if "expected" in line)
    columns = lines[head].split()
    ranked = [line for line in lines[head + 1 :] if line[:1].isdigit()]
    rows = [line.replace(" s ", " ").replace(" %", "%").split() for line in ranked]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    for row in rows:
        cells = dict(zip(columns, row[1:], strict=False))
        assert (cells["tp"], cells["ZeRO"]) == ("2", "1")
    plain = invoke(command).stdout.splitlines()
    assert len(plain) <= 24
    assert max(map(len, plain)) <= 80
    why = " ".join(invoke(command, "--why").stdout.split())
    assert all(word in why for word in ("invalid for the runtime", "Assumes"))
    memory = re.search(r"Memory: rank \d+ of \d+: ([\d.]+) GiB in use, of which (.*), of 80 GiB\.", why)
    assert memory is not None
    assert f"MFU, {float(memory[1]):.1f} GiB (" in why
    parts = [float(one) for one in re.findall(r"[a-z] ([\d.]+)(?:,|$| \()", memory[2])]
    assert sum(parts) == pytest.approx(float(memory[1]), rel=0.01)


@pytest.mark.slow
def test_what_is_undecided_is_named_as_it_can_be_fixed(model: str) -> None:
    """With gap 0: the first undecided layout can be fixed, and is no faster than stated."""
    command = f"plan {model} --gpus 8xH100 --global-batch 32 --gap 0"
    found = invoke_json(command)["certificate"]["undecided"]
    said = " ".join(invoke(command, "--why").stdout.split())
    named = re.search(r"layouts that may be faster: ([^;]*) by at most ([\d.]+) %", said)
    assert (named is None) == (not found)
    if named is not None:
        fixed = invoke_json(command, "--fix", ",".join(named[1].split()))
        assert fixed["prudent_s"] >= found[0]["bound_s"] * (1 - 1e-9)


@pytest.mark.slow
def test_a_prudent_plan_takes_less_prudent_time_than_the_expected_one(model: str) -> None:
    """Each ranking is best by its own time; the prudent one names the choice of the expected one."""
    command = f"plan {model} {H100} --fix pp=2 --gap 0"
    prudent, expected = (invoke_json(command, "--rank", rank) for rank in ("prudent", "expected"))
    assert prudent["prudent_s"] <= expected["prudent_s"] * (1 + TIE)
    assert expected["time_s"] <= prudent["time_s"] * (1 + TIE)
    chosen = r"Ranking by expected time would choose .*: expected (\S+) s \(.* % faster\), .*"
    other = re.fullmatch(chosen, prudent["prudence"])
    assert (other is None) == (
        prudent["prudence"] == "Ranking by expected time gives the same plan (short search)."
    )
    if other is not None:
        assert expected["time_s"] <= float(other[1]) * (1 + TIE) < prudent["time_s"] * (1 + TIE)
    assert "prudence" not in expected
    assert (prudent["question"]["rank"], expected["question"]["rank"]) == ("prudent", "expected")


@pytest.mark.slow
def test_the_fewest_nodes_fit_and_one_less_does_not(tmp_path: Path, project_root: Path) -> None:
    """On nodes of eight small devices: the answer fits, and its bound rules out one node less."""
    path = system_of_small_devices(tmp_path, project_root, hbm_gib=5.5)
    command = f"plan gpt2-xl --system {path} --global-batch 64 --sequence 256 --top 1"
    command += " --fix cp=1,vp=1,microbatch=1"
    found = invoke_json(command, "--devices", "64", "--fewest")
    least = found["fewest"]
    assert found["question"]["devices"] == least["devices"] == 8 * least["nodes"]
    assert least["nodes"] > 1
    assert (least["smaller"], least["undecided"]) == (least["nodes"] - 1, 0)
    fewer = invoke(command, "--devices", 8 * least["smaller"], "--json")
    assert fewer.exit_code == 3
    assert 0 < least["lacking_gib"] <= json.loads(fewer.stdout)["lacking_gib"]


def test_several_sizes_are_a_row_each(model: str, tmp_path: Path) -> None:
    options = ("--system", "h100", "--devices", "8,16", "--global-batch", "16", "--fix", "pp=1,cp=1")
    lines = invoke("plan", model, *options, "--tokens", "1e9").stdout.splitlines()
    words = [line.split()[0] for line in lines]
    assert (words[:4], words[-1]) == (["devices", "8", "16", "The"], "Defaults")
    # So small a model is like nothing measured: the reason stands for every size.
    assert [line.partition(": ")[0] for line in lines if "No 80 % interval" in line] == [
        "8 devices",
        "16 devices",
    ]
    assert_refused("-o accepts one number of devices", "plan", model, *options, "-o", tmp_path / "plan.json")


def test_a_default_batch_that_devices_share_is_named_with_its_reason(model: str) -> None:
    options = "--fix pp=1,cp=1,tp=1,microbatch=1 --top 1"
    for gpus, reason in (("8xH100", ""), ("8,24xH100", ", which up to 24 replicas share equally")):
        defaults = " ".join(invoke(f"plan {model} --gpus {gpus} {options}").stdout.split())
        size = re.search(r"--global-batch (\d+) \(([\d.]+) Mi tokens(.*?)\)", defaults)
        assert size is not None
        assert int(size[1]) % int(gpus.partition("x")[0].split(",")[-1]) == 0
        assert float(size[2]) == pytest.approx(int(size[1]) * 64 / 2**20, rel=1e-2)
        assert size[3] == reason


def test_several_sizes_name_plans_that_surely_fit_and_why_an_interval_is_wide(
    planned: tuple[Result, Path],
) -> None:
    plan = read_as(TrainingPlan, planned[1])
    near = NearRun(source="vendor", label="row 3", distance=1.0, error=0.09, differs=("stack torchtitan",))
    narrow = plan.model_copy(
        update={"time_s_low": 0.96 * plan.time_s, "time_s_high": 1.05 * plan.time_s, "uncalibrated": None}
    )
    wide = narrow.model_copy(
        update={
            "question": plan.question.model_copy(update={"devices": 16}),
            "time_s_high": 1.2 * plan.time_s,
            "evidence": (near,),
            "may_fit": "The plan may fit: needs 70 to 90 GiB. The first that surely fits: dp 16.",
        }
    )
    text = " ".join(sizes_in_words([narrow, wide]).split())
    assert "8 devices -4.0 % to +5.0 %, 16 devices -4.0 % to +20.0 %." in text
    assert (
        "16 devices have the widest one: the nearest measured run is vendor row 3 (stack torchtitan)" in text
    )
    assert "16 devices: The plan may fit: needs 70 to 90 GiB. The first that surely fits: dp 16." in text
    assert "8 devices have" not in text.replace("16 devices have", "")
    assert "widest" not in sizes_in_words([narrow])


def test_the_cheapest_and_the_fastest_in_time_are_named(model: str) -> None:
    """Of two numbers of devices with one batch the smaller one is cheaper; exit status 3 if none is in
    time.
    """
    options = ("--system", "h100", "--devices", "8,16", "--global-batch", "1024", "--tokens", "1e12")
    options += ("--fix", "pp=1,cp=1,microbatch=16")
    failures = ("--mtbf", "50000", "--checkpoint", "60", "--restart", "600")
    found = invoke_json("plan", model, *options, *failures, "--price", "2", "--days", "1e4")
    few, many = (one["run"] for one in found)
    assert (few["is_the"], many["is_the"]) == (["cheapest"], ["fastest"])
    for devices, one in ((8, few), (16, many)):
        assert one["cost"] == pytest.approx(2 * 24 * devices * one["days"])
        assert one["goodput"]["failure_s"] == pytest.approx(50_000 * 3600 / devices)
        assert 0.98 < one["goodput"]["share"] < 1
    late = invoke("plan", model, *options, "--days", many["days"] / 2)
    assert late.exit_code == 3
    assert "16 devices come closest" in late.stdout


def test_failures_have_defaults_with_their_reason_and_money_its_currency(model: str) -> None:
    options = ("--gpus", "8,16xh100", "--gbs", "64", "--tokens", "1e12", "--days", "1e5", "--mtbf", "50000")
    options += ("--fix", "pp=1,cp=1,microbatch=1,tp=1")
    told = invoke("plan", model, *options, "--price", "2.5USD").stdout
    assert re.search(r"The cheapest[^:]*:.*[\d,]+\s+USD\s+at\s+2\.5\s+each", told, re.DOTALL)
    defaults = r"--checkpoint 60 \(assumed: .*\), --restart 600 \(assumed: .*\)"
    assert re.search(defaults, " ".join(told.split()))
    found = invoke_json("plan", model, *options, "--price", "2.5USD")
    stated = invoke_json("plan", model, *options, "--price", "2.5", "--checkpoint", "60", "--restart", "600")
    for with_defaults, explicit in zip(found, stated, strict=True):
        assert with_defaults["run"]["asked"].pop("currency") == "USD"
        assert with_defaults["run"] == explicit["run"]


@pytest.mark.parametrize(
    ("text", "price", "currency"),
    [
        ("2.5", 2.5, ""),
        ("2.5USD", 2.5, "USD"),
        ("$2.5", 2.5, "$"),
        ("3 €", 3.0, "€"),
        ("USD 2", 2.0, "USD"),
        ("2.5EUR", 2.5, "EUR"),
        ("1e3", 1000.0, ""),
    ],
)
def test_money_is_a_number_and_a_currency(text: str, price: float, currency: str) -> None:
    assert (float(money(text)), money(text).currency) == (price, currency)


@pytest.mark.parametrize("text", ["x", "2.5.5", "USD", "2.5USDOLLARS", ""])
def test_no_other_text_is_money(text: str) -> None:
    with pytest.raises(BadParameter, match="optionally with a currency"):
        money(text)


def test_where_nothing_fits_the_closest_is_told_with_exit_status_3(
    model: str, tmp_path: Path, project_root: Path
) -> None:
    path = system_of_small_devices(tmp_path, project_root, hbm_gib=0.0002)
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    options = ("--system", path, "--devices", "8", "--global-batch", "16", "-o", str(out))
    result = invoke("plan", model, *options, "--page", str(page))
    assert result.exit_code == 3
    for unwritten in (page, out):
        assert not unwritten.exists()
        assert f"plan: {unwritten} was not written: there is no plan\n" in result.stderr
    said = " ".join(result.stdout.split())
    words = ("comes closest lacks", "closest, with equal stages:", "optimizer", "do not fit, ")
    assert all(word in said for word in words)
    found = invoke_json("plan", model, *options)
    assert found["format"] == "phaze-no-plan"
    # Context and buffers alone are more than the device has, so that nothing is left for tensors.
    assert 0 < max(rank["peak_gib"] for rank in found["memory"]) < found["lacking_gib"]
    assert found["certificate"].get("lacking_gib") is None
    lacking = re.findall(r"(\S+) GiB on the rank with peak memory", " ".join(result.stdout.split()))
    assert lacking == [digits(found["lacking_gib"])]


def test_a_system_without_a_stack_is_planned_and_simulated_with_the_same_one(
    model: str, tmp_path: Path, project_root: Path
) -> None:
    system = tmp_path / "own.yaml"
    text = (project_root / "config/systems/h100.yaml").read_text()
    system.write_text(text.replace("stack: megatron-bridge\n", ""))
    fixed = "tp=2,cp=1,pp=1,microbatch=2,zero=1,sequence_parallel=true,recompute=none"
    options = ("--system", str(system), "--devices", "8", "--global-batch", "16", "--fix", fixed)
    plan = invoke_json("plan", model, *options)
    row = {"model": Path(model).name, "seq": plan["question"]["sequence"], "gpus": 8, "global_batch": 16}
    row |= {"tp": 2, "dp": 4, "microbatch": 2, "zero": 1}
    row |= dict.fromkeys(("sequence_parallel", "flash_attention"), "true")
    runs, out = Path(model).parent / "runs.csv", tmp_path / "out.csv"
    runs.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    said = invoke("simulate --runs", runs, "--system", system, "-o", out).stdout
    found = pd.read_csv(out)
    assert found["time_s"][0] == pytest.approx(plan["time_s"])
    assert plan["question"]["stack"] == found["stack_used"][0] == "megatron-core"
    assert "megatron-core" in said


def test_templates_are_planned_with_what_is_assumed(model: str, tmp_path: Path, project_root: Path) -> None:
    for name in ("device.yaml", "system.yaml"):
        (tmp_path / name).write_text((project_root / "config/templates" / name).read_text())
    options = ("--system", str(tmp_path / "system.yaml"), "--devices", "16", "--global-batch", "16")
    said = invoke("plan", model, *options, "--fix", "pp=1").stdout
    first = " ".join(said.split("\n")[1:5])
    assert "Optimistic: no run like this was measured on device" in first
    assert "Everything that its file does not say is copied from h100-80gb." in " ".join(first.split())
    assert "At least" in said
    assert "interval" not in said


@pytest.mark.slow
def test_devices_by_their_data_sheets_are_planned_and_said_to_be_unmeasured(
    model: str, project_root: Path
) -> None:
    texts = {path.stem: path.read_text() for path in (project_root / "config/devices").glob("*.yaml")}
    devices = sorted(name for name, text in texts.items() if "\npeak_flops_per_s:" in text)
    assert len(devices) >= 7
    for device in devices:
        options = ("--gpus", f"8x{device}", "--global-batch", "8", "--fix", "tp=1,pp=1")
        first = " ".join(" ".join(invoke("plan", model, *options).stdout.split("\n")[:6]).split())
        assert f"no run like this was measured on {device}" in first
        assert "Everything that its file does not say is copied from" in first


def test_tpus_are_planned_for_maxtext_without_an_interval(model: str, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    options = ("--system", "tpu-v5p", "--devices", "8", "--global-batch", "16", "--tokens", "1e9")
    lines = invoke("plan", model, *options, "-o", out).stdout.splitlines()
    assert lines[0].endswith("maxtext, bf16")
    assert lines[1] == "No 80 % interval: no measured run is like it."
    assert not any("interval" in line for line in lines[2:])
    plan = read_as(TrainingPlan, out)
    assert (plan.question.runtime, plan.question.stack, plan.layout.pp) == ("maxtext", "maxtext", 1)
    assert (plan.time_s_low, plan.run and plan.run.days_low) == (None, None)
    assert_refused("--for megatron: plans for maxtext cannot be written", "emit", out, "--for", "megatron")


def test_few_words_are_a_question() -> None:
    """Devices and system in one option, a batch of 4 Mi tokens; the defaults are printed."""
    found = invoke("plan gpt2 --gpus 8xH100 --fix tp=1,pp=1,cp=1,microbatch=8")
    assert found.exit_code == 0, found.output
    defaults = "Defaults used: --sequence 1024, --global-batch 4096 (4 Mi tokens), --precision bf16"
    assert defaults in found.stdout
    assert "on 8 h100: 4,096 samples of 1,024 tokens" in found.stdout


def test_a_larger_outermost_level_than_the_file_has_is_an_assumption_that_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for devices, told in ((512, False), (1024, True)):
        prepared(PlanOptions(model="gpt2", gpus=f"{devices}xa100-fms"))
        message = "a100-fms has 512 devices; for 1,024 its outermost level is assumed to grow"
        assert (message in capsys.readouterr().err) == told


def test_a_table_of_architectures_tells_of_a_growing_system_once() -> None:
    command = "place -m gpt2 --gpus 64xdgx1-ethernet -a tpu-v4,phaze-common --sequence 512"
    told = invoke(command, "--fix", "cp=1,pp=1,zero=1").stderr
    assert " ".join(told.split()).count("is assumed to grow") == 1


def test_an_option_of_a_single_plan_is_refused_for_a_table_of_architectures() -> None:
    command = "place -m gpt2 --devices 8 -a tpu-v4,tpu-v4-as-built --top 3"
    assert_refused("--top applies to one architecture only", command)
