"""What the tables tell of an architecture that the screen excluded: its least bound, and what binds there."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from phaze.report.anatomy import layer_counts, shares_of_limits, with_estimates
from phaze.report.inputs import Inputs, Only, Point
from phaze.report.winners import chip_of
from phaze.tables import Operators, Screens


def least_bound(inputs: Inputs, model: str, architecture: str) -> pd.Series | None:
    """Return the row of table screens with the architecture's least lower bound, None if nothing fits it."""
    workload, training = inputs.study.workloads[model], inputs.study.training
    chips = inputs.cluster.architectures
    shard = chips.loc[chips["architecture"] == architecture, "shard"].iloc[0]
    points = [Point(model, t, b) for t, b in product(workload.tensor, training.microbatches)]
    only = Only("architecture", (architecture,))
    rows = [inputs.details.rows(Screens, point, shard, only) for point in points]
    found = pd.concat(rows, ignore_index=True)
    fitting = found[np.isfinite(found["lower_s"])]
    return None if fitting.empty else fitting.loc[fitting["lower_s"].idxmin()]


def limits_on_all_cores(inputs: Inputs, row: pd.Series) -> pd.Series:
    """Return the part of all layers' busy time that each limit binds, with every operator on all cores."""
    point = Point(str(row["model"]), int(row["tensor"]), int(row["microbatch"]))
    operators = inputs.details.rows(Operators, point, "").assign(core_index=-1, start_s=0.0, end_s=0.0)
    found = with_estimates(operators, inputs.details, point, chip_of(inputs.cluster, row))
    return shares_of_limits(
        found["limit"], found["latency_all_s"], found["layer"], layer_counts(inputs, point.model)
    )
