"""Write results to a file atomically, or print them; show progress on the terminal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from phaze.base.errors import PhazeError
from phaze.base.printed import PIPED, wrapped
from phaze.commands.terminal import is_rich, live_line, tell

if TYPE_CHECKING:
    from types import FrameType

    import pandas as pd

    from phaze.plan.time_limit import TimeLimit

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in a shell."""
PICTURES = (".svg", ".png", ".pdf")
"""Suffixes of picture files."""


def _tell_progress(text: str) -> None:
    """Print a message on progress, in lines of the width of pipes."""
    tell(wrapped(f"progress: {text}", PIPED))


def write_or_print(text: str, out: Path | None) -> None:
    """Write a text that ends with a line break to a file, or print it if no file is given."""
    from phaze.base.files import write_text

    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)


def refuse_outputs(*outs: Path | None, reads: Iterable[Path | str | None] = ()) -> None:
    """Raise PhazeError for output files that cannot or must not be written, before slow work starts.

    `reads` are the input files of the command; some are names without suffix.
    """
    from phaze.base import files

    # Links are resolved, so that two names of one file are equal; names without suffix are no files.
    inputs = [Path(os.path.realpath(file)) for file in reads if file is not None and Path(file).suffix]
    seen = set[Path]()
    for out in outs:
        if out is None:
            continue
        files.refuse_unwritable(out)
        path = Path(os.path.realpath(out))
        # Hard links, and names that differ in case on some file systems, are equal by `samefile` only.
        if any(path == file or (path.exists() and file.exists() and path.samefile(file)) for file in inputs):
            raise PhazeError(f"{out}: output would overwrite an input of this command", "name another file")
        if path in seen:
            raise PhazeError(f"{out}: two outputs have this name", "name another file for one of them")
        seen.add(path)


def tell_unread(path: Path, columns: Iterable[object], read: Collection[str]) -> None:
    """Warn of the columns of a table that are not read, each with the known column it may mean."""
    if names := named_with_nearest((str(name) for name in columns if name not in read), read):
        tell(f"{path}: columns that are not read: {names}")


def named_with_nearest(unread: Iterable[str], columns: Collection[str]) -> str:
    """Names of unknown columns as text, each followed by the most similar known one, if there is one."""
    from phaze.base.nearest import nearest

    near = {name: nearest(name, columns, cutoff=0.8) for name in unread}
    return ", ".join(f"{name} (did you mean {same[0]}?)" if same else name for name, same in near.items())


def refuse_as_picture(path: Path | None) -> None:
    """Raise PhazeError if the suffix of a file is not a picture format."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise PhazeError(f"--picture {path}: must end in {', '.join(PICTURES)}")


def refuse_table(verb: str, path: Path) -> None:
    """Raise PhazeError for a table of a study, whose plans are priced in the table itself."""
    if path.suffix == ".parquet":
        raise PhazeError(
            f"{verb}: {path}: must be a plan written by `phaze plan -o`, got a table of a study",
            "its plans are priced in table simulations; `phaze place -m MODEL -o PLAN.json` writes a plan",
        )


def with_widths(frame: pd.DataFrame) -> pd.DataFrame:
    """Table with TMP width and microbatch in place of the layout key."""
    from phaze.tables.columns import widths_of

    at = list(frame.columns).index("layout")
    table = frame.drop(columns="layout")
    table.insert(at, "tensor", widths_of(frame, "tp"))
    table.insert(at + 1, "microbatch", widths_of(frame, "microbatch"))
    return table


def print_records(frame: pd.DataFrame) -> None:
    """Print a table as a JSON list of its rows."""
    typer.echo(frame.to_json(orient="records", indent=1, double_precision=15))


def tell_sequence(model: str, sequence: int | None) -> None:
    """Print the default sequence length on standard error if none was given."""
    from phaze.spec.models import load_model_named

    spec = load_model_named(model)
    if sequence is None and spec.token == "token":
        tell(f"Defaults used: --sequence {spec.usual_sequence}")


@contextmanager
def ended_at_once() -> Iterator[None]:
    """End the process on Ctrl-C while compiled code runs, which cannot be interrupted.

    Only for code that writes nothing. If Ctrl-C is ignored or already handled, that stays unchanged.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_gently(limit: TimeLimit) -> None:
    """Let the first Ctrl-C end a search with its answer so far; the second has the usual effect.

    Only inside `ended_at_once` or `restored_interrupts`, once there is something to answer.
    """
    before = signal.getsignal(signal.SIGINT)

    def stop(_number: int, _frame: FrameType | None) -> None:
        limit.interrupted = True
        signal.signal(signal.SIGINT, before)

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and before in (signal.SIG_DFL, signal.default_int_handler):
        signal.signal(signal.SIGINT, stop)


@contextmanager
def restored_interrupts() -> Iterator[None]:
    """Restore the handler of Ctrl-C afterwards, for searches that are called from Python."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


@contextmanager
def telling(verb: str) -> Iterator[None]:
    """Show progress on standard error: one live line on a terminal, else a new line every ten seconds."""
    from phaze.base.progress import heard

    # A log needs fewer lines than a terminal needs updates.
    if not is_rich(sys.stderr):
        with heard(verb, _tell_progress, first_s=2.0, every_s=10.0):
            yield
        return
    with live_line() as show, heard(verb, show, first_s=1.0, every_s=0.5):
        yield
