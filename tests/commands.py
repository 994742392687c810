"""Commands of phaze, called in this process as a shell calls them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError

ROOT = Path(__file__).parents[1]


def invoke(command: str, *arguments: object) -> Result:
    """Output and exit status of a command, of which spaces separate words; exceptions are raised."""
    words = [*command.split(), *map(str, arguments)]
    return CliRunner().invoke(app, words, catch_exceptions=False)


def invoke_json(command: str, *arguments: object) -> Any:
    """Answer of a command with `--json`."""
    return json.loads(invoke(command, *arguments, "--json").stdout)


def torchrun(processes: int, *arguments: object) -> str:
    """Output of a program in several processes of torchrun, of one thread each."""
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Terminal(io.StringIO):
    """Stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def documented(place: int, folder: Path) -> Path:
    """File with the JSON example at a place of config/formats.md."""
    examples = (ROOT / "config/formats.md").read_text().split("```json\n")
    path = folder / f"example-{place}.json"
    path.write_text(examples[1 + place].split("```")[0])
    return path


def assert_refused(message: str, command: str, *arguments: object) -> None:
    """Assert that a command is refused with a message that matches a pattern."""
    with pytest.raises(PhazeError, match=message):
        invoke(command, *arguments)
