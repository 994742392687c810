"""The page of tiled accelerators: figures and tables of the PALM paper beside ours, claims and checks."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze import tables
from phaze.report import verdicts
from phaze.report.document import Answer, Items, Section
from phaze.report.report import Report, page_of
from phaze.report.tiled.inputs import RUN, TiledInputs, check_claims
from phaze.report.tiled.readings import (
    WAFER,
    irreproducible,
    program_section,
    readings_sheet,
    tabulate_readings,
)
from phaze.report.tiled.sections import notes, sections_of
from phaze.report.words import percent


def build_tiled_report(inputs: TiledInputs) -> Report:
    """Return the page of the tiled accelerators of a study."""
    claims, checks, readings = (
        check_claims(inputs),
        verdicts.run_checks(CHECKS, inputs),
        tabulate_readings(inputs),
    )
    about = "Every claim of the paper that can be checked, reading by reading."
    hold = "What must hold of any simulation, checked on these; `snakemake check` fails if one does not."
    sections = (
        *program_section(inputs),
        Section("claims", "Claims", about, (verdicts.claims_sheet(claims, "tiled-claims"),)),
        *sections_of(inputs),
        *_missing(inputs),
        verdicts.checks_section(checks, "tiled-checks", hold),
        notes(inputs),
    )
    written = {
        "tiled_runs": (tables.TiledRuns, inputs.runs),
        "tiled_jobs": (tables.TiledJobs, inputs.jobs),
        "tiled_links": (tables.TiledLinks, inputs.links),
        "tiled_networks": (tables.TiledNetworks, inputs.networks),
        "tiled_besides": (tables.TiledBesides, inputs.besides),
        "tiled_readings": (tables.TiledReadings, readings),
        "tiled-claims": (tables.Claims, claims),
        "tiled-checks": (tables.Checks, checks),
    }
    answer = _answer(inputs, claims, readings)
    return page_of("tiled.html", "tiled accelerators", answer, sections, written)


def _answer(inputs: TiledInputs, claims: pd.DataFrame, readings: pd.DataFrame) -> Answer:
    """Return the first screen: how near the readings come, and what nothing gives."""
    own = f"{int((~readings['theirs']).sum()):,}"
    facts = (
        (own, "readings of what the paper leaves open, each with its error"),
        (f"{claims['holds'].sum()} of {len(claims)}", "claims of the paper that hold, over all readings"),
        (f"{len(inputs.runs):,}", "batches simulated with contention"),
    )
    sentence = " ".join(_sentences(inputs, claims, readings))
    question = "Do PALM's case studies come out as printed?"
    return Answer(question, sentence, facts, readings_sheet(readings))


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
    never = irreproducible(inputs.published)
    if never:
        yield f"The authors' own program, run as published, gives neither {', nor '.join(never)}."
    if inputs.published.missing:
        yield "What is printed and not compared here stands under “Missing”, with the reason."


def undominated(readings: pd.DataFrame) -> pd.DataFrame:
    """Return our readings of the wafer that none beats in both error and statements, nearest first."""
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


def _missing(inputs: TiledInputs) -> Iterator[Section]:
    if inputs.published and inputs.published.missing:
        about = "Printed in the paper and not compared here, and why."
        yield Section("missing", "Missing", about, (Items(inputs.published.missing),))


CHECKS: verdicts.Checklist[TiledInputs] = verdicts.Checklist()
SLACK = 1 + verdicts.ROUNDING


@CHECKS.hold("every combination of a case is simulated")
def _every_combination_has_a_row(inputs: TiledInputs) -> verdicts.Verdicts:
    counts = inputs.runs.groupby(["case", "system", "model"]).size().to_dict()
    for name, case in inputs.tiled.cases.items():
        wanted = len(case.layouts) * len(case.placed) * len(case.tensor) * len(case.microbatches)
        for point in case.points().values():
            found = counts.get((name, point.system, point.model), 0)
            yield found == wanted, f"{name}, {point.system}, {point.model}: {found} runs of {wanted}"


@CHECKS.hold("neither traffic nor contention makes a batch faster")
def _contention_never_helps(inputs: TiledInputs) -> verdicts.Verdicts:
    alone_s, uncontended_s, time_s = (inputs.runs[key] for key in ("alone_s", "uncontended_s", "time_s"))
    both = (alone_s <= uncontended_s * SLACK) & (alone_s <= time_s * SLACK)
    yield from verdicts.each(both & (uncontended_s <= time_s * SLACK), inputs.runs, RUN)


@CHECKS.hold("nothing is busy for longer than a batch takes")
def _nothing_is_busy_for_longer(inputs: TiledInputs) -> verdicts.Verdicts:
    shares = ["compute_share", "most_link_share", "most_dram_share", "model_share"]
    yield from verdicts.each((inputs.runs[shares] <= SLACK).all(axis=1), inputs.runs, RUN)


@CHECKS.hold("every byte that is sent is received")
def _every_byte_arrives(inputs: TiledInputs) -> verdicts.Verdicts:
    sent = inputs.runs["sent_bytes"]
    yield from verdicts.each(
        (sent - inputs.runs["received_bytes"]).abs() <= verdicts.ROUNDING * sent, inputs.runs, RUN
    )


@CHECKS.hold("jobs of a stage follow each other")
def _jobs_of_a_stage_follow_each_other(inputs: TiledInputs) -> verdicts.Verdicts:
    for key, rows in inputs.jobs.groupby([*RUN, "resource"]):
        ordered = rows.sort_values("number")
        gaps = ordered["start_s"].to_numpy()[1:] - ordered["end_s"].to_numpy()[:-1]
        yield bool((gaps >= -verdicts.ROUNDING * ordered["end_s"].max()).all()), str(key)
