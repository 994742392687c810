"""Joint fit of the constants of devices and stacks to published runs, also with a source left out.

The logarithm of a time is nearly linear in the logarithms of the constants, so a fit is one linear problem
around the present values. All constants move together, within their bounds. Sources have equal weight, some
evenly spread rows represent a long source, and outliers count less (soft L1). If a source has models without
experts, only these take part. A constant that depends on one source keeps its value if that is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.optimize import lsq_linear

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER
from phaze.spec.measured import LIST, KnownFrom, PublishedRuns
from phaze.spec.systems import load_device, load_stack
from phaze.validate.constants import Constant, Site, value_at
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.table import measured_of, predict_rows, settled

MOST_ROWS = 40
"""Maximum number of rows per source in a fit."""
STEP = 0.01
"""Step in a constant's logarithm for finite differences."""
WIDTH, NOISE = 0.3, 0.05
"""Prior standard deviation of a constant's logarithm, and standard deviation of a source's mean error."""
ROUNDS = 20
"""Number of least-squares problems, each with the weights that the previous residuals give the rows."""
Changes = Mapping[KnownFrom, float]
"""Change in the logarithm of each constant."""


@dataclass(frozen=True)
class Refit:
    """Measured rows by source, and constants to fit again with one source held out at a time."""

    rows: Mapping[str, Sequence[RunRow]]
    """Rows with a system, a measured time and a predicted time, by source."""
    fitted: Sequence[KnownFrom]
    folder: Path = FOLDER
    _logs_of: dict[tuple[str, KnownFrom | None], Floats] = field(default_factory=dict)
    """Cache of a source's log errors on representative rows, and of their derivatives by a constant."""

    @classmethod
    def load(cls, folder: Path = FOLDER) -> Refit:
        """Fit of all constants of `config/measured.yaml` to the sources that they name."""
        fitted = PublishedRuns.load(folder).fitted
        names = dict.fromkeys(name for constant in fitted for name in constant.sources)
        return cls({name: _timed_rows(folder / "measured" / f"{name}.csv", folder) for name in names}, fitted)

    def times_s(self, source: str) -> Floats | None:
        """Predicted times of a source with constants fitted to the others; None if no constant is shared."""
        changes = self.changes(source)
        return np.exp(self._logs(self.rows[source], changes)) if changes else None

    def changes(self, left_out: str = "") -> Changes:
        """Changes in the logarithms of the constants by a fit to all sources, or to all but one.

        Without one source, only the constants that it shares with others are fitted.
        """
        shared = [c for c in self.fitted if not left_out or left_out in c.sources]
        constants = [c for c in shared if self._others(c, left_out)]
        names = dict.fromkeys(name for c in constants for name in self._others(c, left_out))
        if not constants:
            return {}
        factors, targets, scales = [], [], []
        for name in names:
            errors = self._errors(name)
            effects = [self._effect(name, c) if name in c.sources else 0 * errors for c in constants]
            factors.append(np.stack(effects, axis=1))
            targets.append(-errors)
            # The root gives every source the same weight, whatever its number of rows.
            scales.append(np.full(len(errors), NOISE * np.sqrt(len(errors))))
        solution = _robust(
            np.vstack(factors), np.concatenate(targets), np.concatenate(scales), self._most(constants)
        )
        return dict(zip(constants, solution.tolist(), strict=True))

    def _most(self, constants: Sequence[KnownFrom]) -> Floats:
        """Largest changes in the logarithms that keep every owner of a constant within its limit, (C,)."""
        values = [max(values_of(c, self.folder).values()) for c in constants]
        limits = np.log([c.most for c in constants]) - np.log(values)
        most: Floats = np.maximum(limits, STEP / 10)
        return most

    def _others(self, constant: KnownFrom, source: str) -> list[str]:
        return [name for name in constant.sources if name != source and name in self.rows]

    def _errors(self, source: str) -> Floats:
        """Logarithms of predicted over measured times of a source's representative rows."""
        if (source, None) not in self._logs_of:
            rows = self._sampled_rows(source)
            self._logs_of[source, None] = self._logs(rows, {}) - np.log(measured_of(rows, "measured_s"))
        return self._logs_of[source, None]

    def _effect(self, source: str, constant: KnownFrom) -> Floats:
        """Derivatives of a source's log errors with respect to the logarithm of a constant."""
        if (source, constant) not in self._logs_of:
            rows = self._sampled_rows(source)
            ends = [self._logs(rows, {constant: step}) for step in (-STEP, 0.0)]
            self._logs_of[source, constant] = (ends[1] - ends[0]) / STEP
        return self._logs_of[source, constant]

    def _sampled_rows(self, source: str) -> list[RunRow]:
        rows = [row for row in self.rows[source] if not row.has_experts] or self.rows[source]
        return [rows[k] for k in np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int)]

    def _logs(self, rows: Sequence[RunRow], changes: Changes) -> Floats:
        """Logarithms of the predicted times of rows, with changed constants."""
        logs = np.zeros(len(rows))
        systems = [(row.system, row.stack) for row in rows]
        for system, stack in dict.fromkeys(systems):
            indices = [k for k, place in enumerate(systems) if place == (system, stack)]
            site = changed(Site.load(system, stack or None, self.folder), changes)
            # Names in a row would load the files again, without the changed constants.
            site_rows = [replace(rows[k], system="", stack="") for k in indices]
            logs[indices] = np.log(predict_rows(site_rows, site.machine)["time_s"].to_numpy(float))
        return logs


