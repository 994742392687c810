"""A reading changes the settings that it names, in the first scenario, and nothing else."""

from __future__ import annotations

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.config import Settings, load_settings
from tests.studies import study_settings

READINGS = {
    "fast": {
        "note": "a network a thousand times as fast",
        "scenario": {"network_bandwidth_bytes_per_s": 4294967296000},
        "training": {"hbm_gib": [16]},
        "extract": {"head": False},
        "estimate": {"vector_cycles": {"forward.softmax": 1}},
    },
    "h100": {
        "note": "another system",
        "scenario": {"system": "h100", "network_bandwidth_bytes_per_s": 5e10, "global_batch": 64},
    },
}


def settings(readings: object, **changes: object) -> Settings:
    """Return the study of the paper's space with readings."""
    study = study_settings("phaze-space")
    return load_settings({**study, "readings": readings, **changes}, source="study.yaml")


def test_a_study_without_readings_changes_nothing() -> None:
    """There is no own reading to compare with."""
    assert settings({}).reading_changes("gpt2-xl") == {}


def test_a_reading_changes_what_it_names_and_nothing_else() -> None:
    changes = settings(READINGS).reading_changes("gpt2-xl")
    assert changes["study"] == {}
    assert changes["fast"] == {key: fields for key, fields in READINGS["fast"].items() if key != "note"}


def test_a_reading_may_change_single_workloads() -> None:
    """The named workload has its own changes in addition to those of the reading; the others do not."""
    named = {"megatron-gpt-8.3b": {"model": {"heads": 24}, "extract": {"head": "in-layers"}}}
    study = settings({"traced": {"note": "x", "extract": {"activation_factor": 6}, "workloads": named}})
    changed, other = (study.reading_changes(name)["traced"] for name in ("megatron-gpt-8.3b", "gpt2-xl"))
    assert changed == {"model": {"heads": 24}, "extract": {"activation_factor": 6.0, "head": "in-layers"}}
    assert other == {"extract": {"activation_factor": 6.0}}


def test_a_reading_may_take_another_system_as_a_whole() -> None:
    changes = settings(READINGS).reading_changes("gpt2-xl")["h100"]["scenario"]
    assert (changes["clock_hz"], changes["global_batch"]) == (1.83e9, 64)


def test_the_settings_of_the_study_are_shown_beside_its_readings_only() -> None:
    assert list(settings(READINGS).study.shown_readings) == ["study", "fast", "h100"]
    assert settings({}).study.shown_readings == {}


def test_a_reading_that_is_null_is_left_out() -> None:
    assert list(settings({**READINGS, "h100": None}).study.readings) == ["fast"]
    assert settings(None).study.readings == {}


def test_the_readings_of_the_paper_space_change_one_assumption_each() -> None:
    study = study_settings("phaze-space")
    loaded = load_settings(study)
    assert set(study["readings"]) >= {"paired-fusion", "no-preload", "first-stage-gradients", "paper-tpu-v4"}
    for name, reading in loaded.study.readings.items():
        assert len(loaded.reading_changes("gpt2-xl")[name]) + (reading.baseline is not None) == 1


def test_what_was_found_for_another_workload_is_not_read() -> None:
    loaded = settings(READINGS)
    families = {"spotlight": {model: f"spotlight-{model}" for model in loaded.study.models}}
    names = loaded.read_architectures("gpt2-xl", families)
    assert names == ["tpu-v4-as-built", "tpu-v4", "phaze-common", "spotlight-gpt2-xl"]


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({"training": {"hbm": [1]}}, r"readings\.x\.training: hbm: is not a known key, got \[1\]"),
        (
            {"training": {"hbm_gib": [0]}},
            r"readings\.x\.training: hbm_gib\.0: should be greater than 0, got 0",
        ),
        ({"scenario": {"devices": 0}}, r"readings\.x\.scenario: devices: should be greater than 0, got 0"),
        ({"scenario": {"system": "moon"}}, "there is no system 'moon'; known are "),
        ({"workloads": {"gpt9": {}}}, r"readings\.x\.workloads: 'gpt9' is not among workloads bert-large, "),
        (
            {"workloads": {"gpt2-xl": {"extract": {"heads": 1}}}},
            r"readings\.x\.workloads\.gpt2-xl\.extract: heads: is not a known key, got 1",
        ),
        (
            {"workloads": {"gpt2-xl": {"model": {"layers": 0}}}},
            r"readings\.x\.workloads\.gpt2-xl\.model: layers: should be greater than 0, got 0",
        ),
        ({"extract": {"head": "no"}}, r"readings\.x\.extract: head.*got 'no'"),
        ({"baseline": "moon"}, r"readings\.x\.baseline: 'moon' is not among architectures\.named"),
        ({"screen": {}}, r"readings\.x\.screen: is not a known key"),
        ({"training": {"microbatches": [3]}}, "3 does not divide scenarios.tpu-v4-pod.global_batch"),
    ],
)
def test_a_mistake_in_a_reading_is_one_clear_message(reading: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        settings({"x": {"note": "a mistake", **reading}})


def test_no_reading_has_the_name_of_the_studys_own_settings() -> None:
    with pytest.raises(PhazeError, match=r"readings: 'study' is reserved"):
        settings({"study": {"note": "mine"}})
