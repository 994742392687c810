"""Points to solve again: the best, the excluded one with the smallest lower bound, and a random sample."""

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats, Ints
from phaze.certify.space import Shard, places_of
from phaze.certify.stage import EQUAL
from phaze.tables import Screens
from phaze.tables.columns import layout_of

COLUMNS = ["model", "layout", "architecture", "hbm_gib", "recompute", "lower_s", "feasible_s", "kept"]
"""Columns of table `screens` that a draw needs."""
EXCLUDED = ["memory", "work", "path", "combined", "tied"]
"""Columns of table `certificates` that count excluded points."""


LEAST = 3
"""Minimum number of points to draw from a model, if as many were excluded."""


def share_out(excluded: Mapping[str, int], points: int) -> dict[str, int]:
    """Number of points to draw from every model, in proportion to its excluded points.

    The numbers sum to `points`, unless fewer points were excluded or `LEAST` per model is more.
    """
    total = sum(excluded.values())
    if not total:
        return dict.fromkeys(excluded, 0)
    exact = {model: points * number / total for model, number in excluded.items()}
    shares = {model: min(max(int(exact[model]), LEAST), number) for model, number in excluded.items()}
    # Largest remainders first; ties by name, so that the shares do not depend on the order of models.
    for model in sorted(exact, key=lambda m: (int(exact[m]) - exact[m], m)):
        if sum(shares.values()) < points and shares[model] < excluded[model]:
            shares[model] += 1
    return shares


def draw_points(
    screens: Iterable[tuple[str, pd.DataFrame]],
    shards: Mapping[str, Shard],
    best: pd.Series | None,
    points: int,
    seed: int,
) -> pd.DataFrame:
    """Rows of table `screens` with the reason why each was `chosen`: the first reason that applies.

    `screens` cover all layouts of a model, read one at a time, each with its shard; `best` is the best
    placement. A row counts as excluded if it belongs to the space, its lower bound is not below the best
    time, and it was not kept or nothing fits.
    """
    candidates = [Screens.empty()[COLUMNS].assign(chosen="", lot=0.0)]
    limit_s = np.inf if best is None else float(best["time_per_batch_s"]) * (1.0 - EQUAL)
    for shard, screen in screens:
        inside = places_of(screen["architecture"], shards[shard]) >= 0
        lower = screen["lower_s"].to_numpy()
        unsolved = ~screen["kept"].to_numpy(np.bool_) | (lower == np.inf)
        rows = np.flatnonzero(inside & unsolved & (lower >= limit_s))
        lot = _lots(screen, shard, seed)
        first = _least(lot, rows, points)
        candidates += [
            screen.iloc[_rows_of(screen, best)].assign(chosen="best", lot=0.0),
            screen.iloc[_least(lower, rows, 1)].assign(chosen="nearest", lot=0.0),
            screen.iloc[first].assign(chosen="drawn", lot=lot[first]),
        ]
    return _chosen(pd.concat(candidates, ignore_index=True), points)


def _lots(screen: pd.DataFrame, shard: str, seed: int) -> Floats:
    """Random number for each row, which does not depend on the other rows or on the exclusions."""
    if not len(screen):
        return np.empty(0)
    layout, name = layout_of(screen), f"{screen['model'].iloc[0]}/{shard}".encode()
    # Seeded by what identifies the table, so that another layout or shard has other numbers.
    return np.random.default_rng([seed, layout.tp, layout.microbatch, *name]).random(len(screen))


def _least(values: Floats, rows: Ints, points: int) -> Ints:
    """The first `points` rows in order of their values, ties by position."""
    if points < len(rows):
        # Selecting is linear, sorting is not: only the least values, with all ties, are sorted.
        most = np.partition(values[rows], points)[points]
        rows = rows[values[rows] <= most]
    return rows[np.argsort(values[rows], kind="stable")[:points]]


def _rows_of(screen: pd.DataFrame, best: pd.Series | None) -> Ints:
    """Row index of the best design point in table `screens`; empty if the table does not contain it."""
    if best is None:
        return np.empty(0, dtype=np.int64)
    # Names are compared last, on the few rows left: comparing strings is slow.
    keys = ["layout", "hbm_gib", "recompute"]
    rows = np.flatnonzero((screen[keys] == best[keys]).all(axis=1))
    return np.asarray(rows[(screen["architecture"].iloc[rows] == best["architecture"]).to_numpy()])


def _chosen(candidates: pd.DataFrame, points: int) -> pd.DataFrame:
    """Rows of the best point, of the excluded one with the smallest lower bound, and of the sample.

    A point occurs once. The sample has the first `points` drawn rows in order of their lots.
    """
    drawn = candidates[candidates["chosen"] == "drawn"]
    chosen = [
        candidates[candidates["chosen"] == "best"],
        candidates[candidates["chosen"] == "nearest"].sort_values("lower_s", kind="stable").head(1),
        drawn.sort_values("lot", kind="stable").head(points),
    ]
    rows = pd.concat(chosen)[[*COLUMNS, "chosen"]]
    return rows.drop_duplicates(COLUMNS[:5], ignore_index=True)
