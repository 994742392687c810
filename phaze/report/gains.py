"""What the gain over the baseline rests on: under a study's settings and under each of its readings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import pandas as pd

from phaze.report.document import Block, Cell, Items, Section, Sheet, sheet_of
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.winners import COMMON, PER_MODEL, own_hbm, row_of
from phaze.report.words import join, times
from phaze.spec.study import OWN_READING
from phaze.tables import Gains


def find_gains(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return table gains; empty for a study without readings or without a baseline.

    All architectures are planned by Phaze's planner, with their own HBM or the capacity that suits them best.
    A design's gain is the geometric mean over the models that both it and the baseline train.
    """
    rows = []
    found = inputs.readings[(inputs.readings["status"] == "placed") & (inputs.readings["planner"] == "phaze")]
    throughputs = {
        tuple(map(str, key)): float(own_hbm(mine, inputs.hbm_gib)["samples_per_s"].max())
        for key, mine in found.groupby(["reading", "model", "architecture"])
    }
    designs = dict(accelerators(inputs, results))
    for reading, asked in inputs.study.shown_readings.items():
        baseline = asked.baseline or inputs.study.architectures.baseline
        for design, by_model in designs.items() if baseline is not None else ():
            ratios = [
                throughputs.get((reading, model, chip), 0.0)
                / throughputs.get((reading, model, str(baseline)), np.inf)
                for model, chip in by_model.items()
            ]
            positive = [ratio for ratio in ratios if ratio > 0]
            if positive and design != baseline:
                gain = float(np.exp(np.mean(np.log(positive))))
                row = {"reading": reading, "design": design, "note": asked.note, "baseline": baseline}
                rows.append({**row, "gain": gain, "models": len(positive)})
    if not rows:
        return Gains.empty()
    table = pd.DataFrame(rows)
    own = table[table["reading"] == OWN_READING].set_index("design")["gain"]
    of_study = table["gain"] / table["design"].map(own)
    return Gains.check(table.assign(of_study=of_study.fillna(0.0)))


def accelerators(inputs: Inputs, results: pd.DataFrame) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the accelerators that gain something, by model: the best, the common one, named ones for all."""
    models, named = inputs.study.models, inputs.study.architectures.named
    families = inputs.published.families if inputs.published else {}
    members = {name for family in families.values() for name in family.values()}
    for design in (PER_MODEL, COMMON):
        rows = {model: row_of(results, model, design) for model in models}
        yield design, {model: str(row["architecture"]) for model, row in rows.items() if row is not None}
    for name in named:
        if name not in members:
            yield name, dict.fromkeys(models, name)


TITLES = {PER_MODEL: "The best accelerator of every workload", COMMON: "The best one for all"}
"""Designs, for readers."""
EVEN = 0.01
"""Gains within this of 1 are none: the accelerators are as fast as each other."""
_ABOUT = (
    "Every reading changes some settings of the study and places all workloads again on the same "
    "accelerators, with one planner for all, so that a gain is that of the accelerator. Where a reading "
    "makes a gain or takes it away, the claim turns over; within 1 % accelerators count as equally fast."
)


def assumptions(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the gains under every reading, for a study with readings."""
    rows = in_order(inputs, findings.gains)
    if rows.empty:
        return
    turned = tuple(turned_over(_claimed(rows)))
    blocks: tuple[Block, ...] = (*((Items(turned),) if turned else ()), _sheet(rows))
    yield Section("assumptions", "What the gain rests on", _ABOUT, blocks)


def claims(inputs: Inputs, findings: Findings) -> pd.DataFrame:
    """Return the gains that the study is about: of accelerators that are nowhere the baseline, in order."""
    return _claimed(in_order(inputs, findings.gains))


def in_order(inputs: Inputs, gains: pd.DataFrame) -> pd.DataFrame:
    """Return gains in the order of the study: designs, and readings with its own settings first."""
    designs = (PER_MODEL, COMMON, *inputs.study.architectures.named)
    order = {name: place for place, name in enumerate((*designs, *inputs.study.shown_readings))}
    several = len(inputs.study.models) > 1
    rows = gains[(gains["design"] != COMMON) | several]
    return rows.sort_values(["design", "reading"], key=lambda names: names.map(order), ignore_index=True)


def _claimed(gains: pd.DataFrame) -> pd.DataFrame:
    """Return the gains of designs that are nowhere the baseline, of equal ones that with a name."""
    found = gains[~gains["design"].isin(gains["baseline"])]
    wide = found.pivot(index="design", columns="reading", values="gain").reindex(found["design"].unique())
    return found[~found["design"].isin(wide.index[wide.duplicated(keep="last")])]


def turned_over(gains: pd.DataFrame) -> Iterator[str]:
    """Yield the readings under which an accelerator that gains no longer does, or the reverse."""
    for design, own, others in _by_design(gains):
        turned = others[(others["gain"] > 1 + EVEN) != (own["gain"] > 1 + EVEN)]
        words = join(
            f"{row['reading']}, {times(row['gain'])} over {row['baseline']} ({row['note']})"
            for _, row in turned.iterrows()
        )
        if words:
            yield (
                f"A claim turns over. {design} trains {times(own['gain'])} as fast as {own['baseline']} "
                f"under the settings of the study, but under {words}."
            )


def gains_in_words(gains: pd.DataFrame) -> Iterator[str]:
    """Yield the gain of every design under the study's settings and under its readings."""
    for design, own, others in _by_design(gains):
        changes = [f"{row['reading']} {times(row['gain'])}" for _, row in others.iterrows()]
        under = f"; under the readings {join(changes)}" if changes else ""
        yield f"{design} trains {times(own['gain'])} as fast as {own['baseline']} as planned{under}."


def _by_design(gains: pd.DataFrame) -> Iterator[tuple[str, pd.Series, pd.DataFrame]]:
    """Yield for every design its title, its gain under the study's settings, and those of the readings."""
    for design, rows in gains.groupby("design", sort=False):
        own = rows["reading"] == OWN_READING
        if own.any():
            yield TITLES.get(str(design), str(design)), rows[own].iloc[0], rows[~own]


def _sheet(gains: pd.DataFrame) -> Sheet:
    designs = list(dict.fromkeys(gains["design"]))
    wide = gains.pivot(index="reading", columns="design", values="gain").fillna(0.0).add_prefix("gain of ")
    rows = gains.drop_duplicates("reading")[["reading", "note", "baseline"]].join(wide, on="reading")
    columns: dict[str, Cell] = {
        "reading": "{reading}", "what it assumes": "{note}", "over": "{baseline}",
        **{design: partial(_gain, design) for design in designs},
    }  # fmt: skip
    caption = "Geometric mean of the throughput over the baseline's, as planned, under every reading"
    return sheet_of(caption, rows, columns, 3, rows["reading"] == OWN_READING, Gains.name)


def _gain(design: str, row: pd.Series) -> str:
    return times(row[f"gain of {design}"])
