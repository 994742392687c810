"""Dynamic energy of a work by component: every figure times how often its action happens.

The energy is that of the mapping with the least latency. Leakage is a property of the whole chip over time
and is added where both are known: leakage_w_per_mm2 · area · time.
"""

from collections.abc import Mapping

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.units import KIB
from phaze.cost.designs import Designs
from phaze.cost.mapper.loads import Load
from phaze.spec.architecture import EnergyFigures

REGISTER_WORDS_PER_OPERATION = 4
"""A multiply-accumulate reads the operand that stays, takes over the one that streams, and reads and writes
the sum.
"""


def energies_of(
    load: Load, designs: Designs, bytes_per_element: int, figures: EnergyFigures
) -> dict[str, Floats]:
    """Energy in J by component, arrays (W, D).

    What crosses an edge is written on one side and read on the other: a word counts in the L2 buffer on its
    side towards the array or lanes and on that towards the global buffer, and so in the global buffer
    towards L2 and HBM.
    """
    size = bytes_per_element
    l2_tc = sram_j_per_byte(designs.l2_tc_bytes, figures.sram_j_per_byte)
    l2_vc = sram_j_per_byte(designs.l2_vc_bytes, figures.sram_j_per_byte)
    glb = sram_j_per_byte(designs.glb_bytes, figures.sram_j_per_byte)
    l2_tc_words = load.array_words + load.glb_words - load.streamed_words
    registers = REGISTER_WORDS_PER_OPERATION * size * figures.register_j_per_byte
    parts = {
        "mac": load.operations * figures.mac_j,
        "register": load.operations * registers,
        "l2": size * (l2_tc_words * l2_tc + 2.0 * load.streamed_words * l2_vc),
        "glb": (size * load.glb_words + load.hbm_bytes) * glb,
        "hbm": load.hbm_bytes * figures.hbm_j_per_byte,
        "link": load.link_bytes * figures.link_j_per_byte,
    }
    shape = (len(load.operations), len(designs))
    return {name: np.broadcast_to(part, shape) for name, part in parts.items()}


def sram_j_per_byte(capacity_bytes: Ints, figures: Mapping[float, float]) -> Floats:
    """Energy of a byte in or out of an SRAM: log-log between figures, that of the nearest one outside.

    A buffer above the largest figure consists of banks of that size.
    """
    sizes = np.array(sorted(figures))
    values = np.array([figures[size] for size in sorted(figures)])
    found: Floats = np.exp(np.interp(np.log(capacity_bytes / KIB), np.log(sizes), np.log(values)))
    return found
