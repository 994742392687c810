"""No command overwrites its inputs, or one output with another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.commands.output import refuse_outputs
from tests.commands import assert_refused

COMMANDS = {
    "place": ("place", "{}", "-o", "{}"),
    "place a model": ("place", "--model", "{}", "-o", "{}"),
    "place on a system": ("place", "--model", "gpt2", "--system", "{}", "-o", "{}"),
    "plan": ("plan", "{}", "--system", "h100", "--global-batch", "8", "-o", "{}"),
    "partition": ("partition", "{}", "--stages", "2", "-o", "{}"),
    "partition's graph": ("partition", "{}", "--stages", "2", "--graph-out", "{}"),
    "map": ("map", "{}", "--topology", "two-level", "-o", "{}"),
    "map's times": ("map", "s.json", "--topology", "{}", "--times", "{}"),
    "simulate's trace": ("simulate", "{}", "--trace", "{}"),
    "simulate --runs": ("simulate", "--runs", "{}", "--system", "h100", "-o", "{}"),
    "validate": ("validate", "{}", "-o", "{}"),
    "validate's errors": ("validate", "{}", "--errors", "{}"),
    "calibrate": ("calibrate", "{}", "--system", "h100", "-o", "{}"),
    "calibrate's system": ("calibrate", "runs.csv", "--system", "{}", "-o", "{}"),
    "export": ("export", "{}", "-o", "{}"),
    "trace": ("trace", "{}", "-o", "{}"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_an_output_that_is_an_input_is_refused_and_the_input_stays(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "input.yaml"
    path.write_text("as it was")
    assert_refused("output would overwrite an input", *[word.format(path) for word in command])
    assert path.read_text() == "as it was"


def test_two_outputs_of_one_name_are_refused(tmp_path: Path) -> None:
    same = str(tmp_path / "x.svg")
    for command in (
        ("map", "s.json", "--topology", "two-level", "-o", same, "--picture", same),
        ("simulate", "p.parquet", "--trace", same, "--picture", same),
        ("partition", "g.json", "-o", same, "--graph-out", str(tmp_path / "." / "x.svg")),
    ):
        assert_refused("two outputs have this name", *command)


def test_a_file_is_known_by_any_of_its_names(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for name in ("link", "hard", "./a.json"):
        with pytest.raises(PhazeError, match="output would overwrite an input"):
            refuse_outputs(tmp_path / name, reads=(path,))
    refuse_outputs(tmp_path / "b.json", tmp_path / "gpt2", reads=(path, "gpt2", None))
