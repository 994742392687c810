"""The part of the report on what is recommended, beside the certified plan and Piper's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from phaze.report.designs import CHIP, NEAR, TITLES, change, in_parts
from phaze.report.document import Block, Items, Prose, Section, Sheet
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.recommend import CERTIFIED
from phaze.report.winners import PER_MODEL
from phaze.report.words import join, percent, seconds, times, widths
from phaze.tables.plans import PLAN

PLANS = {**TITLES, CERTIFIED: "certified", "piper": "Piper (no flush)"}
"""Whose plans they are, for readers."""
_ABOUT = (
    "The certificate is about the planner's formula. Recommended is the plan with the least simulated time, "
    "of the certified plan, equal stages and the experts' stages on the same accelerator."
)
_PIPER = (
    "Piper's plans do not flush the pipeline after a batch: they train with weights that are one batch stale "
    "(PipeDream-2BW), which is another training. So they are shown beside, and recommended only where the "
    "planner of the study is Piper's (place.planner: piper)."
)
_PARTS = (
    "Where times differ by more than 5 %, the parts of the difference are given, of the planned time. A "
    "positive synchronisation says that gradients are exchanged that the formula does not charge, a negative "
    "one that it charges more than links need, or what other stages hide. Imbalance, bubbles, transfers and "
    "contention are explained with the simulated plans below."
)


def recommended(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on recommended plans, for a study with simulated plans."""
    rows = findings.recommendations
    if rows.empty:
        return
    rows = rows.sort_values("design", key=lambda name: name != PER_MODEL, kind="stable")
    rows = rows.sort_values("model", key=lambda name: name.map(inputs.study.models.index), kind="stable")
    simulated = findings.simulations.set_index(list(PLAN))
    blocks: tuple[Block, ...] = (
        Items(tuple(_losses(rows[rows["design"] == PER_MODEL]))),
        _plan_sheet(rows, simulated),
        Prose(_PARTS),
        _loss_sheet(rows, simulated),
        Prose(_PIPER),
    )
    yield Section("recommended", "Recommended plans", _ABOUT, blocks)


@dataclass(frozen=True)
class Recommended:
    """The recommended plan on the accelerator of a result, in words."""

    whose: str
    shape: str
    microbatch: str
    planned: str
    simulated: str
    """Empty without a simulation."""
    bound_by: str
    speedup: float
    """Over the baseline with the experts' plan, both as simulated."""
    gain: float
    """Planned time of the certified plan over the simulated time of this one."""


def recommended_on(findings: Findings, result: pd.Series) -> Recommended:
    """Return what is recommended on the accelerator of a placed result: its placement unless simulated."""
    rows = findings.recommendations
    rows = rows[(rows["model"] == result["model"]) & (rows["design"] == result["design"])]
    if rows.empty:
        return Recommended(
            PLANS[CERTIFIED], widths(result), str(result["microbatch"]),
            with_bound(result), "", str(result["binding"]), float(result["speedup"]), 1.0,
        )  # fmt: skip
    row = rows.iloc[0]
    return Recommended(
        PLANS[row["planner"]], shape(row), str(row["microbatch"]),
        with_bound(result) if row["planner"] == CERTIFIED else seconds(row["planned_s"]),
        seconds(row["simulated_s"]), str(row["bound_by"]), float(row["speedup"]),
        float(result["time_per_batch_s"] / row["simulated_s"]),
    )  # fmt: skip


def with_bound(row: pd.Series) -> str:
    """Return the time per batch of a result, with the bound below it where a layer is not proven."""
    time, bound = row["time_per_batch_s"], row["bound_s"]
    return seconds(time) if bound >= time * (1 - 1e-6) else f"{seconds(bound)} to {seconds(time)}"


def simulation_of(row: pd.Series, simulated: pd.DataFrame, planner: str) -> pd.Series:
    """Return the simulation of a planner's plan on the accelerator of a recommendation."""
    found: pd.Series = simulated.loc[(*(row[name] for name in CHIP), planner)]
    return found


