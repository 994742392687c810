"""Collectives in two steps: rows then columns of a grid, or inside nodes then between them.

Both are the same plan over a table of members: along every row, then down every column. On a mesh the table
is the grid; on a cluster a row is a node, so that a column has one device of every node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phaze.base.errors import PhazeError
from phaze.cost.network import collectives
from phaze.cost.network.messages import Plan, then, together
from phaze.cost.network.network import Collective, Levels, Tier
from phaze.layout import Group

Table = Sequence[Sequence[int]]
"""Members in rows of equal length."""


def columns(table: Table) -> list[tuple[int, ...]]:
    """Return the columns of a table; raises `PhazeError` where its rows differ in length."""
    if not table or len({len(row) for row in table}) > 1 or not table[0]:
        raise PhazeError("collective: rows must have the same number of members, and there must be some")
    return list(zip(*table, strict=True))


def reduce_scatter(table: Table, size_bytes: float) -> Plan:
    """Return a reduce-scatter of the tensor along rows, then of a share down columns."""
    share = size_bytes / len(columns(table))
    return then(_each("reduce_scatter", table, size_bytes), _each("reduce_scatter", columns(table), share))


def all_gather(table: Table, size_bytes: float) -> Plan:
    """Return an all-gather of a share down columns, then of the tensor along rows."""
    share = size_bytes / len(columns(table))
    return then(_each("all_gather", columns(table), share), _each("all_gather", table, size_bytes))


def all_reduce(table: Table, size_bytes: float) -> Plan:
    """Return a reduce-scatter along rows, an all-reduce of shares down columns, an all-gather along rows."""
    share = size_bytes / len(columns(table))
    return then(
        _each("reduce_scatter", table, size_bytes),
        _each("all_reduce", columns(table), share),
        _each("all_gather", table, size_bytes),
    )


def all_to_all(table: Table, size_bytes: float) -> Plan:
    """Return an all-to-all along rows, of everything for a column, then down columns."""
    return then(_each("all_to_all", table, size_bytes), _each("all_to_all", columns(table), size_bytes))


def broadcast(table: Table, size_bytes: float, pieces: int = 1) -> Plan:
    """Return a broadcast from the first member of the first row along it, then down every column."""
    return then(
        collectives.collective("broadcast", table[0], size_bytes, pieces),
        _each("broadcast", columns(table), size_bytes, pieces),
    )


def reduce(table: Table, size_bytes: float, pieces: int = 1) -> Plan:
    """Return a reduce up every column, then along the first row to its first member."""
    return then(
        _each("reduce", columns(table), size_bytes, pieces),
        collectives.collective("reduce", table[0], size_bytes, pieces),
    )


def collective(kind: Collective, table: Table, size_bytes: float, pieces: int = 1) -> Plan:
    """Return the plan of a collective by its name."""
    if kind in _IN_PIECES:
        return _IN_PIECES[kind](table, size_bytes, pieces)
    if kind not in _WHOLE:
        raise PhazeError(f"collective: must be one of {', '.join([*_WHOLE, *_IN_PIECES])}, got {kind}")
    return _WHOLE[kind](table, size_bytes)


_WHOLE: dict[Collective, Callable[[Table, float], Plan]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
}
_IN_PIECES: dict[Collective, Callable[[Table, float, int], Plan]] = {"broadcast": broadcast, "reduce": reduce}


def ring_s(
    kind: Collective,
    width: int,
    size_bytes: float,
    bandwidth_bytes_per_s: float,
    latency_s: float = 0.0,
    pieces: int = 1,
) -> float:
    """Return the time of a collective among so many equal neighbours: rounds · (α + bytes of a round · β)."""
    if kind in ("broadcast", "reduce"):
        rounds, part = width - 2 + pieces if width > 1 else 0, size_bytes / pieces
        return rounds * (latency_s + part / bandwidth_bytes_per_s)
    neighbours = Levels((Tier(width, bandwidth_bytes_per_s, latency_s),))
    return neighbours.seconds(kind, size_bytes, Group(width, 1))


def layered_s(
    kind: Collective,
    rows: int,
    columns: int,
    size_bytes: float,
    along: tuple[float, float],
    down: tuple[float, float],
    pieces: int = 1,
) -> float:
    """Return the time of a collective where no two messages contend; along and down are (bytes/s, α in s)."""
    share = size_bytes if kind in ("all_to_all", "broadcast", "reduce") else size_bytes / columns
    first: Collective = "reduce_scatter" if kind == "all_reduce" else kind
    inside = ring_s(first, columns, size_bytes, *along, pieces=pieces) * (2 if kind == "all_reduce" else 1)
    return inside + ring_s(kind, rows, share, *down, pieces=pieces)


def _each(kind: Collective, rows: Table, size_bytes: float, pieces: int = 1) -> Plan:
    """Return the same collective along every row at once."""
    return together(*(collectives.collective(kind, row, size_bytes, pieces) for row in rows))
