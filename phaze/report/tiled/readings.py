"""Readings of what the paper leaves open, each with its error over all printed figures that it gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean

import pandas as pd

from phaze.report.document import Cell, Sheet, sheet_of
from phaze.report.tiled.claims import claims_of_splits
from phaze.report.tiled.inputs import TiledInputs
from phaze.report.words import digits
from phaze.spec.published_tiled import PublishedTiled
from phaze.tables import TiledReadings

FEW = 6
"""Figures that are written out one by one."""
WAFER = "Table VII; Figures 9 and 10"
OWN = "PALM's own figures"
MANY = "see the table below"


@dataclass(frozen=True)
class Beside:
    """A printed figure beside ours: one, or one for each setting that the reading leaves open."""

    printed: float
    ours: tuple[float, ...]

    @property
    def errors(self) -> list[float]:
        """Return the relative differences from the printed figure, without their signs."""
        return [abs(ours / self.printed - 1) for ours in self.ours]

    @property
    def words(self) -> str:
        """Return ours, or the range of ours."""
        low, high = (digits(round(some, 9), 4) for some in (min(self.ours), max(self.ours)))
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class Reading:
    """A reading beside the figures of the paper that it gives."""

    printed_in: str
    reading: str
    figures: tuple[Beside, ...]
    held: tuple[bool, ...] = ()
    """Of statements without a figure, which hold."""
    theirs: bool = False
    """Whether it is of the paper's authors, and nothing of ours."""

    def row(self, number: int) -> dict[str, object]:
        """Return the row of table tiled_readings; every printed figure counts as much as another."""
        few = len(self.figures) <= FEW
        return {
            "number": number,
            "printed_in": self.printed_in,
            "reading": self.reading,
            "figures": len(self.figures),
            "mean_error": fmean(fmean(figure.errors) for figure in self.figures),
            "worst_error": max(max(figure.errors) for figure in self.figures),
            "statements": len(self.held),
            "held": sum(self.held),
            "theirs": self.theirs,
            "ours": ", ".join(figure.words for figure in self.figures) if few else MANY,
            "printed": ", ".join(digits(figure.printed, 4) for figure in self.figures) if few else MANY,
        }


def tabulate_readings(inputs: TiledInputs) -> pd.DataFrame:
    """Return table tiled_readings; empty without a publication."""
    if inputs.published is None:
        return TiledReadings.empty()
    rows = [reading.row(number) for number, reading in enumerate(readings(inputs, inputs.published))]
    return TiledReadings.check(pd.DataFrame(rows)) if rows else TiledReadings.empty()


def readings(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Reading]:
    """Yield every reading of the study, by table and figure of the paper."""
    yield from _wafer(inputs, published)
    yield from _program(inputs, published)
    yield from _congestion(inputs.networks, published)
    yield from _exchanges(inputs, published)
    yield from _printed_tables(inputs.besides)


def _wafer(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Reading]:
    """Yield systems and microbatches, each with its better layout, and what its splits show."""
    for name, case in inputs.of("table"):
        best = inputs.rows(name).groupby(["system", "microbatches", "model"])["samples_per_s"].max()
        models = [model for model in case.batches if model in published.wafer]
        for system, microbatches in product(case.systems, case.microbatches):
            ours = best[system, microbatches]
            figures = tuple(Beside(published.wafer[model].palm, (float(ours[model]),)) for model in models)
            if figures:
                claims = claims_of_splits(inputs, system, microbatches, published)
                reading = f"{system} with {microbatches} microbatches"
                yield Reading(WAFER, reading, figures, tuple(claim.holds for claim in claims))


def _program(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Reading]:
    """Yield the authors' program beside what its authors print."""
    program = published.program
    if program is None or not any(inputs.of("table")):
        return
    best = tuple(program.best_tensor[model] == tensor for model, tensor in published.best_tensor.items())
    for number, (version, ours) in enumerate(program.wafer.items()):
        figures = tuple(Beside(row.palm, (ours[model],)) for model, row in published.wafer.items())
        held = () if number else (*best, min(program.gaps.values()) >= published.gap)
        reading = f"the authors' program, {version}, with {program.microbatches} microbatches"
        yield Reading(WAFER, reading, figures, held, theirs=True)


