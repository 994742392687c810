"""Intervals of predicted times from the errors of published runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.plan.answer.priced import MeasuredInterval, PricedLayout
from phaze.plan.answer.words import predicted
from phaze.plan.machines import load_machine
from phaze.plan.question import PlanQuestion
from phaze.plan.splits.split import Split, even_blocks
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.spec.files import FOLDER
from phaze.spec.models import load_transformer
from phaze.spec.recipes import month_of
from phaze.spec.system import Calibration
from phaze.spec.systems import load_cluster
from phaze.validate.intervals import COVERED, ERRORS, PublishedErrors, interval, published, with_intervals
from phaze.validate.run_kinds import KEYS, RunKind, parallelism_of
from phaze.validate.table import predict_table

A100 = RunKind("megatron", "a100-80gb", "tp+dp", "no", "bf16", mfu=0.4)
H100 = RunKind("torchtitan", "h100-80gb", "dp+fsdp", "no", "fp8", mfu=0.4)
TPU = RunKind("maxtext", "tpu-v9", "dp", "balanced", "fp8", mfu=0.4)


def errors(*groups: tuple[str, RunKind, list[float]]) -> PublishedErrors:
    """Return errors of sources, each of runs of one kind."""
    rows = [
        {
            "source": source,
            "label": str(k),
            **{key: getattr(kind, key) for key in (*KEYS, "mfu", "devices")},
            "ratio": ratio,
        }
        for source, kind, ratios in groups
        for k, ratio in enumerate(ratios)
    ]
    return PublishedErrors(pd.DataFrame(rows).to_records(index=False))


def test_the_runs_most_like_it_decide() -> None:
    rng = np.random.default_rng(0)
    slow, fast = (np.exp(rng.normal(np.log(middle), 0.02, 60)).tolist() for middle in (1.3, 0.9))
    known = errors(("one", A100, slow), ("two", H100, fast))
    found = known.most_similar(A100)
    low, high = found.ends
    assert 1.2 < low < 1.3 < high < 1.4
    assert {one.source for one in found.nearest} == {"one"}
    assert found.nearest[0].distance == 0.0


def test_an_interval_widens_with_the_distance_until_nothing_is_like_a_run() -> None:
    rng = np.random.default_rng(1)
    sources = [
        (f"source-{n}", A100, np.exp(rng.normal(rng.normal(0, 0.1), 0.03, 30)).tolist()) for n in range(8)
    ]
    other = [
        (f"other-{n}", H100, np.exp(rng.normal(rng.normal(0, 0.1), 0.03, 30)).tolist()) for n in range(8)
    ]
    known = errors(*sources, *other)
    near, far = (
        known.most_similar(A100),
        known.most_similar(replace(A100, precision="fp8", parallelism="tp+pp+dp")),
    )
    assert far.ends[1] / far.ends[0] > near.ends[1] / near.ends[0]
    unknown = known.most_similar(TPU)
    assert np.isnan(unknown.ends).all()
    assert not unknown.nearest
    assert unknown.unmeasured == ("stack maxtext", "device tpu-v9")


@pytest.mark.slow
def test_published_runs_lie_in_intervals_as_often_as_is_said() -> None:
    """With the intervals of all sources, and with those of the other sources."""
    table = pd.DataFrame(PublishedErrors.load().table).assign(time_s=1.0, calibrated=None)
    sources = table["source"].value_counts()
    inside = _held(with_intervals(table)).groupby(table["source"]).mean()
    for source in sources[sources >= 25].index:
        assert inside[source] == pytest.approx(COVERED, abs=0.18), source
    parts = [with_intervals(mine, held_out=str(source)) for source, mine in table.groupby("source")]
    held = pd.concat([_held(part)[part["time_low_s"].notna()] for part in parts])
    assert held.groupby(table["source"]).mean().mean() >= 0.65


def _held(runs: pd.DataFrame) -> pd.Series:
    return runs["ratio"].between(runs["time_low_s"], runs["time_high_s"])


def priced(layout: Layout, system: str = "a100-vtrain", stack: str | None = None) -> PricedLayout:
    """Price a layout of Llama 2 on a system, with equal stages."""
    machine = load_machine(system, stack=stack, devices=layout.devices)
    task = TrainingTask(load_transformer("llama2-7b", "test"), 2048, 64, layout.devices)
    question = PlanQuestion(task, machine, MEGATRON)
    staged = question.staged(layout, "1f1b")
    blocks = even_blocks(staged)
    return PricedLayout(question, staged, Split(blocks, (0,) * len(blocks)))


def test_an_interval_of_a_plan_is_that_of_its_stack_device_and_layout() -> None:
    plan = priced(Layout(tp=8, pp=2, dp=2))
    kind = RunKind(
        "megatron-deepspeed", "a100-80gb", "tp+pp+dp", "no", "bf16", "ZeRO-0+schedule 1f1b", plan.mfu, 32
    )
    ends = published().most_similar(kind).ends
    assert interval(plan).ends_s == (plan.price.time_s * ends[0], plan.price.time_s * ends[1])
    assert parallelism_of(Layout(cp=2, zero=3, dp=2)) == "cp+dp+fsdp"
    assert parallelism_of(Layout()) == "one"


LORA = load_transformer("llama2-7b", "test").model_copy(update={"lora": 16})


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"stack": "none"}, "stack none"),
        ({"device": "tpu-v6e"}, "device tpu-v6e"),
        ({"precision": "fp8-block"}, "precision fp8-block"),
        ({"layout": Layout(dp=4, zero=1, replicate=2)}, "HSDP"),
        ({"layout": Layout(tp=2, cp=2, cp_kind="p2p")}, "cp p2p"),
        ({"layout": Layout(tp=2, cp=4, cp_kind="a2a+p2p:2")}, "cp a2a and p2p"),
        ({"layout": Layout(pp=2, vp=2), "schedule": "dualpipe"}, "schedule dualpipe"),
        ({"layout": Layout(offload="core_attn")}, "offloaded modules"),
        ({"layout": Layout(offload="optimizer")}, "offloaded optimizer states"),
        ({"model": LORA}, "LoRA"),
        ({"model": load_transformer("qwen3.5-35b-a3b", "test")}, "delta nets"),
        (
            {"layout": Layout(tp=2, ep=2, etp=2), "model": load_transformer("mixtral-8x7b", "test")},
            "expert tensor",
        ),
    ],
)
def test_a_feature_that_no_run_has_leaves_no_interval_and_is_named(
    changes: dict[str, Any], missing: str
) -> None:
    machine, fields = load_machine("a100-vtrain"), {"layout": Layout(), "schedule": "1f1b"}
    usual = {"model": load_transformer("llama2-7b", "test"), **fields, **changes}
    kind = RunKind.of(machine, usual["layout"], usual["schedule"], usual["model"], 0.4)
    kind = replace(
        kind, **{name: changes[name] for name in ("stack", "device", "precision") if name in changes}
    )
    similar = published().most_similar(kind)
    assert np.isnan(similar.ends).all()
    assert any(name.startswith(missing) for name in similar.unmeasured)
    without = RunKind.of(machine, Layout(), "1f1b", load_transformer("llama2-7b", "test"), 0.4)
    assert np.isfinite(published().most_similar(without).ends).all()


def test_a_feature_counts_as_measured_from_five_runs_of_other_sources_on() -> None:
    known = errors(("one", A100, [1.0] * 4), ("two", A100, [1.0] * 4), ("three", H100, [1.0] * 5))
    assert known.most_similar(A100).unmeasured == ()
    assert known.most_similar(A100, "one").unmeasured == ("stack megatron", "device a100", "precision bf16")
    sibling = replace(H100, stack="torchtitan-eager", device="h100-96gb")
    assert known.most_similar(sibling).unmeasured == ()


def test_an_interval_widens_with_the_number_of_devices() -> None:
    rng = np.random.default_rng(2)
    small = replace(A100, devices=64)
    known = errors(
        *((f"source-{n}", small, np.exp(rng.normal(rng.normal(0, 0.1), 0.03, 9)).tolist()) for n in range(6)),
        *((f"large-{n}", replace(A100, devices=4096), [1.3 - 0.1 * n] * 5) for n in range(4)),
    )
    near, far = known.most_similar(small), known.most_similar(replace(A100, devices=65536))
    assert far.ends[1] / far.ends[0] > near.ends[1] / near.ends[0]


def test_a_run_of_other_software_than_its_stack_has_a_wider_interval(tmp_path: Path) -> None:
    """The stack describes 2024-09 to 2025-05, and the status says so."""
    run = {
        "model": "llama-3.1-70b",
        "seq": 8192,
        "gpus": 64,
        "global_batch": 128,
        "tp": 4,
        "pp": 4,
        "chunks": 5,
    }
    run |= {
        "system": "h100",
        "stack": "megatron-nemo",
        "chunks": 5,
        "microbatch": 1,
        "zero": 1,
        "sequence_parallel": True,
    }
    rows = [run | {"date": date} for date in ("2025-05", "2026-05", "2024-03-15", "")]
    pd.DataFrame(rows).to_csv(tmp_path / "runs.csv", index=False)
    table, _ = predict_table(tmp_path / "runs.csv", None)
    assert table["time_s"].nunique() == 1
    widths = table["time_high_s"] - table["time_low_s"]
    assert widths[0] == widths[3] < widths[2] < widths[1]
    note = "stack megatron-nemo describes software of 2024-09 to 2025-05, not of"
    assert [note in status for status in table["status"]] == [False, True, True, False]
    assert table["status"][2].endswith("not of 2024-03")


def test_a_date_is_a_month_or_a_day() -> None:
    from_years = load_machine("h100", stack="megatron-nemo").stack.years_outside
    assert (from_years("2024-09"), from_years("2025-11"), from_years("")) == (0.0, 0.5, 0.0)
    with pytest.raises(PhazeError, match="date must be a month such as 2025-04, got 'May'"):
        month_of("May")


def test_a_measured_chip_has_an_interval_with_another_memory_size() -> None:
    plan = interval(priced(Layout(tp=4, pp=2, dp=2), "a100-40gb", "megatron-lm"))
    assert plan.ends_s is not None
    assert all("device a100-80gb" in run.differs for run in plan.nearest)


def test_the_nearest_runs_say_what_differs() -> None:
    plan = interval(priced(Layout(tp=4, cp=2, dp=2, sequence_parallel=True, zero=1)))
    assert all("without cp all_gather" in run.differs for run in plan.nearest)
    kind = RunKind.of(load_machine("a100-vtrain"), Layout(tp=8, dp=4), "1f1b", LORA, 0.4)
    nearest = published().most_similar(kind).nearest[0]
    assert nearest.differs == ("without LoRA",)
    same = published().most_similar(replace(kind, features="ZeRO-0")).nearest[0]
    assert same.differs == ()


def test_routing_is_part_of_a_runs_kind_where_experts_are_sharded() -> None:
    """Naturally routed runs are nearest to natural plans, forced ones are half as far as dense ones."""
    model, machine = load_transformer("mixtral-8x7b", "test"), load_machine("h100")
    kinds = {
        load: RunKind.of(machine, Layout(dp=8, ep=8, load=load), "1f1b", model)
        for load in ("natural", "balanced", "1.5")
    }
    assert [kind.experts for kind in kinds.values()] == ["natural", "balanced", "balanced"]
    assert RunKind.of(machine, Layout(dp=8, load="natural"), "1f1b", model).experts == "no"
    natural, balanced = kinds["natural"], kinds["balanced"]
    dense = replace(natural, experts="no")
    table = errors(*((kind.experts, kind, [ratio]) for kind, ratio in ((natural, 1.1), (balanced, 0.9))))
    assert table.distances(natural).tolist() == [0.0, 0.5]
    assert table.distances(dense).tolist() == [1.0, 1.0]
    enough = errors(*((kind.experts, kind, [ratio] * 6) for kind, ratio in ((natural, 1.1), (dense, 0.9))))
    nearest = enough.most_similar(balanced).nearest[0]
    assert (nearest.source, nearest.differs) == ("natural", ("natural routing",))


def test_a_calibrated_system_has_the_errors_of_its_own_runs_for_every_verb(tmp_path: Path) -> None:
    """For plans and rows alike, with the stack of the fit and features of its runs or of published ones."""
    fitted = Calibration(
        runs="mine.csv", rows=5, error_before=0.1, error=0.02, error_left_out=0.03, features=("LoRA",)
    )
    cluster = load_cluster("a100-vtrain")[0].model_copy(update={"calibrated": fitted})
    system = tmp_path / "mine.yaml"
    system.write_text(yaml.safe_dump(cluster.model_dump(mode="json", exclude_none=True)))
    plan = priced(Layout(tp=8, dp=2), str(system))
    ends = interval(plan).ends_s
    assert ends is not None
    factor = ends[1] / plan.price.time_s
    assert ends[0] == pytest.approx(plan.price.time_s / factor)
    run = {"model": "llama2-7b", "seq": 2048, "gpus": 16, "global_batch": 64, "tp": 8, "microbatch": 1}
    others = {"stack": "megatron-lm"}, {"lora": 8}, {"tp": 4, "cp": 2, "cp_kind": "p2p"}
    pd.DataFrame([run, *(run | other for other in others)]).to_csv(tmp_path / "runs.csv", index=False)
    table, _ = predict_table(tmp_path / "runs.csv", load_machine(str(system)))
    high = (table["time_high_s"] / table["time_s"]).tolist()
    assert [high[0], high[2]] == [pytest.approx(factor)] * 2
    assert high[1] != pytest.approx(factor)
    assert table["unmeasured"].tolist() == ["", "", "", "cp p2p"]
    assert np.isnan(high[3])


def test_rows_without_a_time_have_no_interval_and_a_missing_file_is_said() -> None:
    table = pd.DataFrame(PublishedErrors.load().table).head(2).assign(time_s=[1.0, np.nan], calibrated=None)
    assert with_intervals(table)["time_low_s"].notna().tolist() == [True, False]
    alien = table.assign(device="of my own", stack="mine", experts="balanced", precision="int8")
    assert with_intervals(alien)["time_low_s"].isna().all()
    with pytest.raises(PhazeError, match=rf"{ERRORS}: contains no errors of runs .* validate --errors"):
        PublishedErrors.load(FOLDER / "none")
    assert set(KEYS) < set(PublishedErrors.load().table.dtype.names)


def test_the_interval_of_a_calibrated_system_is_said_to_be_that_of_the_users_runs() -> None:
    row = priced(Layout(tp=8, dp=2)).row(MeasuredInterval((1.0, 2.0)), 1.0)
    fit = Calibration(runs="mine.csv", rows=5, error_before=0.1, error=0.02, error_left_out=0.03)
    assert predicted(row, None).endswith("80 % interval 1 to 2 s, from similar measured runs")
    assert predicted(row, fit).endswith("80 % interval 1 to 2 s, from your own runs (5 of mine.csv)")
