"""Area of an accelerator, additive over its components (paper, Appendix C.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phaze.base.arrays import Bools, Floats
from phaze.spec.architecture import AreaFigures


class Areas(NamedTuple):
    """Areas in square micrometres, arrays over architectures."""

    tensor_um2: Floats
    vector_um2: Floats
    l2_um2: Floats
    glb_um2: Floats
    interpolated: Bools
    """A buffer's capacity is not among the published ones."""

    @property
    def total_um2(self) -> Floats:
        """Return the area of the chip."""
        return self.tensor_um2 + self.vector_um2 + self.l2_um2 + self.glb_um2


def buffer_area_um2(capacity: Floats, figures: dict[float, float]) -> tuple[Floats, Bools]:
    """Return the area of a buffer, and whether it lies between the figures.

    Between published capacities, log area is linear in log capacity; beyond them the slope at the end goes
    on.
    """
    sizes = np.array(sorted(figures))
    areas = np.array([figures[size] for size in sorted(figures)])
    place = np.clip(np.searchsorted(sizes, capacity), 1, len(sizes) - 1)
    x, y = np.log(sizes), np.log(areas)
    slope = (y[place] - y[place - 1]) / (x[place] - x[place - 1])
    between = np.exp(y[place - 1] + slope * (np.log(capacity) - x[place - 1]))
    index = np.searchsorted(sizes, capacity).clip(max=len(sizes) - 1)
    known = sizes[index] == capacity
    return np.where(known, areas[index], between), ~known


def chip_areas(
    num_tc: Floats,
    num_vc: Floats,
    macs: Floats,
    lanes: Floats,
    l2_tc_kib: Floats,
    l2_vc_kib: Floats,
    glb_mib: Floats,
    figures: AreaFigures,
) -> Areas:
    """Return areas: num_tc (macs · mac_tc + L2) + num_vc (lanes · mac_vc + L2) + global buffer."""
    l2_tc, between_tc = buffer_area_um2(l2_tc_kib, figures.l2)
    l2_vc, between_vc = buffer_area_um2(l2_vc_kib, figures.l2)
    glb, between_glb = buffer_area_um2(glb_mib, figures.glb)
    return Areas(
        tensor_um2=num_tc * macs * figures.mac_tc,
        vector_um2=num_vc * lanes * figures.mac_vc,
        l2_um2=num_tc * l2_tc + num_vc * l2_vc,
        glb_um2=glb,
        interpolated=between_tc | between_vc | between_glb,
    )
