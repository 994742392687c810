"""Networks without levels: tori and meshes of devices, and arbitrary bandwidth matrices."""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.base.files import refuse_endless
from phaze.base.printed import LONGEST_KEY
from phaze.spec.noun import Noun
from phaze.spec.values import Positive, PositiveInt, Size

Absent = Literal["widest", "refuse"]
"""Treatment of pairs of devices without a link: the widest path over other links, or an error."""


class Torus(Noun):
    """Torus or mesh: devices in a box, linked to their neighbours in every dimension."""

    shape: tuple[PositiveInt, ...] = Field(min_length=1)
    """Devices in every dimension; device numbers increase fastest along the last one."""
    bandwidth_bytes_per_s: Positive
    """Bandwidth of a link in each direction, in bytes per second."""
    latency_s: Size = 0.0
    """Latency of a hop in seconds."""
    wrap: bool = True
    """True: a torus, whose first and last devices in a dimension are linked; false: a mesh."""


class Matrix(Noun):
    """Network given by the bandwidth between every two devices."""

    bandwidths_bytes_per_s: tuple[tuple[Size, ...], ...] = Field(min_length=1)
    """Bandwidths in bytes per second: one row per sending device, one column per receiving device; 0 for no
    link."""
    latency_s: Size = 0.0
    """Latency of a link in seconds."""
    absent: Absent = "widest"
    """Pairs of devices without a link: `widest` takes the widest path over other links, `refuse` is an
    error."""

    @model_validator(mode="after")
    def _square(self) -> Self:
        check_square(self.bandwidths_bytes_per_s)
        return self

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.bandwidths_bytes_per_s)


def check_nested(devices: Sequence[int]) -> None:
    """Raise ValueError unless the group size of each level is a multiple of the next inner level's."""
    for inner, outer in pairwise(devices):
        if outer <= inner or outer % inner:
            raise ValueError(
                "levels: the devices of a level must be a multiple of those of the level before, "
                f"got {outer} above {inner}"
            )


def check_square(bandwidths: Sequence[Sequence[object]]) -> None:
    """Raise ValueError unless the matrix is square."""
    for number, row in enumerate(bandwidths):
        if len(row) != len(bandwidths):
            raise ValueError(
                f"bandwidths: row {number} must have {len(bandwidths)} numbers, one per device, "
                f"got {len(row)}"
            )


def read_bandwidths(path: Path) -> list[list[float]]:
    """Read a square CSV table of bandwidths, 0 for no link; raises PhazeError."""
    try:
        refuse_endless(path)
        with path.open(newline="", encoding="utf-8") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise PhazeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        check_square(rows)
    except ValueError as error:
        raise PhazeError(f"{path}: {error}") from error
    if not rows:
        raise PhazeError(f"{path}: must hold a square matrix, got no rows")
    return [[_bandwidth(cell, path, i, j) for j, cell in enumerate(row)] for i, row in enumerate(rows)]


def _bandwidth(text: str, path: Path, source: int, target: int) -> float:
    """Bandwidth in a table cell; 0 if the cell is empty or on the diagonal."""
    if source == target or not text.strip():
        return 0.0
    try:
        value = float(text)
    except ValueError:
        # NaN fails the comparison below, and gets its message.
        value = float("nan")
    if not 0 < value < float("inf"):
        place = f"{path}: bandwidth from {source} to {target}"
        raise PhazeError(f"{place} must be > 0, or empty for no link, got {text.strip()[:LONGEST_KEY]}")
    return value
