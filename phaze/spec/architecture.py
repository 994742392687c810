"""The accelerator: its template (paper, Table 1), the grid to search, and what its parts cost."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from phaze.spec.noun import Noun
from phaze.spec.values import NUMBER, Chip, Count, Once, Positive, Share

Capacity = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A key of a table of figures, which JSON can only hold as text."""
BufferKib = Annotated[float, Field(strict=True, ge=1 / 32, le=2**24), NUMBER]
BufferMib = Annotated[float, Field(strict=True, ge=1 / 1024, le=2**20), NUMBER]
"""Sizes of buffers: large enough for a tile of one word by one word, twice."""
Powers = Annotated[tuple[Count, ...], Field(min_length=1), Once]

SHARD_BOUNDARY_MIB = 128
"""Grid architectures with up to this global buffer are in shard small-buffer, the others in large-buffer.

The paper's whole grid is one shard: a job's start-up costs more than half of the grid's estimates.
"""
MOST_WORDS_PER_CYCLE = 4096.0


def tensor_l2_kib(pe_x: int, pe_y: int) -> float:
    """L2 buffer of a tensor core, 2^(log2 pe_x + log2 pe_y − 6) KiB, at least 1 (paper, C.1)."""
    return max(1.0, pe_x * pe_y / 64)


def vector_l2_kib(pe_vc: int) -> float:
    """L2 buffer of a vector core: by the width of its lanes, 1 to 4 KiB (paper, C.1)."""
    return min(4.0, max(1.0, pe_vc / 64))


def words_per_cycle(num_tc: int, pe_x: int, pe_y: int) -> float:
    """Global buffer's bandwidth, paper, Table 1: 4096 words, less for a single narrow core."""
    if num_tc > 1:
        return MOST_WORDS_PER_CYCLE
    return min(max(MOST_WORDS_PER_CYCLE * max(pe_x, pe_y) / 256, 4.0), MOST_WORDS_PER_CYCLE)


class Architecture(Noun):
    """One accelerator; any size is allowed, inside the grid or outside."""

    name: Chip
    """Name of the architecture; that of its file."""
    num_tc: Count
    """Tensor cores."""
    num_vc: Count
    """Vector cores."""
    pe_x: Count
    """Rows of a tensor core."""
    pe_y: Count
    """Columns of a tensor core."""
    pe_vc: Count | None = None
    """Lanes of a vector core; `pe_x` unless given."""
    glb_mib: BufferMib
    """Global buffer in MiB."""
    glb_words_per_cycle: Positive | None = None
    """Words that the global buffer moves in a cycle; by the paper's rule unless given."""
    l2_tc_kib: BufferKib | None = None
    """L2 buffer of a tensor core in KiB; by the paper's rule unless given."""
    l2_vc_kib: BufferKib | None = None
    """L2 buffer of a vector core in KiB; by the paper's rule unless given."""
    hbm_gib: Positive | None = None
    """HBM that the accelerator comes with; all of the study's unless given."""
    area_mm2: Positive | None = None
    """Area of the chip; from the technology's figures unless given."""

    @property
    def lanes(self) -> int:
        """Lanes of a vector core."""
        return self.pe_vc or self.pe_x

    @property
    def bandwidth(self) -> float:
        """Words that the global buffer moves in a cycle."""
        return self.glb_words_per_cycle or words_per_cycle(self.num_tc, self.pe_x, self.pe_y)

    @property
    def tensor_l2_kib(self) -> float:
        """L2 buffer of a tensor core."""
        return self.l2_tc_kib or tensor_l2_kib(self.pe_x, self.pe_y)

    @property
    def vector_l2_kib(self) -> float:
        """L2 buffer of a vector core."""
        return self.l2_vc_kib or vector_l2_kib(self.lanes)


class Grid(Noun):
    """The searched architectures: all combinations that respect the area rules; vector lanes are as many as
    rows.
    """

    num_tc: Powers = tuple(2**i for i in range(13))
    """Tensor cores."""
    num_vc: Powers = tuple(2**i for i in range(13))
    """Vector cores."""
    pe_x: Powers = tuple(2**i for i in range(1, 9))
    """Rows of a tensor core, lanes of a vector core."""
    pe_y: Powers = tuple(2**i for i in range(1, 9))
    """Columns of a tensor core."""
    glb_mib: Annotated[tuple[BufferMib, ...], Field(min_length=1), Once] = tuple(2.0**i for i in range(1, 8))
    """Global buffers in MiB."""
    minimum_area_share: Share | None = 0.3
    """Smallest area as a share of the limit, except with a single tensor or vector core; null for none."""

    def restricted_to(self, shard: str) -> Grid:
        """Part of the grid in a shard; an architecture is always in the same shard."""
        inside = tuple(g for g in self.glb_mib if shard_of(g) == shard)
        return self.model_copy(update={"glb_mib": inside})


def shard_of(glb_mib: float) -> str:
    """Shard of a grid architecture."""
    return "small-buffer" if glb_mib <= SHARD_BOUNDARY_MIB else "large-buffer"


class AreaFigures(Noun):
    """Areas of the components of a chip, in square micrometres."""

    mac_tc: Positive
    """A multiply-accumulate unit of a tensor core with its register."""
    mac_vc: Positive
    """A lane of a vector core with its register."""
    l2: dict[Capacity, Positive] = Field(min_length=2)
    """An L2 buffer by capacity in KiB."""
    glb: dict[Capacity, Positive] = Field(min_length=2)
    """The global buffer by capacity in MiB."""


class EnergyFigures(Noun):
    """Energy of an action, in joules."""

    mac_j: Positive
    """A multiply-accumulate, or an operation of a vector lane."""
    register_j_per_byte: Positive
    """A byte in or out of a register of a processing element."""
    sram_j_per_byte: dict[Capacity, Positive] = Field(min_length=2)
    """A byte in or out of an SRAM bank, by capacity in KiB; the largest one holds for all above it."""
    hbm_j_per_byte: Positive
    """A byte to or from HBM."""
    link_j_per_byte: Positive
    """A byte to another device."""
    leakage_w_per_mm2: Positive
    """Power of a square millimetre that does nothing."""


class CycleFigures(Noun):
    """Cycles that a vector lane spends on an output element, by operation."""

    forward: dict[str, Positive]
    """In the forward pass."""
    backward: dict[str, Positive]
    """In the backward pass."""


class Technology(Noun):
    """What components cost in area, energy and cycles."""

    area_um2: AreaFigures
    """Areas."""
    energy: EnergyFigures
    """Energies."""
    vector_cycles: CycleFigures
    """Cycles of vector operations."""
