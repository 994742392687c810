"""Errors of each reading of the paper's open points, and of the authors' program, against printed figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil

import pandas as pd

from phaze.base.units import digits
from phaze.papers.claims import claims_on
from phaze.papers.page import words_of
from phaze.papers.palm.inputs import FUNCTIONS, TiledInputs
from phaze.papers.publications import PublishedTiled
from phaze.papers.scores import mean_error, relative_errors
from phaze.report.document import Sheet
from phaze.report.words import join
from phaze.tables import TiledReadings

Row = dict[str, object]
Figures = Sequence[tuple[float, Sequence[float]]]
"""Pairs of a printed figure and our figures, one for each setting that a reading leaves open."""
WORDS = words_of("palm")
FEW = 6
"""Maximum number of figures that a row lists individually."""
WAFER = "Table VII; Figures 9 and 10"
OWN = "PALM's own figures"
MANY = "see the table below"


def tabulate_readings(inputs: TiledInputs) -> pd.DataFrame:
    """Table `tiled_readings`; empty without a publication."""
    published = inputs.published
    if published is None:
        return TiledReadings.empty()
    found = [
        *_wafer(inputs, published),
        *_program(inputs, published),
        *_congestion(inputs.tiled_networks, published),
        *_exchanges(inputs, published),
        *_printed_tables(inputs.tiled_besides),
    ]
    rows = [{"number": number, **row} for number, row in enumerate(found)]
    return TiledReadings.check(pd.DataFrame(rows)) if rows else TiledReadings.empty()


def _reading(
    place: str, reading: str, figures: Figures, held: Sequence[bool] = (), *, theirs: bool = False
) -> Row:
    """Row of table `tiled_readings`.

    `held` is the result of each qualitative statement; `theirs` is True for the authors' own figures.
    """
    errors = [relative_errors(printed, ours) for printed, ours in figures]
    few = len(figures) <= FEW
    return {
        "printed_in": place,
        "reading": reading,
        "figures": len(figures),
        "mean_error": mean_error(errors),
        "worst_error": max(max(some) for some in errors),
        "statements": len(held),
        "held": sum(held),
        "theirs": theirs,
        "ours": ", ".join(_range(ours) for _, ours in figures) if few else MANY,
        "printed": ", ".join(digits(printed, 4) for printed, _ in figures) if few else MANY,
    }


def _range(values: Sequence[float]) -> str:
    low, high = (digits(round(some, 9), 4) for some in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _wafer(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Row]:
    """Yield a row per system and microbatches: throughput of its best layout, and claims about its splits."""
    splits = [inputs.rows(name) for name, _ in inputs.of("splits")]
    claims = [group for group in published.claims if group.table == "splits"]
    for name, case in inputs.of("table"):
        best = inputs.rows(name).groupby(["system", "microbatches", "model"])["samples_per_s"].max()
        models = [model for model in case.batches if model in published.wafer]
        for system, microbatches in product(case.systems, case.microbatches) if models else ():
            held = [
                bool(claim["holds"])
                for rows in splits
                for group in claims
                for claim in claims_on(
                    published,
                    group,
                    rows[(rows["system"] == system) & (rows["microbatches"] == microbatches)],
                    FUNCTIONS,
                )
            ]
            ours = best[system, microbatches]
            figures = [(published.palm[model], [float(ours[model])]) for model in models]
            yield _reading(WAFER, f"{system} with {microbatches} microbatches", figures, held)


def _program(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Row]:
    program = published.program
    if program is None or not any(inputs.of("table")):
        return
    best = [program.best_tensor[model] == tensor for model, tensor in published.best_tensor.items()]
    for number, (version, ours) in enumerate(program.wafer.items()):
        held = [] if number else [*best, min(program.gaps.values()) >= published.gap]
        reading = f"the authors' program, {version}, with {program.microbatches} microbatches"
        figures = [(palm, [ours[model]]) for model, palm in published.palm.items()]
        yield _reading(WAFER, reading, figures, held, theirs=True)


def _congestion(networks: pd.DataFrame, published: PublishedTiled) -> Iterator[Row]:
    """Yield rows for Figure 7: task mixes and sequences, compared with each formula.

    The formulas are the longest task and the sum of tasks. The printed maximum is compared with one figure of
    ours per task size.
    """
    for reading, rows in networks[networks["figure"] == 7].groupby("reading", sort=False):
        for five, most, tasks in (("turns", "turns", "kinds in turns"), ("mean", "most", "all mixes")):
            at_five = rows[(rows["group"] == five) & rows["setting"].str.startswith("5 tasks of 8 MB")]
            at_most = rows[rows["group"] == most]
            sizes = at_most["setting"].str.extract(r"of ([\d.]+) MB", expand=False)
            figures = (
                (published.congestion_five, [float(at_five["value"].iloc[0])]),
                (published.congestion_most, at_most.groupby(sizes)["value"].max().tolist()),
            )
            yield _reading("Figure 7", f"{tasks}, against the {reading} of the formulas", figures)


def _exchanges(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Row]:
    """Yield rows for Figure 12: gains of one strategy over the other, over all settings.

    The faster strategy is a claim only if each strategy has its best number of adapters.
    """
    networks = inputs.tiled_networks
    for reading, rows in networks[networks["figure"] == 12].groupby("reading", sort=False):
        figures = [
            (gain, rows.loc[rows["group"] == group, "value"].tolist())
            for group, gain in published.gains.items()
        ]
        held = (rows["value"] > 1).tolist() if inputs.compares_best(str(reading)) else []
        yield _reading("Figure 12", str(reading), figures, held)


def _printed_tables(besides: pd.DataFrame) -> Iterator[Row]:
    """Yield rows for Tables I, IV and V against hardware figures; PALM's own figures are also a reading."""
    by = {"I": [], "IV": ["reading"], "V": ["case", "reading"]}
    for table, keys in by.items():
        rows = besides[besides["table"] == table]
        if rows.empty:
            continue
        rows = rows.assign(beside=rows["measured"].where(rows["measured"] > 0, rows["published"]))
        place = f"Table {table}, measured" if (rows["measured"] > 0).all() else f"Table {table}"
        if not keys:
            words = "ratio by ratio the nearest of what published figures give"
            yield _reading(place, words, _pairs(rows, "ours"))
            continue
        for key, mine in rows.groupby(keys, sort=False):
            yield _reading(place, ", ".join(map(str, key)), _pairs(mine, "ours"))
        yield _reading(place, OWN, _pairs(rows.drop_duplicates("case"), "palm"), theirs=True)


