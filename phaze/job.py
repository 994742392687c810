"""What every job needs around its work: a log, and a clean end."""

import json
import logging
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from phaze.errors import PhazeError
from phaze.progress import heard
from phaze.provenance import NUMERIC_LIBRARIES, library_version, phaze_version

log = logging.getLogger(__name__)

PROGRESS = (logging.INFO + logging.WARNING) // 2
"""Level of what a long job says of itself: on the terminal too, but no warning."""
logging.addLevelName(PROGRESS, "PROGRESS")


@contextmanager
def logged(path: str | os.PathLike[str], settings: object = None, output: str = "") -> Iterator[None]:
    """Log a job to a file: versions, settings, how to repeat it, then what its code logs, then how it ended.

    `settings` is anything that JSON can hold; `output` is a file that the job makes. The terminal gets only
    warnings and errors, and after ten seconds how far the job is. A PhazeError ends the process with exit
    code 1 and its message, without a traceback; any other exception is logged with its traceback and raised
    again.
    """
    started_s = time.monotonic()
    with _logging_to(Path(path)):
        _log_start(settings, output)
        try:
            with heard(output or Path(path).stem, partial(log.log, PROGRESS)):
                yield
        except PhazeError as error:
            log.error("%s", error)
            raise SystemExit(1) from None
        except Exception as error:
            log.exception("failed after %.1f s: %s", time.monotonic() - started_s, type(error).__name__)
            raise
        log.info("done in %.1f s", time.monotonic() - started_s)


def _log_start(settings: object, output: str) -> None:
    """Log what the job runs on and with."""
    versions = ", ".join(f"{name} {library_version(name)}" for name in NUMERIC_LIBRARIES)
    log.info("start: phaze %s, Python %s, %s", phaze_version(), platform.python_version(), versions)
    if settings is not None:
        log.info("settings: %s", json.dumps(settings, sort_keys=True, default=str))
    if output:
        log.info("to repeat it, with the study's own --configfile: snakemake --cores 1 --force %s", output)


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Send what phaze logs, and everybody's warnings, to a file, and the warnings also to the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    in_file = logging.FileHandler(path, mode="w", encoding="utf-8")
    in_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(name)s: %(message)s"))
    on_terminal = logging.StreamHandler(sys.stderr)
    on_terminal.setFormatter(_OneLine())
    on_terminal.setLevel(PROGRESS)
    root = logging.getLogger()
    logging.getLogger("phaze").setLevel(logging.INFO)
    logging.captureWarnings(True)
    for handler in (in_file, on_terminal):
        root.addHandler(handler)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for handler in (in_file, on_terminal):
            root.removeHandler(handler)
            handler.close()


class _OneLine(logging.Formatter):
    """Level and message, never a traceback: Python itself prints that of an exception nobody catches."""

    def format(self, record: logging.LogRecord) -> str:
        """Return `error: message`."""
        return f"{record.levelname.lower()}: {record.getMessage()}"
