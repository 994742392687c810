"""Commands of phaze, called in this process as a shell calls them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.base.errors import PhazeError


def invoke(command: str, *arguments: object) -> Result:
    """Output and exit status of a command, of which spaces separate words; exceptions are raised."""
    words = [*command.split(), *map(str, arguments)]
    return CliRunner().invoke(app, words, catch_exceptions=False)


def invoke_json(command: str, *arguments: object) -> Any:
    """Answer of a command with `--json`."""
    return json.loads(invoke(command, *arguments, "--json").stdout)


def assert_refused(message: str, command: str, *arguments: object) -> None:
    """Assert that a command is refused with a message that matches a pattern."""
    with pytest.raises(PhazeError, match=message):
        invoke(command, *arguments)
