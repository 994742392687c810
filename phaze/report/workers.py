"""Processes that work on a report beside this one: they check results and draw figures.

They are forked from a server that has imported what this process has of phaze and does nothing else: a
process that has already computed has threads, which do not survive a fork, and one started afresh imports
for as long as it works.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import Generic, TypeVar

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class _Pickled(Generic[Answered]):
    """A question as it was when it was asked."""

    content: bytes

    def __call__(self) -> Answered:
        question: Callable[[], Answered] = pickle.loads(self.content)
        return question()


@dataclass(frozen=True)
class Workers:
    """Who answers questions: so many processes, or this one when the answer is needed."""

    count: int = 1
    pool: ProcessPoolExecutor | None = None

    def ask(self, question: Callable[[], Answered]) -> Callable[[], Answered]:
        """Return what waits for the answer to a question; others get it pickled: a partial of a function.

        It is pickled here and now: the pool would do so later, while this process goes on with the same data.
        """
        if self.pool is None:
            return question
        asked = self.pool.submit(_Pickled[Answered](pickle.dumps(question)))
        return asked.result


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
    try:
        yield Workers(processes, pool)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Let this process work fast, and end when the one that started it has ended, even if it was killed."""
    gc.freeze()  # what was imported is no garbage, and is not looked through again and again
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and says so

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
