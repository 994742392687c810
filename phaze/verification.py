"""Points of a certificate solved again: scheduled, confirmed by integer programs, and placed by other code.

Schedules come from the stage `schedule` and are verified; that nothing is shorter is believed only where a
bound of `certify.plain` or an integer program says so. From there on everything is code of `certify`, which
shares none with the screen and with place.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from phaze.certify import Model, Slice, audit_points
from phaze.certify.plain import Pass, bound_piece, layer_of_piece, pieces_of, read_passes
from phaze.schedule import SolutionStore, schedule_layers
from phaze.schedule.confirm import confirm_schedule
from phaze.schedule.verify import find_faults
from phaze.spec.settings import ScheduleSettings
from phaze.theory.bounds import EQUAL
from phaze.theory.graphs import Layer, Schedule

Known = dict[bytes, tuple[float, float, float]]
"""Plain bound, proven bound and latency of pieces of layers, by content."""


def audit_slice(
    points: pd.DataFrame,
    one: Slice,
    model: Model,
    best_s: float,
    settings: ScheduleSettings,
) -> pd.DataFrame:
    """Return table audits for points of one slice.

    Where nothing is said to fit no latency matters: zeros find out whether something does.
    """
    fitting = points.loc[np.isfinite(points["lower_s"]), "architecture"]
    chips = one.architectures[one.architectures["architecture"].isin(fitting)]
    others = points.loc[~points["architecture"].isin(fitting), "architecture"].unique()
    passes = one.operators[["layer", "direction"]].drop_duplicates()
    idle = pd.DataFrame({"architecture": others}).merge(passes, how="cross")
    idle = idle.assign(plain_s=0.0, bound_s=0.0, exact_s=0.0, programs=0)
    found = [idle, solve_again(one, chips, settings)] if len(chips) else [idle]
    return audit_points(points, pd.concat(found, ignore_index=True), model, best_s)


def solve_again(one: Slice, chips: pd.DataFrame, settings: ScheduleSettings) -> pd.DataFrame:
    """Return between what the latency of every layer lies, for every architecture, layer and direction.

    Columns plain_s (bounded by code of `certify` alone), bound_s (the same with a program where that does not
    meet the schedule), exact_s (the schedule, verified) and programs (how many were needed).
    """
    kept = chips[["architecture"]].assign(kept=True)
    tables = one.operators, one.edges, one.estimates, chips
    _, schedules = schedule_layers(*tables, kept, settings, SolutionStore())
    runs = dict(list(schedules.groupby(["architecture", "layer", "direction"])))
    known: Known = {}
    passes = read_passes(*tables, overlap_communication=settings.overlap_communication)
    rows = [
        _confirm(each, runs[each.architecture, each.layer, each.direction], settings, known)
        for each in passes
    ]
    return pd.DataFrame(rows)


def _confirm(one: Pass, runs: pd.DataFrame, settings: ScheduleSettings, known: Known) -> dict[str, object]:
    """Return a row of `solve_again` from the runs of the operators."""
    runs = runs.sort_values("operator")
    start, end, core = (runs[column].to_numpy() for column in ("start_s", "end_s", "core"))
    if faults := find_faults(one.content, Schedule(start, end, core)):
        raise RuntimeError(f"{one.layer} on {one.architecture}: {'; '.join(faults)}")
    found, programs = np.zeros(3), 0
    for piece in pieces_of(one.content.core, one.content.edges):
        members = list(piece.operators)
        begin = float(start[members].min())
        schedule = Schedule(start[members] - begin, end[members] - begin, core[members])
        values = _values_of(layer_of_piece(one.content, piece), schedule, settings, known)
        found, programs = found + values, programs + int(values[1] > values[0])
    plain_s, bound_s, exact_s = found.tolist()
    names = {"architecture": one.architecture, "layer": one.layer, "direction": one.direction}
    return {**names, "plain_s": plain_s, "bound_s": bound_s, "exact_s": exact_s, "programs": programs}


def _values_of(
    layer: Layer, schedule: Schedule, settings: ScheduleSettings, known: Known
) -> tuple[float, float, float]:
    """Return plain bound, proven bound and latency of a piece, as known of an equal one."""
    numbers = np.concatenate([layer.latency_s, layer.latency_all_s, [layer.num_tc, layer.num_vc]])
    key = numbers.tobytes() + repr((layer.core, layer.edges)).encode()
    if key not in known:
        plain_s, exact_s = bound_piece(layer), schedule.latency_s
        if plain_s >= exact_s * (1.0 - EQUAL):
            known[key] = exact_s, exact_s, exact_s
        else:
            known[key] = plain_s, *confirm_schedule(layer, schedule, plain_s, settings)
    return known[key]
