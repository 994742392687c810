"""Distinct core designs in a shard of the searched architectures, and lookup of their estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.ranking import distinct_rows

if TYPE_CHECKING:  # a plan of a measured device reads no tables, and loads no pandas
    import pandas as pd

_BUFFER = ["glb_bytes", "glb_words_per_cycle", "clock_hz", "hbm_bandwidth_bytes_per_s"]
_ARRAY = ["pe_x", "pe_y", "l2_tc_bytes"]
_LANES = ["pe_vc", "l2_vc_bytes"]
_SIZES = ("pe_x", "pe_y", "pe_vc", "l2_tc_bytes", "l2_vc_bytes", "glb_bytes")
_RATES = ("glb_words_per_cycle", "clock_hz", "hbm_bandwidth_bytes_per_s")
"""Columns of table `architectures` in the order of the fields of `Designs`, after the numbers of cores."""
DEPENDS_ON = {
    "tensor": ["num_tc", *_ARRAY, *_BUFFER],
    "vector": ["num_vc", *_LANES, *_BUFFER],
    "fused": ["num_tc", "num_vc", *_ARRAY, *_LANES, *_BUFFER],
}
"""Columns of table `architectures` that determine the estimates, by core type."""
DESIGN_OF_CORE = {
    "tensor": "tensor_design",
    "vector": "vector_design",
    "fused": "fused_design",
    "network": "vector_design",
}
"""Column with the core design, by core type of an operator; collectives reduce on vector cores."""


@dataclass(frozen=True)
class Designs:
    """Distinct designs of one core type, as arrays (D,)."""

    ids: Ints
    tensor_cores: Ints
    """Tensor cores that an operator uses when it runs on all cores."""
    vector_cores: Ints
    """Vector cores that an operator uses when it runs on all cores."""
    rows: Ints
    columns: Ints
    lanes: Ints
    """Lanes per vector core."""
    l2_tc_bytes: Ints
    l2_vc_bytes: Ints
    glb_bytes: Ints
    words_per_cycle: Floats
    clock_hz: Floats
    """Clock of all cores; 0: that of the cluster."""
    hbm_bandwidth_bytes_per_s: Floats
    """HBM bandwidth; 0: that of the cluster."""

    def __len__(self) -> int:
        return len(self.ids)


def design_ids(architectures: pd.DataFrame) -> dict[str, Ints]:
    """Columns `tensor_design`, `vector_design` and `fused_design`: design ids, unique across all three."""
    ids: dict[str, Ints] = {}
    first = 0
    for core, columns in DEPENDS_ON.items():
        distinct, place = distinct_rows(architectures[columns].to_numpy(np.float64))
        # Estimates of all core types share one table, in which a design id must not repeat.
        ids[f"{core}_design"] = first + place
        first += len(distinct)
    return ids


def with_own_designs(architectures: pd.DataFrame) -> pd.DataFrame:
    """Drop duplicate architectures, and number their designs uniquely across shards."""
    chips = architectures.drop_duplicates("architecture").reset_index(drop=True)
    return chips.assign(**design_ids(chips))


def designs_of(architectures: pd.DataFrame, core: str, *, paired: bool = False) -> Designs:
    """Distinct designs of a core type in table `architectures`.

    If `paired`, operators on all cores use equally many tensor and vector cores.
    """
    ids, first = np.unique(architectures[f"{core}_design"].to_numpy(np.int64), return_index=True)
    chips = architectures.iloc[first]
    counts = chips["num_tc"].to_numpy(np.int64), chips["num_vc"].to_numpy(np.int64)
    if paired:
        counts = (np.minimum(*counts),) * 2
    sizes = (chips[name].to_numpy(np.int64) for name in _SIZES)
    rates = (chips[name].to_numpy(float) for name in _RATES)
    return Designs(ids, *counts, *sizes, *rates)


def gather_latencies(
    works: Ints, designs: Ints, estimated_work: Ints, estimated_design: Ints, values: Floats
) -> Floats:
    """Latency of every operator on every architecture, (A, n), looked up by (work, design).

    `works` (n,) is the work of every operator, -1 if it has none. `designs` (A, n) is the design on which
    each architecture runs it. Raises KeyError if an estimate is missing.
    """
    rows = int(max(estimated_work.max(initial=-1), works.max(initial=-1))) + 1
    columns = int(max(estimated_design.max(initial=-1), designs.max(initial=-1))) + 1
    table = np.full((rows + 1, columns), np.nan)
    # Ids of works and designs count from 0, so that a dense table serves all pairs in one look-up.
    table[estimated_work, estimated_design] = values
    table[-1] = 0.0  # the row that work -1 indexes
    latencies: Floats = table[works, designs]
    if (missing := np.isnan(latencies)).any():
        where = np.argwhere(missing)[0]
        raise KeyError(f"no estimate for operator {where[1]} of architecture {where[0]}")
    return latencies


def designs_of_operators(cores: list[str], tensor: Ints, vector: Ints, fused: Ints) -> Ints:
    """Design id of each operator on each architecture, (A, n); collectives reduce on vector cores."""
    by_core = {"tensor": tensor, "vector": vector, "fused": fused, "network": vector, "none": 0 * tensor}
    return np.stack([by_core[core] for core in cores], axis=1)


def operator_latencies(
    operators: pd.DataFrame, estimates: pd.DataFrame, architectures: pd.DataFrame
) -> tuple[Floats, Floats]:
    """Latency of each operator on each architecture, on one core (ℓ) and on all cores (ℓ̂), (A, n) each."""
    designs = designs_of_operators(
        list(operators["core"]),
        *(architectures[f"{core}_design"].to_numpy(np.int64) for core in ("tensor", "vector", "fused")),
    )
    works = operators["work"].to_numpy(np.int64)
    at = estimates["work"].to_numpy(np.int64), estimates["design"].to_numpy(np.int64)
    on_one, on_all = (
        gather_latencies(works, designs, *at, estimates[name].to_numpy(np.float64))
        for name in ("latency_s", "latency_all_s")
    )
    return on_one, on_all
