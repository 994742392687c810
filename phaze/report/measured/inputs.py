"""Inputs of the page of measured runs."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pandas as pd

from phaze.spec.measured import MeasuredStudy


@dataclass(frozen=True)
class MeasuredInputs:
    """Tables of the measured runs of a study, by name as in `phaze.tables`."""

    study: MeasuredStudy
    measured_runs: pd.DataFrame
    source_scores: pd.DataFrame
    group_regrets: pd.DataFrame
    tool_errors: pd.DataFrame
    fitted_constants: pd.DataFrame

    @property
    def timed(self) -> pd.DataFrame:
        """Runs with a predicted and a measured time, and the ratio of predicted to measured."""
        runs = self.measured_runs
        known: pd.DataFrame = runs[np.isfinite(runs["predicted_s"]) & np.isfinite(runs["measured_s"])]
        return known.assign(ratio=known["predicted_s"] / known["measured_s"])


MEASURED_TABLES = tuple(one.name for one in fields(MeasuredInputs) if one.name != "study")
"""Names of the tables of the page."""
