"""Prediction errors of one kind of kernel: overall, by device and precision, and by class of row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.validate.parts.base import KernelPart


@dataclass(frozen=True)
class PartScore:
    """Prediction errors as fractions of the measured seconds; nan if no row is priced."""

    rows: int
    answered: int
    """Number of rows with a device, precision and kernel that phaze prices."""
    median: float
    """Median of the absolute errors."""
    p90: float
    """Ninetieth percentile of the absolute errors."""
    bias: float
    """Median of the signed errors; positive if predictions are too slow."""


@dataclass(frozen=True, eq=False)
class ComparedKernels:
    """Measured rows of a part, with their predicted times."""

    part: KernelPart
    rows: pd.DataFrame
    predicted_s: Floats

    @property
    def score(self) -> PartScore:
        """Prediction errors over all rows."""
        return self._score_of(np.arange(len(self.rows)))

    @property
    def table(self) -> pd.DataFrame:
        """Table of the rows, with `predicted_s` next to `measured_s`."""
        return self.rows.assign(predicted_s=self.predicted_s)

    def by(self, *names: str) -> list[dict[str, object]]:
        """Prediction errors of rows grouped by columns; `kind` is the part's class of a row."""
        rows = self.rows.reset_index(drop=True).assign(kind=self.part.kinds(self.rows))
        groups = rows.groupby(list(names), sort=False).indices
        return [
            {**dict(zip(names, _values(key), strict=True)), **asdict(self._score_of(np.asarray(places)))}
            for key, places in groups.items()
        ]

    def plain(self) -> dict[str, object]:
        """All scores as plain values, for JSON; null where no row of a group is predicted."""
        groups, kinds = self.by("device", "precision"), self.by("device", "precision", "kind")
        return {
            "part": self.part.name,
            **_numbers(asdict(self.score)),
            "groups": [_numbers(row) for row in groups],
            "kinds": [_numbers(row) for row in kinds],
        }

    def _score_of(self, places: Ints) -> PartScore:
        errors = self.predicted_s[places] / self.rows["measured_s"].to_numpy(float)[places] - 1.0
        priced = errors[np.isfinite(errors)]
        if not len(priced):
            return PartScore(len(places), 0, np.nan, np.nan, np.nan)
        median, bias = float(np.median(np.abs(priced))), float(np.median(priced))
        return PartScore(len(places), len(priced), median, float(np.quantile(np.abs(priced), 0.9)), bias)


def compare(part: KernelPart, paths: Sequence[Path], system: str | None = None) -> ComparedKernels:
    """Compare the rows of tables with predictions; PhazeError if none can be priced."""
    rows = pd.concat([part.read(path, system) for path in paths], ignore_index=True)
    compared = ComparedKernels(part, rows, part.predicted(rows, system))
    if not compared.score.answered:
        devices = ", ".join(dict.fromkeys(rows["device"]))
        raise PhazeError(
            f"{paths[0]}: no row of {devices} can be priced as {part.name}; name a device of "
            "config/devices, or pass --system with a system that uses one"
        )
    return compared


def _values(key: object) -> tuple[object, ...]:
    return key if isinstance(key, tuple) else (key,)


def _numbers(row: Mapping[str, object]) -> dict[str, object]:
    """Values of a row, with null for numbers that are not finite."""
    unknown = {name for name, value in row.items() if isinstance(value, float) and not np.isfinite(value)}
    return {name: None if name in unknown else value for name, value in row.items()}
