"""PALM's Tables I, IV and V compared with our figures, as rows of table `tiled_besides`.

Table I defines neither its bandwidths nor the products. Each ratio uses the interpretation that is nearest
among published figures, given in its `reading`. The paper truncates digits (2.666 is 40/15).

Table V has ResNet-50 and BERT-base on Tenstorrent's Grayskull, without pipeline fill and drain. It prints no
batch, sequence length or mapping. It states 8-bit integer compute for ResNet-50, so BERT-base is assumed to
use 16 bits. Then only sequences of up to 184 tokens stay below the peak; 128 is assumed. The mapping is the
fastest one whose stages and microbatches divide the 120 cores, for every case.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import nan
from pathlib import Path

import pandas as pd

from phaze.base.units import MIB
from phaze.papers.palm.inference import Throughput, TileMappings, fastest
from phaze.papers.publications import MeasuredRun, PublishedInference, PublishedTiled, evaluate
from phaze.plan.machines import device_of, load_machine
from phaze.spec.files import FOLDER, read_mapping, system_path
from phaze.spec.models import load_model_named
from phaze.spec.systems import load_cluster
from phaze.spec.tiled_study import PublishedTable
from phaze.tables import TiledBesides
from phaze.tiles.chip import load_tiled_machine
from phaze.tiles.operators import operators_of
from phaze.validate.rows import RunRow, read_row
from phaze.validate.table import fitted_sustained_hbm, predict_rows, with_sustained_hbm

Row = dict[str, object]
TERA = 1e12
GRAYSKULL = "grayskull"
MOST = 40
"""Maximum number of stages, and maximum number of samples in a microbatch."""
UNITS = {"sram-to-compute": "MiB per TFLOP/s", "hops-to-memory": "hops", "links-to-memory": "ratio"}
"""Units by kind of ratio: SRAM per 16-bit peak; largest number of hops to DRAM; link over DRAM bandwidth."""
GPUS = "a100-selene"
"""System of the measured runs of Table IV."""
SEEN = "constants of the device's file, fitted on ten runs among others, these six among them"
UNSEEN = "share of HBM's bandwidth fitted on the other four of the ten runs; the clock has seen all ten"
"""Interpretations of Table IV: constants fitted with its runs (SEEN), or mostly without them (UNSEEN)."""


def load_published(folder: Path = FOLDER) -> PublishedTiled:
    """Load PALM's published results, with our interpretation of details that the paper leaves open."""
    return PublishedTiled.from_file(folder / "published/palm-2024.yaml")


def _row(
    table: PublishedTable, case: str, reading: str, unit: str, published: float, **further: object
) -> Row:
    """Row of table `tiled_besides`; `palm` and `measured` are 0 unless given."""
    about = {"table": table, "case": case, "reading": reading, "unit": unit, "published": published}
    return {**about, "palm": 0.0, "measured": 0.0, **further}


def ratios_beside(folder: Path = FOLDER) -> Iterator[Row]:
    """Yield rows that compare Table I with our ratios, computed from the system files."""
    published = load_published(folder)
    for ratio in published.ratios:
        reading = published.ratio_readings[ratio.of]
        ours = evaluate(reading.ours, figures_of(ratio.system, folder))
        case, unit = f"{ratio.system}, {reading.kind}", UNITS[reading.kind]
        about = {"ours": ours, "explanation": ratio.explanation}
        yield _row("I", case, reading.reading, unit, ratio.published, **about)


def inference_beside(folder: Path = FOLDER) -> Iterator[Row]:
    """Yield rows that compare Table V with our throughput of the fastest mapping; takes half a minute."""
    for case in load_published(folder).inference:
        yield inference_row(case, run(case, folder))


def inference_row(case: PublishedInference, ours: Throughput) -> Row:
    """Row of table `tiled_besides` for a case of Table V; the explanation describes the mapping."""
    stages, first = len(ours.programs), ours.programs[0]
    mapping = (
        f"{stages} stage{'s' * (stages > 1)} of {len(first.stage.tiles)} cores, "
        f"microbatch {ours.microbatch}, weights {'shared' if first.execution.shared else 'own'}"
    )
    explanation = "; ".join(filter(None, (mapping, case.explanation)))
    about = {"palm": case.palm, "ours": ours.samples_per_s, "explanation": explanation}
    return _row("V", case.model, reading_of(case), "samples per second", case.published, **about)


