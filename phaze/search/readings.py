"""The best plans of a model on named architectures, under the settings of one reading of a study."""

from __future__ import annotations

import pandas as pd

from phaze.search.cosearch import Subject, Terms, best_placement, look_up_architectures
from phaze.tables import Readings

PLAN = ["model", "architecture", "hbm_gib", "planner"]


def read_plans(reading: str, subject: Subject, architectures: pd.DataFrame, terms: Terms) -> pd.DataFrame:
    """Return table readings of a model: for every architecture, HBM size and planner the best plan.

    `architectures` are rows of table architectures. A plan is the best over TMP widths, microbatches and
    recomputation, by the order of `best_placement`.
    """
    placements = look_up_architectures(subject, architectures, terms, ["placements"])["placements"]
    best = [best_placement(rows) for _, rows in placements.groupby(PLAN, sort=True)]
    return Readings.check(pd.DataFrame(best).assign(reading=reading)[list(Readings.fields())])