def _pairs(rows: pd.DataFrame, column: str) -> Figures:
    return [(printed, [ours]) for printed, ours in zip(rows["beside"], rows[column], strict=True)]


def readings_sheet(readings: pd.DataFrame) -> Sheet:
    """Table of readings and errors; the closest reading of each printed table or figure is highlighted."""
    nearest = readings.groupby("printed_in")["mean_error"].transform("min") == readings["mean_error"]
    holding = readings["held"].astype(str) + " of " + readings["statements"].astype(str)
    shown = readings.assign(holding=holding.where(readings["statements"] > 0, "–"))
    return WORDS.sheet("readings", shown, nearest)


def microbatch_bounds(inputs: TiledInputs) -> Iterator[str]:
    """Yield sentences on the minimum of microbatches for printed throughputs, from compute time alone."""
    printed = inputs.published.palm if inputs.published else {}
    for name, case in inputs.of("table"):
        runs = {str(row["model"]): row for _, row in inputs.rows(name).iterrows()}
        needs = []
        for model in (model for model in case.batches if model in printed):
            least = fewest_microbatches(runs[model], printed[model])
            need = "can never be reached" if least is None else f"need at least {least}"
            needs.append(f"{digits(printed[model], 5)} samples/s of {model} {need}")
        if needs:
            yield WORDS.sentence("microbatches", needs=join(needs))


def fewest_microbatches(run: pd.Series, samples_per_s: float) -> int | None:
    """Fewest microbatches m that allow a throughput with compute and bubbles alone; None if none do.

    p equal stages take w (m + p − 1)/m seconds per sample (PALM, Equation 1). The work w follows from the
    `alone_s` of a run: its time without communication and memory traffic.
    """
    others = int(run["stages"]) - 1
    work_s = float(run["alone_s"] / run["batch"] * run["microbatches"] / (run["microbatches"] + others))
    slack_s = 1 / samples_per_s - work_s
    return max(1, ceil(others * work_s / slack_s)) if slack_s > 0 else None
