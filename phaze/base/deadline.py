"""When long work has to end: by a time limit, or at once where what waits for it was interrupted.

Compiled code cannot be interrupted, so it works in slices of a fraction of a second (`slices`). Where a slice
ends says nothing about what is computed: without a limit that strikes, answers are the same.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLICE_S = 0.2
"""About how long compiled code works before somebody may ask it to end."""
FIRST_STEPS = 256
"""Steps of the first slice; the next ones are longer or shorter as it turns out."""


class OutOfTimeError(Exception):
    """Work that somebody can do without has met its deadline."""


class Deadline:
    """The end of work that may take so many seconds from now on."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._ends_s = time.monotonic() + seconds
        self._told = threading.Event()

    @property
    def passed(self) -> bool:
        """Whether work has to end."""
        return self._told.is_set() or time.monotonic() >= self._ends_s

    def check(self) -> None:
        """Raise OutOfTimeError if work has to end."""
        if self.passed:
            raise OutOfTimeError

    @contextmanager
    def for_threads(self) -> Iterator[None]:
        """Let threads end soon if the block that waits for them is left by an exception, such as Ctrl-C."""
        try:
            yield
        except BaseException:
            self._told.set()
            raise


def slices(steps: int, deadline: Deadline, first: int = FIRST_STEPS) -> Iterator[tuple[int, int]]:
    """Begin and end of slices that are `steps` together, until the deadline."""
    begin, size = 0, first
    while begin < steps and not deadline.passed:
        end, started_s = min(begin + size, steps), time.monotonic()
        yield begin, end
        took_s = time.monotonic() - started_s
        begin, size = (
            end,
            2 * size if took_s < SLICE_S / 2 else max(1, size // 2) if took_s > SLICE_S else size,
        )
