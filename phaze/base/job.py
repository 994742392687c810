"""Job environment: a log, and a clean exit."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import signature
from itertools import chain, pairwise
from pathlib import Path
from typing import Protocol, TypeGuard, cast, get_type_hints

from phaze.base.errors import PhazeError
from phaze.base.files import write_text
from phaze.base.printed import printable
from phaze.base.progress import heard
from phaze.base.provenance import NUMERIC_LIBRARIES, library_version, phaze_version
from phaze.base.store import Store

log = logging.getLogger(__name__)

PROGRESS = (logging.INFO + logging.WARNING) // 2
"""Level of progress messages of long jobs: shown on the terminal, but below a warning."""
logging.addLevelName(PROGRESS, "PROGRESS")
# Linux gives `ru_maxrss` in KiB.
KIB_PER_MIB = 1024
_SPLIT_KEY = re.compile(r"[^_\[](_?[^_])*")
"""Keys whose sections are split: joined by two underscores, they can be told apart again."""


class NamedList(Protocol):
    """Inputs, outputs, params or wildcards of a job, by position and by name."""

    def __getitem__(self, place: int, /) -> str:
        """File at a position."""
        ...

    def __len__(self) -> int:
        """Number of files."""
        ...

    def items(self) -> Iterable[tuple[str, object]]:
        """Names, each with a file, a list of files or a value."""
        ...


class ScriptJob(Protocol):
    """Job of Snakemake, as a script sees it."""

    input: NamedList
    output: NamedList
    params: NamedList
    wildcards: NamedList
    log: NamedList


def run_script(main: Callable[..., None], job: ScriptJob, *, logs_params: bool = True) -> None:
    """Run the main function of a script, with its log; the parameters are parts of the job, by their names.

    A parameter is one of the params, of the named inputs (a file, or a list of files) or of the wildcards. A
    type with `parse` is made from this part, and one with `of` from all params. `store` is a cache of answers
    in the folder that this param names. `files` has the lists of all named inputs, `paths` all inputs,
    `source` is the first one; `outputs` has the named outputs, `out` is the first one; `wildcards` and
    `params` have all of their kind.
    Params of a whole study would fill a page of the log, which `logs_params` leaves out.
    """
    params = join_params(dict(job.params.items()))
    folder = params.get("store")
    store = Store(Path(str(folder)), str(params["code"])) if folder else nullcontext()
    settings = params if logs_params else None
    with logged(job.log[0], settings=settings, output=job.output[0]), store as opened:
        main(**_arguments(main, job, params | ({"store": opened} if folder else {})))


def _arguments(main: Callable[..., None], job: ScriptJob, params: Mapping[str, object]) -> dict[str, object]:
    """Arguments of a script's main function, by name."""
    inputs = {
        name: paths if isinstance(paths, str) else [*cast("Iterable[str]", paths)]
        for name, paths in job.input.items()
    }
    wildcards = dict(job.wildcards.items())
    parts = {
        **wildcards,
        **inputs,
        **params,
        "files": {name: [paths] if isinstance(paths, str) else paths for name, paths in inputs.items()},
        "paths": [job.input[place] for place in range(len(job.input))],
        "source": job.input[0] if len(job.input) else None,
        "inputs": inputs,
        "outputs": dict(job.output.items()),
        "out": job.output[0],
        "wildcards": wildcards,
        "params": params,
    }
    kinds, arguments = get_type_hints(main), {}
    for name in signature(main).parameters:
        kind = kinds[name]
        if name in parts:
            arguments[name] = kind.parse(parts[name], name) if hasattr(kind, "parse") else parts[name]
        else:
            arguments[name] = kind.of(params)
    return arguments


@contextmanager
def logged(path: str | os.PathLike[str], settings: object = None, output: str = "") -> Iterator[None]:
    """Log a job to a file: versions, settings, the command to repeat it, its messages, and its outcome.

    `settings` is any JSON content; `output` is a file that the job makes. The terminal shows only warnings
    and errors, and progress after ten seconds. A PhazeError, or a log that cannot be opened, ends the process
    with exit code 1 and one message, without a traceback. Any other exception is logged with its traceback
    and raised again. If the log can no longer be written but results can, the job ends normally, with a
    warning.
    """
    started_s = time.monotonic()
    with _logging_to(Path(path)) as file:
        _log_start(settings, output)
        if file.error is not None:
            _print_error(path, file.error)
            raise SystemExit(1)
        try:
            with heard(output or Path(path).stem, partial(log.log, PROGRESS)):
                yield
        except PhazeError as error:
            log.error("%s", error)
            raise SystemExit(1) from None
        except Exception as error:
            log.exception("failed after %.1f s: %s", time.monotonic() - started_s, type(error).__name__)
            raise
        wall_s = time.monotonic() - started_s
        log.info("done in %.1f s", wall_s)
        _record_usage(Path(path), wall_s)


