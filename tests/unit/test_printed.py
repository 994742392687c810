"""Output moves no cursor, fills no screen, and ends quietly if nobody reads it."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phaze.__main__ import main
from phaze.base.printed import LONGEST_LINE, LONGEST_WORD, printable, shortened
from tests.commands import Terminal

EVIL = "a\x1b[31m\x9b2Jb\u202e"
COLUMNS = "model,seq,gpus,global_batch,tp\n"
PHAZE = (sys.executable, "-m", "phaze")


def on_terminal(*arguments: str) -> tuple[int, str]:
    """Exit status of a command, and its complete terminal output."""
    terminal, inside = pty.openpty()
    with subprocess.Popen([*PHAZE, *arguments], stdin=inside, stdout=inside, stderr=inside) as child:
        os.close(inside)
        printed = b""
        while part := _read(terminal):
            printed += part
    os.close(terminal)
    return child.returncode, printed.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # nobody writes to it any more
        return b""


COMMANDS = {
    "name of a model": "plan VALUE --gpus 8xh100",
    "name of a file": "plan VALUE.yaml --gpus 8xh100",
    "name of a system": "plan gpt2 --gpus 8xVALUE",
    "an option": "plan gpt2 --VALUE",
    "value of an option": "emit x.json --for VALUE",
    "key of a model": "plan key.yaml --gpus 8xh100",
    "value of a model": "model value.yaml",
    "key of a plan": "emit key.json --for megatron",
    "cell": "validate cell.csv --system h100",
    "column": "simulate --runs column.csv --system h100 -o out.csv",
    "flag": "read flags.txt --for megatron --gpus 8xh100",
    "value of a flag": "read flag-value.txt --for megatron --gpus 8xh100",
    "verb": "VALUE",
}
"""Commands with a placeholder for a value."""
STYLED = re.compile(r"\x1b\[\d+m\x1b\[1m(error:|help:)\x1b\[0m")
"""Label of a message, in the colour and weight that it has on a terminal."""
ENDS_WELL = {"column"}
APART = {"name of a model", "verb"}
"""Commands on a terminal of the system, in a process of their own."""


def _given(case: str, value: str, folder: Path) -> tuple[str, ...]:
    """Command of a case with a value, whose files are written into a folder."""
    quoted = json.dumps(value)
    texts = {
        "key.yaml": f"layers: 4\n{quoted}: 4\n",
        "value.yaml": f"layers: {quoted}\n",
        "key.json": f'{{"format": "phaze-plan", {quoted}: 1}}',
        "cell.csv": f"{COLUMNS}{value},64,8,8,{value}\n",
        "column.csv": f"{COLUMNS.rstrip()},{value}\ngpt2,64,8,8,1,1\n",
        "flags.txt": f"--{value} 1 --num-layers 1\n",
        "flag-value.txt": f"--num-layers {value}\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    files = {*texts, "out.csv"}
    words = COMMANDS[case].split()
    return tuple(str(folder / word) if word in files else word.replace("VALUE", value) for word in words)


def printed_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Exit status of a command in this process, and all that it prints on a terminal."""
    monkeypatch.setattr(sys, "argv", ["phaze", *arguments])
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    return main(), terminal.getvalue()


@pytest.mark.parametrize("case", COMMANDS)
def test_no_control_characters_of_a_user_reach_the_terminal(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = _given(case, EVIL, tmp_path)
    status, printed = on_terminal(*arguments) if case in APART else printed_here(monkeypatch, *arguments)
    assert (status == 0) == (case in ENDS_WELL), printed
    text = STYLED.sub(r"\1", printed.replace("\r\n", "\n"))
    assert text == printable(text)
    assert not {*"\x1b\x9b\u202e"} & {*text}


@pytest.mark.parametrize("value", ["y" * 3000, "y " * 1500], ids=["one word", "words"])
@pytest.mark.parametrize("case", ["name of a model", "value of an option", "key of a model", "cell", "flag"])
def test_values_of_three_kilobytes_are_not_echoed(
    case: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, printed = printed_here(monkeypatch, *_given(case, value, tmp_path))
    assert max(map(len, printed.splitlines())) <= 2 * LONGEST_LINE


def test_text_without_control_characters_stays_and_json_stays_valid() -> None:
    plain = "ä → – ×\tx\n"
    assert printable(plain) == plain
    value = {"a\x9b\u202e": "b\u200b"}
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_the_end_of_a_message_says_what_is_allowed() -> None:
    message = shortened(f"file: key: {'x' * 3000} must be below 4\n{'y ' * 3000}z")
    first, second = message.split("\n")
    assert first.startswith("file: key: xxx")
    assert first.endswith("xxx must be below 4")
    assert len(first) < LONGEST_WORD + 50
    assert second.endswith(" z")
    assert len(second) < LONGEST_LINE + 50


def test_a_terminal_of_another_encoding_gets_escapes_for_what_it_lacks() -> None:
    command = [*PHAZE, "plan", "gpt2→", "--gpus", "8xh100"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert done.returncode == 1
    assert rb"there is no model 'gpt2\u2192'" in done.stderr


def test_ctrl_c_ends_imports_quietly(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([*PHAZE, "space"], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("command", ["space --json", "plan gpt9 --gpus 8xh100", "nothing"])
def test_a_broken_pipe_is_no_traceback(command: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with (tmp_path / "errors").open("wb") as errors:
        done = subprocess.run([*PHAZE, *command.split()], stdout=writing, stderr=errors, check=False)
    os.close(writing)
    assert done.returncode in (1, 2)
    assert "Traceback" not in (tmp_path / "errors").read_text()
    assert "Exception ignored" not in (tmp_path / "errors").read_text()
