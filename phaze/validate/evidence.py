"""Nearest measured runs of a layout, as evidence for its predicted time."""

from __future__ import annotations

from pathlib import Path

from phaze.layout import Layout
from phaze.plan.plan import Machine
from phaze.spec.files import FOLDER
from phaze.spec.training_plan import NearRun
from phaze.validate.intervals import RunKind, published


def evidence(machine: Machine, layout: Layout, mfu: float, folder: Path = FOLDER) -> tuple[NearRun, ...]:
    """Nearest measured runs of a layout on a machine, the nearest first; empty if no run is similar."""
    found = published(folder).likest(RunKind.of(machine, layout, mfu))
    return () if found is None else found.nearest
