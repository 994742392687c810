"""Section of the PALM paper: figures, tables, claims, and checks of tiled accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from phaze import tables
from phaze.pages.document import Block, Section
from phaze.pages.verdicts import run_checks
from phaze.papers import case_charts
from phaze.papers.case_checks import TILED_CHECKS
from phaze.papers.claims import check_claims
from phaze.papers.page import Paper, paper_of, words_of
from phaze.papers.palm.readings import (
    CLOSE,
    FUNCTIONS,
    WAFER,
    TiledInputs,
    claimed_tables,
    fewest_microbatches,
    readings_sheet,
    tabulate_readings,
)
from phaze.spec.tiled_study import TiledCase

WORDS = words_of("palm")
SIMULATED = ("tiled_runs", "tiled_jobs", "tiled_links", "tiled_networks", "tiled_besides")


def table(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """Report section of throughputs, ours next to the published ones (Table VII)."""
    rows = _beside(inputs, inputs.rows(name))
    best = rows["samples_per_s"] == rows.groupby(["model", "system"])["samples_per_s"].transform("max")
    return WORDS.section("table", [WORDS.sheet("table", rows, best)], title=case.title)


def _beside(inputs: TiledInputs, rows: pd.DataFrame) -> pd.DataFrame:
    """Runs with published and measured throughputs of their models (NaN if unknown) and derived columns."""
    printed = {key: rows["model"].map(values).astype(float) for key, values in inputs.wafer.items()}
    rows = rows.assign(**printed)
    return rows.assign(
        mapping=rows["layout"].map(case_charts.LAYOUTS) + ", " + rows["placed"],
        over_palm=rows["samples_per_s"] / rows["palm"],
        over_measured=rows["samples_per_s"] / rows["measured"],
        fewest=[fewest_microbatches(row, row["palm"]) for _, row in rows.iterrows()],
        quiet=rows["batch"] / rows["uncontended_s"],
        alone=rows["batch"] / rows["alone_s"],
        link_share=rows["link_busy_s"] / rows["time_s"],
        layer_gb=rows["layer_bytes"] / 1e9,
    )


def splits(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """Report section for Figures 9 and 10, with their table and Equation (6)."""
    rows = _beside(inputs, inputs.rows(name))
    published = inputs.published
    charts: list[Block] = []
    for system, system_rows in rows.groupby("system", sort=False):
        draw = partial(case_charts.splits, system_rows, published.best_tensor if published else {})
        # Occupancy is drawn for one model: one with a published occupancy if the study has it.
        models = set(system_rows["model"])
        printed = [m for m in (published.least_occupancy if published else {}) if m in models]
        model = printed[0] if printed else system_rows["model"].iloc[-1]
        occupied = partial(case_charts.occupancy, system_rows[system_rows["model"] == model])
        charts += [
            WORDS.chart("splits", draw, f"{name}-{system}", system=system),
            WORDS.chart("links", occupied, f"{name}-{system}-links", system=system, model=model),
        ]
    return WORDS.section("splits", (*charts, WORDS.sheet("splits", rows)), title=case.title)


def pipeline(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """Report section for a simulated pipeline: timeline, memory of the tiles, and link load."""
    jobs, links = (frame[frame["case"] == name] for frame in (inputs.tiled_jobs, inputs.tiled_links))
    return WORDS.section("pipeline", case_charts.over_time_of(WORDS, name, jobs, links), title=case.title)


def networks(inputs: TiledInputs) -> Iterator[Section]:
    """Yield the report section for Figure 7; nothing if there are no results."""
    rows = inputs.tiled_networks[inputs.tiled_networks["figure"] == 7]
    if len(rows):
        draw = partial(case_charts.congestion, rows)
        yield WORDS.section("networks", [WORDS.chart("congestion", draw)])


def printed_tables(inputs: TiledInputs) -> Iterator[Section]:
    """Yield the section of the paper's tables next to our values; 0 in a column marks a missing value."""
    sheets = []
    for name, rows in inputs.tiled_besides.groupby("table"):
        # NaN in place of 0: a ratio to a missing figure is missing, not infinite.
        figures = rows.assign(**{key: rows[key].where(rows[key] > 0) for key in ("palm", "measured")})
        over = {f"over_{key}": figures["ours"] / figures[key] for key in ("palm", "measured", "published")}
        far = (figures["ours"] / figures["measured"].fillna(figures["published"]) - 1).abs() > CLOSE
        title = WORDS.sentences[str(name)]
        sheets.append(WORDS.sheet("printed", figures.assign(**over), far, title=title))
    if sheets:
        yield WORDS.section("tables", sheets)


def sections_of(inputs: TiledInputs) -> Iterator[Section]:
    """Yield the sections of all cases, then network-only results, then the paper's tables."""
    for show, section_of in (("table", table), ("splits", splits), ("pipeline", pipeline)):
        yield from (section_of(inputs, name, case) for name, case in inputs.showing(show))
    yield from networks(inputs)
    yield from printed_tables(inputs)


def palm_paper(inputs: TiledInputs) -> Paper:
    """Build PALM's section, which compares the paper with the tiled accelerators of a study."""
    claims = check_claims(inputs.published, claimed_tables(inputs), FUNCTIONS)
    readings = tabulate_readings(inputs)
    checks = run_checks(TILED_CHECKS, inputs)
    return paper_of(
        "palm",
        inputs.published,
        _answer(inputs, claims, readings),
        [readings_sheet(readings), *sections_of(inputs)],
        {
            **{name: (tables.TABLES[name], getattr(inputs, name)) for name in SIMULATED},
            "tiled_readings": (tables.TiledReadings, readings),
            "tiled-checks": (tables.Checks, checks),
            "tiled-claims": (tables.Claims, claims),
        },
    )


def _answer(inputs: TiledInputs, claims: pd.DataFrame, readings: pd.DataFrame) -> str:
    """Summary: number of claims that hold, and the interpretation of the wafer closest to the paper."""
    if inputs.published is None:
        return WORDS.sentences["unpublished"]
    holding, title = int(claims["holds"].sum()), inputs.published.title
    sentence = WORDS.sentence("held", held=holding, claims=len(claims), title=title)
    # Of the readings of the wafer, those with checked claims that are not the authors' own.
    wafer = readings[(readings["printed_in"] == WAFER) & (readings["statements"] > 0) & ~readings["theirs"]]
    nearest = WORDS.items("nearest", wafer.nsmallest(1, "mean_error")).sentences
    return " ".join((sentence, *nearest))
