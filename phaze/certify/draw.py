"""Which points to solve again: the best, the excluded one with the largest bound, and others by lot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from phaze.certify.space import Shard, places_of
from phaze.certify.stage import EQUAL
from phaze.tables import Screens

COLUMNS = [
    "model", "tensor", "microbatch", "architecture", "hbm_gib", "recompute", "lower_s", "feasible_s", "kept",
]  # fmt: skip
"""Columns of table screens that a draw needs."""
EXCLUDED = ["memory", "work", "path", "combined", "tied"]
"""Columns of table certificates that count what was excluded."""


def share_out(excluded: Mapping[str, int], points: int, least: int = 3) -> dict[str, int]:
    """Return how many points to draw from every model, in proportion to what was excluded of each.

    They sum up to `points`, unless fewer were excluded or `least` for every model are more.
    """
    total = sum(excluded.values())
    if not total:
        return dict.fromkeys(excluded, 0)
    exact = {model: points * number / total for model, number in excluded.items()}
    shares = {model: min(max(int(exact[model]), least), number) for model, number in excluded.items()}
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
    """Return rows of table screens with the reason why each was `chosen`, the first where several apply.

    `screens` are those of all TMP widths and microbatches of a model, read one at a time, each with its
    shard; `best` is the best placement. Excluded are the rows in the space whose lower bound is not below
    the best time, if they were not kept or nothing fits.
    """
    found = [Screens.empty()[COLUMNS].assign(chosen="", lot=0.0)]
    limit_s = np.inf if best is None else float(best["time_per_batch_s"]) * (1.0 - EQUAL)
    for number, (shard, screen) in enumerate(screens):
        inside = places_of(screen["architecture"], shards[shard]) >= 0
        lower = screen["lower_s"].to_numpy()
        unsolved = ~screen["kept"].to_numpy(np.bool_) | (lower == np.inf)
        rows = np.flatnonzero(inside & unsolved & (lower >= limit_s))
        lot = np.random.default_rng([seed, number]).random(len(rows))
        first = np.argsort(lot, kind="stable")[:points]
        nearest = rows[np.argsort(lower[rows], kind="stable")[:1]]
        found += [
            screen[_is_point(screen, best)].assign(chosen="best", lot=0.0),
            screen.iloc[nearest].assign(chosen="nearest", lot=0.0),
            screen.iloc[rows[first]].assign(chosen="drawn", lot=lot[first]),
        ]
    return _chosen(pd.concat(found, ignore_index=True), points)


def _is_point(screen: pd.DataFrame, best: pd.Series | None) -> NDArray[np.bool_]:
    """Return which rows are the best point."""
    if (
        best is None
        or len(screen) == 0
        or any(screen[k].iloc[0] != best[k] for k in ("tensor", "microbatch"))
    ):
        return np.zeros(len(screen), dtype=np.bool_)
    same: NDArray[np.bool_] = (screen[COLUMNS[3:6]] == best[COLUMNS[3:6]]).all(axis=1).to_numpy()
    return same


def _chosen(found: pd.DataFrame, points: int) -> pd.DataFrame:
    """Return the best, the nearest of the nearest and the first by lot, each point once."""
    drawn = found[found["chosen"] == "drawn"]
    kept = [
        found[found["chosen"] == "best"],
        found[found["chosen"] == "nearest"].sort_values("lower_s", kind="stable").head(1),
        drawn.sort_values("lot", kind="stable").head(points),
    ]
    rows = pd.concat(kept)[[*COLUMNS, "chosen"]]
    return rows.drop_duplicates(COLUMNS[:6], ignore_index=True)
