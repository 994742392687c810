"""Files that are either whole or absent, and that only the present run of a folder writes.

A run of the workflow names itself in a file of its folder, and its jobs inherit that name. A job of a run
that was killed, or that a cluster still executes, finds another name there once the next run has begun: what
it would write belongs to settings that may have changed since, so it is not written.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phaze.errors import PhazeError

RUN = "PHAZE_RUN"
"""Variable of the environment by which jobs know their run: its name, a space, the file that names it."""
UNFINISHED = ".part"
"""How the names of files end that are being written."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to, and rename it into place unless the writing fails.

    Raises PhazeError where the disk is full or the folder cannot be written, and where another run has begun.
    """
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        _refuse_unless_plain(final)
        final.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        _refuse_if_replaced(final)
        temporary.replace(final)
    except OSError as error:
        raise PhazeError(f"{final}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as UTF-8 with its line ends as they are, in one step."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def refuse_unwritable(path: Path) -> None:
    """Raise PhazeError where no file can be written, so that long work is not done in vain."""
    if not path.parent.is_dir():
        raise PhazeError(f"{path}: cannot be written: {path.parent} is not a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PhazeError(f"{path}: cannot be written: nothing can be written in {path.parent}")
    if path.is_dir():
        raise PhazeError(f"{path}: cannot be written: is a folder")
    _refuse_unless_plain(path)


def _refuse_unless_plain(path: Path) -> None:
    """Raise PhazeError for what a file would replace that is none, such as /dev/null."""
    if path.exists() and not path.is_file():
        raise PhazeError(f"{path}: cannot be written: is no plain file")


def name_run(file: Path) -> None:
    """Give the run that begins a name, in a file and for the processes that this one starts."""
    name = secrets.token_hex(8)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name, encoding="utf-8")
    os.environ[RUN] = f"{name} {file.resolve()}"


def _refuse_if_replaced(final: Path) -> None:
    """Raise PhazeError if another run than that of this job has begun since."""
    name, _, file = os.environ.get(RUN, "").partition(" ")
    if not file:
        return
    try:
        current = Path(file).read_text(encoding="utf-8")
    except OSError:  # the folder of the workflow was cleared: nothing says that another run began
        return
    if current != name:
        raise PhazeError(f"{final}: not written: another run has begun in this folder since this job started")
