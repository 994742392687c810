"""Rich text on a terminal, plain text elsewhere; rich is imported only to print."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, redirect_stdout
from inspect import getdoc
from itertools import takewhile
from shutil import get_terminal_size
from typing import TYPE_CHECKING, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from phaze.base.docstrings import documentation_of
from phaze.base.printed import PIPED, EscapedStream, printable, shortened, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

    from rich.live import Live

PANELS = {TyperGroup: 80, TyperCommand: 100}
"""Minimum terminal width for help in panels; on narrower terminals panels would cut option names."""
LABELS = {"error": "red", "help": "cyan"}
"""Colours of the labels of messages."""


_live: list[Live] = []
"""Live progress line at the bottom of the terminal; empty if there is none."""


def is_rich(stream: TextIO) -> bool:
    """True if the stream is a terminal that shows styles; NO_COLOR and TERM=dumb request plain text."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def unescaped(stream: TextIO) -> TextIO:
    """Underlying stream without escaping, for text whose characters are already printable."""
    return stream.unescaped if isinstance(stream, EscapedStream) else stream


def paragraphs(verb: Callable[..., Any]) -> str:
    """Docstring of a command with each paragraph on one line, so that the terminal wraps it."""
    return "\n\n".join(" ".join(text.split()) for text in (getdoc(verb) or "").split("\n\n"))


def tell_labelled(label: str, text: str) -> None:
    """Print a line with a label on standard error; a terminal wraps it and shows the label in its colour."""
    line = shortened(f"{label}: {text}")
    if not is_rich(sys.stderr):  # a log is searched by lines
        typer.echo(line, err=True)
        return
    line = wrapped(line, min(PIPED, get_terminal_size().columns))
    styled = typer.style(f"{label}:", fg=LABELS[label], bold=True)
    typer.echo(styled + line.removeprefix(f"{label}:"), file=unescaped(sys.stderr))


def tell(text: str) -> None:
    """Print a message on standard error, above the live progress line."""
    if not _live:
        typer.echo(text, err=True)
        return
    from rich.text import Text

    _live[0].console.print(Text(printable(text)))


@contextmanager
def live_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows text in the last line of the terminal; the line is cleared at the end."""
    try:
        yield _show
    finally:
        if _live:
            _live.pop().stop()


def _show(text: str) -> None:
    """Replace the text of the live line; rich is imported here because short commands do not need it."""
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    console = _live[0].console if _live else Console(file=unescaped(sys.stderr), highlight=False)
    words = Text(printable(text))
    words.truncate(console.width - len("⠋ "), overflow="ellipsis")
    line = Spinner("dots", words)
    if _live:
        _live[0].update(line, refresh=True)
        return
    live = Live(line, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    live.start()
    console.show_cursor(show=True)  # Ctrl-C ends compiled code, and with it the process, at once
    _live.append(live)


@contextmanager
def _styled(shown: TyperCommand | TyperGroup, least: int) -> Iterator[None]:
    """Context in which help uses Typer's panels if they fit the terminal, else plain wrapped lines."""
    panels = is_rich(sys.stdout) and get_terminal_size().columns >= least
    shown.rich_markup_mode = "rich" if panels else None
    # Help has escape sequences of its own, which an escaping stream would print as text.
    with redirect_stdout(unescaped(sys.stdout)):
        yield


class Verb(TyperCommand):
    """Command whose help fits the terminal, and groups the options even in plain text.

    An option without a text has that of the field from which it is made (`options.takes`).
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # Typer's own types are private
        """Write the help of the command."""
        self._describe()
        with _styled(self, PANELS[TyperCommand]):
            super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """List arguments, and options under the titles of their panels."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            default = f"{parameter.param_type_name.capitalize()}s"
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        # Options without a panel, such as --help, come last.
        for title in sorted(panels, key="Options".__eq__):
            with formatter.section(title):
                formatter.write_dl(panels[title])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:  # noqa: ANN401
        """Completions of options, with their texts, and of arguments."""
        self._describe()
        return super().shell_complete(ctx, incomplete)

    def _describe(self) -> None:
        noun = getattr(self.callback, "noun", None)
        texts = {} if noun is None else documentation_of(noun)
        for parameter in self.params:
            if not getattr(parameter, "help", None):
                vars(parameter)["help"] = " ".join(texts.get(parameter.name or "", "").split())


class Verbs(TyperGroup):
    """Group of all commands; the help groups them even in plain text.

    Without `--all` it lists the commands of `first_screen` only; the others are complete in all else.
    """

    first_screen: Collection[str] = ()
    """Names of the commands that the short help lists; empty: all."""
    _lists_all = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Parse arguments; `--all` before a command asks for the long help, with or without `-h`."""
        leading = list(takewhile(lambda word: word.startswith("-"), args))
        self._lists_all = "--all" in leading
        asks_only = self._lists_all and len(leading) == len(args) and not {"-h", "--help"} & {*leading}
        return super().parse_args(ctx, [*args, "--help"] if asks_only else args)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the help of the program."""
        for name, verb in self.commands.items():
            verb.hidden = bool(self.first_screen) and not self._lists_all and name not in self.first_screen
        try:
            with _styled(self, PANELS[TyperGroup]):
                super().format_help(ctx, formatter)
        finally:
            # A hidden command would be missing in shell completion, too.
            for verb in self.commands.values():
                verb.hidden = False

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """List each group's commands with the full first paragraph of their help."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, verb in self.commands.items():
            if verb.hidden:
                continue
            title = getattr(verb, "rich_help_panel", None) or "Commands"
            groups.setdefault(title, []).append((name, (verb.help or "").partition("\n\n")[0]))
        widest = max(map(len, self.commands))
        for title, verbs in groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), summary) for name, summary in verbs])