def _timed_rows(path: Path, folder: Path) -> list[RunRow]:
    """Rows of a file that have a measured and a predicted time, with the chosen microbatches and chunks."""
    _, rows = read_rows(path)
    predicted = predict_rows(rows, None, folder)
    timed = np.isfinite(predicted["time_s"]) & np.isfinite(measured_of(rows, "measured_s"))
    return list(settled([row for row, used in zip(rows, timed, strict=True) if used], predicted[timed]))


def _robust(factors: Floats, targets: Floats, scales: Floats, most: Floats) -> Floats:
    """Changes x (C,) with x <= most that minimise the soft L1 loss of factors (R, C) times x minus targets.

    Errors are divided by `scales` (R,). A change of WIDTH costs as much as an error of NOISE in all rows of a
    source.
    """
    prior = np.eye(len(most)) / WIDTH
    solution = np.zeros(len(most))
    for _ in range(ROUNDS):
        residuals = (factors @ solution - targets) / NOISE
        # Weights of the squares under which their gradient is that of the soft L1 loss.
        weights = (1.0 + residuals**2) ** -0.25 / scales
        solution = lsq_linear(
            np.vstack([factors * weights[:, None], prior]),
            np.concatenate([targets * weights, np.zeros(len(most))]),
            (-np.inf, most),
        ).x
    return solution


def changed(site: Site, changes: Changes) -> Site:
    """Site with changes to the constants of its own device and stack, each capped at its upper limit."""
    names = {"device": site.device.name, "stack": site.stack.name}
    values = {}
    for fitted, change in changes.items():
        if names[fitted.part] in fitted.of:
            constant = Constant(fitted.part, fitted.key, 0.0, fitted.most)
            values[constant] = min(site.value(constant) * float(np.exp(change)), fitted.most)
    return site.with_values(values)


def values_of(fitted: KnownFrom, folder: Path = FOLDER) -> dict[str, float]:
    """Values of a constant in the files of its owners, by owner; PhazeError if a file has no such number."""
    load = load_device if fitted.part == "device" else load_stack
    try:
        return {owner: value_at(load(owner, folder), fitted.key) for owner in fitted.of}
    except KeyError as error:
        raise PhazeError(f"{LIST}: fitted: {fitted.name}: is no number in all of these files") from error
