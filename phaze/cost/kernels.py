"""Time of kernels that run sequentially, each on all cores of a device.

A kernel is a matrix multiplication, or a chain of elementwise operations and reductions. Its time is the
largest of the limits in `cost.operators`, at sustained clock and HBM bandwidth, plus kernel launch overhead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.units import KIB, MIB
from phaze.cost.attention import UNKNOWN, attention_passes_s
from phaze.cost.designs import Designs
from phaze.cost.experts import expert_speed, expert_times
from phaze.cost.mapper.loads import Hardware, loads_of
from phaze.cost.mapper.works import Works
from phaze.cost.network.network import Flat
from phaze.cost.operators import LIMITS, energies_of, latencies_of
from phaze.cost.products import Products, product_times, speed_of
from phaze.layout import Compute, Layout
from phaze.spec.architecture import EnergyFigures
from phaze.spec.speeds.experts import Experts
from phaze.spec.system import Device
from phaze.workload.kinds import PRODUCTS
from phaze.workload.operators import Operator, Part
from phaze.workload.primitives import Scores

KERNEL_LIMITS = (*LIMITS, "kernel_start", "host")
"""Bottlenecks to which kernel time is attributed; columns of `time_kernels`."""
MOST_KERNELS = 50_000
"""Number of cached kernels from which `KernelTimes.trim` frees them."""
OF_PRODUCTS = [KERNEL_LIMITS.index(name) for name in ("compute", "vector", "hbm", "kernel_start")]
"""Indices in `KERNEL_LIMITS` of the columns of `product_times`."""
OF_FUSED = [KERNEL_LIMITS.index(name) for name in ("compute", "hbm", "kernel_start")]
"""Indices in `KERNEL_LIMITS` of the columns of `expert_times` and of `attention_passes_s`."""

Kernel = tuple[Part, ...]
"""Operator parts executed as one kernel: a matrix multiplication, or vector operations."""


def kernels_of(operator: Operator) -> list[Kernel]:
    """Kernels of an operator: one per matrix multiplication, or one for all its vector operations."""
    if operator.core in ("network", "none"):
        return []
    return [(part,) for part in operator.parts] if operator.core == "tensor" else [operator.parts]


def works_of_kernels(kernels: Sequence[Kernel], vector_cycles: Mapping[tuple[str, str], float]) -> Works:
    """Convert kernels to `Works`, to estimate them at once; `vector_cycles` is keyed by (role, kind)."""
    parts = [part for kernel in kernels for part in kernel]
    return Works(
        ids=np.arange(len(kernels)),
        of_part=np.repeat(np.arange(len(kernels)), [len(kernel) for kernel in kernels]),
        shapes=np.array([(p.batch, p.m, p.k, p.n) for p in parts], np.int64),
        elements=np.array([p.elements for p in parts], float),
        cycles=np.array([0.0 if p.kind in PRODUCTS else vector_cycles[p.role, p.kind] for p in parts]),
        streamed_bytes=np.array([p.streamed_bytes for p in parts], float),
        network_bytes=np.zeros(len(parts)),
        unrolled=np.array([p.unrolled for p in parts], float),
        kinds=np.array([p.kind for p in parts], str),
        by_rows=np.array([p.role == "weight_gradient" for p in parts], bool),
    )


def time_kernels(
    works: Works,
    device: Device,
    bytes_per_element: int,
    compute: Compute = "bf16",
    added_bytes: float = 0.0,
    experts: Experts | None = None,
) -> Floats:
    """Time of kernels by bottleneck, in seconds, (W, limits).

    `compute` is the precision of products. `added_bytes` is the traffic per weight-gradient element where
    products accumulate gradients. `experts` is the expert kernel, if all products are expert products. Each
    row has its time in one column and its launch overhead in another.
    """
    times_s = np.zeros((len(works), len(KERNEL_LIMITS)))
    products = works.total(works.shapes[:, 0].astype(float)) > 0
    # Without speeds of products the mapper prices them, in half precision only: refuse any other.
    if not device.products and compute != "bf16":
        speed_of(device, compute)
    by_tiles = products if device.products else np.zeros_like(products)
    times_s[:, KERNEL_LIMITS.index("kernel_start")] = device.kernel_s
    if by_tiles.any():
        places = works.matmuls
        by_rows = np.zeros(len(places), bool) if works.by_rows is None else works.by_rows[places]
        batched = Products(works.shapes[places], by_rows, bytes_per_element, compute, added_bytes)
        speed = None if experts is None else expert_speed(device, experts, compute)
        rows = np.flatnonzero(by_tiles)[:, None]
        if speed is None:
            times_s[rows, OF_PRODUCTS] = product_times(batched, device)
        else:
            times_s[rows, OF_FUSED] = expert_times(batched, device, speed)
    for mask, core in ((products & ~by_tiles, "tensor"), (~products, "vector")):
        if mask.any():
            _, (seconds, limit) = times_on(
                _selected(works, mask), [device], core, bytes_per_element, preload=False
            )
            times_s[np.flatnonzero(mask), limit[:, 0]] = seconds[:, 0]
    return times_s


@dataclass(frozen=True, eq=False)
class KernelTimes:
    """Cache of kernel times on a device; each distinct kernel is computed once."""

    device: Device
    vector_cycles: Mapping[tuple[str, str], float]
    bytes_per_element: int
    added_bytes: float = 0.0
    """Traffic in bytes per weight-gradient element if GEMMs accumulate gradients."""
    _times_s: dict[tuple[Kernel, Compute, float, Experts | None], Floats] = field(default_factory=dict)
    _attention_s: dict[tuple[tuple[Scores, ...], str | None], Floats] = field(default_factory=dict)

    def of(
        self,
        kernels: Sequence[Kernel],
        compute: Sequence[Compute] | None = None,
        moves: Sequence[float] | None = None,
        experts: Sequence[Experts | None] | None = None,
    ) -> Floats:
        """Time of kernels by bottleneck, in seconds, (W, limits); new kernels are computed in one batch.

        `compute` is the precision of each kernel, half precision by default. `moves` is the HBM traffic of
        each relative to its minimum. `experts` is the expert kernel, None for other kernels.
        """
        precisions: Sequence[Compute] = compute if compute is not None else ["bf16"] * len(kernels)
        nothing = [None] * len(kernels)
        keys = list(zip(kernels, precisions, moves or [1.0] * len(kernels), experts or nothing, strict=True))
        new = [key for key in dict.fromkeys(keys) if key not in self._times_s]
        for options in dict.fromkeys(key[1:] for key in new):
            group = [key for key in new if key[1:] == options]
            precision, traffic, expert = options
            works = works_of_kernels([kernel for kernel, *_ in group], self.vector_cycles)
            # More traffic than the minimum is the minimum at a bandwidth that is lower by this ratio.
            slower = {"hbm_bandwidth_bytes_per_s": self.device.hbm_bandwidth_bytes_per_s / traffic}
            device = self.device.model_copy(update=slower)
            rows = time_kernels(works, device, self.bytes_per_element, precision, self.added_bytes, expert)
            self._times_s.update(zip(group, rows, strict=True))
        return np.array([self._times_s[key] for key in keys])

    def trim(self) -> None:
        """Free all times if there are many. Call it between searches, as a batch is read again one by one."""
        if len(self._times_s) > MOST_KERNELS:
            self._times_s.clear()
            self._attention_s.clear()

    def attention(self, kernels: tuple[Scores, ...], name: str | None) -> Floats:
        """Total time of fused attention kernels by bottleneck, forward and backward, (2, limits).

        `name` is a kernel of the device; None means a kernel that the device does not name. Arithmetic runs
        at the sustained clock, as in long jobs.
        """
        key = (kernels, name)
        if key not in self._attention_s:
            times_s = np.zeros((2, len(KERNEL_LIMITS)))
            speed = self.device.attention[name] if name is not None else UNKNOWN
            times_s[:, OF_FUSED] = attention_passes_s(kernels, speed, self.device)
            # Speeds were fitted to kernels in short loops, which run at the full clock.
            times_s[:, KERNEL_LIMITS.index("compute")] /= self.device.sustained_clock
            self._attention_s[key] = times_s
        return self._attention_s[key]


def times_on(
    works: Works, devices: Sequence[Device], core: str, width: int, *, preload: bool
) -> tuple[tuple[Floats, Ints], tuple[Floats, Ints]]:
    """Time of each unit of work on one core of a type and on all of them, in seconds, and its bottleneck.

    Arrays are (W, D), for every device. If `preload`, arrays load the next stationary operand ahead.
    """
    # Kernels send nothing over the network, and every design has its own clock and HBM bandwidth.
    hardware = Hardware(0.0, 0.0, network=Flat(1.0), bytes_per_element=width)
    designs = _designs_of(devices)
    loads = loads_of(works, designs, hardware, Layout(), 1.0, preload=preload)
    on_one, on_all = (latencies_of(core, load, designs, hardware) for load in loads)
    return on_one, on_all


def energies_on(
    works: Works, devices: Sequence[Device], width: int, figures: EnergyFigures
) -> dict[str, Floats]:
    """Dynamic energy of each unit of work on all cores of every device, in joules by component, (W, D)."""
    hardware, designs = Hardware(0.0, 0.0, network=Flat(1.0), bytes_per_element=width), _designs_of(devices)
    _, load = loads_of(works, designs, hardware, Layout(), 1.0, preload=True)
    return energies_of(load, designs, width, figures)


def _selected(works: Works, mask: Bools) -> Works:
    part_mask = mask[works.of_part]
    arrays = {field.name: getattr(works, field.name) for field in fields(works) if field.name != "ids"}
    parts = {name: values[part_mask] for name, values in arrays.items() if values is not None}
    # The selected works are renumbered from 0, because `of_part` indexes `ids`.
    return Works(**(parts | {"ids": works.ids[mask], "of_part": (np.cumsum(mask) - 1)[parts["of_part"]]}))


def _designs_of(devices: Sequence[Device]) -> Designs:
    """Designs of devices, with the clock and HBM bandwidth that each sustains."""
    cores = [(d.num_tc, d.num_vc, d.pe_x, d.pe_y, d.lanes) for d in devices]
    buffers = [(d.tensor_l2_kib * KIB, d.vector_l2_kib * KIB, d.glb_mib * MIB) for d in devices]
    clocks_hz = [d.clock_hz * d.sustained_clock for d in devices]
    hbm_bytes_per_s = [d.hbm_bandwidth_bytes_per_s * d.sustained_hbm for d in devices]
    rates = np.array([[d.bandwidth for d in devices], clocks_hz, hbm_bytes_per_s])
    return Designs(
        np.arange(len(devices)), *np.array(cores, np.int64).T, *np.array(buffers).astype(np.int64).T, *rates
    )
