"""Rich text on a terminal, plain text elsewhere; rich is imported only to print."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, redirect_stdout
from inspect import getdoc
from shutil import get_terminal_size
from typing import TYPE_CHECKING, TextIO

from typer.core import TyperCommand, TyperGroup

from phaze.base.printed import EscapedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

PANELS = {TyperGroup: 80, TyperCommand: 100}
"""Columns of a terminal from which help has panels; in a narrower one they would cut names of options."""


def is_rich(stream: TextIO) -> bool:
    """True for a terminal that shows styles and boxes; NO_COLOR and TERM=dumb ask for plain text."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream.isatty() and not plain


def unescaped(stream: TextIO) -> TextIO:
    """Stream that passes on escape sequences, for text whose words are printable already."""
    return stream.unescaped if isinstance(stream, EscapedStream) else stream


def paragraphs(verb: Callable[..., Any]) -> str:
    """Docstring of a verb with one line for each paragraph, which terminals wrap at their own width."""
    return "\n\n".join(" ".join(text.split()) for text in (getdoc(verb) or "").split("\n\n"))


@contextmanager
def _styled(shown: TyperCommand | TyperGroup, least: int) -> Iterator[None]:
    """Help in Typer's panels if they fit the terminal, else in lines that are wrapped to its width."""
    panels = is_rich(sys.stdout) and get_terminal_size().columns >= least
    shown.rich_markup_mode = "rich" if panels else None
    with redirect_stdout(unescaped(sys.stdout)):
        yield


class Verb(TyperCommand):
    """Command whose help fits the terminal."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # Typer's own types are private
        """Write the help of the command."""
        with _styled(self, PANELS[TyperCommand]):
            super().format_help(ctx, formatter)


class Verbs(TyperGroup):
    """All verbs, in groups also where help is plain text."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Write the help of the program."""
        with _styled(self, PANELS[TyperGroup]):
            super().format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002
        """Write the verbs of every group with the whole first paragraphs of their help."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, verb in self.commands.items():
            title = getattr(verb, "rich_help_panel", None) or "Commands"
            groups.setdefault(title, []).append((name, (verb.help or "").partition("\n\n")[0]))
        widest = max(map(len, self.commands))
        for title, verbs in groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), said) for name, said in verbs])
