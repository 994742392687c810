"""Section of the PALM paper: figures, tables, claims, and checks of tiled accelerators."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from phaze import tables
from phaze.papers.claims import check_claims
from phaze.papers.page import Paper, checked, paper_of, part
from phaze.papers.palm.inputs import FUNCTIONS, TiledInputs, claimed_tables
from phaze.papers.palm.readings import (
    WAFER,
    readings_sheet,
    tabulate_readings,
)
from phaze.papers.palm.sections import sections_of
from phaze.report.case_checks import TILED_CHECKS
from phaze.report.words import percent


def palm_paper(inputs: TiledInputs) -> Paper:
    """PALM's section, comparing the paper with the tiled accelerators of a study."""
    claims = check_claims(inputs.published, claimed_tables(inputs), FUNCTIONS)
    readings = tabulate_readings(inputs)
    checks, table = checked("tiled-checks", TILED_CHECKS, inputs)
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
    """Pareto-optimal readings of the wafer by error and confirmed statements, smallest error first."""
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
