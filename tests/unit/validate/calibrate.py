"""Fit the one fitted constant, the A100's sustained_hbm, on Table 1 of SC 2021, and print the fit.

On a grid, least squares of the logarithm of predicted over measured time; then once more without each row,
for the error of that row with a constant that has not seen it.
"""

from __future__ import annotations

import sys

import numpy as np

from phaze.plan.lowered import load_machine
from phaze.validate.rows import read_row
from phaze.validate.table import log_errors, with_sustained_hbm
from tests.unit.validate.measured import megatron_sc21

GRID = np.arange(50, 76) / 100.0


def main() -> None:
    """Print the fit, and the error of every row that was left out."""
    machine = load_machine("a100-selene")
    rows = [read_row({name: str(value) for name, value in record.items()}) for record in megatron_sc21()]
    errors = np.array([log_errors(rows, with_sustained_hbm(machine, share)) for share in GRID])
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
