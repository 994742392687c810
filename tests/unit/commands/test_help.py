"""Help fits every terminal, and nothing of it is cut."""

import io
import re
import sys

import pytest
import typer

from phaze.__main__ import FIRST_SCREEN, GROUPS, app
from phaze.__main__ import NAMES as VERBS
from tests.commands import Terminal
from tests.effort import DRAWS, EVERY

NAMES = [*(one.name or one.callback.__name__ for one in app.registered_commands if one.callback)]


def shown(monkeypatch: pytest.MonkeyPatch, columns: int | None, *arguments: str) -> str:
    """Help on a terminal of so many columns, without its styles; in a pipe if None."""
    monkeypatch.setenv("COLUMNS", str(columns or 80))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO() if columns is None else Terminal())
    app(arguments, standalone_mode=False)
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *NAMES])
def test_help_is_whole_and_fits(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [] if name is None else [name]
    plain = shown(monkeypatch, None, *command, "--help")
    for columns in (None, 80, 100, 120, 200) if DRAWS >= EVERY else (None, 80, 120):
        text = shown(monkeypatch, columns, *command, "-h")
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= (columns or 80)
        unfolded = columns in (None, 120, 200)  # in narrower panels some words continue on the next line
        missing = {*re.findall(r"\w{3,}", plain)} - {*re.findall(r"\w{3,}", text)}
        assert not (unfolded and missing), "the same words everywhere"


@pytest.mark.parametrize("columns", [None, 80, 120])
def test_verbs_are_in_groups(columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, columns, "--help")
    places = [text.index(title) for title in GROUPS]
    assert places == sorted(places)
    assert text.index("  plan " if columns is None else "│ plan ") < places[1]
    assert ("╭" in text) == (columns is not None)


@pytest.mark.parametrize("columns", [None, 100])
def test_the_first_screen_is_short_and_names_the_long_one(
    columns: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(FIRST_SCREEN) <= 12
    assert len(GROUPS) == 3
    short = shown(monkeypatch, columns, "-h")
    listed = {name for name in VERBS if re.search(rf"^[ │]+{name}  ", short, re.MULTILINE)}
    assert listed == {name for name, verb in VERBS.items() if verb in FIRST_SCREEN}
    assert "phaze -h --all" in short
    for arguments in (("-h", "--all"), ("--all", "-h"), ("--all",)):
        whole = shown(monkeypatch, columns, *arguments)
        assert all(re.search(rf"^[ │]+{name}  ", whole, re.MULTILINE) for name in VERBS)


@pytest.mark.parametrize("columns", [None, 100])
def test_options_of_plan_are_in_four_groups(columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, columns, "plan", "-h")
    titles = ("Question", "Layout", "Run (the whole training)", "Output")
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    for option, group in (("--gpus", 0), ("--fix", 1), ("--mtbf", 2), ("--page", 3)):
        end = places[group + 1] if group < 3 else len(text)
        assert re.search(rf"^[ │*]+.*{option}", text[places[group] : end], re.MULTILINE)


def test_help_gives_the_numbers_of_suffixes_and_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(shown(monkeypatch, None, "plan", "-h").split())
    assert "4M (4,000,000)" in text
    assert "8k (8,000)" in text
    assert "--runs needs it" in " ".join(shown(monkeypatch, None, "simulate", "-h").split())


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_text_in_completions(name: str) -> None:
    """Its own, or that of the field of the noun from which it is made."""
    verb = typer.main.get_group(app).commands[name]
    context = verb.make_context(name, [], resilient_parsing=True)
    texts = {option.value: option.help for option in verb.shell_complete(context, "--")}
    assert "--help" in texts
    assert [option for option, text in texts.items() if not text] == []


def test_no_color_and_dumb_terminals_get_plain_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream := Terminal())
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            app(["-h"], standalone_mode=False)
    assert "╭" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
