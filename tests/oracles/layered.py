"""Collectives in two steps: rows then columns of a grid, or inside nodes then between them.

Both are the same plan over a table of members: along every row, then down every column. On a mesh the table
is the grid; on a cluster a row is a node, so that a column has one device of every node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phaze.base.errors import PhazeError
from phaze.cost.network import ring_messages as collectives
from phaze.cost.network.messages import Plan, then, together
from phaze.cost.network.ring_messages import Collective, named_plan, ring_s

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
    return then(_each("reduce-scatter", table, size_bytes), _each("reduce-scatter", columns(table), share))


def all_gather(table: Table, size_bytes: float) -> Plan:
    """Return an all-gather of a share down columns, then of the tensor along rows."""
    share = size_bytes / len(columns(table))
    return then(_each("all-gather", columns(table), share), _each("all-gather", table, size_bytes))


def all_reduce(table: Table, size_bytes: float) -> Plan:
    """Return a reduce-scatter along rows, an all-reduce of shares down columns, an all-gather along rows."""
    share = size_bytes / len(columns(table))
    return then(
        _each("reduce-scatter", table, size_bytes),
        _each("all-reduce", columns(table), share),
        _each("all-gather", table, size_bytes),
    )


def all_to_all(table: Table, size_bytes: float) -> Plan:
    """Return an all-to-all along rows, of everything for a column, then down columns."""
    return then(_each("all-to-all", table, size_bytes), _each("all-to-all", columns(table), size_bytes))


def broadcast(table: Table, size_bytes: float, pieces: int = 1) -> Plan:
    """Return a broadcast from the first member of the first row along it, then down every column."""
    return then(
        collectives.broadcast(table[0], size_bytes, pieces),
        _each("broadcast", columns(table), size_bytes, pieces),
    )


def reduce(table: Table, size_bytes: float, pieces: int = 1) -> Plan:
    """Return a reduce up every column, then along the first row to its first member."""
    return then(
        _each("reduce", columns(table), size_bytes, pieces),
        collectives.reduce(table[0], size_bytes, pieces),
    )


def collective(kind: Collective, table: Table, size_bytes: float, pieces: int = 1) -> Plan:
    """Return the plan of a collective by its name."""
    return named_plan(kind, _WHOLE, _IN_PIECES)(table, size_bytes, pieces)


_WHOLE: dict[Collective, Callable[[Table, float], Plan]] = {
    "all-reduce": all_reduce,
    "reduce-scatter": reduce_scatter,
    "all-gather": all_gather,
    "all-to-all": all_to_all,
}
_IN_PIECES: dict[Collective, Callable[[Table, float, int], Plan]] = {"broadcast": broadcast, "reduce": reduce}


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
    share = size_bytes if kind in ("all-to-all", "broadcast", "reduce") else size_bytes / columns
    first: Collective = "reduce-scatter" if kind == "all-reduce" else kind
    inside = ring_s(first, columns, size_bytes, *along, pieces=pieces) * (2 if kind == "all-reduce" else 1)
    return inside + ring_s(kind, rows, share, *down, pieces=pieces)


def _each(kind: Collective, rows: Table, size_bytes: float, pieces: int = 1) -> Plan:
    """Return the same collective along every row at once."""
    return together(*(collectives.collective(kind, row, size_bytes, pieces) for row in rows))
