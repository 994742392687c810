"""Leave-one-source-out predictions: times of a source with constants fitted to the other sources.

The logarithm of a time is nearly linear in the logarithms of the constants, so a fit without a source is one
linear problem. The source is then predicted in full. Sources have equal weight, and some evenly spread rows
represent a long source. A constant that depends on one source only keeps its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from phaze.base.arrays import Floats
from phaze.spec.files import FOLDER
from phaze.spec.measured import KnownFrom
from phaze.validate.constants import Constant, Site
from phaze.validate.rows import RunRow
from phaze.validate.table import measured_of, predict_rows

MOST_ROWS = 40
"""Most rows of a source used in a fit."""
STEP = 0.01
"""Change of a logarithm for finite differences."""
WIDTH, NOISE = 0.3, 0.05
"""Standard deviations of a constant's logarithm before any run, and of the mean error of a source."""
Changes = Mapping[KnownFrom, float]
"""Changes of the logarithms of constants."""


@dataclass(frozen=True)
class Refit:
    """Measured rows of sources, and constants that are fitted to some of them."""

    rows: Mapping[str, Sequence[RunRow]]
    """Rows with a system, a measured and a predicted time, by source."""
    fitted: Sequence[KnownFrom]
    folder: Path = FOLDER
    _known: dict[tuple[str, KnownFrom | None], Floats] = field(default_factory=dict)
    """Cache: errors of a source's representative rows, and their derivatives by a constant."""

    def times_s(self, source: str) -> Floats | None:
        """Predicted times of a source with constants from other sources; None if no constant is shared."""
        shared = [one for one in self.fitted if source in one.sources and self._others(one, source)]
        if not shared:
            return None
        changes = dict(zip(shared, self._changes(shared, source).tolist(), strict=True))
        return np.exp(self._logs(self.rows[source], changes))

    def _others(self, constant: KnownFrom, source: str) -> list[str]:
        return [name for name in constant.sources if name != source and name in self.rows]

    def _changes(self, constants: Sequence[KnownFrom], source: str) -> Floats:
        """Least-squares changes (C,) of the logarithms of constants, without a source."""
        left, right = [np.eye(len(constants)) / WIDTH], [np.zeros(len(constants))]
        for name in dict.fromkeys(name for one in constants for name in self._others(one, source)):
            errors = self._errors(name)
            effects = [self._effect(name, one) if name in one.sources else 0 * errors for one in constants]
            scale = NOISE * np.sqrt(len(errors))
            left.append(np.stack(effects, axis=1) / scale)
            right.append(-errors / scale)
        found: Floats = np.linalg.lstsq(np.vstack(left), np.concatenate(right))[0]
        return found

    def _errors(self, source: str) -> Floats:
        """Logarithms of predicted over measured times of a source's representative rows."""
        if (source, None) not in self._known:
            rows = self._standing(source)
            self._known[source, None] = self._logs(rows, {}) - np.log(measured_of(rows, "measured_s"))
        return self._known[source, None]

    def _effect(self, source: str, constant: KnownFrom) -> Floats:
        """Derivatives of these logarithms by the logarithm of a constant."""
        if (source, constant) not in self._known:
            rows = self._standing(source)
            ends = [self._logs(rows, {constant: step}) for step in (-STEP, 0.0)]
            self._known[source, constant] = (ends[1] - ends[0]) / STEP
        return self._known[source, constant]

    def _standing(self, source: str) -> list[RunRow]:
        rows = self.rows[source]
        return [rows[k] for k in np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).astype(int)]

    def _logs(self, rows: Sequence[RunRow], changes: Changes) -> Floats:
        """Logarithms of the predicted times of rows with changed constants."""
        found = np.zeros(len(rows))
        at = [(row.system, row.stack) for row in rows]
        for system, stack in dict.fromkeys(at):
            own = [k for k, place in enumerate(at) if place == (system, stack)]
            site = changed(Site.load(system, stack or None, self.folder), changes)
            asked = [replace(rows[k], system="", stack="") for k in own]
            found[own] = np.log(predict_rows(asked, site.machine)["time_s"].to_numpy(float))
        return found


def changed(site: Site, changes: Changes) -> Site:
    """Site with changed constants of its own device and stack, each at most its upper limit."""
    names = {"device": site.device.name, "stack": site.stack.name}
    values = {}
    for one, change in changes.items():
        if names[one.part] == one.of:
            constant = Constant(one.part, one.key, 0.0, one.most)
            values[constant] = min(site.value(constant) * float(np.exp(change)), one.most)
    return site.with_values(values)
