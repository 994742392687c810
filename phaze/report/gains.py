"""What accelerators gain over the baseline, under a study's settings and under each of its readings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from phaze.report.inputs import Inputs
from phaze.report.winners import COMMON, PER_MODEL, own_hbm, row_of
from phaze.spec.study import OWN_READING
from phaze.tables import Gains

Throughputs = Mapping[tuple[str, str, str], float]
"""Samples per second by reading, model and architecture."""


def find_gains(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return table gains; empty for a study without readings or without a baseline.

    All architectures are planned by Phaze's planner, with their own HBM or the capacity that suits them best.
    A design's gain is the geometric mean over the models that both it and the baseline train.
    """
    rows = []
    throughputs = _throughputs(inputs)
    designs = dict(accelerators(inputs, results))
    for reading, asked in inputs.study.shown_readings.items():
        baseline = asked.baseline or inputs.study.architectures.baseline
        for design, by_model in designs.items() if baseline is not None else ():
            ratios = [
                throughputs.get((reading, model, chip), 0.0)
                / throughputs.get((reading, model, str(baseline)), np.inf)
                for model, chip in by_model.items()
            ]
            found = [ratio for ratio in ratios if ratio > 0]
            if found and design != baseline:
                gain = float(np.exp(np.mean(np.log(found))))
                row = {"reading": reading, "design": design, "note": asked.note, "baseline": baseline}
                rows.append({**row, "gain": gain, "models": len(found)})
    if not rows:
        return Gains.empty()
    table = pd.DataFrame(rows)
    own = table[table["reading"] == OWN_READING].set_index("design")["gain"]
    of_study = table["gain"] / table["design"].map(own)
    return Gains.check(table.assign(of_study=of_study.fillna(0.0)))


def _throughputs(inputs: Inputs) -> Throughputs:
    found = inputs.readings
    placed = found[(found["status"] == "placed") & (found["planner"] == "phaze")]
    best = {
        key: float(own_hbm(rows, inputs.hbm_gib)["samples_per_s"].max())
        for key, rows in placed.groupby(["reading", "model", "architecture"])
    }
    return {(str(reading), str(model), str(chip)): value for (reading, model, chip), value in best.items()}


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
