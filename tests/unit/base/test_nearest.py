"""Suggestions for misspelt names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.base.nearest import choices, nearest
from phaze.spec.documents import read_as
from phaze.spec.models import load_model
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
