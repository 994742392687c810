"""Architecture search by descending area with hysteresis (paper, Algorithm 1, C.1 `check_converge`).

Architectures are visited by decreasing area. Areas within a band of `area_band_um2` count as one area, with
the best throughput of its architectures. After band j (from 0) let r_j be the length of the longest run
of strictly decreasing band throughputs that ends at band j. Algorithm 1 with hysteresis H ends the walk
after the first band j with more than H bands explored and the last H throughputs in decreasing order:

    j + 1 > H  and  r_j >= H,    that is    H <= min(j, r_j).

The paper leaves some choices open; these are phaze's. *Decreasing* is strict (C.1 asks for areas that "show a
reduction"): equal throughputs (to the grid of `base.ranking`) are not a reduction, and neither are two areas
without any placement. A single value is in decreasing order, so hysteresis 1 ends after the second band. A
walk that never converges ends with the last architecture. The result is the best visited architecture by
throughput, then area, then name.

A walk that ends for H ends for every smaller hysteresis then or earlier, so the walk of the largest level
contains all others: `level` of a step is the smallest hysteresis whose walk visits it, 1 + max_{j<k} min(j,
r_j) in band k.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.ranking import Ranks, tied
from phaze.tables import Visits

Evaluate = Callable[[pd.DataFrame], pd.DataFrame]
"""Function from rows of table `architectures` to samples_per_s and hbm_gib; 0 without a placement."""


def walk_areas(
    architectures: pd.DataFrame,
    evaluate: Evaluate,
    *,
    model: str,
    hysteresis: int,
    area_band_um2: float,
    chunk: int = 256,
) -> pd.DataFrame:
    """Table of architectures in the order in which the descending-area search visits them.

    Architectures are evaluated in chunks of whole bands: at least `chunk` at a time, and more as the walk
    gets longer, because a large chunk costs little more than a single architecture. Architectures beyond the
    end of the walk are dropped from the visits.
    """
    by_area = _by_decreasing_area(architectures, area_band_um2)
    visited: list[pd.DataFrame] = []
    for bands in _chunks(by_area, chunk):
        visited.append(evaluated(bands, evaluate))
        walk = _with_levels(pd.concat(visited, ignore_index=True))
        if (walk["level"] > hysteresis).any() or len(walk) == len(by_area):
            break
    return _visits(walk[walk["level"] <= hysteresis], model)


def evaluated(architectures: pd.DataFrame, evaluate: Evaluate) -> pd.DataFrame:
    """Architectures with their best throughput, and with the HBM size that reaches it as `hbm_gib`."""
    best = evaluate(architectures)
    others = architectures[architectures.columns.difference(best.columns, sort=False)]
    return others.join(best, on="architecture", validate="one_to_one")


def _by_decreasing_area(architectures: pd.DataFrame, width: float) -> pd.DataFrame:
    """One row per architecture: largest band first, then largest area, then name."""
    rows = architectures.drop_duplicates("architecture")
    rows = rows.assign(band=np.floor(rows["area_um2"] / width).astype("int64"))
    return rows.sort_values(["area_um2", "architecture"], ascending=[False, True], ignore_index=True)


def _chunks(by_area: pd.DataFrame, least: int) -> Iterator[pd.DataFrame]:
    """Yield chunks of whole area bands: at least `least` architectures, and no fewer than already yielded."""
    ends = np.flatnonzero(np.diff(by_area["band"], append=-1)) + 1
    start = 0
    while start < len(by_area):
        least_end = min(start + max(least, start), len(by_area))
        end = int(ends[np.searchsorted(ends, least_end)])
        yield by_area.iloc[start:end]
        start = end


def _with_levels(walk: pd.DataFrame) -> pd.DataFrame:
    """Add to each visited architecture the smallest hysteresis that lets the search reach its area band."""
    band = (walk["band"] != walk["band"].shift()).cumsum().to_numpy() - 1
    levels = levels_of(walk["samples_per_s"].groupby(band).max().to_numpy())
    return walk.assign(level=levels[band])


def levels_of(band_throughput: Floats) -> Ranks:
    """Smallest hysteresis with which the search visits each area band (see the module docstring)."""
    bands = np.arange(len(band_throughput))
    falls = np.diff(tied(band_throughput), prepend=tied(band_throughput[:1])) < 0
    run = bands - np.maximum.accumulate(np.where(falls, -1, bands)) + 1
    ended = np.maximum.accumulate(np.minimum(bands, run))
    return np.concatenate(([1], ended[:-1] + 1))


def _visits(walk: pd.DataFrame, model: str) -> pd.DataFrame:
    """Table `visits` of the visited architectures, with the best throughput found so far at each visit."""
    return Visits.check(
        walk.assign(
            model=model,
            step=np.arange(len(walk)),
            pes=walk["pe_x"] * walk["pe_y"],
            best_so_far=walk["samples_per_s"].cummax(),
        )[list(Visits.fields())]
    )
