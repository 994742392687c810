"""A small invented model and shard: three layers of few operators, architectures of random size."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from phaze.spec.architecture import EnergyFigures
from phaze.tables.columns import ENERGIES

ENERGY = EnergyFigures(
    mac_j=1.0, register_j_per_byte=1.0, sram_j_per_byte={1: 1.0, 2: 1.0}, hbm_j_per_byte=1.0,
    link_j_per_byte=1e-9, leakage_w_per_mm2=0.1,
)  # fmt: skip
POINT = {"model": "toy", "layout": "tp1-b2"}
OPERATORS = {
    "embedding": ["vector"],
    "block": ["fused", "tensor", "vector", "tensor", "none", "fused"],
    "head": ["tensor", "vector"],
}
EDGES = {"embedding": [], "block": [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (4, 5), (3, 5)], "head": [(0, 1)]}
COUNTS = {"embedding": 1, "block": 5, "head": 1}


class Shard(NamedTuple):
    """Tables read by the screen, in the order of its arguments."""

    operators: pd.DataFrame
    edges: pd.DataFrame
    layers: pd.DataFrame
    graph: pd.DataFrame
    estimates: pd.DataFrame
    architectures: pd.DataFrame


def make_shard(size: int, seed: int = 0, named: int = 0) -> Shard:
    """Return a shard of that many architectures, the first `named` of them named, with random latencies."""
    rng = np.random.default_rng(seed)
    operators, works = _operators()
    architectures = _architectures(size, named, rng)
    return Shard(
        operators, _edges(), _layers(), _graph(), _estimates(works, architectures, rng), architectures
    )


def _operators() -> tuple[pd.DataFrame, int]:
    rows, work = [], 0
    for layer, cores in OPERATORS.items():
        for direction in ("forward", "backward"):
            for index, core in enumerate(cores):
                rows.append((layer, direction, index, core, -1 if core == "none" else work))
                work += core != "none"
    frame = pd.DataFrame(rows, columns=["layer", "direction", "operator", "core", "work"]).assign(**POINT)
    return frame, work


def _edges() -> pd.DataFrame:
    rows = [
        (layer, direction, source, target)
        for layer, edges in EDGES.items()
        for direction in ("forward", "backward")
        for source, target in edges
    ]
    return pd.DataFrame(rows, columns=["layer", "direction", "source", "target"]).assign(**POINT)


def _layers() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "layer": list(COUNTS),
            "parameters": [3 * 2**26, 2**28, 2**27],
            "activation_bytes": [2.0**28, 2.0**31, 2.0**29],
            "output_bytes": [2.0**20, 2.0**20, 0.0],
            "tensor_parallel": False,
        }
    ).assign(**POINT)


def _graph() -> pd.DataFrame:
    return pd.DataFrame({"position": range(3), "layer": list(COUNTS), "count": list(COUNTS.values())})


def _architectures(size: int, named: int, rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "architecture": [f"a{i:05}" for i in range(size)],
            "num_tc": rng.integers(1, 5, size),
            "num_vc": rng.integers(1, 5, size),
            "pe_x": 8,
            "pe_y": 8,
            "area_um2": rng.integers(1, 50, size) * 1000.0,
            "named": np.arange(size) < named,
            "hbm_gib": 0.0,
            "tensor_design": np.arange(size),
            "vector_design": size + np.arange(size),
            "fused_design": 2 * size + np.arange(size),
        }
    )


def _estimates(works: int, architectures: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    designs = 3 * len(architectures)
    speed = np.tile(rng.uniform(0.5, 2.0, len(architectures)), 3)
    one = rng.uniform(1e-3, 2e-3, (works, 1)) * rng.uniform(1.0, 1.1, (works, designs)) * speed
    return pd.DataFrame(
        {
            "work": np.repeat(np.arange(works), designs),
            "design": np.tile(np.arange(designs), works),
            "latency_s": one.ravel(),
            "latency_all_s": (one * rng.uniform(0.3, 1.0, one.shape)).ravel(),
            **{f"{part}{which}_j": one.ravel() for part in ENERGIES for which in ("", "_all")},
        }
    )
