"""Noise floor of measured runs: how far apart times of equal runs are.

No prediction can be closer to single runs than their repeats are to each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from phaze.validate.rows import read_rows

ALL = "all"
"""Name of the line over all sources."""


@dataclass(frozen=True)
class Repeats:
    """Equal runs of a source on one cluster with one release of the software, measured several times."""

    source: str
    runs: int
    groups: int
    """Number of groups of equal runs."""
    deviation: float
    """Pooled standard deviation of the logarithms of their times, within the groups."""


def repeats(paths: Sequence[Path]) -> list[Repeats]:
    """Repeats of every source that has some, then of all sources; empty without repeats."""
    by_source = {path.stem: groups for path in paths if (groups := list(_groups(path)))}
    lines = [_pooled(source, groups) for source, groups in by_source.items()]
    every_group = [group for groups in by_source.values() for group in groups]
    return [*lines, _pooled(ALL, every_group)] if lines else []


def _groups(path: Path) -> Iterator[list[float]]:
    """Yield the logarithms of the times of equal runs, at least two."""
    logs: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for row in read_rows(path)[1]:
        if row.runs and row.measured_s is not None:
            software = row.system, row.stack, row.release, row.date
            logs[row.runs, *software].append(float(np.log(row.measured_s)))
    yield from (group for group in logs.values() if len(group) > 1)


def _pooled(source: str, groups: Sequence[Sequence[float]]) -> Repeats:
    squares = sum(float(np.square(np.array(group) - np.mean(group)).sum()) for group in groups)
    runs = sum(map(len, groups))
    return Repeats(source, runs, len(groups), (squares / (runs - len(groups))) ** 0.5)
