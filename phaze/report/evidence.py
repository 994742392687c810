"""What the checks of a study of accelerators look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from phaze.report.inputs import Inputs
from phaze.report.verdicts import Verdicts

KEYS = ("model", "tensor", "microbatch", "architecture", "hbm_gib", "recompute", "planner")
"""Columns that say which placement it is."""


@dataclass(frozen=True)
class Evidence:
    """The tables of a study, and what the report makes of them."""

    inputs: Inputs
    results: pd.DataFrame
    energies: pd.DataFrame


Check = Callable[[Evidence], Verdicts]
