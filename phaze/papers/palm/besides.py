"""PALM's Tables I, IV and V compared with our figures, as rows of table tiled_besides.

Table I defines neither its bandwidths nor the products. Each ratio uses the interpretation that is nearest
among published figures, given in its `reading`. The paper truncates digits (2.666 is 40/15).

Table V has ResNet-50 and BERT-base on Tenstorrent's Grayskull, without pipeline fill and drain. It prints no
batch, sequence length or mapping. It states 8-bit integer compute for ResNet-50, so BERT-base is assumed to
use 16 bits. Then only sequences of up to 184 tokens stay below the peak; 128 is assumed. The mapping is the
fastest one whose stages and microbatches divide the 120 cores, for every case.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from phaze.base.units import MIB
from phaze.papers.palm.published import MeasuredRun, PrintedInference, PublishedTiled, RatioOf
from phaze.plan.machines import device_of, load_machine
from phaze.plan.plan import Machine
from phaze.spec.files import FOLDER
from phaze.spec.models import load_model_named
from phaze.spec.systems import load_cluster
from phaze.spec.tiled_study import PrintedTable
from phaze.tables import TiledBesides
from phaze.tiles.chip import TiledMachine, load_tiled_machine
from phaze.tiles.inference import Throughput, TileMappings, fastest
from phaze.tiles.operators import operators_of
from phaze.validate.rows import RunRow, read_row
from phaze.validate.table import fitted_sustained_hbm, predict_rows, with_sustained_hbm

Row = dict[str, object]
TERA = 1e12
DIRECTIONS = 2
LINKS_OF_A_TILE = 4
GRAYSKULL = "grayskull"
MOST = 40
"""Maximum of the stages, and of the samples in a microbatch."""


def load_printed(folder: Path = FOLDER) -> PublishedTiled:
    """PALM's published results, with our interpretation of open points."""
    return PublishedTiled.from_file(folder / "published/palm-2024.yaml")


def ratios_beside(folder: Path = FOLDER) -> Iterator[Row]:
    """Yield the rows of Table I, each with our ratio from the system files."""
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
    """Yield the rows of Table V, each with the throughput of the fastest mapping; takes half a minute."""
    for case in load_printed(folder).inference:
        yield inference_row(case, run(case, folder))


def inference_row(case: PrintedInference, ours: Throughput) -> Row:
    """Row of table tiled_besides for a case of Table V; the explanation describes the mapping."""
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
    """Description of the assumed precision, sequence length, and weight fetching."""
    tokens = f", {case.sequence} tokens" if case.sequence > 1 else ""
    fetched = "" if len(case.fetched) > 1 else f", weights {case.fetched[0]}"
    return f"{'8-bit integers' if case.numbers == 'int8' else '16 bits'}{tokens}{fetched}"


def run(case: PrintedInference, folder: Path = FOLDER) -> Throughput:
    """Throughput of the fastest mapping of a case of Table V."""
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
    """Link bandwidth across the longer edge of a chip, over the DRAM bandwidth at one edge."""
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
    """Interpretation of a ratio in Table I."""

    kind: str
    of: Callable[[str, Path], float]
    """Function from system name and configuration folder to the ratio."""
    reading: str
    """Description of numerator and denominator."""


UNITS = {"sram-to-compute": "MiB per TFLOP/s", "hops-to-memory": "hops", "links-to-memory": "ratio"}
"""Units by kind of ratio: SRAM per 16-bit peak; most hops to DRAM; link over DRAM bandwidth."""
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


GPUS = "a100-selene"
"""System of the measured runs of Table IV."""
SEEN = "constants of the device's file, fitted on ten runs among others, these six among them"
UNSEEN = "share of HBM's bandwidth fitted on the other four of the ten runs; the clock has seen all ten"
"""Readings of Table IV, by the overlap of its runs with those that the machine's constants are fitted on."""


def besides(
    asked: Iterable[PrintedTable], published: PublishedTiled | None, folder: Path = FOLDER
) -> pd.DataFrame:
    """Table tiled_besides for the requested tables; Table IV needs the published rows."""
    rows = [row for table in asked for row in _rows(table, published, folder)]
    return TiledBesides.check(pd.DataFrame(rows)) if rows else TiledBesides.empty()


def _rows(table: PrintedTable, published: PublishedTiled | None, folder: Path) -> Iterator[Row]:
    if table == "IV":
        yield from _gpus(published, folder) if published else ()
    else:
        yield from ratios_beside(folder) if table == "I" else inference_beside(folder=folder)


def _gpus(published: PublishedTiled, folder: Path) -> Iterator[Row]:
    """Yield the runs of Table IV, predicted as by `simulate --runs`, with seen and unseen fits."""
    machine = load_machine(GPUS, folder)
    yield from _gpus_on(machine, published, SEEN)
    if published.other_runs:
        share = fitted_sustained_hbm([_run(row) for row in published.other_runs.values()], machine)
        yield from _gpus_on(with_sustained_hbm(machine, share), published, UNSEEN)


def _gpus_on(machine: Machine, published: PublishedTiled, reading: str) -> Iterator[Row]:
    found = predict_rows([_run(row) for row in published.gpus.values()], machine)
    for (name, row), time_s, chosen in zip(
        published.gpus.items(), found["time_s"], found["microbatch_used"], strict=True
    ):
        batch = int(row.run["global_batch"])
        yield {
            "table": "IV",
            "case": name,
            "reading": reading,
            "unit": "sequences per second",
            "published": row.printed,
            "palm": row.palm,
            "measured": batch / row.measured_s,
            "ours": batch / float(time_s),
            "explanation": (
                f"{GPUS}, {device_of(machine).sustained_hbm:.2f} of HBM's bandwidth, microbatch {chosen}; "
                "with attention and vocabulary, as measured"
            ),
        }


def _run(row: MeasuredRun) -> RunRow:
    texts = {key: str(value) for key, value in row.run.items()}
    return read_row({**texts, "measured_s": str(row.measured_s)})
