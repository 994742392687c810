"""What the page of tiled accelerators is made from, and the claims of the PALM paper checked against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.report.verdicts import Claim, tabulate
from phaze.report.words import digits, join, percent, times
from phaze.spec.published_tiled import PrintedWafer, PublishedTiled
from phaze.spec.tiled_study import TiledCase, TiledStudy
from phaze.tables import Claims

RUN = "case", "system", "model", "layout", "placed", "tensor", "microbatches"
"""Columns that say which run it is."""
LAYOUTS = {"line": "line", "s-shaped": "S", "own": "own"}


@dataclass(frozen=True)
class TiledInputs:
    """Tables of all cases of a study."""

    tiled: TiledStudy
    runs: pd.DataFrame
    jobs: pd.DataFrame
    links: pd.DataFrame
    networks: pd.DataFrame
    besides: pd.DataFrame
    flops: float
    """Peak of the system of tiles that printed figures are scaled to, 16 bits; 0: no published results."""
    published: PublishedTiled | None = None

    def of(self, show: str) -> Iterator[tuple[str, TiledCase]]:
        """Yield the cases that are shown so."""
        yield from ((name, case) for name, case in self.tiled.cases.items() if case.show == show)

    def rows(self, case: str) -> pd.DataFrame:
        """Return the runs of a case."""
        return self.runs[self.runs["case"] == case]

    def compares_best(self, exchange: str) -> bool:
        """Return whether a reading of Figure 12 compares strategies with their best numbers of adapters."""
        given = self.tiled.exchanges.get(exchange)
        return given is None or given.compare == "best"

    def measured(self, row: PrintedWafer) -> float:
        """Return the samples per second of a measured run, scaled by peak from its GPUs to the tiles."""
        published = self.published
        assert published is not None
        return row.batch / row.measured_s * self.flops / (row.gpus * published.gpu_flops)


def mapped(row: pd.Series) -> str:
    """Return where a run lies, in short."""
    return f"{LAYOUTS[str(row['layout'])]}, {row['placed']}"


CLOSE = 0.2
"""A printed number is reproduced within this share."""
EQUAL = 1e-6
"""Throughputs that differ relatively by less are equal."""


_FASTER = {
    "ring": "1, all-reduce first, is faster where groups form rings",
    "broken ring": "2, reduce first, is faster where a tile breaks them",
}
"""Which strategy of Figure 12 is faster for which groups."""


def check_claims(inputs: TiledInputs) -> pd.DataFrame:
    """Return table claims; empty without a publication."""
    if inputs.published is None:
        return Claims.empty()
    return tabulate(part for make in (_table, _splits, _networks) for part in make(inputs, inputs.published))


def _table(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Claim]:
    """Yield the throughputs of Table VII, of each system's better layout with the fewest microbatches."""
    for name, case in inputs.of("table"):
        rows = inputs.rows(name)
        rows = rows[
            (rows["microbatches"] == min(case.microbatches)) & rows["model"].isin(list(published.wafer))
        ]
        for (system, model), some in rows.groupby(["system", "model"], sort=False):
            ours, printed = some["samples_per_s"].max(), published.wafer[str(model)].palm
            error = ours / printed - 1
            yield Claim(
                f"{model} on {system}: samples/s of PALM within {percent(CLOSE, 0)}",
                published.sources["wafer"], digits(printed, 5),
                f"{digits(ours, 4)} ({100 * error:+.0f} %)", abs(error) <= CLOSE,
            )  # fmt: skip


def _splits(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Claim]:
    for _, case in inputs.of("splits"):
        for system in case.systems:
            yield from claims_of_splits(inputs, system, min(case.microbatches), published)


def claims_of_splits(
    inputs: TiledInputs, system: str, microbatches: int, published: PublishedTiled
) -> Iterator[Claim]:
    """Yield what Figures 9 and 10 claim, of a system's runs with so many microbatches, if there are any."""
    where = f"{system}, {microbatches} microbatches"
    for name, _ in inputs.of("splits"):
        rows = inputs.rows(name)
        rows = rows[(rows["system"] == system) & (rows["microbatches"] == microbatches)]
        if len(rows):
            yield from _best(rows, where, published)
            yield from _occupied(rows, where, published)
            yield _better(rows, where, "layout", ("s-shaped", "line"), published.sources["layouts"])
            yield _better(rows, where, "placed", ("near", "far"), published.sources["placed"])
            yield _gap(rows, where, published)


