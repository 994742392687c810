"""Table V of PALM: ResNet-50 and BERT-base on Tenstorrent's Grayskull, inference without set-up and drain.

The paper prints neither batch, nor sequence, nor mapping. It says that ResNet-50 has the computing power of
8-bit integers, so that BERT-base is read as 16 bits; then only sequences of up to 184 tokens stay below the
peak, and 128 are taken. The mapping is the fastest of those with stages and microbatches that divide the 120
cores, one rule for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from phaze.spec.config import load_model_named
from phaze.spec.files import FOLDER
from phaze.tiles.chip import load_tiled_machine
from phaze.tiles.group import Fidelity
from phaze.tiles.inference import Family, Fetched, Numbers, Samples, Throughput, fastest
from phaze.tiles.layers import operators_of

SYSTEM = "grayskull"
MOST = 40
"""Stages, and samples in a microbatch."""


@dataclass(frozen=True)
class Case:
    """A model that somebody has run, or one way to read what was printed of it."""

    model: str
    numbers: Numbers
    sequence: int
    published: float
    """Samples per second of the chip (PALM, Table V)."""
    palm: float
    """Samples per second that PALM simulates."""
    explanation: str
    fetched: tuple[Fetched, ...] = ("own", "shared")
    """How weights may be fetched."""

    @property
    def reading(self) -> str:
        """Return how the model is read, in words."""
        tokens = f", {self.sequence} tokens" if self.sequence > 1 else ""
        fetched = "" if len(self.fetched) > 1 else f", weights {self.fetched[0]}"
        return f"{'8-bit integers' if self.numbers == 'int8' else '16 bits'}{tokens}{fetched}"

    @property
    def name(self) -> str:
        """Return the case in words."""
        return f"{self.model}, {self.reading}"

    def operators(self, folder: Path = FOLDER) -> Samples:
        """Return the operators of the model for microbatches."""
        model = load_model_named(self.model, folder)
        return partial(operators_of, model, sequence=self.sequence)


CASES = (
    Case("resnet-50", "int8", 1, 22431.0, 23033.46, ""),
    Case(
        "bert-base",
        "half",
        128,
        2830.0,
        3190.12,
        "88 % of a peak that needs 1.5 GHz, and cards are sold at 1.0 to 1.3; softmax, GELU and "
        "normalisations take no time, as in PALM",
    ),
    Case(
        "bert-base",
        "half",
        128,
        2830.0,
        3190.12,
        "if every replica fetches its own weights: 170 MB do not fit into 120 MB of SRAM, and 100 GB/s of "
        "DRAM bring them 588 times a second, for all replicas together",
        ("own",),
    ),
    Case(
        "bert-base",
        "int8",
        384,
        2830.0,
        3190.12,
        "another reading: 8 bits as for ResNet-50, and the sequences of SQuAD",
    ),
    Case(
        "bert-base",
        "int8",
        512,
        2830.0,
        3190.12,
        "another reading: 8 bits as for ResNet-50, and the longest sequences of BERT",
    ),
)


@dataclass(frozen=True)
class Row:
    """A case of Table V beside ours."""

    case: Case
    ours: Throughput

    @property
    def error(self) -> float:
        """Return the relative difference from the published throughput."""
        return self.ours.samples_per_s / self.case.published - 1

    @property
    def mapping(self) -> str:
        """Return the mapping in words."""
        stages = self.ours.mapped.stages
        return (
            f"{len(stages)} stage{'s' * (len(stages) > 1)} of {len(stages[0].tiles)} cores, "
            f"microbatch {self.ours.mapped.microbatch}, weights {self.ours.mapped.fetched}"
        )


def table_v(fidelity: Fidelity = "tile-by-tile", folder: Path = FOLDER) -> tuple[Row, ...]:
    """Return every case beside what the tile level reaches."""
    return tuple(Row(case, run(case, fidelity, folder)) for case in CASES)


def run(case: Case, fidelity: Fidelity = "tile-by-tile", folder: Path = FOLDER) -> Throughput:
    """Return the throughput of a case by the fastest mapping."""
    machine = load_tiled_machine(SYSTEM, folder)
    parts = tuple(k for k in range(1, MOST + 1) if len(machine.tiles) % k == 0)
    family = Family(parts, parts, case.fetched)
    return fastest(machine, case.operators(folder), case.numbers, family, fidelity)
