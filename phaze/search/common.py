"""Best common architecture of several models.

The common architecture fixes the architecture and the HBM size; microbatch, TMP width, recompute and
placement are chosen per model. With X_m(a, h) the best throughput of model m on architecture a with HBM size
h, and weights w_m, it maximises one of
    mean:        sum_m w_m X_m / sum_m w_m                    (Algorithm 1, avg_across_models)
    normalised:  the same with X_m / max_{a,h} X_m, the fraction of the model's own best throughput
    geometric:   exp(sum_m w_m ln X_m / sum_m w_m)            (a reference would not change the order)
over the architectures that train every model that at least one architecture trains. Models that no
architecture trains are ignored. (Memory decides this, and a larger HBM fits everything a smaller one fits.
Without this rule the plain mean, which the smallest model dominates, would choose an HBM on which the largest
model does not run.)

Bounds lower_s and feasible_s on the time per batch bound X_m from above and below. Each mean increases in
every X_m, and the reference max X_m lies between the largest lower and the largest upper bound. A mean of the
bounds is therefore a bound on the mean. With 1 / mean as the time per batch, `stage.could_matter` keeps every
architecture that could be among the `best` best or the smallest within the tolerance, by the same proof; here
one call sees all shards at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats
from phaze.base.ranking import Ranks, name_ranks, order, smallest, within
from phaze.search.stage import could_matter
from phaze.spec.names import Mean

AT = ["architecture", "hbm_gib"]


def common_candidates(
    screens: Iterable[pd.DataFrame],
    architectures: pd.DataFrame,
    weights: Mapping[str, float],
    *,
    mode: Mean,
    global_batch: int,
    best: int,
    tolerance: float,
    area_limit_um2: float = np.inf,
) -> pd.DataFrame:
    """Candidates (architecture, hbm_gib) for the best common architecture, with bounds on mean throughput.

    `screens` are tables of any models, TMP widths, microbatches and shards, read one at a time; `weights`
    names the models. Columns lower and upper bound the mean of samples/s. Named architectures beyond the area
    limit are not candidates. The other named ones exclude no architecture, because they may repeat one of the
    grid.
    """
    lower_s, feasible_s = best_times(screens, list(weights))
    slow, fast = global_batch / feasible_s, global_batch / lower_s
    means = {"lower": mean_of(slow, weights, mode, fast), "upper": mean_of(fast, weights, mode, slow)}
    chips = architectures.drop_duplicates("architecture").set_index("architecture")
    bounds = (
        pd.DataFrame(means).join(chips[["area_um2", "named"]], on="architecture", how="inner").reset_index()
    )
    bounds = bounds[bounds["area_um2"] <= area_limit_um2 * (1.0 + 1e-9)]
    candidates = [rows[_could_matter(rows, best, tolerance)] for _, rows in bounds.groupby("hbm_gib")]
    return pd.concat(candidates or [bounds], ignore_index=True)[["architecture", "hbm_gib", "lower", "upper"]]


def _could_matter(bounds: pd.DataFrame, best: int, tolerance: float) -> Bools:
    """Mask of the rows of one HBM size that no searched architecture provably excludes."""
    named, names = bounds["named"].to_numpy(np.bool_), name_ranks(bounds["architecture"])
    area = bounds["area_um2"].to_numpy(np.float64)
    fast, slow = _cost(bounds["upper"]), _cost(bounds["lower"])
    flagged = np.zeros(len(bounds), dtype=np.bool_)
    searched = np.flatnonzero(~named)
    for members in (searched, *(np.append(searched, place) for place in np.flatnonzero(named))):
        flags = could_matter(
            fast[members], slow[members], area[members], names[members], best=best, tolerance=tolerance
        )
        fresh = slice(None) if members is searched else slice(-1, None)
        flagged[members[fresh]] = flags[fresh]
    return flagged


def best_times(screens: Iterable[pd.DataFrame], models: list[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Minimum lower and feasible times per batch: rows (architecture, hbm_gib), one column per model."""
    shards: list[_ShardTimes] = []
    for screen in screens:
        points = next((point for point in reversed(shards) if point.has_rows_of(screen)), None)
        if points is None:
            points = _ShardTimes.of(screen)
            shards.append(points)
        points.add(screen)
    every = (
        pd.concat([point.rows() for point in shards], ignore_index=True)
        if shards
        else pd.DataFrame({"model": []})
    )
    if missing := [model for model in models if not (every["model"] == model).any()]:
        raise ValueError(f"no screens of the models {missing}")
    least = {m: every[every["model"] == m].groupby(AT)[["lower_s", "feasible_s"]].min() for m in models}
    lower = pd.DataFrame({model: least[model]["lower_s"] for model in models})
    return lower.fillna(np.inf), pd.DataFrame({m: least[m]["feasible_s"] for m in models}).fillna(np.inf)