def _best(rows: pd.DataFrame, where: str, published: PublishedTiled) -> Iterator[Claim]:
    """Yield the slices of the fastest split, and by which share the best with the printed ones is slower."""
    for model, tensor in published.best_tensor.items():
        best = rows[rows["model"] == model].groupby("tensor")["samples_per_s"].max()
        if len(best):
            ours, short = int(str(best.idxmax())), 1 - float(best.get(tensor, np.nan)) / float(best.max())
            beside = "" if ours == tensor or np.isnan(short) else f", TP {tensor} is {percent(short)} slower"
            yield Claim(
                f"{model} on {where}: TP of the fastest split",
                published.sources["best_tensor"], str(tensor), f"{ours}{beside}", ours == tensor,
            )  # fmt: skip


def _occupied(rows: pd.DataFrame, where: str, published: PublishedTiled) -> Iterator[Claim]:
    for model, tensor in published.least_occupancy.items():
        held = rows[rows["model"] == model].groupby("tensor")["link_busy_s"].mean()
        if len(held):
            yield Claim(
                f"{model} on {where}: TP of the split whose links are held shortest",
                published.sources["least_occupancy"], str(tensor), str(held.idxmin()),
                held.idxmin() == tensor,
            )  # fmt: skip


def _better(rows: pd.DataFrame, where: str, column: str, names: tuple[str, str], source: str) -> Claim:
    """Return whether one choice is faster in most of the runs that differ in nothing else, and in time."""
    others = [key for key in ("model", "layout", "placed", "tensor") if key != column]
    wide = rows.pivot_table(index=others, columns=column, values="samples_per_s").reindex(columns=list(names))
    both = wide.dropna()
    both = both[~np.isclose(both[names[0]], both[names[1]], rtol=EQUAL, atol=0)]
    faster = int((both[names[0]] > both[names[1]]).sum())
    mean = float(np.exp(np.log(both[names[0]] / both[names[1]]).mean())) if len(both) else float("nan")
    return Claim(
        f"on {where}: {names[0]} is faster than {names[1]}", source, "always",
        f"in {faster} of {len(both)}, {times(mean)} on average", faster > len(both) / 2,
    )  # fmt: skip


def _gap(rows: pd.DataFrame, where: str, published: PublishedTiled) -> Claim:
    by = rows.groupby("model")["samples_per_s"].agg(["max", "min"])
    gaps = by["max"] / by["min"]
    return Claim(
        f"on {where}: the best split and mapping is at least {published.gap:g} times as fast as the worst",
        published.sources["gap"], f"{published.gap:g}×",
        join(f"{times(gap)} {model}" for model, gap in gaps.items()), bool((gaps >= published.gap).all()),
    )  # fmt: skip


def _networks(inputs: TiledInputs, published: PublishedTiled) -> Iterator[Claim]:
    rows = inputs.networks
    ring = rows[rows["figure"] == 6]
    if len(ring):
        most = float(ring["value"].abs().max())
        yield Claim(
            "a ring all-reduce on 4 and 16 tiles takes its formula's time", published.sources["ring"],
            f"within {percent(published.ring_error, 0)} of GPUs", f"within {percent(most)} of the formula",
            most <= published.ring_error,
        )  # fmt: skip
    seven = rows[rows["figure"] == 7]
    if len(seven):
        yield from _congestion(seven[seven["reading"] == "longest"], published)
    twelve = rows[rows["figure"] == 12]
    for (reading, group), mine in twelve.groupby(["reading", "group"], sort=False):
        if not inputs.compares_best(str(reading)):
            continue
        gain, which = published.gain_of(str(group)), f"{_FASTER[str(group)]} ({reading})"
        yield _strategy(mine, gain, which, published.sources["exchange"])


def _congestion(rows: pd.DataFrame, published: PublishedTiled) -> Iterator[Claim]:
    source = published.sources["congestion"]
    five = rows[rows["setting"] == "5 tasks of 8 MB, kinds in turns"]["value"]
    if len(five):
        short = float(five.iloc[0])
        yield Claim(
            "five tasks of 8 MB: the formula is short by", source, percent(published.congestion_five, 0),
            percent(short), abs(short / published.congestion_five - 1) <= CLOSE,
        )  # fmt: skip
    most = float(rows[rows["group"] == "turns"]["value"].max())
    yield Claim(
        "tasks of any number and size, kinds in turns: the formula is short by at most", source,
        percent(published.congestion_most, 0), percent(most), most <= published.congestion_most,
    )  # fmt: skip


def _strategy(rows: pd.DataFrame, gain: float, which: str, source: str) -> Claim:
    low, high = float(rows["value"].min()), float(rows["value"].max())
    held = int((rows["value"] > 1).sum())
    found = f"{times(low)} to {times(high)}, faster in {held} of {len(rows)} settings"
    return Claim(f"strategy {which}", source, times(gain), found, low > 1)
