"""`place` of a model uses its options unchanged or refuses them, and states its assumptions."""

from __future__ import annotations

import json
import time

import pytest

from phaze.base.errors import PhazeError
from phaze.search import cosearch
from phaze.spec.config import load_scenario
from phaze.spec.study import ScenarioChoice
from tests.commands import invoke

H100 = ("--system", "h100", "--devices", "8", "--global-batch", "32")


def place(model: str, *arguments: str) -> str:
    return invoke("place --model", model, *arguments).stdout


@pytest.mark.slow
def test_a_flat_network_of_a_stated_bandwidth_is_an_assumption(model: str) -> None:
    flat = (*H100, "--architecture", "h100-80gb", "--flat-bandwidth", "4e11")
    found = json.loads(place(model, *flat, "--json"))
    assert found["assumptions"][0] == "a flat network of 4e+11 bytes/s"
    words = place(model, *flat)
    assert words.strip().endswith("; ".join(found["assumptions"]))
    said = " ".join(found["assumptions"])
    assert all(word in said for word in ("adam in mixed precision", "64 tokens", "2 (d - 1)/d"))


def test_a_study_says_the_bandwidth_of_a_flat_network_in_place_of_levels() -> None:
    with pytest.raises(PhazeError, match="network_bandwidth_bytes_per_s"):
        load_scenario(ScenarioChoice(system="h100"))
    flat = load_scenario(ScenarioChoice(system="h100", network_bandwidth_bytes_per_s=4e11))
    assert flat.network_bandwidth_bytes_per_s == 4e11


def test_an_architecture_takes_its_own_clock(model: str) -> None:
    words = place(model, *H100, "--flat-bandwidth", "4e11", "-a", "config/devices/tpu-v4-as-built.yaml")
    assert "the clock of tpu-v4-as-built, 1.05e+09 Hz, and its HBM, 1.2e+12 bytes/s" in words


@pytest.mark.slow
def test_a_placement_that_takes_long_says_where_it_is(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate = cosearch.evaluate_point

    def slowly(*arguments: object) -> object:
        time.sleep(1.1)
        return evaluate(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(cosearch, "evaluate_point", slowly)
    arguments = ["place", "--model", model, "--devices", "8", "--global-batch", "32", "--tensor", "1"]
    result = invoke(*arguments, "--json")
    assert "progress: place: 2 s, TMP width and microbatch " in result.stderr
    assert json.loads(result.stdout)["status"] == "placed"
