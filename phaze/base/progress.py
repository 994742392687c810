"""Progress of long jobs, for log and terminal: a line after ten seconds, then every half minute.

Long loops count their items with `counted`, which costs nothing without a listener.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

FIRST_S = 10.0
"""Time before the first report, in seconds; shorter jobs report nothing."""
EVERY_S = 30.0
_busy: list[Callable[[], str]] = []
"""Activities in progress outside the loops."""


@dataclass(frozen=True)
class CountedLoop:
    """Progress of a loop: the current item, the number of items, and the start time."""

    noun: str
    number: int
    """Number of the current item, from 1."""
    of: int
    started_s: float
    begun_s: float
    """Start time of the current item."""
    detail: Callable[[], str]

    def text(self, now_s: float) -> str:
        """Progress as text: current item, detail, and estimated remaining time."""
        words = [f"{self.noun} {self.number} of {self.of}", self.detail()]
        if done := self.number - 1:
            # Items before took so long each; the current one has had its share of that.
            left_s = (self.begun_s - self.started_s) / done * (self.of - done) - (now_s - self.begun_s)
            words.append(f"about {left_s:.0f} s left" if left_s > 0 else "")
        return ", ".join(filter(None, words))


_loops: list[CountedLoop] = []
"""Active loops, the outermost first."""


def counted(items: Collection[T], noun: str, detail: Callable[[], str] = str) -> Iterator[T]:
    """Yield the items, and count them as `noun` in progress messages; `detail` returns extra information."""
    started = time.monotonic()
    depth = len(_loops)
    try:
        for number, item in enumerate(items, 1):
            _loops[depth:] = [CountedLoop(noun, number, len(items), started, time.monotonic(), detail)]
            yield item
    finally:
        del _loops[depth:]


@contextmanager
def busy(what: str | Callable[[], str]) -> Iterator[None]:
    """Name the activity of the block in progress messages.

    A function is called from the thread that reports, and only for a message.
    """
    _busy.append(what if callable(what) else lambda: what)
    try:
        yield
    finally:
        _busy.pop()


@contextmanager
def heard(
    name: str, say: Callable[[str], None], first_s: float | None = None, every_s: float | None = None
) -> Iterator[None]:
    """Report the progress of the block from another thread, prefixed by the name of the job.

    The first report is after `first_s`, then one every `every_s`; None means the defaults for jobs of a
    study.
    """
    ended, waits = threading.Event(), (first_s or FIRST_S, every_s or EVERY_S)
    thread = threading.Thread(target=_listen, args=(name, say, ended, *waits), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def doing() -> str:
    """Progress as text: the current items of all loops and the innermost activity; empty outside of them."""
    now = time.monotonic()
    counts = " / ".join(count.text(now) for count in tuple(_loops))
    return ", ".join(filter(None, (counts, *(activity() for activity in _busy[-1:]))))


def _listen(
    name: str, say: Callable[[str], None], ended: threading.Event, first_s: float, every_s: float
) -> None:
    started = time.monotonic()
    wait = first_s
    while not ended.wait(wait):
        say(", ".join(filter(None, (f"{name}: {time.monotonic() - started:.0f} s", doing()))))
        wait = every_s
