"""Tables of measured links: latency and bandwidth of every ordered pair of devices, one pair per row.

`phaze measure --links` writes them, with the times that each row was fitted to in further columns.
"""

import csv
from pathlib import Path
from typing import NamedTuple

from phaze.base.errors import PhazeError
from phaze.base.files import refuse_endless

MOST_NUMBER = 8191
"""Largest device number, so that matrices of all pairs fit into memory."""


class MeasuredLink(NamedTuple):
    """Link from one device to another; the field names are the columns of the table."""

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
