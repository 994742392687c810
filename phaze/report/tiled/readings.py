"""Readings of what the paper leaves open, and the authors' program: how near each is to what is printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, floor, isfinite, nan
from statistics import fmean

import pandas as pd

from phaze.report.document import Cell, Items, Section, Sheet, sheet_of
from phaze.report.tiled.inputs import TiledInputs, claims_of_splits
from phaze.report.words import change, digits, join, times
from phaze.spec.published_tiled import ProgramRun, PublishedTiled
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


SAME = 0.01
"""A program gives a printed figure if it comes so near, relatively."""
SHARE = 16
"""GPUs over which the published column of Table VII is that of Table IV."""


def program_section(inputs: TiledInputs) -> Iterator[Section]:
    """Yield the authors' program as run beside print and ours, where both are published."""
    published = inputs.published
    if published is None or published.program is None or not published.wafer:
        return
    program = published.program
    never = "Not reproduced by the authors' program either, in any version run"
    sentences = (
        *(f"{never}: {figure}." for figure in irreproducible(published)),
        f"A figure counts as reproduced where a version comes within {100 * SAME:g} % of it.",
        *_bounds(inputs, published),
    )
    blocks = _throughputs(inputs, published, program), _splits(published, program), Items(sentences)
    about = f"What {program.source}, gives; it runs {program.microbatches} microbatches."
    yield Section("program", "The authors' program as run", about, blocks)


def _throughputs(inputs: TiledInputs, published: PublishedTiled, program: ProgramRun) -> Sheet:
    """Return Table VII: print, program, ours, and where its published column comes from."""
    best = _first_reading(inputs)
    cells = []
    for model, row in published.wafer.items():
        found = (*(ours[model] for ours in program.wafer.values()), best.get(model, nan))
        beside = (
            f"{digits(ours, 4)} ({change(ours / row.palm)})" if isfinite(ours) else "–" for ours in found
        )
        cells.append(
            (model, digits(row.palm, 5), *beside, digits(row.printed, 5), *_scaled(published, model))
        )
    header = (
        "model", "PALM prints", *(f"its program, {version}" for version in program.wafer),
        "ours, first reading", "published column", "Table IV over GPUs/16", "the same, numerator cut",
    )  # fmt: skip
    return Sheet("Table VII: samples per second as printed, as run, and here", header, tuple(cells), 1)


def _first_reading(inputs: TiledInputs) -> dict[str, float]:
    """Return the samples per second by model of the system and the microbatches that are listed first."""
    for name, case in inputs.of("table"):
        rows = inputs.rows(name)
        rows = rows[(rows["system"] == case.systems[0]) & (rows["microbatches"] == case.microbatches[0])]
        return {
            str(model): float(best) for model, best in rows.groupby("model")["samples_per_s"].max().items()
        }
    return {}


def _scaled(published: PublishedTiled, model: str) -> tuple[str, str]:
    """Return Table IV's published figure over a sixteenth of the GPUs, whole and with its numerator cut."""
    if model not in published.gpus:
        return "–", "–"
    parts, figure = published.wafer[model].gpus / SHARE, published.gpus[model].printed
    return digits(figure / parts, 5), digits(floor(figure) / parts, 5)


def _splits(published: PublishedTiled, program: ProgramRun) -> Sheet:
    gap = f"at least {published.gap:g}×"
    cells = tuple(
        (model, str(tensor), str(program.best_tensor[model]), gap, times(program.gaps[model]))
        for model, tensor in published.best_tensor.items()
    )
    header = ("model", "fastest TP printed", "its program", "gap printed", "its program")
    return Sheet("Figure 10: fastest split, and best over worst split and mapping", header, cells, 1)


def irreproducible(published: PublishedTiled) -> list[str]:
    """Return in words which printed figures no version of the authors' program gives."""
    program = published.program
    if program is None:
        return []
    found = []
    off = [
        model
        for model, row in published.wafer.items()
        if all(abs(ours[model] / row.palm - 1) > SAME for ours in program.wafer.values())
    ]
    if off:
        found.append(f"the samples/s of {join(off)} in Table VII")
    other = [model for model, tensor in published.best_tensor.items() if program.best_tensor[model] != tensor]
    if other:
        found.append(f"the fastest TP of {join(other)} in Figure 10")
    if min(program.gaps.values()) < published.gap:
        found.append(f"a gap of {published.gap:g}× between best and worst mapping")
    return found


def _bounds(inputs: TiledInputs, published: PublishedTiled) -> Iterator[str]:
    """Yield how many microbatches the printed throughputs need at least, from the time of work alone."""
    for name, case in inputs.of("table"):
        runs = {str(row["model"]): row for _, row in inputs.rows(name).iterrows()}
        models = [model for model in case.batches if model in published.wafer]
        fewest = {model: fewest_microbatches(runs[model], published.wafer[model].palm) for model in models}
        needs = [
            f"{digits(published.wafer[model].palm, 5)} samples/s of {model} "
            + ("can never be reached" if least is None else f"need at least {least}")
            for model, least in fewest.items()
        ]
        if needs:
            yield (
                f"Microbatches: {join(needs)}, even if tiles work at their peak and neither send nor fetch "
                "anything; the forward pass is done again, as in the program."
            )


def fewest_microbatches(run: pd.Series, samples_per_s: float) -> int | None:
    """Return the fewest microbatches m with which work and bubbles alone allow a throughput; None if none do.

    Equal stages work w (m + p − 1)/m seconds a sample (PALM, Equation 1): w follows from a run, of which the
    time without anything sent, fetched or stored is known.
    """
    others = int(run["stages"]) - 1
    work_s = float(run["alone_s"] / run["batch"] * run["microbatches"] / (run["microbatches"] + others))
    slack_s = 1 / samples_per_s - work_s
    return max(1, ceil(others * work_s / slack_s)) if slack_s > 0 else None