def _congestion(networks: pd.DataFrame, published: PublishedTiled) -> Iterator[Reading]:
    """Yield kinds of tasks in turns and in all mixes, against the longest formula and against their sum.

    What is printed as the most has one figure of ours for each size of tasks.
    """
    seven = networks[networks["figure"] == 7]
    for reading, rows in seven.groupby("reading", sort=False):
        for five, most, tasks in (("turns", "turns", "kinds in turns"), ("mean", "most", "all mixes")):
            at_five = rows[(rows["group"] == five) & rows["setting"].str.startswith("5 tasks of 8 MB")]
            at_most = rows[rows["group"] == most]
            sizes = at_most["setting"].str.extract(r"of ([\d.]+) MB", expand=False)
            figures = (
                Beside(published.congestion_five, (float(at_five["value"].iloc[0]),)),
                Beside(published.congestion_most, tuple(at_most.groupby(sizes)["value"].max().tolist())),
            )
            yield Reading("Figure 7", f"{tasks}, against the {reading} of the formulas", figures)


def _exchanges(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Reading]:
    """Yield what is compared of two strategies, over all its settings.

    Which strategy is faster is tested only where each has its best number of adapters.
    """
    twelve = inputs.networks[inputs.networks["figure"] == 12]
    for reading, rows in twelve.groupby("reading", sort=False):
        figures = tuple(
            Beside(published.gain_of(group), tuple(rows[rows["group"] == group]["value"].tolist()))
            for group in ("ring", "broken ring")
        )
        held = tuple((rows["value"] > 1).tolist()) if inputs.compares_best(str(reading)) else ()
        yield Reading("Figure 12", str(reading), figures, held)


def _printed_tables(besides: pd.DataFrame) -> Iterator[Reading]:
    """Yield Tables I, IV and V beside figures of hardware; PALM's own figures are a reading of them, too."""
    by = {"I": [], "IV": ["reading"], "V": ["case", "reading"]}
    for table, keys in by.items():
        rows = besides[besides["table"] == table]
        if rows.empty:
            continue
        rows = rows.assign(beside=rows["measured"].where(rows["measured"] > 0, rows["published"]))
        place = f"Table {table}, measured" if (rows["measured"] > 0).all() else f"Table {table}"
        if not keys:
            yield _of(rows, "ours", place, "ratio by ratio the nearest of what published figures give")
            continue
        for key, mine in rows.groupby(keys, sort=False):
            yield _of(mine, "ours", place, ", ".join(map(str, key)))
        yield replace(_of(rows.drop_duplicates("case"), "palm", place, OWN), theirs=True)


def _of(rows: pd.DataFrame, column: str, place: str, reading: str) -> Reading:
    figures = zip(rows["beside"], rows[column], strict=True)
    return Reading(place, reading, tuple(Beside(printed, (ours,)) for printed, ours in figures))


def readings_sheet(readings: pd.DataFrame) -> Sheet:
    """Return the readings with their errors; the nearest of every table and figure stands out."""
    nearest = readings.groupby("printed_in")["mean_error"].transform("min") == readings["mean_error"]
    columns: dict[str, Cell] = {
        "printed in": "{printed_in}", "reading": "{reading}", "figures": "{figures}",
        "mean error": "{mean_error:percent}", "worst": "{worst_error:percent}",
        "statements that hold": _held,
        "ours": "{ours}", "printed": "{printed}",
    }  # fmt: skip
    caption = "Every reading, with its error over all printed figures that it gives; the nearest stands out"
    return sheet_of(caption, readings, columns, 2, nearest, "tiled_readings")


def _held(row: pd.Series) -> str:
    return f"{row['held']} of {row['statements']}" if row["statements"] else "–"
