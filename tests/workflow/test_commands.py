"""Commands that are killed while writing, or cannot write: a file is complete, or unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError
from tests.workflow.folders import Folder, forked, full, read_only
from tests.workflow.killer import ASKED

pytestmark = pytest.mark.workflow

RUN = "hidden,heads,layers,seq,vocab,gpus,global_batch\n1024,16,4,512,51200,8,8\n"
SHAPE = ("--stages", "2", "--replicas", "1")
TINY = ("tiny.yaml", "--microbatch", "2", "--sequence", "64", "--system", "titan-v-ethernet")
STAGES = "{results}/stage-graphs/tiny-full-k6-s2-r2-m4.json"
COMMANDS = {
    "place": ("place", "--planner", "piper", "{results}/inputs/ours.json", "--devices", "2", "-o"),
    "partition": ("partition", "{results}/operator-graphs/tiny.json", *SHAPE, "-o"),
    "profile": ("partition", *TINY, *SHAPE, "--flow", "paper", "--graph-out"),
    "map": ("map", STAGES, "--topology", "torus-2d", "--steps", "9", "-o"),
    "runs": ("simulate", "--system", "a100-selene", "--runs", "runs.csv", "-o"),
    "export": ("export", "{results}/report/simulations.parquet", "-o"),
}
"""Commands that are fast; the output file comes last."""


@pytest.fixture
def command(request: pytest.FixtureRequest, finished: Folder, tmp_path: Path) -> list[str]:
    """Return a command that writes the file that is named behind it."""
    study = finished.path
    (tmp_path / "runs.csv").write_text(RUN)
    here = {"tiny.yaml": str(study / "tiny.yaml"), "runs.csv": str(tmp_path / "runs.csv")}
    words = COMMANDS[request.param]
    return [here.get(word, word.format(results=study / "results")) for word in words]


everywhere = pytest.mark.parametrize("command", COMMANDS, indirect=True)


@everywhere
def test_a_command_that_is_killed_while_it_writes_leaves_what_was_there(
    command: list[str], tmp_path: Path
) -> None:
    answers = tmp_path / "answers"
    answers.mkdir()
    (answers / "file").write_text("old")
    moment = {"moment": "writing", "victim": "job", "nth": 1}
    asked = {"folder": str(tmp_path), "moments": {"phaze": moment}}
    done = forked("phaze", *command, str(answers / "file"), variables={ASKED: json.dumps(asked)})
    assert done.returncode == -9, done.output
    assert (answers / "file").read_text() == "old"
    (half,) = set(answers.iterdir()) - {answers / "file"}
    assert half.name.startswith(".file.")


@everywhere
def test_a_command_that_cannot_write_says_so_in_one_message(command: list[str], tmp_path: Path) -> None:
    """Immediately for a closed folder, after the work for a full disk."""
    answers = tmp_path / "answers"
    answers.mkdir()
    for closed, reason in (
        (read_only, f"no write permission in {answers}"),
        (full, "No space left on device"),
    ):
        with closed(answers):
            done = CliRunner().invoke(app, [*command, str(answers / "file")])
            left = {path.name for path in answers.iterdir()}
        assert isinstance(done.exception, PhazeError), done.exception
        assert str(done.exception) == f"{answers / 'file'}: cannot be written: {reason}"
        assert left <= {"filler"}