def shape(row: pd.Series) -> str:
    """Return {p, d, t} of a plan, whose stages may have several widths."""
    return f"{{{row['stages']}, {row['data']}, {row['tensor']}}}"


def _losses(rows: pd.DataFrame) -> Iterator[str]:
    """Yield which certified plans of best accelerators lose in the simulator, and how much."""
    losing = rows[rows["lost"] > NEAR]
    one = len(rows) == 1
    plans = "The certified plan loses" if one else f"{len(losing)} of {len(rows)} certified plans lose"
    if len(rows) and losing.empty:
        yield f"No certified plan of a best accelerator loses more than {percent(NEAR, 0)} in the simulator."
    for _, row in losing.sort_values("lost", ascending=False, kind="stable").head(1).iterrows():
        yield (
            f"{plans} more than {percent(NEAR, 0)} in the simulator to equal or experts' stages on the "
            f"best accelerator, most on {row['model']}: {percent(row['lost'])} "
            f"({seconds(row['certified_planned_s'])} as planned, {seconds(row['certified_simulated_s'])} as "
            f"simulated; theirs {seconds(min(row['equal_s'], row['expert_s']))} as simulated)."
        )
    silent = losing[losing["reason"] == ""]
    if len(silent):
        yield f"Nothing that is known of the formula says why on {join(silent['model'])}: a defect."


def in_short(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield the fact for the first screen: what certified plans lose in the simulator."""
    rows = findings.recommendations
    rows = rows[rows["design"] == PER_MODEL]
    for _, most in rows.sort_values("lost", ascending=False, kind="stable").head(1).iterrows():
        where = f", on {most['model']}" if len(rows) > 1 else ""
        yield (
            percent(most["lost"]),
            f"at most lost by the certified plan in the simulator to equal or experts' stages{where}",
        )


def _plan_sheet(rows: pd.DataFrame, simulated: pd.DataFrame) -> Sheet:
    shown = [
        (
            str(row["model"]), str(row["design"]), PLANS[row["planner"]], shape(row), str(row["microbatch"]),
            str(row["memory"]), in_parts(simulation_of(row, simulated, row["planner"])),
            seconds(row["planned_s"]), seconds(row["simulated_s"]), times(row["speedup"]),
        )
        for _, row in rows.iterrows()
    ]  # fmt: skip
    header = (
        "workload", "design", "plan", "{p, d, t}", "microbatch", "activations", "simulated over planned",
        "planned", "simulated", "speed-up",
    )  # fmt: skip
    caption = (
        "The recommended plan with its time per batch as planned and as simulated, and why they differ; "
        "speed-up as simulated, over the experts' plan on the baseline"
    )
    return Sheet(caption, header, tuple(shown), 7, _marked(rows), "recommendations")


def _loss_sheet(rows: pd.DataFrame, simulated: pd.DataFrame) -> Sheet:
    shown = [
        (
            str(row["model"]), str(row["design"]), in_parts(simulation_of(row, simulated, CERTIFIED)),
            row["reason"] or ("" if row["lost"] <= NEAR else "nothing that is known"),
            seconds(row["certified_planned_s"]), seconds(row["certified_simulated_s"]),
            seconds(row["equal_s"]), seconds(row["expert_s"]), seconds(row["piper_s"]), change(row["lost"]),
        )
        for _, row in rows.iterrows()
    ]  # fmt: skip
    header = (
        "workload", "design", "simulated over planned", "why it loses", "planned", "simulated",
        "equal stages", "experts", "Piper (no flush)", "loses",
    )  # fmt: skip
    caption = (
        "The certified plan as planned and as simulated, beside the simulated times of the others, and what "
        "it loses to the best of equal and experts' stages"
    )
    return Sheet(caption, header, tuple(shown), 4, _marked(rows), "recommendations")


def _marked(rows: pd.DataFrame) -> frozenset[int]:
    return frozenset(i for i, design in enumerate(rows["design"]) if design == PER_MODEL)