@dataclass
class _ShardTimes:
    """Minimum times over all screening tables of one shard, which have the same rows."""

    keys: pd.DataFrame
    starts: Ranks
    """First row of every block of consecutive rows with equal model, architecture and HBM size."""
    lower_s: Floats
    feasible_s: Floats

    @classmethod
    def of(cls, screen: pd.DataFrame) -> _ShardTimes:
        """Start with infinite times, for all screening tables with the same rows as this one."""
        keys = screen[["model", *AT]]
        codes = np.stack([pd.factorize(keys[name])[0] for name in keys])
        starts = np.flatnonzero(np.diff(codes, axis=1, prepend=-1).any(axis=0))
        nothing = np.full(len(starts), np.inf)
        return cls(keys, starts, nothing, nothing)

    def has_rows_of(self, screen: pd.DataFrame) -> bool:
        """True if a screening table has the same rows."""
        return all(self.keys[name].equals(screen[name]) for name in self.keys)

    def add(self, screen: pd.DataFrame) -> None:
        """Update the minimum times with one screening table."""
        if len(screen):
            lower, feasible = (screen[name].to_numpy(np.float64) for name in ("lower_s", "feasible_s"))
            self.lower_s = np.minimum(self.lower_s, np.minimum.reduceat(lower, self.starts))
            self.feasible_s = np.minimum(self.feasible_s, np.minimum.reduceat(feasible, self.starts))

    def rows(self) -> pd.DataFrame:
        """Minimum times, one row per block of consecutive rows with the same keys."""
        return self.keys.iloc[self.starts].assign(lower_s=self.lower_s, feasible_s=self.feasible_s)


def mean_of(
    samples_per_s: pd.DataFrame,
    weights: Mapping[str, float],
    mode: Mean,
    reference: pd.DataFrame | None = None,
) -> pd.Series:
    """Mean throughput over the models; 0 for rows that cannot train a model that another row can train.

    A normalised mean divides by the maximum of the throughputs in `reference`, by default `samples_per_s`.
    """
    trained = samples_per_s.columns[(samples_per_s > 0).any()]
    share = pd.Series({model: weights[model] for model in trained}, dtype=np.float64)
    share, throughput = share / share.sum(), samples_per_s[trained]
    if mode == "normalised":
        throughput = throughput / (samples_per_s if reference is None else reference)[trained].max()
    if mode == "geometric":
        with np.errstate(divide="ignore"):
            mean = np.exp(np.log(throughput) @ share)
    else:
        mean = throughput @ share
    complete: pd.Series = mean.where((throughput > 0).all(axis=1), 0.0)
    return complete


def choose_common(
    placements: pd.DataFrame,
    architectures: pd.DataFrame,
    weights: Mapping[str, float],
    *,
    mode: Mean,
    tolerance: float,
    reference: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Common architectures, ranked by the mean throughput of their exact placements.

    Rows (architecture, hbm_gib) have their `mean` and area and the columns best_of_hbm (the best of its HBM
    size), smallest_of_hbm (the smallest area within the tolerance of that best) and chosen (the best of the
    smallest HBM size within the tolerance of the overall best). `reference` gives every model's best
    samples/s for a normalised mean.
    """
    exact = (
        placements[placements["planner"] == "phaze"]
        .groupby(["architecture", "hbm_gib", "model"])["samples_per_s"]
        .max()
        .unstack()
        .reindex(columns=list(weights))
        .fillna(0.0)
    )
    at_best = None if reference is None else pd.DataFrame([reference])
    ranked = mean_of(exact, weights, mode, at_best).rename("mean").reset_index()
    areas = architectures.drop_duplicates("architecture").set_index("architecture")["area_um2"]
    ranked["area_um2"] = ranked["architecture"].map(areas)
    return _marked(ranked, tolerance)


def _marked(ranked: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    """Sort rows from best to worst and add the mark columns of `choose_common`."""
    area, name = ranked["area_um2"].to_numpy(), name_ranks(ranked["architecture"])
    ranked = ranked.iloc[order(_cost(ranked["mean"]), area, name)].reset_index(drop=True)
    ranked = ranked.assign(best_of_hbm=~ranked.duplicated("hbm_gib"), smallest_of_hbm=False, chosen=False)
    ranked["best_of_hbm"] &= ranked["mean"] > 0
    for _, group in ranked.groupby("hbm_gib"):
        place = smallest(
            _cost(group["mean"]), group["area_um2"].to_numpy(), name_ranks(group["architecture"]), tolerance
        )
        if place is not None:
            ranked.loc[group.index[place], "smallest_of_hbm"] = True
    near = ranked["best_of_hbm"] & within(_cost(ranked["mean"]), tolerance)
    if near.any():
        ranked.loc[ranked.loc[near, "hbm_gib"].idxmin(), "chosen"] = True
    return ranked


def _cost(mean: pd.Series) -> Floats:
    """1 / mean, a cost that orders rows like the time per batch."""
    with np.errstate(divide="ignore"):
        return 1.0 / mean.to_numpy(dtype=np.float64)
