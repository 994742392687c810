"""Place a model on every architecture that passed screening, for every HBM size and recompute option."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain as chained

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.formulas.even import place_evenly, place_expert
from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.chains import best_times
from phaze.formulas.phaze.flush import Infeasible, Placement, place_chain
from phaze.formulas.phaze.point import Conditions, Latencies, Point, TimedChip, read_devices, read_point
from phaze.formulas.phaze.reasons import why_not_stages
from phaze.formulas.phaze.rows import PlannerRun, placement_row, stage_rows
from phaze.layout import Layout
from phaze.tables import Placements, Stages

ROUNDING = 1e-9
"""Relative difference allowed between times of two algorithms whose sums round in different orders."""


def place_model(
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    screens: pd.DataFrame,
    conditions: Conditions,
    expert: Layout | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tables of placements and stages, for one model and layout on a shard of the architectures.

    Every architecture that the screen kept at some HBM size is placed at all of them. Named architectures
    also get the expert's placement, if its TMP width is that of the layout.
    """
    point = read_point(layers, graph, conditions)
    devices = read_devices(point, solves, architectures, screens, conditions)
    placements, stages = [], []
    runs = find_placements(point, devices, conditions)
    if expert is not None and expert.tp == point.layout.tp:
        named = [device for device in devices if device.named]
        runs = chained(runs, find_expert_placements(point, named, conditions, expert))
    for run in runs:
        placements.append(placement_row(point, run, conditions))
        stages.extend(stage_rows(point, run))
    return (
        pd.DataFrame(placements, columns=list(Placements.fields())),
        pd.DataFrame(stages, columns=list(Stages.fields())),
    )


def find_placements(point: Point, devices: list[TimedChip], conditions: Conditions) -> Iterator[PlannerRun]:
    """Yield the best placement for every device, HBM size and recompute option.

    A device with its own HBM size has only this one.
    """
    for hbm_gib in sorted({device.hbm_gib for device in devices}):
        members = [device for device in devices if device.hbm_gib == hbm_gib]
        yield from _find_placements(point, members, conditions.of_chip(hbm_gib))


def _find_placements(point: Point, devices: list[TimedChip], conditions: Conditions) -> Iterator[PlannerRun]:
    """Yield the placements of devices with the same HBM sizes."""
    settings = conditions.settings(point.layout)
    bounds = _best_times(point, [device.bounds for device in devices], settings)
    latencies = [device.latencies for device in devices]
    unlimited = _best_times(point, latencies, [_unlimited(settings[0])])
    # The slack lets the slower planner, which gives the stages, find the time of the faster one.
    times = _best_times(point, latencies, settings) * (1.0 + ROUNDING)
    reasons: dict[Setting, Infeasible] = {}
    for a, device in enumerate(devices):
        chain = point.runs.chain(*device.latencies)
        results = _place_all(chain, point.layout, settings, reasons, times[:, a])
        for c, setting in enumerate(settings):
            yield PlannerRun(
                device, chain, setting, "phaze", results[c], float(bounds[c, a]), float(unlimited[0, a])
            )


def _best_times(point: Point, latencies: list[Latencies], settings: list[Setting]) -> Floats:
    """Best time per batch for every setting and device."""
    forward, backward = np.swapaxes(np.array(latencies), 0, 1)
    return best_times(point.runs, forward, backward, point.layout, settings)


def _unlimited(setting: Setting) -> Setting:
    """Setting with unlimited memory, which needs no recomputation."""
    return replace(setting, memory_bytes=np.inf, recompute=False)


def _place_all(
    chain: Chain,
    layout: Layout,
    settings: list[Setting],
    reasons: dict[Setting, Infeasible],
    limits_s: Floats,
) -> list[Placement | Infeasible]:
    """Best placement for every setting; settings that differ only in memory come in descending order.

    Memory does not depend on latencies: `reasons` collects the infeasible settings for all devices. The best
    times are below the limits (settings,).
    """
    results: list[Placement | Infeasible] = []
    for c, setting in enumerate(settings):
        # Settings of a recompute option come with falling memory: a plan for more is often reused.
        larger = results[-1] if c > 0 and settings[c - 1].recompute == setting.recompute else None
        if setting in reasons:
            results.append(reasons[setting])
        else:
            limit_s = float(limits_s[c])
            fitting = _if_it_fits(larger, chain, setting)
            results.append(fitting or place_chain(chain, layout, setting, limit_s=limit_s))
        if isinstance(results[-1], Infeasible):
            reasons[setting] = results[-1]
    return results


def _if_it_fits(larger: Placement | Infeasible | None, chain: Chain, setting: Setting) -> Placement | None:
    """Optimal placement for a larger memory, reused if it also fits in this one; otherwise None."""
    if not isinstance(larger, Placement):
        return None
    fullest = setting.in_pipeline(larger.layout)
    # The best placement for more memory is the best for less as well, as long as it fits.
    return None if why_not_stages(chain.footprints, larger.starts, setting, fullest) else larger


def find_expert_placements(
    point: Point, devices: list[TimedChip], conditions: Conditions, expert: Layout
) -> Iterator[PlannerRun]:
    """Yield the hand-designed (expert) placement for each device and setting, best split and even split."""
    for device in devices:
        chain, bound_chain = point.runs.chain(*device.latencies), point.runs.chain(*device.bounds)
        for setting in conditions.of_chip(device.hbm_gib).settings(point.layout):
            for planner in ("expert", "expert-even"):
                result, bound, unlimited = (
                    _place_as(planner, point, chosen, expert, within)
                    for chosen, within in (
                        (chain, setting),
                        (bound_chain, setting),
                        (chain, _unlimited(setting)),
                    )
                )
                yield PlannerRun(device, chain, setting, planner, result, _time_s(bound), _time_s(unlimited))


def _place_as(
    planner: str, point: Point, chain: Chain, expert: Layout, setting: Setting
) -> Placement | Infeasible:
    if planner == "expert":
        return place_expert(chain, expert, setting)
    return place_evenly(chain, expert, setting, *point.repeated())


def _time_s(result: Placement | Infeasible) -> float:
    return result.time_s if isinstance(result, Placement) else np.inf
