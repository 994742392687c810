"""Screen the architectures of a shard for one model in one layout."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats
from phaze.base.ranking import name_ranks
from phaze.base.units import GIB
from phaze.pipeline.flushing import Setting
from phaze.plan.phaze.energy import Batch, Rates
from phaze.search.bounds import Bounds, bound_energies, bound_layers, bound_times, least_energies, read_runs
from phaze.search.select import could_matter
from phaze.spec.architecture import EnergyFigures
from phaze.spec.settings import ScreenSettings, Training
from phaze.spec.system import Scenario
from phaze.tables import Screens
from phaze.tables.columns import layout_of


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
    """Return table screens: bounds for every architecture, HBM size and recompute, and what to keep.

    Kept is what `select` cannot exclude at some HBM size, with or without recomputation as is faster, and
    every named architecture; all rows of an architecture say the same. Named architectures exclude no one,
    because they may lie outside the area limit or repeat an architecture of the grid. Where nothing fits any
    searched one, the smallest of them is kept, so that its placement says why.

    With strategy hysteresis, only what the walk of that hysteresis saw is kept and excludes others; `visits`
    is its table, or that of a longer walk.
    """
    layout = layout_of(layers)
    shard = architectures.sort_values("architecture", ignore_index=True)
    passes = bound_layers(operators, edges, estimates, shard, overlap_communication=overlap_communication)
    runs, names = read_runs(layers, graph, training)
    grid = memory_grid(training)
    asked = pipeline_settings(scenario, training, layout.microbatch)
    times = bound_times(runs, names, passes, layout.tp, asked)
    energies = least_energies(operators, estimates, shard)
    area = shard["area_um2"].to_numpy(np.float64)
    joules = bound_energies(
        runs,
        names,
        passes,
        energies,
        times,
        area,
        layout.tp,
        asked,
        Batch(layout.microbatch, scenario.global_batch),
        Rates.of(energy),
    )
    kept = choose_kept(times, shard, _seen(shard, settings, visits), grid, settings)
    point = {"model": layers["model"].iloc[0], "layout": layout.key}
    return Screens.check(_rows(times, joules, shard, grid, kept).assign(**point)[list(Screens.fields())])


def _seen(shard: pd.DataFrame, settings: ScreenSettings, visits: pd.DataFrame | None) -> Bools:
    """Return which architectures the strategy looks at."""
    if settings.strategy == "certified":
        return np.ones(len(shard), dtype=np.bool_)
    if visits is None:
        raise ValueError("strategy hysteresis needs the visits of the walk down the areas")
    walked = visits.loc[visits["level"] <= settings.hysteresis, "architecture"]
    return shard["architecture"].isin(walked).to_numpy(np.bool_)


def memory_grid(training: Training) -> list[tuple[float, bool]]:
    """Return every HBM size with and without recomputation, as far as they are considered."""
    return list(product(sorted(training.hbm_gib), sorted(training.recompute)))


def pipeline_settings(scenario: Scenario, training: Training, microbatch: int) -> list[Setting]:
    """Return what placements have to respect, in the order of `memory_grid`."""
    return [
        Setting(
            devices=scenario.devices,
            microbatches=scenario.global_batch // microbatch,
            bandwidth_bytes_per_s=scenario.network_bandwidth_bytes_per_s,
            memory_bytes=hbm_gib * GIB,
            recompute=recompute,
            schedule=training.schedule,
            gradients=training.gradients,
            all_reduce_factor=scenario.all_reduce_factor,
        )
        for hbm_gib, recompute in memory_grid(training)
    ]


def choose_kept(
    times: Bounds,
    shard: pd.DataFrame,
    seen: Bools,
    grid: list[tuple[float, bool]],
    settings: ScreenSettings,
) -> Bools:
    """Return which architectures to keep, the seen and the named, by bounds (settings, A) on their times."""
    area, name = shard["area_um2"].to_numpy(np.float64), name_ranks(shard["architecture"])
    kept = shard["named"].to_numpy(np.bool_, copy=True)
    searched = np.flatnonzero(seen & ~kept)
    for size in sorted({hbm_gib for hbm_gib, _ in grid}):
        rows = [c for c, (hbm_gib, _) in enumerate(grid) if hbm_gib == size]
        kept[searched] |= could_matter(
            times.lower_s[rows].min(axis=0)[searched],
            times.feasible_s[rows].min(axis=0)[searched],
            area[searched],
            name[searched],
            best=settings.best,
            tolerance=settings.tolerance,
        )
    if not kept[searched].any():
        kept[searched[np.lexsort((name[searched], area[searched]))[:1]]] = True
    return kept


def _rows(
    times: Bounds, joules: Floats, shard: pd.DataFrame, grid: list[tuple[float, bool]], kept: Bools
) -> pd.DataFrame:
    """Return one row for every architecture, HBM size and recompute."""
    hbm_gib, recompute = zip(*grid, strict=True)
    return pd.DataFrame(
        {
            "architecture": shard["architecture"].repeat(len(grid)),
            "hbm_gib": np.tile(np.array(hbm_gib, dtype=np.float64), len(shard)),
            "recompute": np.tile(np.array(recompute, dtype=np.bool_), len(shard)),
            "lower_s": times.lower_s.T.ravel(),
            "feasible_s": times.feasible_s.T.ravel(),
            "lower_j": np.where(np.isfinite(times.lower_s), joules, np.inf).T.ravel(),
            "kept": np.repeat(kept, len(grid)),
        }
    )
