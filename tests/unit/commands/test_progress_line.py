"""On a terminal progress is one line that changes; messages stand above it."""

import sys

import pytest

from phaze.commands.terminal import live_line, tell
from tests.commands import Terminal


def test_a_message_stands_above_the_line_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with live_line() as show:
        show("plan: 1 s, no plan yet")
        tell("plan: first plan\x1b[31m")
        show(f"plan: 2 s, {'x' * 99}")
    text = stream.getvalue()
    places = [text.index(one) for one in ("plan: first plan\\u001b[31m", "no plan yet", "plan: 2 s, xxx")]
    assert places == sorted(places)
    assert "x" * 60 not in text, "the line is no wider than the terminal"
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is shown"


def test_without_a_line_a_message_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with live_line():
        tell("plan: first plan")
    assert capsys.readouterr().err == "plan: first plan\n"
