"""Inputs of PALM's section, and the tables and functions that its claims are checked on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from phaze.papers.claims import Function
from phaze.papers.publications import PrintedWafer, PublishedTiled
from phaze.report.cases import TiledCases
from phaze.report.words import join, percent, times


@dataclass(frozen=True)
class TiledInputs(TiledCases):
    """Simulations on tiles, with PALM's publication to compare with."""

    tiled_besides: pd.DataFrame
    flops: float
    """16-bit peak of the tiled system that printed figures are scaled to; 0 without published results."""
    published: PublishedTiled | None = None

    def compares_best(self, exchange: str) -> bool:
        """True if a reading of Figure 12 compares each strategy at its best number of adapters."""
        given = self.study.exchanges.get(exchange)
        return given is None or given.compare == "best"

    def measured(self, row: PrintedWafer) -> float:
        """Samples per second of a measured run, scaled from the peak of its GPUs to the tiles' peak."""
        assert self.published is not None
        return row.batch / row.measured_s * self.flops / (row.gpus * self.published.gpu_flops)


CLOSE = 0.2
"""Relative error up to which a printed figure counts as reproduced."""
EQUAL = 1e-6
"""Relative difference below which throughputs are equal."""


def claimed_tables(inputs: TiledInputs) -> Mapping[str, pd.DataFrame]:
    """Tables against which claims are checked, keyed by their name in the paper."""
    found = {}
    for name, show in (("wafer", "table"), ("splits", "splits")):
        parts = [inputs.tiled_runs.iloc[:0]]
        for case_name, case in inputs.of(show):
            rows = inputs.rows(case_name)
            rows = rows[rows["microbatches"] == min(case.microbatches)]
            listed = {name: number for number, name in enumerate((*case.systems, *case.batches))}
            parts.append(
                rows
                if show == "table"
                else rows.sort_values(["system", "model"], key=lambda names: names.map(listed), kind="stable")
            )
        found[name] = pd.concat(parts)
    networks = inputs.tiled_networks
    networks = networks.assign(faster=networks["value"] > 1)
    best = networks["reading"].map(inputs.compares_best).astype(bool)
    return {**found, "networks": networks, "exchanges": networks[(networks["figure"] == 12) & best]}


def _fastest_split(rows: pd.DataFrame, printed: object) -> dict[str, object]:
    """Tensor-parallel ranks of the fastest split, and the slowdown at the printed number."""
    best = rows.groupby("tensor")["samples_per_s"].max()
    ours, short = int(str(best.idxmax())), 1 - float(best.get(printed, np.nan)) / float(best.max())
    same = ours == printed or np.isnan(short)
    return {"ours": ours, "beside": "" if same else f", TP {printed} is {percent(short)} slower"}


def _faster(column: str, one: str, other: str, rows: pd.DataFrame, _: object) -> dict[str, object]:
    """Number of otherwise equal runs in which one choice is faster than another, and the mean ratio."""
    others = [key for key in ("model", "layout", "placed", "tensor") if key != column]
    wide = rows.pivot_table(index=others, columns=column, values="samples_per_s")
    both = wide.reindex(columns=[one, other]).dropna()
    both = both[~np.isclose(both[one], both[other], rtol=EQUAL, atol=0)]
    ratios = both[one] / both[other]
    mean = float(np.exp(np.log(ratios).mean())) if len(ratios) else float("nan")
    return {"faster": int((ratios > 1).sum()), "pairs": len(both), "mean": mean}


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
