"""Distinct core designs of a shard: what an estimate depends on, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CORES = ("tensor", "vector", "fused")


@dataclass(frozen=True)
class Designs:
    """Designs of one core type; arrays (D,)."""

    ids: Ints
    cores: Ints
    """Cores of the type; for fused designs the pairs."""
    rows: Ints
    columns: Ints
    lanes: Ints
    """Lanes of the vector core that takes part."""
    l2_bytes: Ints
    """L2 buffer of a tensor core."""
    glb_bytes: Ints
    words_per_cycle: Floats


def designs_of(architectures: pd.DataFrame, core: str) -> Designs:
    """Return the distinct designs of a core type in table architectures."""
    first = architectures.drop_duplicates(f"{core}_design").sort_values(f"{core}_design")
    pairs = first[["num_tc", "num_vc"]].min(axis=1)
    cores = {"tensor": first["num_tc"], "vector": first["num_vc"], "fused": pairs}[core]
    return Designs(
        ids=first[f"{core}_design"].to_numpy(np.int64),
        cores=cores.to_numpy(np.int64),
        rows=first["pe_x"].to_numpy(np.int64),
        columns=first["pe_y"].to_numpy(np.int64),
        lanes=first["pe_vc"].to_numpy(np.int64),
        l2_bytes=first["l2_tc_bytes"].to_numpy(np.int64),
        glb_bytes=first["glb_bytes"].to_numpy(np.int64),
        words_per_cycle=first["glb_words_per_cycle"].to_numpy(float),
    )
