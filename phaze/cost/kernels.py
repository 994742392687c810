"""Time of kernels that run one after the other, each on all cores of a device.

A kernel is a matrix multiplication, or a chain of elementwise operations and reductions. Its time is the
largest of what `cost.operators` names, on the clock and the HBM bandwidth that the device sustains, and
then the time in which a kernel starts and ends.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats
from phaze.base.units import KIB, MIB
from phaze.cost.designs import Designs
from phaze.cost.mapper.loads import Hardware, loads_of
from phaze.cost.mapper.works import Works
from phaze.cost.operators import LIMITS, latencies_of
from phaze.spec.system import Device

KERNEL_LIMITS = (*(str(limit) for limit in LIMITS), "kernel_start")
"""What takes the time of kernels, the columns of what `time_kernels` returns."""


def time_kernels(works: Works, device: Device, bytes_per_element: int) -> Floats:
    """Return the seconds of kernels (W,) by what binds each, (W, limits).

    Each row has its time in one column, and the start of the kernel in the last one.
    """
    found = np.zeros((len(works), len(KERNEL_LIMITS)))
    products = works.total(works.shapes[:, 0].astype(float)) > 0
    for own, core in ((products, "tensor"), (~products, "vector")):
        if own.any():
            seconds, limit = _times(_chosen(works, own), device, core, bytes_per_element)
            found[np.flatnonzero(own), limit] = seconds
    found[:, -1] = device.kernel_s
    return found


def _times(works: Works, device: Device, core: str, width: int) -> tuple[Floats, NDArray[np.int64]]:
    """Return the seconds of kernels on cores of one type, and what binds."""
    hardware = Hardware(
        clock_hz=device.clock_hz * device.sustained_clock,
        hbm_bandwidth_bytes_per_s=device.hbm_bandwidth_bytes_per_s * device.sustained_hbm,
        network_bandwidth_bytes_per_s=1.0,
        bytes_per_element=width,
        all_reduce_factor=2.0,
    )
    designs = _design(device)
    on_all = loads_of(works, designs, hardware, 1, 1.0, preload=False)[1]
    seconds, limit = latencies_of(core, on_all, designs, hardware)
    return seconds[:, 0], limit[:, 0]


def _chosen(works: Works, which: NDArray[np.bool_]) -> Works:
    """Return some of the works."""
    parts = which[works.of_part]
    return Works(
        ids=works.ids[which],
        of_part=(np.cumsum(which) - 1)[works.of_part[parts]],
        shapes=works.shapes[parts],
        elements=works.elements[parts],
        cycles=works.cycles[parts],
        streamed_bytes=works.streamed_bytes[parts],
        network_bytes=works.network_bytes[parts],
        unrolled=works.unrolled[parts],
        kinds=works.kinds[parts],
    )


def _design(device: Device) -> Designs:
    """Return a device as the one design of all its cores."""
    one = np.ones(1, np.int64)
    return Designs(
        ids=one,
        tensor_cores=one * device.num_tc,
        vector_cores=one * device.num_vc,
        rows=one * device.pe_x,
        columns=one * device.pe_y,
        lanes=one * device.lanes,
        l2_tc_bytes=one * int(device.tensor_l2_kib * KIB),
        l2_vc_bytes=one * int(device.vector_l2_kib * KIB),
        glb_bytes=one * int(device.glb_mib * MIB),
        words_per_cycle=np.array([device.bandwidth]),
    )
