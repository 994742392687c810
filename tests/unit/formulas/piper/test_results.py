"""Answers as JSON: the plan, or the reason for infeasibility."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phaze.base.units import GIB
from phaze.formulas.piper.instance import PiperInstance, read_instance
from phaze.formulas.piper.layers import FlatCluster
from phaze.formulas.piper.question import PiperQuestion, answer, as_text
from tests.unit.formulas.phaze.files import Change, put, saved
from tests.unit.formulas.piper.instances import example


@pytest.fixture(name="instance")
def small_instance(tmp_path: Path) -> PiperInstance:
    return read_instance(saved(tmp_path, example()))


def test_what_is_not_asked_is_as_the_instance_says(instance: PiperInstance) -> None:
    assert PiperQuestion().cluster(instance) == FlatCluster(4, 1e4, 1e3, 8)
    assert PiperQuestion().given() == []


def test_what_is_asked_replaces_what_the_instance_says(instance: PiperInstance) -> None:
    asked = PiperQuestion(
        devices=3, memory_gib=2.0, microbatches=5, bandwidth_gib=0.5, exactly=True, paper_table1=True
    )
    assert asked.cluster(instance) == FlatCluster(
        3, 2 * GIB, 0.5 * GIB, 5, exactly=True, synchronisation="round"
    )
    assert asked.given() == [
        "memory_gib",
        "microbatches",
        "bandwidth_gib",
        "exactly",
        "paper_table1",
        "devices",
    ]


def test_a_plan_names_layers_degrees_configurations_time_and_memory(instance: PiperInstance) -> None:
    """One stage on four devices: (3 + 3 + 3)/4, and 4 · 3/4 · 1500 bytes for 8 microbatches at 1 kB/s."""
    written = json.loads(as_text(answer(instance, PiperQuestion())))
    stage = {
        "layers": [2, 5, 9],
        "d": 4,
        "t": 1,
        "configurations": ["vanilla"] * 3,
        "in_flight": 1,
        "time_per_sample": pytest.approx(9 / 4 + 4 * 3 / 4 * 1500 / (8 * 1e3)),
        "memory_bytes": 3 * 1400.0,
    }
    assert written == {
        "time_per_sample": stage["time_per_sample"],
        "devices": 4,
        "degree": 4,
        "stages": [stage],
    }


def test_stages_follow_the_data(instance: PiperInstance) -> None:
    found = json.loads(as_text(answer(instance, PiperQuestion(memory_gib=3000 / GIB))))
    ids = [stage["layers"] for stage in found["stages"]]
    assert sorted(layer for stage in ids for layer in stage) == [2, 5, 9]
    assert len(ids) > 1
    assert 5 in ids[0]
    assert 9 in ids[-1]
    assert found["time_per_sample"] == max(stage["time_per_sample"] for stage in found["stages"])


def test_lists_of_plain_values_are_lines(instance: PiperInstance) -> None:
    lines = as_text(answer(instance, PiperQuestion())).splitlines()
    assert '      "layers": [2, 5, 9],' in lines
    assert '      "configurations": ["vanilla", "vanilla", "vanilla"],' in lines


def test_baselines_stand_by_name_and_only_pipedream_may_exceed_the_memory(instance: PiperInstance) -> None:
    written = json.loads(as_text(answer(instance, PiperQuestion(memory_gib=1200 / GIB, baselines=True))))
    baselines = written["baselines"]
    assert list(baselines) == ["no_dp", "no_tp", "no_ar", "equi", "equi_no_tp", "pipedream"]
    assert [name for name, other in baselines.items() if "fits_memory" in other] == ["pipedream"]
    assert baselines["pipedream"]["fits_memory"] is False
    assert baselines["no_ar"]["time_per_sample"] is None
    assert baselines["no_ar"]["reason"] == "no plan of this kind fits"


@pytest.mark.parametrize(
    ("change", "question", "reason"),
    [
        (
            put("maxDevices", value=4),
            PiperQuestion(memory_gib=1000 / GIB),
            "memory: layer 5 (embedding) alone takes",
        ),
        (
            put("maxDevices", value=4),
            PiperQuestion(devices=1, memory_gib=1200 / GIB),
            "memory: all layers together take at least",
        ),
        (
            put("maxDevices", value=4),
            PiperQuestion(exactly=True),
            "batch: exactly 8 microbatches are data parallel on as many devices, 4 given",
        ),
        (
            put("nodes", 1, "TMPCs", "1", value=[]),
            PiperQuestion(devices=1),
            "devices: layer 2 (block) needs t = 2 devices, 1 given",
        ),
        (
            put("maxDevices", value=2),
            PiperQuestion(memory_gib=1800 / GIB, exactly=True, microbatches=2),
            "memory or batch: no stages, degrees and configurations fit with exactly 2 microbatches, 2",
        ),
    ],
)
def test_without_a_plan_there_is_a_reason(
    change: Change, question: PiperQuestion, reason: str, tmp_path: Path
) -> None:
    instance = read_instance(saved(tmp_path, change(example())))
    written = json.loads(as_text(answer(instance, question)))
    assert written["time_per_sample"] is None
    assert written["stages"] == []
    assert written["reason"].startswith(reason)
