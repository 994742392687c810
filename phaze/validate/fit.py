"""Fit what kernels reach of HBM's bandwidth, the one constant that is fitted, to runs with measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize_scalar

from phaze.base.arrays import Floats
from phaze.plan.runs.machine import Machine
from phaze.validate.rows import Row
from phaze.validate.table import predict_rows

SHARES = (0.3, 1.0)
"""Least and largest share of HBM's bandwidth that is tried."""
STEP = 0.01


def with_sustained_hbm(machine: Machine, share: float) -> Machine:
    """Return a machine whose kernels reach such a share of HBM's bandwidth."""
    return replace(machine, device=machine.device.model_copy(update={"sustained_hbm": share}))


def log_errors(rows: Sequence[Row], machine: Machine) -> Floats:
    """Return the logarithms of predicted over measured times of rows (R,), all of which say `measured_s`."""
    predicted = predict_rows(rows, machine)["time_s"].to_numpy(float)
    return np.log(predicted / np.array([row.measured_s for row in rows], np.float64))


def fitted_sustained_hbm(rows: Sequence[Row], machine: Machine) -> float:
    """Return the share of HBM's bandwidth with the least squares of `log_errors`, to a hundredth."""
    found = minimize_scalar(
        lambda share: float(np.square(log_errors(rows, with_sustained_hbm(machine, share))).sum()),
        bounds=SHARES,
        method="bounded",
        options={"xatol": STEP / 2},
    )
    return round(float(found.x) / STEP) * STEP
