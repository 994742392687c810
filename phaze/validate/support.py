"""Support matrix: on which measured runs predictions of a model family, device and software stack rest."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from phaze.base.errors import PhazeError
from phaze.base.units import percent
from phaze.spec.files import FOLDER
from phaze.spec.measured import PublishedRuns
from phaze.validate.intervals import ERRORS, generation

Level = Literal["measured", "near", "assumed"]
KINDS = {
    "Mamba": "Mamba",
    "latent attention": "latent attention",
    "attention in windows": "windows",
}
"""Model family by the feature of a run that names it, the first that applies."""
FAMILY_NAMES = ("dense", "experts", *KINDS.values())
"""Columns of the matrix; `experts` are runs with expert parallelism."""


@dataclass(frozen=True)
class MeasuredGroup:
    """Runs of one model family, device and software stack, with the mean absolute error of predictions."""

    family: str
    device: str
    stack: str
    """Runtime and release."""
    runs: int
    error: float


@dataclass(frozen=True)
class Support:
    """Measured groups, and the devices to show; sources whose times look simulated do not count."""

    groups: tuple[MeasuredGroup, ...]
    devices: tuple[str, ...]

    @classmethod
    def load(cls, folder: Path = FOLDER) -> Self:
        """Load the errors of published runs that intervals are computed from; PhazeError without them."""
        path = folder / ERRORS
        if not path.is_file():
            raise PhazeError(f"{path}: file does not exist; `phaze validate --errors FILE` writes it")
        simulated = PublishedRuns.load(folder).simulated
        errors: dict[tuple[str, str, str], list[float]] = {}
        with path.open(encoding="utf-8", newline="") as lines:
            for run in csv.DictReader(lines):
                if run["source"] not in simulated:
                    key = family_of(run), run["device"], run["stack"]
                    errors.setdefault(key, []).append(abs(1 / float(run["ratio"]) - 1))
        groups = tuple(
            MeasuredGroup(*key, len(group), sum(group) / len(group)) for key, group in sorted(errors.items())
        )
        texts = {path.stem: path.read_text(encoding="utf-8") for path in (folder / "devices").glob("*.yaml")}
        # chips of tiles have no software stack
        devices = [name for name, text in texts.items() if "\nhbm_gib:" in text and "\ntile:" not in text]
        return cls(groups, tuple(sorted({*devices, *(group.device for group in groups)})))

    @cached_property
    def measured(self) -> Mapping[tuple[str, str], tuple[int, float]]:
        """Number of runs and mean absolute error, by family and device."""
        sums: dict[tuple[str, str], tuple[int, float]] = {}
        for group in self.groups:
            runs, total = sums.get((group.family, group.device), (0, 0.0))
            sums[group.family, group.device] = runs + group.runs, total + group.runs * group.error
        return {key: (runs, total / runs) for key, (runs, total) in sums.items()}

    def level(self, family: str, device: str) -> Level:
        """`measured`; `near`: the family on a device of the generation, or another family; else `assumed`."""
        if (family, device) in self.measured:
            return "measured"
        alike = {
            other for of, other in self.measured if of == family and generation(other) == generation(device)
        }
        same = {other for _, other in self.measured if other == device}
        return "near" if alike or same else "assumed"

    def matrix(self) -> Iterator[tuple[str, ...]]:
        """Yield a heading and a row per device: per family runs and error, `near`, or `assumed`."""
        yield ("device", *FAMILY_NAMES)
        for device in self.devices:
            yield (device, *(self._cell(family, device) for family in FAMILY_NAMES))

    def _cell(self, family: str, device: str) -> str:
        level = self.level(family, device)
        if level != "measured":
            return level
        runs, error = self.measured[family, device]
        return f"{runs} runs, {percent(error)}" if runs > 1 else f"1 run, {percent(error)}"

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a heading and a row per measured family, device and stack."""
        yield ("family", "device", "stack", "runs", "error")
        for group in self.groups:
            yield (group.family, group.device, group.stack, str(group.runs), percent(group.error))

    def in_words(self) -> str:
        """Matrix of families and devices, and the measured groups behind it, as text."""
        return "\n".join([*aligned([*self.matrix()]), "", *aligned([*self.rows()])])

    def as_rows(self) -> list[dict[str, object]]:
        """Level of every family and device, with its measured groups, for JSON."""
        return [
            {
                "family": family,
                "device": device,
                "level": self.level(family, device),
                "groups": [
                    {"stack": group.stack, "runs": group.runs, "error": group.error}
                    for group in self.groups
                    if (group.family, group.device) == (family, device)
                ],
            }
            for device in self.devices
            for family in FAMILY_NAMES
        ]


def family_of(run: Mapping[str, str]) -> str:
    """Model family of a row of the table of errors."""
    features = run["features"].split("+")
    kinds = (family for feature, family in KINDS.items() if feature in features)
    return next(kinds, "dense" if run["experts"] == "no" else "experts")


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table with left-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
