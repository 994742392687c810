"""Plans by the design of the result that they are of; planners and parts of a time, for readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from phaze.report.winners import COMMON, PER_MODEL
from phaze.report.words import percent
from phaze.tables import PARTS, PLANNERS

if TYPE_CHECKING:
    from phaze.spec.study import Study

TITLES = {"phaze": "Phaze", "piper": "Piper", "equal": "equal stages", "expert": "experts"}
"""Planners, for readers."""
NAMES = {
    "imbalance_s": "imbalance",
    "bubbles_s": "bubbles",
    "transfers_s": "transfers",
    "synchronisation_s": "synchronisation",
    "contention_s": "contention",
}
"""Parts of what a simulated time differs from the planner's by, for readers."""
NEAR = 0.05
"""What times may differ by without a word about why."""
CHIP = ["model", "architecture", "hbm_gib"]


def titled(study: Study, results: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return what was found of plans of the accelerators in the results, once for each design of a result."""
    designs = {PER_MODEL, COMMON, study.architectures.baseline}
    plans = results.loc[results["design"].isin(designs), [*CHIP, "design"]].merge(found, on=CHIP)
    order = {name: place for place, name in enumerate(study.models)}
    rank = dict(zip(PLANNERS, range(4), strict=True)) | {PER_MODEL: 0, COMMON: 1}
    return plans.sort_values(
        ["model", "design", "planner"],
        key=lambda column: column.map(order if column.name == "model" else rank).fillna(2),
        kind="stable",
        ignore_index=True,
    )


def change(value: float) -> str:
    """Return a relative change, with a sign unless it is nothing."""
    text = percent(value)
    return text.removeprefix("-") if text in ("0.0 %", "-0.0 %") else ("+" if value > 0 else "") + text


def in_parts(row: pd.Series, least: float = 0.01) -> str:
    """Return what a simulated time differs from the planned by and where that comes from, largest part first.

    Parts are named where the times differ by more than `NEAR`, and if they are more than the least.
    """
    difference = row["simulated_s"] / row["planned_s"] - 1
    if abs(difference) <= NEAR:
        return change(difference)
    shares = {part: row[part] / row["planned_s"] for part in PARTS}
    named = [part for part in sorted(PARTS, key=lambda part: -abs(shares[part])) if abs(shares[part]) > least]
    return f"{change(difference)}: {', '.join(f'{NAMES[part]} {change(shares[part])}' for part in named)}"
