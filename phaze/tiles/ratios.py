"""What PALM's Table I says of GPUs and tiled accelerators, worked out from the files of systems.

The table says neither what its bandwidths are nor which product it means. Each ratio is taken as the reading
that comes closest with published figures, named beside it; the paper cuts digits off (2.666 is 40/15).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phaze.base.units import MIB
from phaze.spec.files import FOLDER
from phaze.spec.systems import load_cluster
from phaze.tiles.chip import load_tiled_machine

Kind = Literal["sram-to-compute", "hops-to-memory", "links-to-memory"]
"""MiB of SRAM for each TFLOP/s of 16 bits; most hops to DRAM; bandwidth of links over that of DRAM."""
TERA = 1e12
DIRECTIONS = 2
LINKS_OF_A_TILE = 4


@dataclass(frozen=True)
class Ratio:
    """A ratio of Table I beside ours."""

    system: str
    kind: Kind
    published: float
    inputs: tuple[float, float] | None
    """What the paper seems to divide by what: the ratio, with digits cut off; None if no figures fit."""
    ours: float
    reading: str
    """What is divided by what."""
    explanation: str
    """Why ours differs; empty where only digits do."""

    @property
    def error(self) -> float:
        """Return the relative difference from the published ratio."""
        return self.ours / self.published - 1


@dataclass(frozen=True)
class _Row:
    """A row of the table: what is printed, and how ours is found."""

    system: str
    kind: Kind
    published: float
    inputs: tuple[float, float] | None
    ours: Callable[[str, Path], float]
    reading: str
    explanation: str = ""


def table_i(folder: Path = FOLDER) -> tuple[Ratio, ...]:
    """Return every ratio of Table I beside what the files of systems give."""
    return tuple(
        Ratio(
            row.system,
            row.kind,
            row.published,
            row.inputs,
            row.ours(row.system, folder),
            row.reading,
            row.explanation,
        )
        for row in _TABLE
    )


def _gpu_sram(system: str, folder: Path) -> float:
    _, device = load_cluster(system, folder)
    return device.glb_mib * TERA / (2 * device.num_tc * device.pe_x * device.pe_y * device.clock_hz)


def _gpu_links(system: str, folder: Path) -> float:
    cluster, device = load_cluster(system, folder)
    return DIRECTIONS * cluster.levels[0].bandwidth_bytes_per_s / device.hbm_bandwidth_bytes_per_s


def _sram(system: str, folder: Path) -> float:
    machine = load_tiled_machine(system, folder)
    return machine.sram_bytes / MIB / (machine.flops / TERA)


def _hops(system: str, folder: Path) -> float:
    return load_tiled_machine(system, folder).hops_to_memory


def _router_over_dram(system: str, folder: Path) -> float:
    machine = load_tiled_machine(system, folder)
    return LINKS_OF_A_TILE * machine.device.link.bandwidth_bytes_per_s / machine.dram_bytes_per_s


def _edge_over_dram(system: str, folder: Path) -> float:
    """Return the links over an edge of a chip over the memory at one."""
    machine = load_tiled_machine(system, folder)
    link = machine.system.link or machine.device.link
    across = max(machine.device.rows, machine.device.columns) * link.bandwidth_bytes_per_s
    return across / (machine.device.rows * machine.system.dram.bandwidth_bytes_per_s)


def _fabric_over_sram(system: str, folder: Path) -> float:
    machine = load_tiled_machine(system, folder)
    sram = machine.device.tile.sram_bandwidth_bytes_per_s
    assert sram is not None, system
    return DIRECTIONS * LINKS_OF_A_TILE * machine.device.link.bandwidth_bytes_per_s / sram


_CACHE = "level 2 cache over the peak of the tensor cores"
_NVLINK = "NVLink, both directions, over HBM"
_TILES = "SRAM of all tiles over their peak"
_FURTHEST = "hops from the furthest tile to its nearest memory"
_TABLE = (
    _Row("h100", "sram-to-compute", 0.050, (50, 989), _gpu_sram, _CACHE),
    _Row(
        "h100",
        "links-to-memory",
        0.179,
        (600, 3350),
        _gpu_links,
        _NVLINK,
        "600 GB/s is NVLink 3, or NVLink 4 of the PCIe card; the SXM module, with this memory, has 900",
    ),
    _Row("a100-selene", "sram-to-compute", 0.128, (40, 312), _gpu_sram, _CACHE),
    _Row(
        "a100-selene",
        "links-to-memory",
        0.310,
        (600, 1935),
        _gpu_links,
        _NVLINK,
        "1,935 GB/s is the memory of the PCIe card; that of the SXM module has 2,039",
    ),
    _Row("grayskull", "sram-to-compute", 1.304, (120, 92), _sram, _TILES),
    _Row("grayskull", "hops-to-memory", 5, (5, 1), _hops, _FURTHEST),
    _Row(
        "grayskull",
        "links-to-memory",
        1.900,
        None,
        _router_over_dram,
        "the four links of a core, one direction, over all of DRAM",
        "192 over 100 GB/s; 1.900 would be 190 over 100",
    ),
    _Row(
        "dojo-d1", "sram-to-compute", 1.215, (440, 362), _sram, _TILES, "354 nodes of 1.25 MB have 442.5 MB"
    ),
    _Row(
        "dojo-d1",
        "hops-to-memory",
        25,
        None,
        _hops,
        _FURTHEST,
        "100 nodes between two edges with memory; the paper does not say between what it counts 25",
    ),
    _Row(
        "dojo-d1",
        "links-to-memory",
        2.275,
        (2048, 900),
        _edge_over_dram,
        "links over the edge of a die, one direction, over the HBM of an interface processor",
        "900 GB/s is the link of an interface processor, its HBM has 800",
    ),
    _Row(
        "wse2",
        "sram-to-compute",
        2.666,
        (40_000, 15_000),
        _sram,
        _TILES,
        "15 PFLOP/s is twice what four multiply-accumulates a core and clock give 850,000 cores",
    ),
    _Row(
        "wse2",
        "hops-to-memory",
        316,
        (633, 2),
        _hops,
        _FURTHEST,
        "programs see 757 × 996 cores; 633 × 633 are 400,000, as many as the WSE-1 has",
    ),
    _Row(
        "wse2",
        "links-to-memory",
        1.375,
        (220 / 8, 20),
        _fabric_over_sram,
        "all links, both directions, over SRAM",
        "35.2 over 26.4 GB/s a core. This is not DRAM: the memory outside has 0.15 TB/s",
    ),
)
