"""Cycles of vector operations: look-up-table arithmetic with a cost per element and lane (paper, C.2)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.errors import PhazeError
from phaze.spec.architecture import TECHNOLOGY, CycleFigures, load_technology
from phaze.spec.files import FOLDER
from phaze.workload.kinds import COLLECTIVES, PRODUCTS

if TYPE_CHECKING:
    import pandas as pd


def usual_cycles(folder: Path = FOLDER) -> dict[tuple[str, str], float]:
    """Default vector cycles by (role, kind), for devices specified only by their peak rates."""
    return cycle_figures(load_technology(TECHNOLOGY, folder).vector_cycles, {})


def cycle_figures(figures: CycleFigures, overrides: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Vector cycles by (role, kind), with a study's overrides applied (keys such as `forward.gelu`).

    Raises PhazeError for an unknown key.
    """
    table = {("forward", kind): cycles for kind, cycles in figures.forward.items()}
    table |= {("backward", kind): cycles for kind, cycles in figures.backward.items()}
    for key, cycles in overrides.items():
        role, _, kind = key.partition(".")
        if (role, kind) not in table:
            names = ", ".join(sorted(".".join(pair) for pair in table))
            raise PhazeError(
                f"estimate.vector_cycles: {key}: is not a known operation, got {cycles}; known are {names}"
            )
        table[role, kind] = cycles
    return table


def cycles_per_element(parts: pd.DataFrame, figures: Mapping[tuple[str, str], float]) -> Floats:
    """Cycles per element of every part, 0 for matrix multiplications and collectives."""
    others = {*PRODUCTS, *COLLECTIVES}
    pairs = zip(parts["role"], parts["kind"], strict=True)
    return np.array([0.0 if kind in others else figures[role, kind] for role, kind in pairs])


def vector_cycles(elements: Floats, cycles: Floats, lanes: Ints) -> Floats:
    """Cycles of vector parts (P,) on designs with `lanes` lanes (D,), shape (P, D)."""
    return cycles[:, None] * np.ceil(elements[:, None] / lanes[None, :])
