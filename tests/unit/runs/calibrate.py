"""Fit the one fitted constant, the A100's sustained_hbm, on Table 1 of SC 2021, and print the fit.

On a grid, least squares of the logarithm of predicted over measured time; then once more without each row,
for the error of that row with a constant that has not seen it.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from phaze.runs.machine import Machine, load_machine
from tests.unit.runs.measured import megatron_sc21, predict_records

GRID = np.arange(50, 76) / 100.0


def log_errors(machine: Machine, share: float) -> NDArray[np.float64]:
    """Return the logarithms of predicted over measured times of all rows (R,) with that constant."""
    device = machine.device.model_copy(update={"sustained_hbm": share})
    table, _ = predict_records(megatron_sc21(), replace(machine, device=device))
    return np.log(table["time_s"].to_numpy(float) / pd.to_numeric(table["measured_s"]).to_numpy(float))


def main() -> None:
    """Print the fit, and the error of every row that was left out."""
    machine = load_machine("a100-selene")
    errors = np.array([log_errors(machine, share) for share in GRID])
    squares = errors**2
    best = GRID[squares.sum(axis=1).argmin()]
    sys.stdout.write(f"sustained_hbm {best:.2f} on all rows\n")
    left_out = []
    for row in range(errors.shape[1]):
        place = np.delete(squares, row, axis=1).sum(axis=1).argmin()
        left_out.append(np.expm1(errors[place, row]))
        sys.stdout.write(f"without row {row + 1}: {GRID[place]:.2f}, its error {100 * left_out[-1]:+.1f} %\n")
    sys.stdout.write(f"mean absolute error of rows left out {100 * np.abs(left_out).mean():.1f} %\n")
    for share, row in zip(GRID, errors, strict=True):
        mean, worst = 100 * np.abs(np.expm1(row)).mean(), 100 * np.abs(np.expm1(row)).max()
        sys.stdout.write(f"{share:.2f}: mean {mean:.2f} %, worst {worst:.2f} %\n")


if __name__ == "__main__":
    main()
