"""The best placement of every model on every kind of accelerator.

The order of best is time per batch, area, name (`base.ranking`). Of several HBM capacities the smallest
within the tolerance of the best throughput is chosen, with the best architecture for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import cast

import numpy as np
import pandas as pd

from phaze.base.ranking import name_ranks, tied, within
from phaze.spec.noun import Noun
from phaze.spec.system import Scenario
from phaze.tables import Architectures, Placements
from phaze.tables.columns import LAYOUT


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


Chip = tuple[str, float]
"""Architecture and HBM in GiB."""


@dataclass(frozen=True)
class Chips:
    """Architectures to plan on: those for all planners, and those only for the study's planner."""

    compared: tuple[Chip, ...]
    """Architectures for all planners: the best for the model, the common one and the baseline."""
    others: tuple[Chip, ...]
    """Architectures only for the study's planner: those that Phaze's planner ranks best, and named ones."""


class ChipChoice(Noun):
    """Settings of a study that select the architectures to plan on."""

    baseline: str | None
    """Name of the baseline architecture."""
    named: tuple[str, ...]
    """All named architectures."""
    best: int
    """Number of best architectures to rank."""
    tolerance: float
    """Relative distance from the best throughput within which the smallest HBM is chosen."""


def choose_chips(cluster: Outcome, choice: ChipChoice) -> Chips:
    """Architectures on which to plan one model of a scenario, each with the HBM size chosen for it."""
    candidate_rows, baseline = candidates(cluster), () if choice.baseline is None else (choice.baseline,)
    best, ranked = (
        choose(candidate_rows, choice.tolerance),
        rank(candidate_rows, choice.best, choice.tolerance),
    )
    compared = dict.fromkeys(
        [
            *(() if best is None else (_chip(best),)),
            *(() if cluster.common is None else (cluster.common,)),
            *_named(cluster, choice, baseline),
        ]
    )
    others = [*(_chip(row) for _, row in ranked.iterrows()), *_named(cluster, choice, choice.named)]
    return Chips(tuple(compared), tuple(dict.fromkeys(chip for chip in others if chip not in compared)))


def _named(cluster: Outcome, choice: ChipChoice, names: Iterable[str]) -> Iterator[Chip]:
    """Yield named architectures, each with its chosen HBM size."""
    placed = cluster.placements[cluster.placements["planner"] == "phaze"]
    for name in names:
        rows = placed[placed["architecture"] == name]
        chosen = choose(with_areas(cluster, rows), choice.tolerance)
        if chosen is not None:
            yield _chip(chosen)


def _chip(row: pd.Series) -> Chip:
    return str(row["architecture"]), float(row["hbm_gib"])
