"""Searches by chance, kept with what they were told: told the same again, they go the same way.

A sampler with a seed suggests what follows from the values that it was told before. A search whose
architectures still have the throughputs of last time therefore need not be made again, which takes a hundred
times as long as to look these up. The name of a file is a digest of all else that it depends on: grid, seed,
limits and code. A file that cannot be read counts as absent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from phaze.evaluations import Plain, digest_of
from phaze.files import write_text
from phaze.screen.hysteresis import Evaluate
from phaze.screen.suggestions import SIZES, suggested


@dataclass(frozen=True)
class Recall:
    """A folder of searches by one version of the code, in the place of `screen.suggestions.suggested`."""

    folder: Path
    code: str

    def __call__(
        self, architectures: pd.DataFrame, evaluate: Evaluate, seed: int, evaluations: int, suggestions: int
    ) -> list[int]:
        """Return the rows of the architectures in the order of their first suggestion."""
        grid: Plain = architectures[list(SIZES)].to_numpy().tolist()
        about: list[Plain] = [self.code, grid, seed, evaluations, suggestions]
        path = self.folder / f"{digest_of(about)}.json"
        known = _read(path, len(architectures))
        if known and _told(architectures, evaluate, list(known)) == list(known.values()):
            return list(known)
        rows = suggested(architectures, evaluate, seed, evaluations, suggestions)
        write_text(path, json.dumps([rows, _told(architectures, evaluate, rows)]))
        return rows


def _told(architectures: pd.DataFrame, evaluate: Evaluate, rows: list[int]) -> list[float]:
    """Return the throughputs that a search is told."""
    found: list[float] = evaluate(architectures.iloc[rows])["samples_per_s"].tolist()
    return found


def _read(path: Path, size: int) -> dict[int, float]:
    """Return the throughputs by row of so many as a search was told them, none if it is not known."""
    try:
        rows, told = json.loads(path.read_text(encoding="utf-8"))
        known = dict(zip(rows, told, strict=True))
    except (OSError, ValueError, TypeError):
        return {}
    return known if all(row in range(size) for row in known) else {}
