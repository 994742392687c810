"""Mapped plans that agree with the toy plans, with invented gains."""

from __future__ import annotations

import pandas as pd

from phaze.tables import PlanMaps
from phaze.tables.plans import PLAN

SYSTEMS = {"tpu-v4": "16 × 8 × 8 torus", "a100-selene": "tree of 128 × 8"}
FACTORS = {
    "tpu-v4": {"cs-map": 1.10, "p2p-map": 1.05, "local-search": 1.08},
    "a100-selene": {"cs-map": 1.02, "p2p-map": 1.20, "blocks-of-2": 1.01},
}
"""Simulated time over the time without communication."""


def plan_maps(plans: pd.DataFrame) -> pd.DataFrame:
    """Return the table of mapped plans: Phaze's and Piper's where Phaze's is fastest."""
    placed = plans[plans["status"] == "placed"]
    rows: list[dict[str, object]] = []
    for _, mine in placed.groupby("model"):
        phaze = mine[mine["planner"] == "phaze"]
        best = phaze.iloc[int(phaze["time_per_sample_s"].argmin())]
        same = (mine["architecture"] == best["architecture"]) & (mine["hbm_gib"] == best["hbm_gib"])
        for _, plan in mine[same & mine["planner"].isin(["phaze", "piper"])].iterrows():
            rows += [row for system in SYSTEMS for row in _mapped(plan, system)]
    return PlanMaps.check(pd.DataFrame(rows))


def _mapped(plan: pd.Series, system: str) -> list[dict[str, object]]:
    alone = 0.8 * plan["time_per_sample_s"] * plan["microbatch"] * plan["microbatches"]
    factors = FACTORS[system]
    return [
        {
            **{name: plan[name] for name in PLAN}, "system": system, "way": way, "network": SYSTEMS[system],
            "devices": 1024, "lanes": 1, "workers": plan["degree"], "unit": 1, "alone_s": alone,
            "estimated_s": 1.1 * factor * alone, "simulated_s": factor * alone,
            "chosen": factor == min(factors.values()),
        }
        for way, factor in factors.items()
    ]  # fmt: skip
