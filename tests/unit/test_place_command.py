"""`place` of a model uses its options unchanged or refuses them, and states its assumptions."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.search import cosearch
from phaze.spec.config import load_scenario
from phaze.spec.study import ScenarioChoice
from tests.commands import assert_refused, invoke
from tests.unit.test_main import MODEL

H100 = ("--system", "h100", "--devices", "8", "--global-batch", "32")


@pytest.fixture(name="model")
def tiny_model(tmp_path: Path) -> str:
    path = tmp_path / "tiny.yaml"
    path.write_text(MODEL)
    return str(path)


def place(model: str, *arguments: str) -> str:
    return invoke("place --model", model, *arguments).stdout


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize("option", ["--hbm-gib", "--flat-bandwidth"])
def test_a_size_that_is_none_is_refused_and_not_left_out(model: str, option: str, value: str) -> None:
    with pytest.raises(PhazeError, match=f"place: {option}: must be a finite number > 0, got {value}"):
        place(model, f"{option}={value}")


def test_an_empty_name_of_a_system_is_no_system() -> None:
    assert_refused("there is no system ''", "partition bert-base --system", "")


@pytest.mark.slow
def test_levels_of_a_network_are_no_flat_one_unless_its_bandwidth_is_said(model: str) -> None:
    with pytest.raises(
        PhazeError, match=r"h100.yaml: has network levels with 4.5e\+11, 5e\+10 bytes/s.*`plan`"
    ):
        place(model, *H100, "--architecture", "h100-80gb")
    found = json.loads(
        place(model, *H100, "--architecture", "h100-80gb", "--flat-bandwidth", "4e11", "--json")
    )
    assert found["assumptions"][0] == "a flat network of 4e+11 bytes/s"
    words = place(model, *H100, "--architecture", "h100-80gb", "--flat-bandwidth", "4e11")
    assert words.strip().endswith("; ".join(found["assumptions"]))
    said = " ".join(found["assumptions"])
    assert all(word in said for word in ("adam in mixed precision", "64 tokens", "2 (d - 1)/d"))


def test_a_study_says_the_bandwidth_of_a_flat_network_in_place_of_levels() -> None:
    with pytest.raises(PhazeError, match="network_bandwidth_bytes_per_s"):
        load_scenario(ScenarioChoice(system="h100"))
    flat = load_scenario(ScenarioChoice(system="h100", network_bandwidth_bytes_per_s=4e11))
    assert flat.network_bandwidth_bytes_per_s == 4e11


def test_an_architecture_takes_its_own_clock_or_is_refused(model: str) -> None:
    with pytest.raises(PhazeError, match=r"pass --architecture .*devices/h100-80gb.yaml"):
        place(model, *H100, "--flat-bandwidth", "4e11", "--architecture", "tpu-v4")
    words = place(
        model, *H100, "--flat-bandwidth", "4e11", "--architecture", "config/devices/tpu-v4-as-built.yaml"
    )
    assert "the clock of tpu-v4-as-built, 1.05e+09 Hz, and its HBM, 1.2e+12 bytes/s" in words


def test_no_more_devices_than_the_system_has(model: str) -> None:
    with pytest.raises(
        PhazeError, match="--devices: must be at most the 1024 of system tpu-v4-pod, got 1025"
    ):
        place(model, "--devices", "1025")


@pytest.mark.slow
def test_a_placement_that_takes_long_says_which_point_it_is_at(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = cosearch.evaluate_point

    def slowly(*arguments: object) -> object:
        time.sleep(1.1)
        return evaluate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cosearch, "evaluate_point", slowly)
    arguments = ["place", "--model", model, "--devices", "8", "--global-batch", "32", "--tensor", "1"]
    result = invoke(*arguments, "--json")
    assert "progress: place: 2 s, TMP width and microbatch " in result.stderr
    assert json.loads(result.stdout)["status"] == "placed"
