"""Accelerators: template (paper, Table 1), searched grid, and area, energy and cycles of components."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from phaze.spec.files import FOLDER, named_file, read_mapping
from phaze.spec.noun import Noun
from phaze.spec.values import (
    NUMBER,
    Chip,
    Count,
    Flag,
    Label,
    Location,
    Name,
    Once,
    Positive,
    Share,
    Size,
)

Capacity = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Buffer capacity as the key of a mapping; JSON stores it as text."""
BufferKib = Annotated[float, Field(strict=True, ge=1 / 32, le=2**24), NUMBER]
BufferMib = Annotated[float, Field(strict=True, ge=1 / 1024, le=2**20), NUMBER]
"""Buffer size in KiB or MiB; the lower limits hold a double-buffered tile of one element by one element."""
Powers = Annotated[tuple[Count, ...], Field(min_length=1), Once]
AreaPart = Literal[
    "tensor", "vector", "l2", "glb", "interconnect", "hbm_phy", "hbm_control", "link", "rest"
]  # fmt: skip
"""Part of a chip's area; column `<part>_um2` of area tables."""
TECHNOLOGY = "22nm"
"""Technology of the Phaze paper, the default."""
AREA_ONLY = {
    "hbm_gib", "area_mm2", "fp8_units", "gpu_lanes", "glb_cache", "hbm_stacks", "link_bandwidth_bytes_per_s"
}  # fmt: skip
"""Fields of an architecture that affect its area or HBM capacity, but no estimate or schedule."""

SHARD_BOUNDARY_MIB = 128
"""Largest global buffer in shard small-buffer of the grid; larger ones are in large-buffer.

The paper's whole grid fits in one shard: a job takes longer to start than half the grid takes to estimate.
"""
MOST_WORDS_PER_CYCLE = 4096.0


def tensor_l2_kib(pe_x: int, pe_y: int) -> float:
    """L2 buffer of a tensor core in KiB: max(1, pe_x · pe_y / 64) (paper, C.1)."""
    return max(1.0, pe_x * pe_y / 64)


def vector_l2_kib(pe_vc: int) -> float:
    """L2 buffer of a vector core in KiB: pe_vc / 64, clamped to 1–4 KiB (paper, C.1)."""
    return min(4.0, max(1.0, pe_vc / 64))


def words_per_cycle(num_tc: int, pe_x: int, pe_y: int) -> float:
    """Global buffer bandwidth in elements per cycle (paper, Table 1).

    4096 with two or more tensor cores; one core gets 4096 · max(pe_x, pe_y) / 256, clamped to 4–4096.
    """
    if num_tc > 1:
        return MOST_WORDS_PER_CYCLE
    return min(max(MOST_WORDS_PER_CYCLE * max(pe_x, pe_y) / 256, 4.0), MOST_WORDS_PER_CYCLE)


