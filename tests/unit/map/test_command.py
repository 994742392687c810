"""Stages are mapped from the command line."""

import json
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.documents import read_as
from phaze.spec.mapping import StoredMapping
from tests.commands import assert_refused, invoke

FAST = ("--tries", "2000", "--steps", "500")


def written_stages(folder: Path, replicas: int) -> str:
    times = {"forward_s": 0.01, "backward_s": 0.03, "parameter_bytes": 1e7}
    text = {
        "format": "phaze-stages",
        "version": 1,
        "model": "small",
        "replicas": replicas,
        "microbatches": 4,
        "recompute": True,
        "stages": [times, times],
        "edges": [{"source": 0, "target": 1, "bytes": 2e7}],
    }
    path = folder / "stages.json"
    path.write_text(json.dumps(text), encoding="utf-8")
    return str(path)


def test_a_mapping_is_written_the_same_twice_with_measured_times_apart(tmp_path: Path) -> None:
    stages, texts = written_stages(tmp_path, 8), []
    for name in ("one.json", "two.json"):
        options = ["--topology", "two-level", "-o", str(tmp_path / name), "--times", str(tmp_path / "t.json")]
        result = invoke("map", stages, *options, *FAST)
        assert result.exit_code == 0, result.stdout
        texts.append((tmp_path / name).read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    found = read_as(StoredMapping, tmp_path / "one.json")
    assert found.step_time_s <= min(one.step_time_s for one in found.heuristics)
    assert found.compute_s < found.step_time_s
    measured = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert set(measured) == {"p2p", "allreduce", "exact", "local-search"}
    assert f"step {found.step_time_s:.6g} s with the mapping of {found.found_by}" in result.stdout
    exact = next(one for one in found.ways if one.name == "exact")
    counted = f"longest stage time under its own cost model {exact.objective_s:.6g} s"
    known = "proven optimal" if exact.proven else f"none below {exact.bound_s:.6g} s"
    assert f"exact: step {exact.step_time_s:.6g} s, {counted}, {known}" in result.stdout


def test_a_mapping_is_drawn_beside_those_by_hand(tmp_path: Path) -> None:
    options = ("--topology", "two-level", "--picture")
    stages, picture = written_stages(tmp_path, 8), tmp_path / "map.svg"
    assert invoke("map", stages, *options, picture, *FAST).exit_code == 0
    drawn = picture.read_text(encoding="utf-8")
    assert all(name in drawn for name in ("CS map", "p2p map", "replica by replica"))
    with pytest.raises(PhazeError, match=r"map\.txt: must end in \.svg, \.png, \.pdf"):
        invoke("map", stages, *options, tmp_path / "map.txt")


@pytest.mark.parametrize(("choice", "ways"), [("auto", 1), ("exact", 1), ("ensemble", 4)])
def test_heuristics_stay_out_of_the_answer_if_asked(tmp_path: Path, choice: str, ways: int) -> None:
    options = ["--topology", "dgx-1", "--instantiation", choice, "--no-heuristics", "--json"]
    result = invoke("map", written_stages(tmp_path, 4), *options, *FAST)
    found = StoredMapping.model_validate_json(result.stdout)
    assert len(found.ways) == ways
    assert [one.name for one in found.heuristics] == ["cs-map", "p2p-map"]


@pytest.mark.parametrize(
    ("replicas", "topology", "message"),
    [
        (9, "two-level", "needs at least 18 devices for 2 stages x 9 replicas, got 16"),
        (2, "none", "there is no topology 'none'; known are "),
    ],
)
def test_mistakes_are_one_message(tmp_path: Path, replicas: int, topology: str, message: str) -> None:
    assert_refused(message, "map", written_stages(tmp_path, replicas), "--topology", topology)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_sizes_at_their_limits_have_a_result(tmp_path: Path, size: float) -> None:
    stages = Path(written_stages(tmp_path, 2))
    stored = json.loads(stages.read_text(encoding="utf-8"))
    stored["stages"] = [dict.fromkeys(("forward_s", "backward_s", "parameter_bytes"), size)] * 2
    stages.write_text(json.dumps(stored), encoding="utf-8")
    result = invoke("map", stages, "--topology", "two-level", "--json", *FAST)
    assert result.exit_code == 0, result.exception
    assert StoredMapping.model_validate_json(result.stdout).step_time_s > 0
