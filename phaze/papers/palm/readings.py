"""Inputs of PALM's section: tables for checking its claims, and the errors of each interpretation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from math import ceil
from statistics import fmean

import numpy as np
import pandas as pd

from phaze.base.units import digits, percent
from phaze.pages.document import Sheet
from phaze.pages.words import join, times
from phaze.papers.cases import TiledCases
from phaze.papers.claims import Function, claims_on
from phaze.papers.page import words_of
from phaze.papers.publications import PublishedTiled
from phaze.papers.scores import geometric_mean
from phaze.tables import TiledReadings

CLOSE = 0.2
"""Relative error up to which a published figure counts as reproduced."""
EQUAL = 1e-6
"""Relative difference below which throughputs count as equal."""
Row = dict[str, object]
Figures = Sequence[tuple[float, Sequence[float]]]
"""Pairs of a published figure and our values for it, one per setting that an interpretation leaves open."""
WORDS = words_of("palm")
FEW = 6
"""Maximum number of figures that a row of the table lists individually."""
WAFER = "Table VII; Figures 9 and 10"
OWN = "PALM's own figures"
MANY = "see the table below"


@dataclass(frozen=True)
class TiledInputs(TiledCases):
    """Results of a study's simulations on tiles, and PALM's publication to compare them with."""

    tiled_besides: pd.DataFrame
    flops: float
    """16-bit peak FLOP/s of the system to which published figures are scaled; 0 without a publication."""
    published: PublishedTiled | None = None

    def compares_best(self, exchange: str) -> bool:
        """True if an interpretation of Figure 12 compares strategies at their best adapter counts."""
        comparison = self.study.exchanges.get(exchange)
        return comparison is None or comparison.compare == "best"

    @property
    def wafer(self) -> dict[str, dict[str, float]]:
        """Samples per second for Table VII, by model: PALM's simulation, its reference, and measured runs.

        Measured runs are scaled from the peak of their GPUs to the tiles' peak.
        """
        if self.published is None:
            return {"palm": {}, "printed": {}, "measured": {}}
        # Throughput per device scales with peak FLOP/s if both reach the same share of it.
        printed, per_gpu = self.published, self.flops / self.published.gpu_flops
        measured = {
            model: int(row.run["global_batch"]) / row.measured_s * per_gpu / int(row.run["gpus"])
            for model, row in printed.gpus.items()
            if model in printed.palm
        }
        return {"palm": printed.palm, "printed": printed.scaled, "measured": measured}


def claimed_tables(inputs: TiledInputs) -> Mapping[str, pd.DataFrame]:
    """Tables on which claims are checked, by their name in the publication."""
    tables = {}
    for name, show in (("wafer", "table"), ("splits", "splits")):
        parts = [inputs.tiled_runs.iloc[:0]]
        for case_name, case in inputs.showing(show):
            rows = inputs.rows(case_name)
            rows = rows[rows["microbatches"] == min(case.microbatches)]
            listed = {name: number for number, name in enumerate((*case.systems, *case.batches))}
            parts.append(
                rows
                if show == "table"
                else rows.sort_values(["system", "model"], key=lambda names: names.map(listed), kind="stable")
            )
        tables[name] = pd.concat(parts)
    networks = inputs.tiled_networks
    networks = networks.assign(faster=networks["value"] > 1)
    best = networks["reading"].map(inputs.compares_best).astype(bool)
    return {**tables, "networks": networks, "exchanges": networks[(networks["figure"] == 12) & best]}


def _fastest_split(rows: pd.DataFrame, printed: object) -> dict[str, object]:
    """Tensor-parallel ranks of our fastest split, and the slowdown of the published split against it."""
    # NaN if the published split was not simulated: then no slowdown is known.
    best = rows.groupby("tensor")["samples_per_s"].max()
    ours, short = int(str(best.idxmax())), 1 - float(best.get(printed, np.nan)) / float(best.max())
    same = ours == printed or np.isnan(short)
    return {"ours": ours, "beside": "" if same else f", TP {printed} is {percent(short)} slower"}


def _faster(column: str, first: str, second: str, rows: pd.DataFrame, _: object) -> dict[str, object]:
    """Number of pairs of otherwise identical runs, how often `first` is faster, and mean throughput ratio."""
    others = [key for key in ("model", "layout", "placed", "tensor") if key != column]
    wide = rows.pivot_table(index=others, columns=column, values="samples_per_s")
    both = wide.reindex(columns=[first, second]).dropna()
    # Runs that tie up to rounding are faster in neither direction.
    both = both[~np.isclose(both[first], both[second], rtol=EQUAL, atol=0)]
    ratios = both[first] / both[second]
    return {"faster": int((ratios > 1).sum()), "pairs": len(both), "mean": geometric_mean(ratios)}


def _best_over_worst(rows: pd.DataFrame, _: object) -> dict[str, object]:
    by_model = rows.groupby("model")["samples_per_s"].agg(["max", "min"])
    gaps = by_model["max"] / by_model["min"]
    return {"least": gaps.min(), "gaps": join(f"{times(gap)} {model}" for model, gap in gaps.items())}


FUNCTIONS: dict[str, Function] = {
    "fastest_split": _fastest_split,
    "quietest_split": lambda rows, _: {"ours": rows.groupby("tensor")["link_busy_s"].mean().idxmin()},
    "s_shaped_over_line": partial(_faster, "layout", "s-shaped", "line"),
    "near_over_far": partial(_faster, "placed", "near", "far"),
    "best_over_worst": _best_over_worst,
}
"""Functions that claims about splits refer to by name."""


def tabulate_readings(inputs: TiledInputs) -> pd.DataFrame:
    """Table `tiled_readings`: errors of every interpretation; empty without a publication."""
    published = inputs.published
    if published is None:
        return TiledReadings.empty()
    readings = [
        *_wafer(inputs, published),
        *_program(inputs, published),
        *_congestion(inputs.tiled_networks, published),
        *_exchanges(inputs, published),
        *_printed_tables(inputs.tiled_besides),
    ]
    rows = [{"number": number, **row} for number, row in enumerate(readings)]
    return TiledReadings.check(pd.DataFrame(rows)) if rows else TiledReadings.empty()


def _reading(
    place: str, reading: str, figures: Figures, verdicts: Sequence[bool] = (), *, theirs: bool = False
) -> Row:
    """Row of table `tiled_readings` for one interpretation.

    `verdicts` is the result of each qualitative statement; `theirs` is True for the authors' own figures.
    """
    errors = [[abs(figure / printed - 1) for figure in ours] for printed, ours in figures]
    few = len(figures) <= FEW
    return {
        "printed_in": place,
        "reading": reading,
        "figures": len(figures),
        "mean_error": fmean(map(fmean, errors)),
        "worst_error": max(map(max, errors)),
        "statements": len(verdicts),
        "held": sum(verdicts),
        "theirs": theirs,
        "ours": ", ".join(_range(ours) for _, ours in figures) if few else MANY,
        "printed": ", ".join(digits(printed, 4) for printed, _ in figures) if few else MANY,
    }


def _range(values: Sequence[float]) -> str:
    low, high = (digits(round(end, 9), 4) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _wafer(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Row]:
    """Yield a row per system and microbatch count: throughput of the best layout, and claims about splits."""
    splits = pd.concat(
        [inputs.tiled_runs.iloc[:0], *(inputs.rows(name) for name, _ in inputs.showing("splits"))]
    )
    claims = [group for group in published.claims if group.table == "splits"]
    for name, case in inputs.showing("table"):
        best = inputs.rows(name).groupby(["system", "microbatches", "model"])["samples_per_s"].max()
        models = [model for model in case.batches if model in published.palm]
        for system, microbatches in product(case.systems, case.microbatches) if models else ():
            system_splits = splits[(splits["system"] == system) & (splits["microbatches"] == microbatches)]
            checked = (claims_on(published, group, system_splits, FUNCTIONS) for group in claims)
            verdicts = [bool(claim["holds"]) for claim in chain.from_iterable(checked)]
            ours = best[system, microbatches]
            figures = [(published.palm[model], [float(ours[model])]) for model in models]
            yield _reading(WAFER, f"{system} with {microbatches} microbatches", figures, verdicts)


def _program(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Row]:
    program = published.program
    if program is None or not any(inputs.showing("table")):
        return
    # The program's best splits and gaps are not given by version: they count once, for the first.
    best = [program.best_tensor[model] == tensor for model, tensor in published.best_tensor.items()]
    for number, (version, ours) in enumerate(program.wafer.items()):
        verdicts = [] if number else [*best, min(program.gaps.values()) >= published.gap]
        reading = f"the authors' program, {version}, with {program.microbatches} microbatches"
        figures = [(palm, [ours[model]]) for model, palm in published.palm.items()]
        yield _reading(WAFER, reading, figures, verdicts, theirs=True)


def _congestion(networks: pd.DataFrame, published: PublishedTiled) -> Iterator[Row]:
    """Yield rows for Figure 7, which compare mixed and alternating tasks with each formula.

    The formulas are the longest task and the sum of tasks. The printed maximum is compared with one figure of
    ours per task size.
    """
    for reading, rows in networks[networks["figure"] == 7].groupby("reading", sort=False):
        for five, most, tasks in (("turns", "turns", "kinds in turns"), ("mean", "most", "all mixes")):
            at_five = rows[(rows["group"] == five) & rows["setting"].str.startswith("5 tasks of 8 MB")]
            # Settings name the task size, as in "5 tasks of 8 MB"; each size gives one maximum.
            at_most = rows[rows["group"] == most]
            sizes = at_most["setting"].str.extract(r"of ([\d.]+) MB", expand=False)
            figures = (
                (published.congestion_five, [float(at_five["value"].iloc[0])]),
                (published.congestion_most, at_most.groupby(sizes)["value"].max().tolist()),
            )
            yield _reading("Figure 7", f"{tasks}, against the {reading} of the formulas", figures)


def _exchanges(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Row]:
    """Yield rows for Figure 12: gains of one strategy over the other, in all settings.

    The faster strategy is a claim only if each strategy has its best number of adapters.
    """
    networks = inputs.tiled_networks
    for reading, rows in networks[networks["figure"] == 12].groupby("reading", sort=False):
        figures = [
            (gain, rows.loc[rows["group"] == group, "value"].tolist())
            for group, gain in published.gains.items()
        ]
        verdicts = (rows["value"] > 1).tolist() if inputs.compares_best(str(reading)) else []
        yield _reading("Figure 12", str(reading), figures, verdicts)


def _printed_tables(besides: pd.DataFrame) -> Iterator[Row]:
    """Yield rows that compare our and PALM's figures for Tables I, IV and V with the reference figures."""
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
        for key, case_rows in rows.groupby(keys, sort=False):
            yield _reading(place, ", ".join(map(str, key)), _pairs(case_rows, "ours"))
        yield _reading(place, OWN, _pairs(rows.drop_duplicates("case"), "palm"), theirs=True)


