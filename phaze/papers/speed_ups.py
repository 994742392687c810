"""Speed-ups of mappings over the heuristics: ratios of step times, as medians over seeds."""

from __future__ import annotations

import pandas as pd

from phaze.spec.map_study import StagesPoint
from phaze.spec.names import MAP_METHODS
from phaze.tables import OWN_WAYS

POINT = [*StagesPoint.model_fields]
NETWORK = ["topology", "seed"]
SPEED_UPS = {
    "over_consecutive": ("cs-map", "ours"),
    "over_heuristics": ("heuristics", "ours"),
    "paper_over_consecutive": ("cs-map", "paper"),
    "paper_over_heuristics": ("heuristics", "paper"),
    "searched_over_heuristics": ("heuristics", "searched"),
    "by_sizes_over_consecutive": ("cs-map", "by-sizes"),
}
"""Speed-ups by name: the columns of `steps` in the numerator and the denominator."""


def steps(mappings: pd.DataFrame, value: str = "step_s") -> pd.DataFrame:
    """Step times of mapping problems: one row per problem, with its shape, and one column per method.

    ours: best of the searches and the local search; searched: best of the searches, the paper's ensemble with
    the exact instantiation; by-sizes: the one instantiation that the paper selects by message sizes; paper:
    better of its two instantiations; heuristics: better of CS map and p2p map. Columns ours and searched are
    missing if only the authors' searches ran.
    """
    wide = mappings.pivot_table(index=[*POINT, *NETWORK], columns="way", values=value, aggfunc="min")
    wide = wide.reindex(columns=MAP_METHODS)
    chosen = mappings[mappings["by_sizes"]].set_index([*POINT, *NETWORK])[value]
    table = wide.assign(
        **{
            "ours": wide[list(OWN_WAYS)].min(axis=1, skipna=False),
            "searched": wide[["p2p", "allreduce", "exact"]].min(axis=1, skipna=False),
            "paper": wide[["p2p", "allreduce"]].min(axis=1),
            "by-sizes": chosen,
            "heuristics": wide[["cs-map", "p2p-map"]].min(axis=1),
        }
    ).reset_index()
    return table.assign(shape=shapes_of(table))


def shapes_of(rows: pd.DataFrame) -> pd.Series:
    """Shape of every row as stages x replicas, such as 4x2."""
    return rows["stages"].astype(str) + "x" + rows["replicas"].astype(str)


def speed_ups(rows: pd.DataFrame) -> pd.DataFrame:
    """Table `speed_ups`: our mappings relative to CS map and to the heuristics, as medians over seeds."""
    rows = rows[rows["ours"].notna()]
    ratios = rows.assign(**{name: rows[over] / rows[ours] for name, (over, ours) in SPEED_UPS.items()})
    grouped = ratios.groupby([*POINT, "topology"])
    least = grouped["over_heuristics"].min().rename("least_over_heuristics")
    return grouped[list(SPEED_UPS)].median().join(least).join(grouped.size().rename("seeds")).reset_index()
