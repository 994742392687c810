"""Suggestions for misspelt names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.base.nearest import choices, nearest
from phaze.spec.documents import read_as
from phaze.spec.models import load_model, load_transformer
from phaze.spec.stages import StoredStages
from phaze.spec.system import Cluster

MANY = [f"name-{i}" for i in range(20)]


def test_few_names_are_all_shown_and_of_many_the_nearest_three() -> None:
    assert choices("x", ["a", "b"], "there") == "a, b"
    assert choices("name-77", MANY, "there") == "name-7, name-17, name-9 (nearest of 20, all are in there)"
    assert choices("", MANY, "there").endswith(" (nearest of 20, all are in there)")


def test_case_does_not_matter_and_what_is_unlike_is_not_near() -> None:
    assert nearest("H100", ["a100", "h100", "b"]) == ["h100", "a100"]
    assert nearest("zzz", MANY) == []


SAID = {
    "llama 3 8b": "llama-3.1-8b",
    "Llama3-8B": "llama-3.1-8b",
    "llama3.1 70B": "llama-3.1-70b",
    "llama8b": "llama-3.1-8b",
    "llama 405b": "llama-3.1-405b",
    "llama2": "llama2-7b",
    "llama4 scout": "llama-4-scout",
    "qwen3 30b": "qwen3-30b-a3b",
    "qwen 235b": "qwen3-235b-a22b",
    "deepseek v3": "deepseek-v3",
    "gpt-oss 20b": "gpt-oss-20b",
    "mixtral": "mixtral-8x7b",
    "kimi k2": "kimi-k2",
    "glm5": "glm-5",
    "gpt3 175b": "megatron-gpt3-175b",
    "GPT-2": "gpt2",
    "nemotron": "nemotron-3-nano-30b-a3b",
    "gemma 4": "gemma-4-26b-a4b",
    "minimax": "minimax-m2.5",
    "resnet50": "resnet-50",
}
"""Model that people mean, by the name that they say."""


@pytest.mark.parametrize(("said", "meant"), SAID.items())
def test_a_model_as_people_call_it_leads_to_its_name_first(said: str, meant: str, project_root: Path) -> None:
    assert nearest(said, sorted(path.stem for path in (project_root / "config/models").iterdir()))[0] == meant
    with pytest.raises(PhazeError, match=f"did you mean {meant}"):
        load_transformer(said, "plan")


def test_unknown_keys_are_answered_with_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("layers: 4\nlayerz: 4\n")
    with pytest.raises(
        PhazeError,
        match=r"layerz: is not a known key, got 4\n[^;]*; did you mean layers\? all \d+ are in config/README",
    ):
        load_model(path)
    level = {"devises": 8, "bandwidth_bytes_per_s": 1e9}
    with pytest.raises(
        PhazeError,
        match=r"levels\.0\.devises: is not a known key, got 8; did you mean devices\? all \d+ are in ",
    ):
        Cluster.parse({"device": "h100-80gb", "levels": [level]}, "system")
    document = tmp_path / "stages.json"
    document.write_text(json.dumps({"format": "phaze-stages", "modelx": "x"}))
    with pytest.raises(
        PhazeError, match=r"modelx: is not a known key, got 'x'\n[^;]*; did you mean model\? all \d+ are in"
    ):
        read_as(StoredStages, document)
