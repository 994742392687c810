"""The page of tiled accelerators: figures and tables of the PALM paper beside ours, claims and checks."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze import tables
from phaze.papers.claims import check_claims
from phaze.papers.page import Paper, checked, paper_of, part
from phaze.papers.palm.inputs import FUNCTIONS, RUN, TiledInputs, claimed_tables
from phaze.papers.palm.readings import (
    WAFER,
    readings_sheet,
    tabulate_readings,
)
from phaze.papers.palm.sections import sections_of
from phaze.report.verdicts import ROUNDING, Checklist, Verdicts, each
from phaze.report.words import percent


def palm_paper(inputs: TiledInputs) -> Paper:
    """The PALM paper beside the tiled accelerators of a study."""
    claims = check_claims(inputs.published, claimed_tables(inputs), FUNCTIONS)
    readings = tabulate_readings(inputs)
    checks, table = checked("tiled-checks", CHECKS, inputs)
    simulated = {name: (tables.TABLES[name], getattr(inputs, name)) for name in SIMULATED}
    return paper_of(
        "palm",
        inputs.published,
        " ".join(_sentences(inputs, claims, readings)),
        (readings_sheet(readings), *part(sections_of(inputs)), *checks),
        {**simulated, "tiled_readings": (tables.TiledReadings, readings), **table},
        claims=("tiled-claims", claims),
    )


SIMULATED = ("tiled_runs", "tiled_jobs", "tiled_links", "tiled_networks", "tiled_besides")


def _sentences(inputs: TiledInputs, claims: pd.DataFrame, readings: pd.DataFrame) -> Iterator[str]:
    if inputs.published is None:
        yield "Nothing is published beside these simulations."
        return
    wafer = undominated(readings)
    if wafer.empty:
        yield f"{int(claims['holds'].sum())} of {len(claims)} claims of “{inputs.published.title}” hold here."
    else:
        yield "In part: no reading of what the paper leaves open gives all that it prints."
        yield f"Of those of the wafer, {_nearest(wafer)}."


def undominated(readings: pd.DataFrame) -> pd.DataFrame:
    """Our readings of the wafer that none beats in both error and statements, nearest first."""
    ours = readings[(readings["printed_in"] == WAFER) & (readings["statements"] > 0) & ~readings["theirs"]]
    beaten = [
        ((ours["mean_error"] <= row["mean_error"]) & (ours["held"] >= row["held"])
         & ((ours["mean_error"] < row["mean_error"]) | (ours["held"] > row["held"]))).any()
        for _, row in ours.iterrows()
    ]  # fmt: skip
    return ours[~pd.Series(beaten, ours.index, dtype=bool)].sort_values("mean_error")


def _nearest(wafer: pd.DataFrame) -> str:
    return "; ".join(
        f"{row['reading']} is on average {percent(row['mean_error'], 0)} off Table VII (at worst "
        f"{percent(row['worst_error'], 0)}) and has {row['held']} of {row['statements']} statements of "
        "Figures 9 and 10"
        for _, row in wafer.iterrows()
    )


CHECKS: Checklist[TiledInputs] = Checklist()
SLACK = 1 + ROUNDING


@CHECKS.hold("every combination of a case is simulated")
def _every_combination_has_a_row(inputs: TiledInputs) -> Verdicts:
    counts = inputs.tiled_runs.groupby(["case", "system", "model"]).size().to_dict()
    for name, case in inputs.study.cases.items():
        wanted = len(case.layouts) * len(case.placed) * len(case.tensor) * len(case.microbatches)
        for point in case.points().values():
            found = counts.get((name, point.system, point.model), 0)
            yield found == wanted, f"{name}, {point.system}, {point.model}: {found} runs of {wanted}"


@CHECKS.hold("neither traffic nor contention makes a batch faster")
def _contention_never_helps(inputs: TiledInputs) -> Verdicts:
    keys = "alone_s", "uncontended_s", "time_s"
    alone_s, uncontended_s, time_s = (inputs.tiled_runs[key] for key in keys)
    both = (alone_s <= uncontended_s * SLACK) & (alone_s <= time_s * SLACK)
    yield from each(both & (uncontended_s <= time_s * SLACK), inputs.tiled_runs, RUN)


@CHECKS.hold("nothing is busy for longer than a batch takes")
def _nothing_is_busy_for_longer(inputs: TiledInputs) -> Verdicts:
    shares = ["compute_share", "most_link_share", "most_dram_share", "model_share"]
    yield from each((inputs.tiled_runs[shares] <= SLACK).all(axis=1), inputs.tiled_runs, RUN)


@CHECKS.hold("every byte that is sent is received")
def _every_byte_arrives(inputs: TiledInputs) -> Verdicts:
    sent = inputs.tiled_runs["sent_bytes"]
    yield from each(
        (sent - inputs.tiled_runs["received_bytes"]).abs() <= ROUNDING * sent, inputs.tiled_runs, RUN
    )


@CHECKS.hold("jobs of a stage follow each other")
def _jobs_of_a_stage_follow_each_other(inputs: TiledInputs) -> Verdicts:
    for key, rows in inputs.tiled_jobs.groupby([*RUN, "resource"]):
        ordered = rows.sort_values("number")
        gaps = ordered["start_s"].to_numpy()[1:] - ordered["end_s"].to_numpy()[:-1]
        yield bool((gaps >= -ROUNDING * ordered["end_s"].max()).all()), str(key)
