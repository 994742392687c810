"""Deadlines for long computations: a time limit, or an early end if the waiting caller is interrupted.

Compiled code cannot be interrupted, so it works in slices of a fraction of a second (`slices`). Slice
boundaries do not affect results: unless a limit is reached, answers are the same.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SLICE_S = 0.2
"""Target duration of a slice of compiled code."""
FIRST_STEPS = 256
"""Steps of the first slice; later slices adapt to the target duration."""


class OutOfTimeError(Exception):
    """Raised when optional work reaches its deadline."""


class Deadline:
    """Time limit that ends `seconds` from now."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._ends_s = time.monotonic() + seconds
        self._cancelled = threading.Event()

    @property
    def passed(self) -> bool:
        """True if the work must end."""
        return self._cancelled.is_set() or time.monotonic() >= self._ends_s

    def check(self) -> None:
        """Raise OutOfTimeError if the deadline has passed."""
        if self.passed:
            raise OutOfTimeError

    @contextmanager
    def for_threads(self) -> Iterator[None]:
        """Context that ends worker threads soon if its block raises while waiting for them, as on Ctrl-C."""
        try:
            yield
        except BaseException:
            self._cancelled.set()
            raise


def slices(steps: int, deadline: Deadline, first: int = FIRST_STEPS) -> Iterator[tuple[int, int]]:
    """Split `steps` steps into slices: yield the begin and end of each slice, until the deadline."""
    begin, size = 0, first
    while begin < steps and not deadline.passed:
        end, started_s = min(begin + size, steps), time.monotonic()
        yield begin, end
        took_s = time.monotonic() - started_s
        # A step's duration is unknown beforehand and may change: the size follows it by factors of two.
        begin = end
        if took_s < SLICE_S / 2:
            size *= 2
        elif took_s > SLICE_S:
            size = max(1, size // 2)
