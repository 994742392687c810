"""Screen the architectures of a shard for one model in one layout.

The screen uses bounds on their time per batch to find the architectures that the report may still need.

Let every architecture a of a shard have an unknown exact time T(a) with lower(a) <= T(a) <= feasible(a). The
report asks, for some HBM size, for
(1) the `best` first architectures in the order (T, area, name), and
(2) the smallest one in the order (area, T, name) with T <= theta, for the theta that 1 % (the tolerance)
    allows.

*A dropped architecture cannot matter.* Architecture a is dropped when both hold:

(1) `best` architectures b have (feasible(b), area(b), name(b)) before (lower(a), area(a), name(a)). Then
    (T(b), area(b), name(b)) is before (T(a), area(a), name(a)) for each of them at any exact times, and a is
    not among the first `best`.
(2) Either lower(a) > min feasible / (1 - tolerance): then T(a) is beyond every theta <= min T / (1 -
    tolerance). Or some b has a smaller area and feasible(b) <= lower(a), or the same area and feasible(b) <
    lower(a). For every theta with T(a) <= theta also T(b) <= feasible(b) <= lower(a) <= T(a) <= theta, and b
    comes before a.

*A shard is enough for the whole study.* The report takes T(a) = min over microbatches, TMP widths and
recompute of the times T_p(a) of the points p, over the architectures of all shards. Let a be part of its
answer, and T(a) = T_p(a).
(1) At point p and in a's own shard, every b that precedes a by (T_p(b), area, name) precedes it by (T(b),
    area, name) as well, because T(b) <= T_p(b). So fewer than `best` do, and a is kept there.
(2) The report's theta, from the best of all points and shards, is at most that of point p and of the shard.
    So (2) above holds for it, with T_p(b) in the place of T(b) <= T_p(b): a would not be the smallest if it
    were dropped. This is why (2) compares with every smaller architecture and not only with those surely
    within 1 % of the shard's best. Another shard may contain a better architecture, so that b is no longer
    within 1 % of the best but a still is.
So the row that makes a an answer is kept. Dropped rows can only make other architectures look slower than
they are, which puts none of them before an answer. The same argument, with HBM sizes in the place of points,
lets the report take the best over HBM sizes: rules (1) and (2) are applied to each size separately.

Times are compared on the grid of `base.ranking`, after widening the bounds by more than the rounding errors.
"""

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats
from phaze.base.ranking import Ranks, limit_of, name_ranks, tied
from phaze.cost.memory import parameter_bytes
from phaze.formulas.flushing import Setting
from phaze.formulas.phaze.chains import read_runs
from phaze.formulas.phaze.energy import Batch, Rates
from phaze.search.bounds import Bounds, bound_energies, bound_layers, bound_times, least_energies, least_of
from phaze.spec.architecture import EnergyFigures
from phaze.spec.settings import ScreenSettings, Training
from phaze.spec.system import Scenario
from phaze.tables import Architectures, Screens
from phaze.tables.columns import layout_of

NOISE = 1e-12
"""Relative rounding error between sums of the same latencies in different orders."""


