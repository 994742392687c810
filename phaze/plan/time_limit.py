"""Time limit of a search over layouts, which a user may also end by an interruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from phaze.plan import effort

INTERRUPTED, TIME_LIMIT = "it was interrupted", "its time limit"
"""Reasons why a search ended: the first whole, the second as it starts."""


class OutOfTime(Exception):  # noqa: N818  # ends a search, whose answer is right
    """End of a search before its work is done; the message is the reason."""


@dataclass
class TimeLimit:
    """Seconds after which a search ends with its best plan so far; an interruption ends it at once."""

    seconds: float = inf
    interrupted: bool = False
    _begun_s: float = field(default_factory=monotonic)

    def begin(self) -> None:
        """Start the clock, for a search that was prepared earlier."""
        self._begun_s = monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock was started."""
        return monotonic() - self._begun_s

    @property
    def reason(self) -> str:
        """Why a search must end now; empty while it may go on."""
        if self.interrupted:
            return INTERRUPTED
        over = self.elapsed_s >= self.seconds
        return f"{TIME_LIMIT} of {self.seconds:g} s was reached" if over else ""


@dataclass
class Work:
    """Count of linear programs solved, weighted by their relative duration."""

    count: int = 0
    check: Callable[[], None] = lambda: None
    """Function that is called before each piece of work, and may raise OutOfTime."""

    def add(self, programs: int) -> None:
        """Count programs that will be solved next."""
        self.check()
        self.count += programs

    def add_program(self, variables: int, *, exact: bool) -> None:
        """Count a program that will be solved next; with `exact`, some of its variables are integers."""
        size = -(-variables // effort.VARIABLES_PER_PROGRAM)
        self.add((effort.INTEGER_WORK if exact else 1) * size)
