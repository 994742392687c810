"""Processes that work on a report beside this one: they check results and draw figures.

They are forked from a server that has imported what this process has of phaze and does nothing else: a
process that has already computed has threads, which do not survive a fork, and one started afresh imports
for as long as it works.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Generic, TypeVar

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class _Pickled(Generic[Answered]):
    """A question as it was when it was asked."""

    content: bytes

    def __call__(self) -> Answered:
        question: Callable[[], Answered] = _Unpickler(io.BytesIO(self.content)).load()
        return question()


class _Pickler(pickle.Pickler):
    """Writes names instead of what is shared."""

    def __init__(self, file: io.BytesIO, names: Mapping[int, str]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.names = names

    def persistent_id(self, obj: object) -> str | None:
        return self.names.get(id(obj))


class _Unpickler(pickle.Unpickler):
    """Reads what is shared by its name."""

    def persistent_load(self, pid: str) -> object:
        return _shared(pid)


@cache
def _shared(name: str) -> object:
    """Return what lies in a file, the same object for every question."""
    return _Unpickler(io.BytesIO(Path(name).read_bytes())).load()


@dataclass(frozen=True)
class Workers:
    """Who answers questions: so many processes, or this one when the answer is needed."""

    count: int = 1
    pool: ProcessPoolExecutor | None = None
    folder: Path = Path()
    shared: dict[str, object] = field(default_factory=dict)
    """What questions name, by the file that it lies in."""

    def share(self, data: object) -> None:
        """Let questions name this instead of carrying it with them: every worker reads it once."""
        if self.pool is not None:
            path = self.folder / f"{len(self.shared)}.pickle"
            path.write_bytes(self._pickled(data))
            self.shared[str(path)] = data

    def ask(self, question: Callable[[], Answered]) -> Callable[[], Answered]:
        """Return what waits for the answer to a question; others get it pickled: a partial of a function.

        It is pickled here and now: the pool would do so later, while this process goes on with the same data.
        """
        if self.pool is None:
            return question
        return self.pool.submit(_Pickled[Answered](self._pickled(question))).result

    def _pickled(self, data: object) -> bytes:
        buffer = io.BytesIO()
        _Pickler(buffer, {id(shared): name for name, shared in self.shared.items()}).dump(data)
        return buffer.getvalue()


ALONE = Workers()


@contextmanager
def employ(processes: int) -> Iterator[Workers]:
    """Let so many processes work: they get ready at once, and end with the work or with this process."""
    if processes < 2:
        yield ALONE
        return
    multiprocessing.set_forkserver_preload([name for name in sys.modules if name.startswith("phaze.")])
    forkserver.ensure_running()
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(processes, context, _begin)
    with TemporaryDirectory(prefix="phaze-") as folder:
        try:
            yield Workers(processes, pool, Path(folder))
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Let this process work fast, and end when the one that started it has ended, even if it was killed."""
    gc.freeze()  # what was imported is no garbage; of figures, thousands of parts become garbage together
    gc.set_threshold(50_000)
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and says so

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
