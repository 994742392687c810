"""Networks without levels: tori and meshes, arbitrary bandwidth matrices, and tables of measured links."""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import Field

from phaze.base.errors import PhazeError
from phaze.base.files import refuse_endless
from phaze.base.printed import LONGEST_KEY
from phaze.spec.noun import Noun
from phaze.spec.values import Positive, PositiveInt, Size

MOST_NUMBER = 8191
"""Largest device number, so that matrices of all pairs fit into memory."""
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


def check_nested(devices: Sequence[int]) -> None:
    """Raise ValueError unless the group size of each level is a multiple of the next inner level's."""
    for inner, outer in pairwise(devices):
        if outer <= inner or outer % inner:
            raise ValueError(
                "levels: the devices of a level must be a multiple of those of the level before, "
                f"got {outer} above {inner}"
            )


def read_bandwidths(path: Path) -> list[list[float]]:
    """Read a square CSV table of bandwidths, 0 for no link; raises PhazeError."""
    try:
        refuse_endless(path)
        with path.open(newline="", encoding="utf-8") as lines:
            rows = [row for row in csv.reader(lines) if row]
    except (OSError, ValueError, csv.Error) as error:
        raise PhazeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    for number, row in enumerate(rows):
        if len(row) != len(rows):
            raise PhazeError(
                f"{path}: bandwidths: row {number} must have {len(rows)} numbers, one per device, "
                f"got {len(row)}"
            )
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


class MeasuredLink(NamedTuple):
    """Link from one device to another; the field names are the columns of the table.

    `phaze measure --links` writes one pair of devices per row, with the times that it was fitted to.
    """

    source: int
    """Number of the sending device, from 0."""
    target: int
    """Number of the receiving device."""
    latency_s: float
    """Time of an empty message in seconds."""
    bandwidth_bytes_per_s: float
    """Bytes per second of a long message."""


def is_link_table(path: Path) -> bool:
    """True if a CSV file has a heading and one link per row, instead of a square matrix of numbers."""
    try:
        refuse_endless(path)
        with path.open(encoding="utf-8") as lines:
            return "source" in lines.readline(4096).split(",")
    except (OSError, ValueError):
        return False  # the reader of matrices names the mistake


def read_links(path: Path) -> list[MeasuredLink]:
    """Links of a table; PhazeError names the line and the column of a mistake."""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
    except (OSError, ValueError, csv.Error) as error:
        raise PhazeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not rows:
        raise PhazeError(f"{path}: must have links, got no rows", "run phaze measure --links again")
    links = [_link(row, f"{path}: line {number}") for number, row in enumerate(rows, 2)]
    seen: set[tuple[int, int]] = set()
    for number, link in enumerate(links, 2):
        if link[:2] in seen:
            raise PhazeError(
                f"{path}: line {number}: link {link.source} -> {link.target} is given twice",
                "keep one of the two lines",
            )
        seen.add(link[:2])
    return links


def _link(row: dict[str, str | None], place: str) -> MeasuredLink:
    source, target = (_number(row, key, place, least=0, whole=True) for key in ("source", "target"))
    if source == target:
        raise PhazeError(f"{place}: target: must be another device than source, got {target:g} for both")
    latency_s = _number(row, "latency_s", place, least=0)
    bandwidth = _number(row, "bandwidth_bytes_per_s", place, least=5e-324)
    return MeasuredLink(int(source), int(target), latency_s, bandwidth)


def _number(row: dict[str, str | None], key: str, place: str, *, least: float, whole: bool = False) -> float:
    text = row.get(key)
    if text is None:
        columns = ", ".join(MeasuredLink._fields)
        raise PhazeError(f"{place}: {key}: is missing", f"a table of links has the columns {columns}")
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    rule = f"a whole number from 0 to {MOST_NUMBER}" if whole else "> 0" if least else ">= 0"
    if not least <= number < float("inf") or (whole and not (number.is_integer() and number <= MOST_NUMBER)):
        raise PhazeError(f"{place}: {key}: must be {rule}, got {text.strip()[:40]!r}")
    return number
