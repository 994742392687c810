"""Atomic file writes, restricted to the current run of a folder.

A run of the workflow writes its name to a file in its folder, and its jobs inherit the name. A job left over
from a killed run, or still executed by a cluster, finds another name there once the next run has begun. Its
output belongs to settings that may have changed since, so it is not written.
"""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phaze.base.errors import PhazeError

RUN = "PHAZE_RUN"
"""Environment variable that identifies a job's run: run name, space, file that contains the name."""
MOST_READ = 2**28
"""Maximum number of bytes, or characters, read from a file at once; parsed JSON takes ten times as many."""
UNFINISHED = ".part"
"""Suffix of files that are being written."""


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to `path`, and rename it into place on success.

    A link stays, and its target is replaced. A replaced file keeps its permissions. Raises PhazeError if the
    disk is full or the folder is not writable, and if another run has begun.
    """
    final = Path(path)
    target = _target(final)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        _refuse_unless_plain(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        if mode is not None:  # before any content, which others may not be allowed to read
            temporary.touch(mode | stat.S_IWUSR)
        yield temporary
        # Without fsync a crash soon after the rename could leave an empty file under the final name.
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
    """File that a path refers to, resolving links even if their target does not exist yet."""
    if not path.is_symlink():
        return path
    try:
        return path.resolve()
    except RuntimeError as error:
        raise PhazeError(f"{path}: cannot be written: its symbolic links form a loop") from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text atomically, with line ends unchanged."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def read_text(path: Path) -> str:
    """Text of a UTF-8 file; OSError or ValueError if it is not text or is too long."""
    refuse_endless(path)
    with path.open(encoding="utf-8") as file:
        text = file.read(MOST_READ + 1)  # the size of a pipe is unknown in advance
    if len(text) > MOST_READ:
        raise OSError(f"has more than {MOST_READ:,} characters, the limit for one file")
    return text


def refuse_endless(path: Path) -> None:
    """Raise OSError for a device, such as /dev/zero, or a file too large to read at once."""
    status = path.stat()
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise OSError("is a device, not a file")
    if status.st_size > MOST_READ:
        raise OSError(f"has {status.st_size:,} bytes; the limit is {MOST_READ:,}")


def refuse_unwritable(path: Path) -> None:
    """Raise PhazeError if a file cannot be written, to fail before long work."""
    path = _target(path)
    if not path.parent.is_dir():
        raise PhazeError(f"{path}: cannot be written: {path.parent} is not a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PhazeError(f"{path}: cannot be written: no write permission in {path.parent}")
    if path.is_dir():
        raise PhazeError(f"{path}: cannot be written: is a folder")
    _refuse_unless_plain(path)


def _refuse_unless_plain(path: Path) -> None:
    """Raise PhazeError if a path exists and is not a regular file, such as /dev/null."""
    if path.exists() and not path.is_file():
        raise PhazeError(f"{path}: cannot be written: not a regular file")


def name_run(file: Path, *, new: bool = True) -> None:
    """Give the starting run a new name, stored in a file and in the environment of child processes.

    Without `new` it has the name in the file.
    """
    name = secrets.token_hex(8) if new else file.read_text(encoding="utf-8")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name, encoding="utf-8")
    os.environ[RUN] = f"{name} {file.resolve()}"


def _refuse_if_replaced(final: Path) -> None:
    """Raise PhazeError if another run has begun since this job's run."""
    name, _, file = os.environ.get(RUN, "").partition(" ")
    if not file:
        return
    try:
        current = Path(file).read_text(encoding="utf-8")
    except OSError:  # the workflow's folder was cleared, which does not imply another run
        return
    if current != name:
        raise PhazeError(f"{final}: not written: another run has started in this folder since this job began")
