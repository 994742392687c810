"""Plan files that differ from what `plan` wrote are refused; those of another version are priced again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError

RUN = CliRunner()
Plan = dict[str, dict[str, object]]
VERBS: dict[str, list[str]] = {"emit": ["--for", "megatron"], "simulate": [], "certify": ["--draws", "1"]}


def _asked(verb: str, plan_file: Path, folder: Path, change: Callable[[Plan], None]) -> Result:
    """Run a command on a changed plan."""
    plan = json.loads(plan_file.read_text())
    change(plan)
    file = folder / "changed.json"
    file.write_text(json.dumps(plan))
    return RUN.invoke(app, [verb, str(file), *VERBS[verb]], catch_exceptions=False)


def _faster(plan: Plan) -> None:
    for one in (plan, plan["alternatives"][0]):  # type: ignore[index]
        one["time_s"] *= 0.9  # type: ignore[operator, index]


def _smaller(plan: Plan) -> None:
    plan["memory_gib"][0] /= 2  # type: ignore[index]


def _consistently_smaller(plan: Plan) -> None:
    plan["memory_gib"][0] /= 2  # type: ignore[index]
    plan["memory"][0]["peak_gib"] /= 2  # type: ignore[index]


def _otherwise_cut(plan: Plan) -> None:
    plan["layout"]["pipeline_layout"] = "Et*20|t*12L"


def _otherwise_spread(plan: Plan) -> None:
    plan["layout"]["tp"] = 4


TAMPERED = {
    _faster: "time_s: must be that of its layout",
    _smaller: "memory_gib: must agree with the rest of the file",
    _consistently_smaller: "memory_gib.0: must be that of its layout",
    _otherwise_cut: "layout.pipeline_layout: must be that of the stages, Et*17|t*15L, got 'Et*20|t*12L'",
    _otherwise_spread: "question.devices: must agree with the rest of the file, 16, got 8",
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("change", TAMPERED, ids=lambda change: change.__name__)
def test_changed_plans_are_refused_by_file_and_field(
    change: Callable[[Plan], None], verb: str, plan_file: Path, tmp_path: Path
) -> None:
    with pytest.raises(PhazeError, match=rf"changed\.json: {re.escape(TAMPERED[change])}"):
        _asked(verb, plan_file, tmp_path, change)


@pytest.mark.parametrize("verb", VERBS)
def test_plans_of_another_version_are_priced_again(verb: str, plan_file: Path, tmp_path: Path) -> None:
    def older(plan: Plan) -> None:
        _faster(plan)
        plan["versions"]["prices"] = "of another version"

    time_s = json.loads(plan_file.read_text())["time_s"]
    figures = rf"the file says {0.9 * time_s:.5g} s and [\d.]+ GiB of tensors, now it takes {time_s:.5g} s"
    if verb == "certify":
        with pytest.raises(
            PhazeError, match=rf"changed\.json: {figures}.*; its certificate holds for other prices"
        ):
            _asked(verb, plan_file, tmp_path, older)
        return
    found = _asked(verb, plan_file, tmp_path, older)
    assert found.exit_code == 0
    assert re.search(figures, found.stdout if verb == "simulate" else found.stderr)


@pytest.mark.parametrize("verb", VERBS)
def test_plans_as_they_were_written_are_taken(verb: str, plan_file: Path, tmp_path: Path) -> None:
    found = _asked(verb, plan_file, tmp_path, lambda _: None)
    assert found.exit_code == 0
    assert "the file says" not in found.output.replace("as the file says", "")