def screen_architectures(
    operators: pd.DataFrame,
    edges: pd.DataFrame,
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    estimates: pd.DataFrame,
    architectures: pd.DataFrame,
    scenario: Scenario,
    training: Training,
    settings: ScreenSettings,
    energy: EnergyFigures,
    *,
    overlap_communication: bool = False,
    visits: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Table `screens`: bounds for every architecture, HBM size and recompute, and the architectures to keep.

    An architecture with its own HBM size has only this one.
    An architecture is kept if it is named, or if `could_matter` cannot exclude it at some HBM size with the
    faster choice of recomputation. All rows of an architecture have the same flag. Named architectures
    exclude no other, because they may lie outside the area limit or repeat an architecture of the grid. If
    nothing fits any searched architecture, the smallest of them is kept, so that its placement gives the
    reason.

    With strategy hysteresis, only architectures visited by the walk of that hysteresis are kept or exclude
    others; `visits` is its table, or the table of a longer walk.
    """
    layout = layout_of(layers)
    shard = architectures.sort_values("architecture", ignore_index=True)
    passes = bound_layers(operators, edges, estimates, shard, overlap_communication=overlap_communication)
    runs, names = read_runs(layers, graph, parameter_bytes(training.optimizer, training.precision))
    considered = training.with_sizes(shard["hbm_gib"].unique())
    grid = considered.memory_grid
    settings_read = Setting.grid(scenario, considered, layout)
    times = bound_times(runs, names, passes, layout, settings_read)
    having = Architectures.may_have(shard, training.hbm_gib, [hbm_gib for hbm_gib, _ in grid])
    times = Bounds(*(np.where(having, ends, np.inf) for ends in (times.lower_s, times.feasible_s)))
    energies = least_energies(operators, estimates, shard)
    area = shard["area_um2"].to_numpy(np.float64)
    joules = bound_energies(
        runs,
        least_of(names, passes, energies),
        times,
        area,
        settings_read,
        Batch(layout, scenario.global_batch),
        Rates.of(energy),
    )
    flags = choose_kept(times, shard, _seen(shard, settings, visits), grid, settings)
    point = {"model": layers["model"].iloc[0], "layout": layout.key}
    rows = _rows(times, joules, shard, grid, flags)[having.T.ravel()].reset_index(drop=True)
    return Screens.check(rows.assign(**point)[list(Screens.fields())])


def _seen(shard: pd.DataFrame, settings: ScreenSettings, visits: pd.DataFrame | None) -> Bools:
    """Mask of the architectures that the strategy visits."""
    if settings.strategy == "certified":
        return np.ones(len(shard), dtype=np.bool_)
    if visits is None:
        raise ValueError("strategy hysteresis needs the visits of the walk down the areas")
    walked = visits.loc[visits["level"] <= settings.hysteresis, "architecture"]
    return shard["architecture"].isin(walked).to_numpy(np.bool_)


def choose_kept(
    times: Bounds, shard: pd.DataFrame, seen: Bools, grid: list[tuple[float, bool]], settings: ScreenSettings
) -> Bools:
    """Mask of the architectures to keep: the named ones, and visited ones that the report may need.

    `times` are bounds (settings, A) on the time per batch.
    """
    area, name = shard["area_um2"].to_numpy(np.float64), name_ranks(shard["architecture"])
    flags = shard["named"].to_numpy(np.bool_, copy=True)
    searched = np.flatnonzero(seen & ~flags)
    for size in sorted({hbm_gib for hbm_gib, _ in grid}):
        rows = [c for c, (hbm_gib, _) in enumerate(grid) if hbm_gib == size]
        flags[searched] |= could_matter(
            times.lower_s[rows].min(axis=0)[searched],
            times.feasible_s[rows].min(axis=0)[searched],
            area[searched],
            name[searched],
            best=settings.best,
            tolerance=settings.tolerance,
        )
    if not flags[searched].any():
        flags[searched[np.lexsort((name[searched], area[searched]))[:1]]] = True
    return flags


def _rows(
    times: Bounds, joules: Floats, shard: pd.DataFrame, grid: list[tuple[float, bool]], flags: Bools
) -> pd.DataFrame:
    """Rows of table `screens`, one for every architecture, HBM size and recompute option."""
    hbm_gib, recompute = zip(*grid, strict=True)
    return pd.DataFrame(
        {
            "architecture": shard["architecture"].repeat(len(grid)),
            "hbm_gib": np.tile(np.array(hbm_gib, dtype=np.float64), len(shard)),
            "recompute": np.tile(np.array(recompute, dtype=np.bool_), len(shard)),
            "lower_s": times.lower_s.T.ravel(),
            "feasible_s": times.feasible_s.T.ravel(),
            "lower_j": np.where(np.isfinite(times.lower_s), joules, np.inf).T.ravel(),
            "kept": np.repeat(flags, len(grid)),
        }
    )


def could_matter(
    lower_s: Floats, feasible_s: Floats, area_um2: Floats, name: Ranks, *, best: int, tolerance: float
) -> Bools:
    """Mask (A,) of architectures that may be among the `best` fastest or be the smallest within tolerance.

    `name` are their `ranking.name_ranks`. Architectures with an infinite lower bound (nothing fits) are never
    kept.
    """
    lower, feasible = tied(lower_s * (1.0 - NOISE)), tied(feasible_s * (1.0 + NOISE))
    first = ~_surely_behind(lower, feasible, area_um2, name, best)
    small = ~_surely_larger(lower, feasible, area_um2) & (lower <= limit_of(feasible, tolerance))
    result: Bools = np.isfinite(lower) & (first | small)
    return result


def _surely_behind(lower: Floats, feasible: Floats, area: Floats, name: Ranks, best: int) -> Bools:
    """Mask of architectures that certainly rank behind `best` others by (time, area, name)."""
    if best > len(lower):
        return np.zeros(len(lower), dtype=np.bool_)
    last = np.lexsort((name, area, feasible))[best - 1]
    return _after((lower, area, name), (feasible[last], area[last], name[last]))


def _after(keys: tuple[Floats, Floats, Ranks], key: tuple[float, float, int]) -> Bools:
    """Mask of the keys (time, area, name) that come lexicographically after a given key."""
    (time, area, name), (at_time, at_area, at_name) = keys, key
    later_name = (area == at_area) & (name > at_name)
    later_area = (area > at_area) | later_name
    result: Bools = (time > at_time) | ((time == at_time) & later_area)
    return result


def _surely_larger(lower: Floats, feasible: Floats, area: Floats) -> Bools:
    """Mask of architectures certainly beaten by one that is smaller and as fast, or as small and faster."""
    areas, group = np.unique(area, return_inverse=True)
    fastest = np.full(len(areas), np.inf)
    np.minimum.at(fastest, group, feasible)
    smaller = np.concatenate(([np.inf], np.minimum.accumulate(fastest)[:-1]))
    result: Bools = (smaller[group] <= lower) | (fastest[group] < lower)
    return result
