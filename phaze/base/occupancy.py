"""Ownership of a study's folder: remove the lock of a dead run, and identify the run for its jobs.

Snakemake locks a folder by files. They remain when it is killed (`kill -9`, a time limit, a crash of the
machine), and then block every further run until somebody unlocks the folder by hand. Here every Snakemake
also holds a shared kernel lock, which ends with the process. A process that gets the lock exclusively is
alone and may remove the files. Another host may not see that lock, so only the host that wrote the files
removes them.
"""

import fcntl
import hashlib
import os
import platform
import threading
from contextlib import suppress
from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.base.files import UNFINISHED, name_run, write_text

FOLDER = Path(".snakemake")
STUDY = "PHAZE_STUDY"
"""Environment variable that tells cluster jobs the digests of the studies in their run."""

_lock_handles: list[int] = []
"""Open files whose locks this process holds until it ends."""
_alone: list[bool] = []
"""For each of these files, whether no other process had locked it: the first one tells of other runs."""
_study_digests: list[str] = []
"""Digests of the studies that this process runs: one, or one for each module of a workflow."""


def clear_dead_lock(folder: Path = FOLDER) -> bool:
    """Lock a folder until this process ends; return True if a dead run's lock was removed.

    Does nothing if locks are not supported. Raises PhazeError if the folder is not writable.
    """
    try:
        folder.mkdir(exist_ok=True)
        # The lock belongs to the open file: a program that inherited it would hold the lock after this
        # process.
        handle = os.open(folder / "held", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        wrong = f"{folder.resolve().parent}: a study cannot run here: {error.strerror}"
        raise PhazeError(wrong, "--directory names another folder") from error
    _lock_handles.append(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        removed = False
        _alone.append(False)
    else:
        _alone.append(True)
        removed = _remove_locks(handle, list((folder / "locks").glob("*.lock")))
    with suppress(OSError):
        # Shared from here on: several Snakemakes may work in the folder, but none of them is then alone.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return removed


def _remove_locks(handle: int, locks: list[Path]) -> bool:
    """Remove a dead run's locks if it ran on this host; return True if any lock was removed.

    Also records the host.
    """
    host = platform.node().encode()
    if locks and os.pread(handle, 256, 0) != host:
        return False
    for lock in locks:
        lock.unlink(missing_ok=True)
    os.ftruncate(handle, 0)
    os.pwrite(handle, host, 0)
    return bool(locks)


def begin_run(results: Path, folder: Path = FOLDER) -> None:
    """Give the starting run a name, and remove the unfinished files of dead runs in the locked folder.

    Next to a live run, whose jobs write only under its name, it takes that name and removes nothing. Raises
    PhazeError if results cannot be written.
    """
    joins = not all(_alone[:1]) and (folder / "run").is_file()
    name_run(folder / "run", new=not joins)
    write_text(results / ".writable", "")
    (results / ".writable").unlink()
    if joins:
        return
    for path in results.rglob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def keep_study(described: str, *, begins: bool, source: str) -> None:
    """Record the settings of a starting run; in a job, raise PhazeError if the settings differ.

    Cluster jobs read the study again. A job that starts after an edit would compute results of the wrong
    study.
    """
    digest = hashlib.sha256(described.encode()).hexdigest()
    if begins:
        _study_digests.append(digest)
        os.environ[STUDY] = " ".join(_study_digests)
    elif digest not in os.environ.get(STUDY, digest).split():
        raise PhazeError(
            f"{source}: the study, or a file that it names, changed while the study was running, "
            "so this job was not started. Run the study again; results that the change does not "
            "affect are kept"
        )


def cancel_timers() -> None:
    """Cancel all timers, so that the process ends at once and not when its last timer is due.

    Snakemake sets a timer for each check of its jobs, and the last ones are still pending when it finishes.
    """
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()
