"""Space of architectures that a certificate covers, and the array layout of its points."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats, Ints
from phaze.tables import Architectures, are_among

PLACED = [
    "model", "layout", "architecture", "hbm_gib", "recompute", "planner", "status",
    "time_per_batch_s", "bound_s",
]  # fmt: skip
"""Columns of table `placements` that a certificate needs."""


def names_of_space(architectures: pd.DataFrame, limit_um2: float) -> pd.Index:
    """Names of architectures within the area limit, without duplicates; searched ones take precedence."""
    # Areas are sums: the slack makes up for their rounding.
    within = architectures[architectures["area_um2"] <= limit_um2 * (1.0 + 1e-9)]
    names: pd.Index = pd.Index(Architectures.distinct(within)["architecture"].unique())
    return names


@dataclass(frozen=True, eq=False)
class Shard:
    """Architectures of a shard that belong to the space, with the array position of every name."""

    chips: pd.DataFrame
    """Rows of table `architectures` that are in the space."""
    names: pd.Series
    """All names of the shard, in the order of the tables."""
    place: Ints
    """Row index in `chips` of every name; -1 for names outside the space."""


def read_shards(architectures: pd.DataFrame, space: pd.Index) -> dict[str, Shard]:
    """Shards of table `architectures` by name, each with its architectures that are in the space."""
    shards = {}
    for name, members in architectures.groupby("shard"):
        rows = members.sort_values("architecture", ignore_index=True)
        inside = are_among(rows["architecture"], space)
        place = np.where(inside, np.cumsum(inside) - 1, -1)
        shards[str(name)] = Shard(rows[inside].reset_index(drop=True), rows["architecture"], place)
    return shards


class Places:
    """Positions of table rows in an array of shape (memory grid, chips of a shard)."""

    def __init__(self, rows: pd.DataFrame, shard: Shard, grid: list[tuple[float, bool]]) -> None:
        place = places_of(rows["architecture"], shard)
        size, recomputes = rows["hbm_gib"].to_numpy(), rows["recompute"].to_numpy(np.bool_)
        spot = np.full(len(rows), -1)
        for g, (hbm_gib, recompute) in enumerate(grid):
            spot[(size == hbm_gib) & (recomputes == recompute)] = g
        self._inside = (place >= 0) & (spot >= 0)
        self._at = spot[self._inside], place[self._inside]
        self._rows = rows
        self._shape = len(grid), len(shard.chips)

    def matrix(self, column: str) -> Floats:
        """Column of the table as an array (grid, chips), NaN for missing rows."""
        cells = np.full(self._shape, np.nan)
        cells[self._at] = self._rows[column].to_numpy(np.float64)[self._inside]
        return cells


def places_of(names: pd.Series, shard: Shard) -> Ints:
    """Row index of every name in a shard's chip table, or -1 if absent."""
    codes, unique = pd.factorize(names)
    # Names that are all of the shard's, in its order, need no look-up.
    if len(unique) == len(shard.names) and bool((unique == shard.names.array).all()):
        return shard.place[codes]
    place_by_name = pd.Series(shard.place, index=shard.names)
    return place_by_name.reindex(unique, fill_value=-1).to_numpy(np.int64)[codes]
