"""The best placement of every model on every kind of accelerator.

The order of best is time per batch, area, name (`base.ranking`). Of several HBM capacities the smallest
within the tolerance of the best throughput is chosen, with the best architecture for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
import pandas as pd

from phaze.base.ranking import name_ranks, tied, within
from phaze.spec.system import Scenario
from phaze.tables import Architectures, Placements
from phaze.tables.columns import LAYOUT

PRICED = ["model", "architecture", "hbm_gib", "planner"]
"""Columns that identify the best placement by a planner on an accelerator."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of one scenario on its cluster; do not modify its tables."""

    scenario: Scenario
    area_limit_um2: float
    architectures: pd.DataFrame
    """Table `architectures` of all shards."""
    placements: pd.DataFrame
    """Table `placements` of all models, layouts and shards."""
    common_placements: pd.DataFrame = field(default_factory=Placements.empty)
    """Table `placements` of the candidates for the common architecture, for all models and layouts."""
    common: tuple[str, float] | None = None
    """Common architecture and its HBM in GiB; None for a study without one."""

    @cached_property
    def chips(self) -> pd.DataFrame:
        """Architectures indexed by name; of several with one name, only the first."""
        chips = self.architectures.drop_duplicates("architecture")
        return chips.set_index("architecture", drop=False).rename_axis(None)


def with_areas(cluster: Outcome, placements: pd.DataFrame) -> pd.DataFrame:
    """Placements with the area of their architecture as a column."""
    return placements.assign(area_um2=placements["architecture"].map(cluster.chips["area_um2"]))


@lru_cache(maxsize=2)
def candidates(cluster: Outcome) -> pd.DataFrame:
    """Placements of the search on all architectures within the area limit, without duplicates."""
    placed = with_areas(cluster, cluster.placements)
    within_limit = placed["area_um2"] <= cluster.area_limit_um2 * (1 + 1e-9)
    placed = placed[(placed["planner"] == "phaze") & within_limit]
    return placed[placed["architecture"].isin(_distinct(cluster.architectures, placed["architecture"]))]


def space_of(architectures: pd.DataFrame, limit_um2: float) -> pd.Series:
    """Names of the architectures in the search: within the area limit, without duplicates."""
    within_limit = architectures[architectures["area_um2"] <= limit_um2 * (1 + 1e-9)]
    return _distinct(architectures, within_limit["architecture"])


def _distinct(architectures: pd.DataFrame, names: pd.Series) -> pd.Series:
    """First name of every distinct architecture; a named one may also be in the grid."""
    return Architectures.distinct(architectures[architectures["architecture"].isin(names)])["architecture"]


def chip_of(cluster: Outcome, row: pd.Series) -> pd.Series:
    """Row of table `architectures` for the architecture of a placement."""
    return chip_named(cluster, row["architecture"])


def chip_named(cluster: Outcome, architecture: str) -> pd.Series:
    """Row of table `architectures` by name."""
    return cast(pd.Series, cluster.chips.loc[architecture])


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows from best to worst: by time, area, name, HBM, stashing before recomputing, then layout."""
    names, layouts = name_ranks(rows["architecture"]), LAYOUT.ranks(rows["layout"])
    recompute, hbm, area, time = (
        rows[key].to_numpy() for key in ("recompute", "hbm_gib", "area_um2", "time_per_batch_s")
    )
    return rows.iloc[np.lexsort([layouts, recompute, hbm, names, area, tied(time)])]


def best_of_each_hbm(rows: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Best row of every HBM capacity, with columns `relative` (throughput) and `chosen`."""
    best = in_order(rows).drop_duplicates("hbm_gib").sort_values("hbm_gib")
    near = within(best["time_per_batch_s"].to_numpy(), tolerance)
    fastest = best["samples_per_s"].max()
    relative = best["samples_per_s"] / fastest if fastest > 0 else best["samples_per_s"]
    return best.assign(relative=relative, chosen=near & (np.cumsum(near) == 1))


def choose(rows: pd.DataFrame, tolerance: float) -> pd.Series | None:
    """Best row at the smallest HBM size within the tolerance; an infeasible row if none is placed.

    The infeasible row is the one that needs the least memory, so its reason gives the smallest shortfall.
    """
    if rows.empty:
        return None
    best = best_of_each_hbm(rows, tolerance)
    chosen = best[best["chosen"]]
    if len(chosen):
        return chosen.iloc[0]
    return Placements.leanest_first(in_order(rows)).iloc[0]


def choose_winner(cluster: Outcome, tolerance: float) -> pd.Series | None:
    """Best placement of one model on a cluster; None if the model cannot be placed."""
    winner = choose(candidates(cluster), tolerance)
    return winner if winner is not None and winner["status"] == "placed" else None


def rank(rows: pd.DataFrame, best: int, tolerance: float) -> pd.DataFrame:
    """Best rows of a model at its chosen HBM size, with a column `rank`; empty if none is placed.

    The row with the smallest area within the tolerance is always included.
    """
    winner = choose(rows, tolerance)
    if winner is None or winner["status"] != "placed":
        return rows.iloc[:0]
    placed = rows[(rows["hbm_gib"] == winner["hbm_gib"]) & (rows["status"] == "placed")]
    ordered = in_order(placed).drop_duplicates("architecture").reset_index(drop=True)
    near = ordered[within(ordered["time_per_batch_s"].to_numpy(), tolerance)]
    ranked = ordered.assign(
        rank=np.arange(1, len(ordered) + 1),
        relative=ordered["samples_per_s"] / ordered["samples_per_s"].iloc[0],
        smallest_area=ordered.index == near["area_um2"].idxmin(),
    )
    return ranked[(ranked["rank"] <= best) | ranked["smallest_area"]]


def common_placement(cluster: Outcome, model: str) -> pd.Series | None:
    """Best placement of a model on the common architecture with its HBM size; None without one."""
    if cluster.common is None:
        return None
    every, (name, hbm_gib) = cluster.common_placements, cluster.common
    # The common accelerator is chosen together with its HBM capacity.
    same = (every["model"] == model) & (every["architecture"] == name) & (every["hbm_gib"] == hbm_gib)
    rows = in_order(with_areas(cluster, every[same & (every["planner"] == "phaze")]))
    return rows.iloc[0] if len(rows) else None


def compared_placements(cluster: Outcome, baseline: str | None, tolerance: float) -> pd.DataFrame:
    """Best placements of the only model of a cluster's tables: on its best architecture and the common one.

    On the baseline it is the best one by every planner.
    """
    placements = cluster.placements
    models = placements["model"].unique()
    on_baseline = with_areas(cluster, placements[placements["architecture"] == baseline])
    rows = [
        choose(candidates(cluster), tolerance),
        *(common_placement(cluster, model) for model in models),
        *(choose(of_planner, tolerance) for _, of_planner in on_baseline.groupby("planner")),
    ]
    placed = [row for row in rows if row is not None and row["status"] == "placed"]
    if not placed:
        return with_areas(cluster, placements.iloc[:0])
    return pd.DataFrame(placed).drop_duplicates(PRICED)