def _pairs(rows: pd.DataFrame, column: str) -> Figures:
    return [(printed, [ours]) for printed, ours in zip(rows["beside"], rows[column], strict=True)]


def readings_sheet(readings: pd.DataFrame) -> Sheet:
    """Report table of interpretations; the closest for each published table or figure is highlighted."""
    nearest = readings.groupby("printed_in")["mean_error"].transform("min") == readings["mean_error"]
    holding = readings["held"].astype(str) + " of " + readings["statements"].astype(str)
    shown = readings.assign(holding=holding.where(readings["statements"] > 0, "–"))
    return WORDS.sheet("readings", shown, nearest)


def fewest_microbatches(run: pd.Series, samples_per_s: float) -> str:
    """Fewest microbatches m that reach a throughput if only compute and bubbles take time.

    "never" if none do, and a dash for NaN.

    p equal stages take w (m + p − 1)/m seconds per sample (PALM, Equation 1). The work w follows from the
    `alone_s` of a run: its time without communication and memory traffic.
    """
    # From 1/x = w (m + p - 1)/m follows m = (p - 1) w / (1/x - w) for a throughput of x.
    others = int(run["stages"]) - 1
    work_s = float(run["alone_s"] / run["batch"] * run["microbatches"] / (run["microbatches"] + others))
    slack_s = 1 / samples_per_s - work_s
    if np.isnan(slack_s):
        return "–"
    return str(max(1, ceil(others * work_s / slack_s))) if slack_s > 0 else "never"