def reading_of(case: PublishedInference) -> str:
    """Text that describes the assumed precision, sequence length and weight fetching of a case."""
    tokens = f", {case.sequence} tokens" if case.sequence > 1 else ""
    fetched = "" if len(case.fetched) > 1 else f", weights {case.fetched[0]}"
    return f"{'8-bit integers' if case.numbers == 'int8' else '16 bits'}{tokens}{fetched}"


def run(case: PublishedInference, folder: Path = FOLDER) -> Throughput:
    """Throughput of the fastest mapping for a case of Table V."""
    machine = load_tiled_machine(GRAYSKULL, folder)
    # Divisors of the number of cores: all stages have equally many, and none is idle.
    parts = tuple(k for k in range(1, MOST + 1) if len(machine.tiles) % k == 0)
    operators = partial(operators_of, load_model_named(case.model, folder), sequence=case.sequence)
    return fastest(machine, operators, case.numbers, TileMappings(parts, parts, case.fetched))


def figures_of(system: str, folder: Path = FOLDER) -> dict[str, float]:
    """Hardware figures of a system, by name, for the ratios of Table I; link bandwidths are per direction."""
    # Only tiled systems have a key `dram`; the others are clusters of devices with HBM.
    if "dram" not in read_mapping(system_path(system, folder)):
        cluster, device = load_cluster(system, folder)
        names = ("num_tc", "pe_x", "pe_y", "clock_hz", "glb_mib")
        cores = {name: getattr(device, name) for name in names}
        link = cluster.levels[0].bandwidth_bytes_per_s
        return {**cores, "link_bytes_per_s": link, "hbm_bytes_per_s": device.hbm_bandwidth_bytes_per_s}
    machine = load_tiled_machine(system, folder)
    chip, memory = machine.device, machine.memory
    # A system without links of its own between chips has those of its chips.
    outer = machine.system.link or chip.link
    return {
        "chips": machine.system.chips,
        "sram_mib": chip.sram_bytes / MIB,
        "tera_flops": chip.flops / TERA,
        "hops": machine.hops_to_memory,
        "link_bytes_per_s": chip.link.bandwidth_bytes_per_s,
        "dram_bytes_per_s": len(memory.ports) * memory.bandwidth_bytes_per_s,
        "edge_links_bytes_per_s": max(chip.rows, chip.columns) * outer.bandwidth_bytes_per_s,
        "edge_dram_bytes_per_s": chip.rows * machine.system.dram.bandwidth_bytes_per_s,
        "tile_sram_bytes_per_s": chip.tile.sram_bandwidth_bytes_per_s or nan,
    }


def besides(
    tables: Iterable[PublishedTable], published: PublishedTiled | None, folder: Path = FOLDER
) -> pd.DataFrame:
    """Build table `tiled_besides` for the requested tables of the paper; Table IV needs `published`."""
    builders: dict[PublishedTable, Callable[[Path], Iterator[Row]]] = {
        "I": ratios_beside, "IV": partial(_gpus, published), "V": inference_beside
    }  # fmt: skip
    rows = [row for table in tables for row in builders[table](folder)]
    return TiledBesides.check(pd.DataFrame(rows)) if rows else TiledBesides.empty()


def _gpus(published: PublishedTiled | None, folder: Path) -> Iterator[Row]:
    """Yield rows for the runs of Table IV, predicted with constants fitted with and without these runs."""
    if published is None:
        return
    machines = {SEEN: load_machine(GPUS, folder)}
    if published.other_runs:
        # The same runs must not be both fitted and compared: hence a fit on the other runs of the source.
        share = fitted_sustained_hbm([_run(row) for row in published.other_runs.values()], machines[SEEN])
        machines[UNSEEN] = with_sustained_hbm(machines[SEEN], share)
    for reading, machine in machines.items():
        predictions = predict_rows([_run(row) for row in published.gpus.values()], machine)
        chosen = zip(predictions["time_s"], predictions["microbatch_used"], strict=True)
        for (name, row), (time_s, microbatch) in zip(published.gpus.items(), chosen, strict=True):
            batch = int(row.run["global_batch"])
            explanation = (
                f"{GPUS}, {device_of(machine).sustained_hbm:.2f} of HBM's bandwidth, microbatch "
                f"{microbatch}; with attention and vocabulary, as measured"
            )
            about = {"palm": row.palm, "measured": batch / row.measured_s, "ours": batch / float(time_s)}
            case = _row("IV", name, reading, "sequences per second", row.printed, **about)
            yield {**case, "explanation": explanation}


def _run(row: MeasuredRun) -> RunRow:
    texts = {key: str(value) for key, value in row.run.items()}
    return read_row({**texts, "measured_s": str(row.measured_s)})
