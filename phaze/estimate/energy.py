"""Dynamic energy of a work by component: every figure times how often its action happens.

The energy is that of the mapping with the least latency. Leakage is a property of the whole chip over time and is added where
both are known: leakage_w_per_mm2 · area · time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phaze.spec.architecture import EnergyFigures
from phaze.units import KIB

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REGISTER_WORDS_PER_MAC = 2
"""A systolic processing element hands on an operand and a partial sum in every cycle."""


@dataclass(frozen=True)
class Actions:
    """How often what happens, arrays (works, designs)."""

    operations: Floats
    """Multiply-accumulates and cycles of vector lanes."""
    l2_bytes: Floats
    """Between L2 buffers and arrays or lanes."""
    glb_bytes: Floats
    """Between global buffer and cores."""
    hbm_bytes: Floats
    link_bytes: Floats


def sram_j_per_byte(capacity_bytes: Ints, figures: dict[float, float]) -> Floats:
    """Return the energy of a byte in or out of an SRAM: log-log between figures, that of the nearest one outside."""
    sizes = np.array(sorted(figures))
    values = np.array([figures[size] for size in sorted(figures)])
    return np.exp(np.interp(np.log(capacity_bytes / KIB), np.log(sizes), np.log(values)))


def energies(
    actions: Actions, l2_capacity: Ints, glb_capacity: Ints, bytes_per_element: int, figures: EnergyFigures
) -> dict[str, Floats]:
    """Return the energy by component, arrays (works, designs); capacities are (designs,) in bytes.

    What crosses an edge is written on one side and read on the other: L2 counts its side towards the cores and that towards the
    global buffer, the global buffer that towards the L2 buffers and that towards HBM.
    """
    l2 = sram_j_per_byte(l2_capacity, figures.sram_j_per_byte)
    glb = sram_j_per_byte(glb_capacity, figures.sram_j_per_byte)
    register = REGISTER_WORDS_PER_MAC * bytes_per_element * figures.register_j_per_byte
    return {
        "mac": actions.operations * figures.mac_j,
        "register": actions.operations * register,
        "l2": (actions.l2_bytes + actions.glb_bytes) * l2,
        "glb": (actions.glb_bytes + actions.hbm_bytes) * glb,
        "hbm": actions.hbm_bytes * figures.hbm_j_per_byte,
        "link": actions.link_bytes * figures.link_j_per_byte,
    }
