"""A plan simulated event by event as rows of tables simulations and simulation_stages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from phaze.base.units import GIB
from phaze.plan.plan import read_plan
from phaze.plan.replay import Replay, assumed_s, replay

Row = dict[str, str | int | float | bool]


def replayed_rows(row: Row, stages: pd.DataFrame) -> tuple[Row, list[Row]]:
    """Return rows of tables simulations and simulation_stages, without their key.

    A plan is given by its rows in tables plans and plan_stages.
    """
    found = replay(read_plan(pd.Series(row), stages))
    return simulation_row(found), list(simulated_stages(found, float(row["hbm_gib"]) * GIB))


def simulation_row(found: Replay) -> Row:
    """Return the row of table simulations, without its key."""
    peaks, bound = found.timeline.peak_bytes, found.bound_by
    return {
        "schedule": found.plan.schedule,
        "planned_s": found.plan.planned_s,
        "assumed_s": assumed_s(found.plan),
        **found.parts,
        "simulated_s": found.simulated_s,
        "samples_per_s": found.samples_per_s,
        "compute_share": found.compute_share,
        "exposed_communication_share": found.exposed_share,
        "bubble_share": 1.0 - found.compute_share - found.exposed_share,
        "hbm_share": found.mean(found.hbm_shares),
        "link_share": found.mean([use.total for use in found.link_shares]),
        "peak_bytes": float(peaks.max()),
        "fullest_stage": int(np.argmax(peaks)),
        "bound_by": bound.resource,
        "bound_stage": bound.group,
    }


def simulated_stages(found: Replay, hbm_bytes: float) -> Iterator[Row]:
    """Yield the rows of table simulation_stages, without their key."""
    groups = [group for group, _ in found.timeline.pipeline.workers]
    for q, (busy, peak) in enumerate(zip(found.busy_s, found.timeline.peak_bytes.tolist(), strict=True)):
        link = found.link_shares[q]
        yield {
            "stage": q,
            "busy_s": busy,
            "busy_share": busy / found.simulated_s,
            "hbm_share": found.hbm_shares[q],
            "link_share": link.total,
            "slices_link_share": link.slices,
            "stages_link_share": link.stages,
            "replicas_link_share": link.replicas,
            "in_flight": found.timeline.most_in_flight(groups.index(q)),
            "peak_bytes": peak,
            "headroom_bytes": hbm_bytes - peak,
        }
