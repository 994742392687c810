"""Base of the comparisons of predicted with measured kernels, and of the fits of kernel constants.

A part is a kind of kernel. Its table has one row per measurement. This module reads the common columns, and
each part names the sizes it needs. Kernels are timed in a loop: the power limits of hours of training do not
apply, so sites are used with their full clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.base.files import refuse_endless
from phaze.base.printed import short
from phaze.layout import COMPUTE_NAMES
from phaze.spec.systems import system_of_device
from phaze.validate.constants import Site

MS = 1e-3
MOST = 2**40
"""Maximum size allowed in a row."""
BAD_SHOWN = 3
"""Number of invalid rows shown in an error message."""
UNPRICED = ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "half")
"""Precisions in inference tables that phaze does not price; `half` is the precision of collectives."""
PART = "part"
"""Column with the part's name, in tables that have rows of several parts."""
OWN = ("line", "device", "precision", "measured_s", "source")
"""Columns that every table has once it is read."""


class KernelPart(ABC):
    """Interface of one kind of kernel: read its table, predict its rows, and fit its constants."""

    name: ClassVar[str]
    """Name of the part in `validate --part`."""
    sizes: ClassVar[tuple[str, ...]]
    """Required columns with whole numbers ≥ 1."""
    words: ClassVar[tuple[str, ...]] = ()
    """Other required columns, kept as text."""
    fitted_to: ClassVar[str]
    """Sources to which the constants in config/devices and config/networks are fitted."""
    renamed: ClassVar[dict[str, str]] = {}
    """Alternative column names, mapped to this part's names: `dev` to `device`, …."""

    @abstractmethod
    def predicted_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Predicted times (R,) in seconds of one device's rows at its full clock; NaN for unpriced rows."""

    @abstractmethod
    def fitted(self, rows: pd.DataFrame, site: Site) -> Site:
        """Site with this part's constants fitted to rows of its device."""

    @abstractmethod
    def fastest_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Lower bound on times (R,) in seconds on the site's device, from peak FLOP/s and link bandwidth."""

    @abstractmethod
    def kinds(self, rows: pd.DataFrame) -> list[str]:
        """Class of every row (R,), by size or kernel, for a breakdown of the errors."""

    def completed(self, table: pd.DataFrame) -> pd.DataFrame:
        """Add the default values of missing optional columns to a table, as text."""
        return table

    def problem(self, rows: pd.DataFrame) -> list[str]:
        """Further error message for each row (R,); empty for a valid row."""
        return [""] * len(rows)

    def read(self, path: Path, system: str | None = None) -> pd.DataFrame:
        """Read columns OWN, `sizes` and `words` of a table; PhazeError lists the lines of invalid rows."""
        table = self.completed(_read_texts(path, self.renamed))
        if PART in table:
            table = table[table[PART] == self.name].reset_index(drop=True)
        needed = ("device", "precision", *self.sizes, *self.words, "latency_ms")
        if missing := [name for name in needed if name not in table]:
            shown = {new: old for old, new in self.renamed.items()}
            names = ", ".join(shown.get(name, name) for name in missing)
            raise PhazeError(f"{path}: columns {names} are missing; --part {self.name} needs them")
        if table.empty:
            raise PhazeError(f"{path}: has no rows below its header")
        wrong = [_cell_error(row, self.sizes, table.attrs) for row in table[list(needed)].to_dict("records")]
        _refuse_lines(path, table["line"], wrong)
        rows = table.assign(
            measured_s=table["latency_ms"].astype(float) * MS,
            source=table.get("source", path.stem),
            precision=[COMPUTE_NAMES.get(_normalised(text), text) for text in table["precision"]],
            **{name: table[name].astype(float).astype(np.int64) for name in self.sizes},
        )[[*OWN, *self.sizes, *self.words]]
        _refuse_lines(path, rows["line"], self.problem(rows))
        self._refuse_too_fast(path, rows, system)
        return rows

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read, under each of their names."""
        return (*OWN, PART, "latency_ms", *self.sizes, *self.words, *self.renamed)

    def reads(self, path: Path) -> bool:
        """True if a table has rows for this part, according to its columns or to its column PART."""
        table = self.completed(_read_texts(path, self.renamed))
        if PART in table:
            return bool((table[PART] == self.name).any())
        return {"device", *self.sizes, *self.words} <= set(table)

    def _refuse_too_fast(self, path: Path, rows: pd.DataFrame, system: str | None) -> None:
        for device, device_rows in rows.groupby("device", sort=False):
            site = site_of(str(device), system)
            if site is None:
                continue
            # Nothing is faster than the peak: such a row is in other units or of another device.
            least = self.fastest_s(device_rows, site)
            wrong = [
                f"latency_ms must be at least {low / MS:.4g}, the minimum at the peak of "
                f"{site.device.name}, got {took / MS:.4g}; check that it is in milliseconds"
                if took < low
                else ""
                for low, took in zip(least, device_rows["measured_s"], strict=True)
            ]
            _refuse_lines(path, device_rows["line"], wrong)

    def predicted(self, rows: pd.DataFrame, system: str | None = None) -> Floats:
        """Predicted times (R,) in seconds of rows of any devices; NaN for rows that are not priced."""
        times_s = np.full(len(rows), np.nan)
        for device, places in rows.reset_index(drop=True).groupby("device", sort=False).indices.items():
            site = site_of(str(device), system)
            if site is not None:
                times_s[places] = self.predicted_s(rows.iloc[places], in_a_loop(site))
        return times_s


def columns_in(path: Path) -> list[str]:
    """Names of the columns of a table of kernels."""
    return [str(name) for name in _read_texts(path, {})]


def in_a_loop(site: Site) -> Site:
    """Copy of a site whose device runs at its full clock, as in kernels timed in a short loop."""
    return replace(site, device=site.device.model_copy(update={"sustained_clock": 1.0, "in_steps": {}}))


def site_of(device: str, system: str | None = None) -> Site | None:
    """The given system, or one in config/systems that uses the device; None if neither exists."""
    if system is not None:
        return Site.load(system)
    name = system_of_device(device)
    return None if name is None else _site(name)


_site = cache(Site.load)


def _read_texts(path: Path, renamed: dict[str, str]) -> pd.DataFrame:
    """Read the columns of a CSV file as text, with the line number of each row."""
    try:
        refuse_endless(path)
        table = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise PhazeError(f"{path}: cannot be read as CSV: {' '.join(str(error).split())}") from error
    names = {old: new for old, new in renamed.items() if new not in table}
    texts = table.rename(columns=names).assign(line=np.arange(len(table)) + 2)
    # Error messages name a column as the file does.
    texts.attrs.update({new: old for old, new in names.items() if old in table})
    return texts


def _normalised(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _cell_error(row: Mapping[Hashable, str], sizes: Sequence[str], names: Mapping[Hashable, str]) -> str:
    """Error message for the cells of a row; empty if valid. `names` maps columns to names in the file."""
    for name in sizes:
        if not _is_number(row[name], integer=True):
            return f"{names.get(name, name)} must be a whole number from 1 to {MOST}, got {short(row[name])}"
    if not _is_number(row["latency_ms"], integer=False):
        return f"latency_ms must be a number > 0, got {short(row['latency_ms'])}"
    precision = row["precision"].strip()
    if _normalised(precision) not in COMPUTE_NAMES and precision not in UNPRICED:
        precisions = ", ".join(dict.fromkeys((*COMPUTE_NAMES.values(), "bfloat16", *UNPRICED)))
        return f"{names.get('precision', 'precision')} must be one of {precisions}, got {short(precision)}"
    return "" if row["device"].strip() else "device must be given"


def _is_number(text: str, *, integer: bool) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return 0 < value < MOST and (not integer or value == int(value))


def _refuse_lines(path: Path, lines: Sequence[int] | pd.Series, wrong: Sequence[str]) -> None:
    """Raise PhazeError with the line numbers of invalid rows, if there are any."""
    problems = [f"{path}: line {line}: {why}" for line, why in zip(lines, wrong, strict=True) if why]
    if problems:
        remainder = f"; {len(problems) - BAD_SHOWN} more lines are wrong" if len(problems) > BAD_SHOWN else ""
        raise PhazeError("; ".join(problems[:BAD_SHOWN]) + remainder)