def _record_usage(log_path: Path, wall_s: float) -> None:
    """Write a job's wall time and CPU time in s and peak memory in MiB to its benchmark file.

    Snakemake's own benchmarks poll a job every few seconds, so they miss most of a short one.
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in used)
    peak_mib = max(usage.ru_maxrss for usage in used) / KIB_PER_MIB
    row = f"{wall_s:.4f}\t{cpu_s:.2f}\t{peak_mib:.2f}"
    try:
        if "logs" in log_path.parts:
            write_text(benchmark_of(log_path), f"s\tcpu_time\tmax_rss\n{row}\n")
    except PhazeError as error:
        log.warning("%s", error)


def benchmark_of(log_path: Path) -> Path:
    """Benchmark file of a job: benchmarks/…/NAME.tsv for the last folder logs in logs/…/NAME.log."""
    *folders, name = log_path.parts
    if "logs" in folders:
        folders[-1 - folders[::-1].index("logs")] = "benchmarks"
    return Path(*folders, name).with_suffix(".tsv")


def _log_start(settings: object, output: str) -> None:
    """Log versions, settings and the command to repeat the job."""
    versions = ", ".join(f"{name} {library_version(name)}" for name in NUMERIC_LIBRARIES)
    log.info("start: phaze %s, Python %s, %s", phaze_version(), platform.python_version(), versions)
    if settings is not None:
        log.info("settings: %s", json.dumps(settings, sort_keys=True, default=str))
    if output:
        log.info("to repeat this job (add the study's --configfile): snakemake --cores 1 --force %s", output)


@contextmanager
def _logging_to(path: Path) -> Iterator[_LogFile]:
    """Send messages of phaze and all warnings to a file, and the warnings also to the terminal."""
    on_terminal = logging.StreamHandler(sys.stderr)
    on_terminal.setFormatter(_OneLine())
    on_terminal.setLevel(PROGRESS)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        in_file = _LogFile(path, mode="w", encoding="utf-8")
    except OSError as error:
        _print_error(path, error)
        raise SystemExit(1) from None
    in_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-8s %(name)s: %(message)s"))
    root = logging.getLogger()
    logging.getLogger("phaze").setLevel(logging.INFO)
    logging.captureWarnings(True)
    for handler in (in_file, on_terminal):
        root.addHandler(handler)
    try:
        yield in_file
    finally:
        logging.captureWarnings(False)
        for handler in (in_file, on_terminal):
            root.removeHandler(handler)
            handler.close()
    if in_file.error is not None:
        _print_error(path, in_file.error, "warning")


def _print_error(path: str | os.PathLike[str], error: OSError, level: str = "error") -> None:
    """Print to the terminal why a log cannot be written."""
    sys.stderr.write(f"{level}: {path}: cannot be written: {error.strerror or error}\n")


class _LogFile(logging.FileHandler):
    """Log file of a job that remembers a write error, such as a full disk."""

    error: OSError | None = None

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (of the library)
        """Remember the error; the library would print a traceback for every line."""
        error = sys.exception()
        if isinstance(error, OSError):
            self.error = error
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close the file and record any error."""
        try:
            super().close()
        except OSError as error:
            self.error = error


class _OneLine(logging.Formatter):
    """Formatter for level and message without traceback: Python itself prints uncaught exceptions."""

    def format(self, record: logging.LogRecord) -> str:
        """Format as `error: message`."""
        return f"{record.levelname.lower()}: {printable(record.getMessage())}"


def split_params(**sections: object) -> dict[str, str]:
    """Split sections into Snakemake params of one setting each: `training__schedule="training.schedule: …"`.

    Values are JSON. Snakemake prints the params that have changed, without their names, as the reason of a
    job. A text that has its key names the setting that changed. A rising list of numbers has a param for each
    number, so that one more number is the only change.
    """
    leaves = chain.from_iterable(_leaves((name,), content) for name, content in sections.items())
    return {"__".join(path): f"{_label(path)}: {json.dumps(value)}" for path, value in leaves}


def _leaves(path: tuple[str, ...], content: object) -> Iterator[tuple[tuple[str, ...], object]]:
    """Yield every setting of a section with its path of keys; an element of a rising list ends in `[n]`."""
    if isinstance(content, Mapping) and content and all(map(_is_split_key, content)):
        for key, value in content.items():
            yield from _leaves((*path, key), value)
    elif _is_rising(content):
        yield from (((*path, f"[{json.dumps(number)}]"), number) for number in content)
    else:
        yield path, content


def _is_split_key(key: object) -> bool:
    """True for a text that can be part of a param's name; other keys leave their mapping in one piece."""
    return isinstance(key, str) and _SPLIT_KEY.fullmatch(key) is not None


def _is_rising(content: object) -> TypeGuard[list[float]]:
    """True for a list of at least one number in rising order, which its elements alone determine."""
    if not (isinstance(content, list | tuple) and all(isinstance(number, int | float) for number in content)):
        return False
    return bool(content) and all(before < after for before, after in pairwise(content))


def _label(path: Sequence[str]) -> str:
    """Key of a setting, such as `training.schedule`, by its path."""
    return ".".join(part for part in path if not part.startswith("["))


def join_params(params: Mapping[str, object]) -> dict[str, object]:
    """Params of a job, with the sections that `split_params` split put together again.

    An empty text is a setting that the section lacks.
    """
    joined: dict[str, object] = {}
    for name, text in params.items():
        path = name.split("__")
        label = f"{_label(path)}: "
        if not (isinstance(text, str) and text.startswith(label)):
            joined |= {} if text == "" else {name: text}
            continue
        value = json.loads(text.removeprefix(label))
        is_element = path[-1].startswith("[")
        *sections, key = path[:-1] if is_element else path
        section = joined
        for part in sections:
            section = cast("dict[str, object]", section.setdefault(part, {}))
        earlier = cast("list[float]", section.get(key, []))
        section[key] = sorted([*earlier, value]) if is_element else value
    return joined


def let_jobs_import(folder: Path) -> None:
    """Let a workflow's jobs import phaze from a folder, even in a conda environment without phaze."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, paths)])
