"""Files that are either whole or absent, and that only the present run of a folder writes.

A run of the workflow names itself in a file of its folder, and its jobs inherit that name. A job of a run
that was killed, or that a cluster still executes, finds another name there once the next run has begun: what
it would write belongs to settings that may have changed since, so it is not written.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phaze.base.errors import PhazeError

RUN = "PHAZE_RUN"
"""Variable of the environment by which jobs know their run: its name, a space, the file that names it."""
MOST_READ = 2**28
"""Bytes, or characters, of a file that are read at once; what is made of JSON takes ten times as many."""
UNFINISHED = ".part"
"""How the names of files end that are being written."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path` to write to, and rename it into place unless the writing fails.

    A link stays, and what it points to is replaced; a file that is replaced keeps its permissions. Raises
    PhazeError where the disk is full or the folder cannot be written, and where another run has begun.
    """
    final = Path(path)
    target = _target(final)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        _refuse_unless_plain(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        if mode is not None:  # before anything is in it, that others may not read
            temporary.touch(mode | stat.S_IWUSR)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        _refuse_if_replaced(final)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(target)
    except OSError as error:
        raise PhazeError(f"{final}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _target(path: Path) -> Path:
    """File that a path stands for, which a link may name before there is one."""
    if not path.is_symlink():
        return path
    try:
        return path.resolve()
    except RuntimeError as error:
        raise PhazeError(f"{path}: cannot be written: its links lead in a circle") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text as UTF-8 with its line ends as they are, in one step."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def read_text(path: Path) -> str:
    """Text of a file in UTF-8; OSError or ValueError for what is none, and what has no end."""
    refuse_endless(path)
    with path.open(encoding="utf-8") as file:
        text = file.read(MOST_READ + 1)  # of a pipe the size is not known before
    if len(text) > MOST_READ:
        raise OSError(f"has more than {MOST_READ:,} characters, which are allowed")
    return text


def refuse_endless(path: Path) -> None:
    """Raise OSError for a device, such as /dev/zero, and for a file that is too large to be read at once."""
    status = path.stat()
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise OSError("is a device, not a file")
    if status.st_size > MOST_READ:
        raise OSError(f"has {status.st_size:,} bytes, allowed are {MOST_READ:,}")


def refuse_unwritable(path: Path) -> None:
    """Raise PhazeError where no file can be written, so that long work is not done in vain."""
    path = _target(path)
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
