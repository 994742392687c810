"""What PALM prints of tiled accelerators, Tables I and V, beside ours: rows of table tiled_besides.

Table I says neither what its bandwidths are nor which product it means. Each ratio is taken as the reading
that comes closest with published figures, named beside it; the paper cuts digits off (2.666 is 40/15).

Table V, ResNet-50 and BERT-base on Tenstorrent's Grayskull without set-up and drain, prints neither batch,
nor sequence, nor mapping. It says that ResNet-50 has the computing power of 8-bit integers, so that BERT-base
is read as 16 bits; then only sequences of up to 184 tokens stay below the peak, and 128 are taken. The
mapping is the fastest of those with stages and microbatches that divide the 120 cores, one rule for all.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from phaze.base.units import MIB
from phaze.papers.palm.published import PrintedInference, PublishedTiled, RatioOf
from phaze.spec.files import FOLDER
from phaze.spec.models import load_model_named
from phaze.spec.systems import load_cluster
from phaze.tiles.chip import TiledMachine, load_tiled_machine
from phaze.tiles.inference import Throughput, TileMappings, fastest
from phaze.tiles.operators import operators_of

Row = dict[str, object]
TERA = 1e12
DIRECTIONS = 2
LINKS_OF_A_TILE = 4
GRAYSKULL = "grayskull"
MOST = 40
"""Stages, and samples in a microbatch."""


def load_printed(folder: Path = FOLDER) -> PublishedTiled:
    """What the tables print, and how it is read."""
    return PublishedTiled.from_file(folder / "published/palm-2024.yaml")


def ratios_beside(folder: Path = FOLDER) -> Iterator[Row]:
    """Yield every ratio of Table I beside what the files of systems give."""
    for printed in load_printed(folder).ratios:
        ratio = RATIOS[printed.of]
        yield {
            "table": "I",
            "case": f"{printed.system}, {ratio.kind}",
            "reading": ratio.reading,
            "unit": UNITS[ratio.kind],
            "published": printed.published,
            "palm": 0.0,
            "measured": 0.0,
            "ours": ratio.of(printed.system, folder),
            "explanation": printed.explanation,
        }


def inference_beside(folder: Path = FOLDER) -> Iterator[Row]:
    """Yield every case of Table V beside what the fastest mapping reaches; it takes half a minute."""
    for case in load_printed(folder).inference:
        yield inference_row(case, run(case, folder))


def inference_row(case: PrintedInference, ours: Throughput) -> Row:
    """Case beside what a mapping reaches, with the mapping in words."""
    stages, first = len(ours.programs), ours.programs[0]
    mapping = (
        f"{stages} stage{'s' * (stages > 1)} of {len(first.stage.tiles)} cores, "
        f"microbatch {ours.microbatch}, weights {'shared' if first.execution.shared else 'own'}"
    )
    return {
        "table": "V",
        "case": case.model,
        "reading": reading_of(case),
        "unit": "samples per second",
        "published": case.published,
        "palm": case.palm,
        "measured": 0.0,
        "ours": ours.samples_per_s,
        "explanation": "; ".join(filter(None, (mapping, case.explanation))),
    }


def reading_of(case: PrintedInference) -> str:
    """How a model is read, in words."""
    tokens = f", {case.sequence} tokens" if case.sequence > 1 else ""
    fetched = "" if len(case.fetched) > 1 else f", weights {case.fetched[0]}"
    return f"{'8-bit integers' if case.numbers == 'int8' else '16 bits'}{tokens}{fetched}"


def run(case: PrintedInference, folder: Path = FOLDER) -> Throughput:
    """Throughput of a case by the fastest mapping."""
    machine = load_tiled_machine(GRAYSKULL, folder)
    parts = tuple(k for k in range(1, MOST + 1) if len(machine.tiles) % k == 0)
    operators = partial(operators_of, load_model_named(case.model, folder), sequence=case.sequence)
    return fastest(machine, operators, case.numbers, TileMappings(parts, parts, case.fetched))


def _gpu_sram(system: str, folder: Path) -> float:
    _, device = load_cluster(system, folder)
    return device.glb_mib * TERA / (2 * device.num_tc * device.pe_x * device.pe_y * device.clock_hz)


def _gpu_links(system: str, folder: Path) -> float:
    cluster, device = load_cluster(system, folder)
    return DIRECTIONS * cluster.levels[0].bandwidth_bytes_per_s / device.hbm_bandwidth_bytes_per_s


def _sram(machine: TiledMachine) -> float:
    chips, device = machine.system.chips, machine.device
    return chips * device.sram_bytes / MIB / (chips * device.flops / TERA)


def _router_over_dram(machine: TiledMachine) -> float:
    dram_bytes_per_s = len(machine.memory.ports) * machine.memory.bandwidth_bytes_per_s
    return LINKS_OF_A_TILE * machine.device.link.bandwidth_bytes_per_s / dram_bytes_per_s


def _edge_over_dram(machine: TiledMachine) -> float:
    """Links over an edge of a chip over the memory at one."""
    link = machine.system.link or machine.device.link
    across = max(machine.device.rows, machine.device.columns) * link.bandwidth_bytes_per_s
    return across / (machine.device.rows * machine.system.dram.bandwidth_bytes_per_s)


def _fabric_over_sram(machine: TiledMachine) -> float:
    sram = machine.device.tile.sram_bandwidth_bytes_per_s
    assert sram is not None, machine.name
    return DIRECTIONS * LINKS_OF_A_TILE * machine.device.link.bandwidth_bytes_per_s / sram


def _of_tiles(ratio: Callable[[TiledMachine], float]) -> Callable[[str, Path], float]:
    return lambda system, folder: ratio(load_tiled_machine(system, folder))


class Ratio(NamedTuple):
    """A ratio of Table I, as it is read."""

    kind: str
    of: Callable[[str, Path], float]
    """What it is for a system of a folder."""
    reading: str
    """What is divided by what."""


UNITS = {"sram-to-compute": "MiB per TFLOP/s", "hops-to-memory": "hops", "links-to-memory": "ratio"}
"""MiB of SRAM for each TFLOP/s of 16 bits; most hops to DRAM; bandwidth of links over that of DRAM."""
RATIOS: dict[RatioOf, Ratio] = {
    "cache": Ratio("sram-to-compute", _gpu_sram, "level 2 cache over the peak of the tensor cores"),
    "nvlink": Ratio("links-to-memory", _gpu_links, "NVLink, both directions, over HBM"),
    "sram": Ratio("sram-to-compute", _of_tiles(_sram), "SRAM of all tiles over their peak"),
    "hops": Ratio(
        "hops-to-memory",
        _of_tiles(lambda machine: machine.hops_to_memory),
        "hops from the furthest tile to its nearest memory",
    ),
    "router": Ratio(
        "links-to-memory",
        _of_tiles(_router_over_dram),
        "the four links of a core, one direction, over all of DRAM",
    ),
    "edge": Ratio(
        "links-to-memory",
        _of_tiles(_edge_over_dram),
        "links over the edge of a die, one direction, over the HBM of an interface processor",
    ),
    "fabric": Ratio("links-to-memory", _of_tiles(_fabric_over_sram), "all links, both directions, over SRAM"),
}
