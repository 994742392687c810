"""Every mistake is told in one line, and the way to mend it, if there is one, in another."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from phaze.__main__ import main
from phaze.base.errors import PhazeError

MINE = "layers: 4\nhiddens: 8\nhidden: 8\nheads: 1\nfeed_forward: 8\nvocabulary: 8\nposition_count: 8\n"
PLAN = "plan gpt2 --gpus 8xh100"


@pytest.mark.parametrize(
    ("command", "status", "wrong", "fix"),
    [
        ("plan gpt2-xxl", 1, "there is no model 'gpt2-xxl'", "did you mean gpt2-xl or gpt2?"),
        ("plan gpt2", 1, "plan: the cluster is missing", "pass --gpus, such as --gpus 256xH100"),
        ("plan gpt2 --gpu 8xh100", 2, "No such option: --gpu", "did you mean --gpus?"),
        ("plam", 2, "No such command 'plam'.", "did you mean plan or place?"),
        (f"{PLAN} --rank x", 2, "'--rank': 'x' is not one of 'prudent', 'expected'", ""),
        (f"{PLAN} --fix recomputed=1", 1, "got 'recomputed=1'", "did you mean recompute?"),
        (
            "emit p.json --for maxtext",
            2,
            "'maxtext' is not one of 'bridge', 'megatron', 'torchtitan', 'deepspeed'",
            "",
        ),
        ("export p.parquet --format xml", 2, "is not one of 'csv', 'json'", ""),
        (f"{PLAN} --tokens 4X", 2, "'--tokens': must be a number", ""),
        ("plan", 2, "Missing argument 'model'", "Usage: phaze plan [OPTIONS]"),
        ("compare runs.csv", 2, "Missing argument 'PLAN'", "Usage: phaze compare [OPTIONS]"),
        (f"{PLAN} more", 2, "unexpected extra argument", "Usage: phaze plan [OPTIONS]"),
        ("models gpt9", 1, "no row contains 'gpt9'", ""),
        ("emit none.json --for megatron", 1, "none.json: cannot be read: No such file", ""),
        ("--confi x", 2, "No such option: --confi", "did you mean --config?"),
        ("model mine.yaml", 1, "hiddens: is not a known key, got 8", "did you mean hidden?"),
        ("plan mine.yaml --gpus 8xh100", 1, "hiddens: is not a known key", "did you mean hidden?"),
    ],
)
def test_a_mistake_is_one_line_and_its_fix_another(
    command: str, status: int, wrong: str, fix: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    files = {name: tmp_path / name for name in ("mine.yaml", "runs.csv")}
    for path in files.values():
        path.write_text(MINE)
    monkeypatch.setattr("sys.argv", ["phaze", *(str(files.get(word, word)) for word in command.split())])
    assert main() == status
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert wrong in first
    assert [line.startswith(f"help: {fix}") for line in others] == [True] * bool(fix)


def test_an_error_keeps_its_help_in_a_place_and_in_one_line() -> None:
    error = PhazeError("no x", "give one").under("file")
    assert (error.wrong, error.fix, str(error)) == ("file: no x", "give one", "file: no x; give one")
    assert str(PhazeError("no x")) == "no x"


@pytest.mark.parametrize("folder", ["", "a/", "x" * 50 + "/"])
def test_an_error_begins_with_what_is_wrong(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "mine.yaml").write_text(MINE)
    for path in (f"{folder}mine.yaml", f"{tmp_path}/{folder}mine.yaml"):
        command = [sys.executable, "-m", "phaze", "model", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 1
        first = done.stderr.splitlines()[0]
        message = "hiddens: is not a known key, got 8"
        short = f"error: {path}: {message}"
        assert first == (short if len(path) < 40 and path[0] != "/" else f"error: {message} ({path})")


def test_labels_are_styled_on_a_terminal_only() -> None:
    command = [sys.executable, "-m", "phaze", "plam"]
    plain = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert plain.splitlines()[0] == "error: No such command 'plam'."
    ours, theirs = pty.openpty()
    colours = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    subprocess.run(command, stderr=theirs, check=False, env=colours)
    os.close(theirs)
    told = os.read(ours, 4096).decode()
    os.close(ours)
    assert "\x1b[31m\x1b[1merror:\x1b[0m No such command 'plam'." in told
    assert "\x1b[36m\x1b[1mhelp:\x1b[0m did you mean plan or place?" in told


@pytest.mark.parametrize(
    ("closed", "status", "told"),
    [
        (">&-", 1, "error: cannot print the answer: standard output is closed\n"),
        ("2>&-", 0, ""),
        (">&- 2>&-", 1, ""),
    ],
)
def test_closed_streams_give_no_traceback(closed: str, status: int, told: str) -> None:
    command = f"{sys.executable} -m phaze stacks {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, told)
