"""The best of many choices in a row, where a range of them is bounded as fast as one of them is solved."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Answer = TypeVar("Answer")
Rank = tuple[float, ...]


@dataclass(frozen=True)
class Bound(Generic[Answer]):
    """The best answer to a range of choices once they are allowed more than each has."""

    rank: Rank
    answer: Answer
    holds: bool
    """The answer is one of those choices as it is, and so the best of them."""


def best_choice(choices: int, bound: Callable[[int, int], Bound[Answer] | None]) -> Answer | None:
    """Return the best answer, or None; `bound` of choices lo to hi - 1 is None where none has an answer.

    The range with the best bound is halved until an answer holds, which that of a single choice has to.
    """
    waiting: list[tuple[Rank, int, int, Bound[Answer]]] = []
    ranges = [(0, choices)]
    while True:
        for lo, hi in ranges:
            if lo < hi and (found := bound(lo, hi)) is not None:
                heapq.heappush(waiting, (found.rank, lo, hi, found))
        if not waiting:
            return None
        _, lo, hi, found = heapq.heappop(waiting)
        if found.holds:
            return found.answer
        ranges = [(lo, (lo + hi) // 2), ((lo + hi) // 2, hi)]
