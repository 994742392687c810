"""Products of experts launched one after the other, relative to dense products in the same loop.

Loops differ in the clock at which they run a device. Only a ratio therefore carries over from one loop to
another: the rate of expert products over the rate of dense ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from phaze.base.arrays import Floats
from phaze.cost.experts import products_s
from phaze.cost.products import Products
from phaze.spec.speeds.experts import ExpertSpeed
from phaze.spec.system import Device
from phaze.validate.parts.base import MS

HALF = 2
WIDTHS = {"bf16": 2, "fp32": 4}
"""Bytes of an element of a gradient, which is read and written."""
START = (0.7, 0.7, 2e-6)
LOW = (0.05, 0.05, 1e-9)
HIGH = (1.0, 0.95, 1e-4)
"""Initial values of reached, hbm and expert_s in a fit, and their physical range."""
SCALE = 0.1
"""Error above which a row weighs less (soft L1)."""


@dataclass(frozen=True)
class EachFit:
    """Fit of the products of single experts."""

    speed: ExpertSpeed
    """Constants in the table's loop."""
    of_dense: float
    """Rate of full tiles relative to dense products in the same loop."""
    median: float
    """Median absolute error over expert products."""


def fitted_each(grouped: pd.DataFrame, dense: pd.DataFrame, device: Device) -> EachFit:
    """Fit constants to expert products of one device, relative to dense ones of the same loop."""
    device = device.model_copy(update={"sustained_clock": 1.0})
    own, plain = _fitted(grouped, device), _fitted(dense.assign(experts=1), device)
    errors = product_seconds(grouped, device, own) / grouped["latency_ms"].to_numpy(float) / MS - 1
    return EachFit(own, own.reached / plain.reached, float(np.median(np.abs(errors))))


def product_seconds(rows: pd.DataFrame, device: Device, speed: ExpertSpeed) -> Floats:
    """Seconds (R,) of products in half precision; rows with `layout` NT compute weight gradients."""
    found = np.zeros(len(rows))
    for result, places in rows.reset_index(drop=True).groupby("result").indices.items():
        own = rows.iloc[places]
        products = Products(
            own[["experts", "m", "k", "n"]].to_numpy(np.int64),
            (own["layout"] == "NT").to_numpy(),
            HALF,
            added_bytes=float(2 * WIDTHS[str(result)] - HALF),
        )
        found[places] = products_s(products, device, speed).sum(axis=1)
    return found


def _fitted(rows: pd.DataFrame, device: Device) -> ExpertSpeed:
    measured_s = rows["latency_ms"].to_numpy(float) * MS

    def speed_of(logs: Floats) -> ExpertSpeed:
        names = ("reached", "hbm", "expert_s")
        return ExpertSpeed.model_construct(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def errors(logs: Floats) -> Floats:
        found: Floats = np.log(product_seconds(rows, device, speed_of(logs)) / measured_s)
        return found

    bounds = (np.log(LOW), np.log(HIGH))
    found = least_squares(errors, np.log(START), bounds=bounds, loss="soft_l1", f_scale=SCALE)
    return speed_of(found.x)