class Architecture(Noun):
    """Accelerator of any size, inside or outside the searched grid."""

    name: Chip
    """Name of the architecture; default: the file name."""
    num_tc: Count
    """Number of tensor cores."""
    num_vc: Count
    """Number of vector cores."""
    pe_x: Count
    """Rows of processing elements in a tensor core."""
    pe_y: Count
    """Columns of processing elements in a tensor core."""
    pe_vc: Count | None = None
    """Lanes of a vector core; default: `pe_x`."""
    glb_mib: BufferMib
    """Size of the global buffer in MiB."""
    glb_words_per_cycle: Positive | None = None
    """Bandwidth of the global buffer in elements per cycle; default: the paper's rule (Table 1)."""
    l2_tc_kib: BufferKib | None = None
    """L2 buffer of a tensor core in KiB; default: the paper's rule, `pe_x` · `pe_y` / 64, at least 1."""
    l2_vc_kib: BufferKib | None = None
    """L2 buffer of a vector core in KiB; default: the paper's rule, `pe_vc` / 64, from 1 to 4."""
    hbm_gib: Positive | None = None
    """HBM capacity of the accelerator in GiB; default: every capacity in the study's `training.hbm_gib`."""
    clock_hz: Positive | None = None
    """Clock of all cores in Hz. A file that defines it is a device: it also defines `hbm_gib` and
    `hbm_bandwidth_bytes_per_s`. Default: the system's."""
    hbm_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth between HBM and global buffer in bytes per second; default: the system's."""
    area_mm2: Positive | None = None
    """Chip area in mm²; default: computed from the technology's area figures."""
    fp8_units: Flag = False
    """Tensor cores also have units that multiply FP8 at twice the rate. Affects the area only."""
    gpu_lanes: Flag = False
    """Vector lanes are those of a GPU, each a thread. Affects the area only."""
    glb_cache: Flag = False
    """The global buffer is a hardware cache, with tags and a slice per memory channel, instead of a
    scratchpad. Affects the area only."""
    hbm_stacks: Count | None = None
    """HBM stacks with a PHY on the chip, for its area; default: the fewest that provide `hbm_gib` and
    `hbm_bandwidth_bytes_per_s` in the technology."""
    link_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth per direction of the links to all other devices in bytes per second, for the area of their
    PHYs; default: no link."""

    @property
    def lanes(self) -> int:
        """Number of lanes of a vector core."""
        return self.pe_vc or self.pe_x

    @property
    def bandwidth(self) -> float:
        """Bandwidth of the global buffer in elements per cycle."""
        return self.glb_words_per_cycle or words_per_cycle(self.num_tc, self.pe_x, self.pe_y)

    @property
    def tensor_l2_kib(self) -> float:
        """L2 buffer of a tensor core in KiB."""
        return self.l2_tc_kib or tensor_l2_kib(self.pe_x, self.pe_y)

    @property
    def vector_l2_kib(self) -> float:
        """L2 buffer of a vector core in KiB."""
        return self.l2_vc_kib or vector_l2_kib(self.lanes)


class Grid(Noun):
    """Architectures to search: all combinations of these values that respect the area rules.
    Vector cores have `pe_x` lanes.
    """

    num_tc: Powers = tuple(2**i for i in range(13))
    """Numbers of tensor cores."""
    num_vc: Powers = tuple(2**i for i in range(13))
    """Numbers of vector cores."""
    pe_x: Powers = tuple(2**i for i in range(1, 9))
    """Rows of a tensor core, and lanes of a vector core."""
    pe_y: Powers = tuple(2**i for i in range(1, 9))
    """Columns of a tensor core."""
    glb_mib: Annotated[tuple[BufferMib, ...], Field(min_length=1), Once] = tuple(2.0**i for i in range(1, 8))
    """Sizes of the global buffer in MiB."""
    minimum_area_share: Share | None = 0.3
    """Smallest chip area, as a share of the area limit. Architectures with a single tensor core or vector
    core are exempt; null: no minimum."""

    def restricted_to(self, shard: str) -> Grid:
        """Part of the grid in one shard; the shard of an architecture does not depend on the grid."""
        inside = tuple(g for g in self.glb_mib if shard_of(g) == shard)
        return self.model_copy(update={"glb_mib": inside})


class ArchitectureChoice(Noun):
    """Architectures of the study: a grid to search, and individual ones by name."""

    grid: Grid | None = Grid()
    """Grid to search; null: none."""
    named: Annotated[tuple[Name, ...], Once] = ("tpu-v4",)
    """Names of files in config/architectures or config/devices; these are always evaluated, never excluded by
    a bound. They have the HBM, its bandwidth and the clock that their files give."""
    baseline: Name | None = "tpu-v4"
    """Named architecture that results are compared with."""
    technology: Name = "22nm"
    """Area and energy figures, a file in config/technologies."""


class ArchitectureSpace(ArchitectureChoice):
    """Architectures among which `phaze plan --architecture FILE` chooses: a grid, named ones, or both."""

    grid: Grid | None = None
    """Grid to search; null: none."""
    named: Annotated[tuple[Location, ...], Once] = ()
    """Names of files in config/architectures or config/devices, or paths; no area rule applies to these."""
    baseline: None = None
    """Not used: the answer compares all of them."""
    area_limit_mm2: Positive | Location = "tpu-v4"
    """Maximum area of chips of the grid in mm², or an architecture whose area is the limit."""


GRID_SIZES = ("num_tc", "num_vc", "pe_x", "pe_y", "glb_mib")
"""Sizes by which the architectures of a grid differ, in the order of their names."""


def shard_of(glb_mib: float) -> str:
    """Name of the shard to which a grid architecture belongs."""
    return "small-buffer" if glb_mib <= SHARD_BOUNDARY_MIB else "large-buffer"


class HbmFigures(Noun):
    """Area of the interface to an HBM stack, and what a stack provides."""

    phy: Positive
    """Area of the PHY of a stack in µm²."""
    control: Positive
    """Area of the memory controllers of a stack in µm²."""
    gib: Positive
    """Capacity of a stack in GiB."""
    bytes_per_s: Positive
    """Bandwidth of a stack in bytes per second."""


class AreaFigures(Noun):
    """Areas of chip components in µm². Parts without a figure have no area."""

    mac_tc: Positive
    """Area of a multiply-accumulate unit of a tensor core, with its register."""
    mac_fp8: Positive | None = None
    """Area of an FP8 multiply-accumulate unit; a tensor core has two for each 16-bit unit. Default: the
    technology has no FP8 units."""
    mac_vc: Positive
    """Area of a vector lane, with its register."""
    gpu_lane: Positive | None = None
    """Area of a vector lane of a GPU, with its share of integer and double-precision units, instruction
    caches and thread schedulers; default: as `mac_vc`."""
    l2: dict[Capacity, Positive] = Field(min_length=2)
    """Area of an L2 buffer, by capacity in KiB."""
    glb: dict[Capacity, Positive] = Field(min_length=2)
    """Area of the global buffer, by capacity in MiB."""
    glb_cache: dict[Capacity, Positive] | None = Field(default=None, min_length=2)
    """Area of a global buffer that is a cache, by capacity in MiB; default: as a scratchpad."""
    interconnect: Size = 0.0
    """Area of the network between cores and global buffer, per byte per cycle of the buffer's bandwidth in
    16-bit elements."""
    hbm: HbmFigures | None = None
    """Interface to an HBM stack; default: not part of the area."""
    link: Size = 0.0
    """Area of the PHYs of links to other devices, per byte per second and direction."""
    rest: Size = 0.0
    """Area of everything else: host interface, link control, management, pads."""
    spans: dict[AreaPart | Literal["gpu_vector"], tuple[Positive, Positive]] = Field(default_factory=dict)
    """Smallest and largest area of a part that a source supports, relative to the figures; `gpu_vector` is
    that of `gpu_lanes`. Default: 1, 1."""

    @model_validator(mode="after")
    def _around_best(self) -> AreaFigures:
        for part, (low, high) in self.spans.items():
            if not low <= 1 <= high:
                raise ValueError(f"spans: {part}: must be at most 1 and at least 1, got {low:g}, {high:g}")
        return self


class EnergyFigures(Noun):
    """Energy per action in joules, and leakage power."""

    mac_j: Positive
    """Energy of a multiply-accumulate, or of one operation of a vector lane."""
    register_j_per_byte: Positive
    """Energy per byte read from or written to a register of a processing element."""
    sram_j_per_byte: dict[Capacity, Positive] = Field(min_length=2)
    """Energy per byte read from or written to an SRAM bank, by capacity in KiB. Larger banks use the figure
    of the largest capacity."""
    hbm_j_per_byte: Positive
    """Energy per byte read from or written to HBM."""
    link_j_per_byte: Positive
    """Energy per byte sent to another device."""
    leakage_w_per_mm2: Positive
    """Leakage power in W per mm² of chip area."""


class CycleFigures(Noun):
    """Cycles that a vector lane needs per output element, by operation."""

    forward: dict[Label, Positive]
    """Cycles per element in the forward pass."""
    backward: dict[Label, Positive]
    """Cycles per element in the backward pass."""


class Technology(Noun):
    """Area, energy and cycles of hardware components."""

    area_um2: AreaFigures
    """Areas of components."""
    energy: EnergyFigures
    """Energies of actions."""
    vector_cycles: CycleFigures
    """Cycles of vector operations; default: those of `22nm`, as cycles do not depend on the node."""


def load_technology(name: str, folder: Path = FOLDER) -> Technology:
    """Load a technology by its name in config/technologies."""
    path = named_file("technology", name, folder / "technologies")
    figures = read_mapping(path)
    if "vector_cycles" not in figures:
        cycles = read_mapping(named_file("technology", TECHNOLOGY, folder / "technologies"))["vector_cycles"]
        figures = {**figures, "vector_cycles": cycles}
    return Technology.parse(figures, str(path))
