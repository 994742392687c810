"""The page of tiled accelerators: figures, tables, claims and checks as one HTML page, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze.report.document import Answer, Document, Items, Section
from phaze.report.report import Report
from phaze.report.tiled.checks import check_tiled
from phaze.report.tiled.claims import check_claims
from phaze.report.tiled.inputs import TiledInputs
from phaze.report.tiled.program import irreproducible, program_section
from phaze.report.tiled.readings import WAFER, readings_sheet, tabulate_readings
from phaze.report.tiled.sections import notes, sections_of
from phaze.report.verdicts import checks_section, claims_sheet
from phaze.report.words import percent
from phaze.tables import (
    Checks,
    Claims,
    Table,
    TiledBesides,
    TiledJobs,
    TiledLinks,
    TiledNetworks,
    TiledReadings,
    TiledRuns,
)

TABLES: dict[str, type[Table]] = {
    "tiled_runs": TiledRuns,
    "tiled_jobs": TiledJobs,
    "tiled_links": TiledLinks,
    "tiled_networks": TiledNetworks,
    "tiled_besides": TiledBesides,
    "tiled_readings": TiledReadings,
    "tiled-claims": Claims,
    "tiled-checks": Checks,
}
"""The tables beside the page, by file name."""
_CHECKS = "What must hold of any simulation, checked on these; `snakemake check` fails if one does not."


def build_tiled_report(inputs: TiledInputs) -> Report:
    """Return the page of the tiled accelerators of a study."""
    claims, checks, readings = check_claims(inputs), check_tiled(inputs), tabulate_readings(inputs)
    tables = {
        "tiled_runs": inputs.runs,
        "tiled_jobs": inputs.jobs,
        "tiled_links": inputs.links,
        "tiled_networks": inputs.networks,
        "tiled_besides": inputs.besides,
        "tiled_readings": readings,
        "tiled-claims": claims,
        "tiled-checks": checks,
    }
    sections = (
        *program_section(inputs),
        _claims(claims),
        *sections_of(inputs),
        *_missing(inputs),
        checks_section(checks, "tiled-checks", _CHECKS),
        notes(inputs),
    )
    document = Document(
        title="phaze",
        subtitle="tiled accelerators",
        answer=_answer(inputs, claims, readings),
        sections=sections,
        tables=tables,
        page="tiled.html",
    )
    return Report(document, TABLES)


def _answer(inputs: TiledInputs, claims: pd.DataFrame, readings: pd.DataFrame) -> Answer:
    """Return the first screen: how near the readings come, and what nothing gives."""
    held = int(claims["holds"].sum())
    facts = (
        (
            f"{int((~readings['theirs']).sum()):,}",
            "readings of what the paper leaves open, each with its error",
        ),
        (f"{held} of {len(claims)}", "claims of the paper that hold, over all readings"),
        (f"{len(inputs.runs):,}", "batches simulated with contention"),
    )
    return Answer(
        "Do PALM's case studies come out as printed?",
        " ".join(_sentences(inputs, claims, readings)),
        facts,
        readings_sheet(readings),
    )


def _sentences(inputs: TiledInputs, claims: pd.DataFrame, readings: pd.DataFrame) -> Iterator[str]:
    """Yield the answer, sentence by sentence."""
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
    """Return in words how near the readings come."""
    return "; ".join(
        f"{row['reading']} is on average {percent(row['mean_error'], 0)} off Table VII (at worst "
        f"{percent(row['worst_error'], 0)}) and has {row['held']} of {row['statements']} statements of "
        "Figures 9 and 10"
        for _, row in wafer.iterrows()
    )


def _claims(claims: pd.DataFrame) -> Section:
    about = "Every claim of the paper that can be checked, reading by reading."
    return Section("claims", "Claims", about, (claims_sheet(claims, "tiled-claims"),))


def _missing(inputs: TiledInputs) -> Iterator[Section]:
    """Yield what is printed and cannot be compared."""
    if inputs.published and inputs.published.missing:
        about = "Printed in the paper and not compared here, and why."
        yield Section("missing", "Missing", about, (Items(inputs.published.missing),))
