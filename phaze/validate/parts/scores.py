"""Prediction errors of one kind of kernel: overall, by device and precision, and by class of row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats, Ints
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
        return self._of(np.ones(len(self.rows), bool))

    @property
    def table(self) -> pd.DataFrame:
        """Table of the rows, with `predicted_s` next to `measured_s`."""
        return self.rows.assign(predicted_s=self.predicted_s)

    def by(self, *names: str) -> list[dict[str, object]]:
        """Prediction errors of rows grouped by columns; `kind` is the part's class of a row."""
        rows = self.rows.reset_index(drop=True).assign(kind=self.part.kinds(self.rows))
        groups = rows.groupby(list(names), sort=False).indices
        scores = [self._of(_mask(np.asarray(places), len(rows))) for places in groups.values()]
        return [
            {**dict(zip(names, _values(key), strict=True)), **asdict(score)}
            for key, score in zip(groups, scores, strict=True)
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

    def _of(self, mask: Bools) -> PartScore:
        measured = self.rows["measured_s"].to_numpy(float)[mask]
        errors = self.predicted_s[mask] / measured - 1.0
        priced_errors = errors[np.isfinite(errors)]
        if not len(priced_errors):
            return PartScore(int(mask.sum()), 0, np.nan, np.nan, np.nan)
        absolute = np.abs(priced_errors)
        return PartScore(
            int(mask.sum()),
            len(priced_errors),
            float(np.median(absolute)),
            float(np.quantile(absolute, 0.9)),
            float(np.median(priced_errors)),
        )


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


def _mask(places: Ints, count: int) -> Bools:
    mask = np.zeros(count, bool)
    mask[places] = True
    return mask


def _numbers(row: Mapping[str, object]) -> dict[str, object]:
    """Values of a row, with null for numbers that are not finite."""
    unknown = {name for name, value in row.items() if isinstance(value, float) and not np.isfinite(value)}
    return {name: None if name in unknown else value for name, value in row.items()}
