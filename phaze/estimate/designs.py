"""Distinct core designs of a shard: what an estimate depends on, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.ndarrays import Floats, Ints

_BUFFER = ["glb_bytes", "glb_words_per_cycle"]
_ARRAY = ["pe_x", "pe_y", "l2_tc_bytes"]
_LANES = ["pe_vc", "l2_vc_bytes"]
DEPENDS_ON = {
    "tensor": ["num_tc", *_ARRAY, *_BUFFER],
    "vector": ["num_vc", *_LANES, *_BUFFER],
    "fused": ["pairs", *_ARRAY, *_LANES, *_BUFFER],
}
"""Columns of table architectures that an estimate of a core type depends on; `pairs` is the lesser number
of cores.
"""


@dataclass(frozen=True)
class Designs:
    """Designs of one core type; arrays (D,)."""

    ids: Ints
    cores: Ints
    """Cores of the type; for fused designs the pairs."""
    rows: Ints
    columns: Ints
    lanes: Ints
    """Lanes of a vector core."""
    l2_tc_bytes: Ints
    l2_vc_bytes: Ints
    glb_bytes: Ints
    words_per_cycle: Floats

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.ids)


def design_ids(architectures: pd.DataFrame) -> dict[str, pd.Series]:
    """Return columns tensor_design, vector_design, fused_design: ids, unique over all three."""
    frame = architectures.assign(pairs=architectures[["num_tc", "num_vc"]].min(axis=1))
    ids: dict[str, pd.Series] = {}
    first = 0
    for core, columns in DEPENDS_ON.items():
        numbers = frame.groupby(columns).ngroup() + first
        ids[f"{core}_design"] = numbers
        first += int(numbers.nunique())
    return ids


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
        l2_tc_bytes=first["l2_tc_bytes"].to_numpy(np.int64),
        l2_vc_bytes=first["l2_vc_bytes"].to_numpy(np.int64),
        glb_bytes=first["glb_bytes"].to_numpy(np.int64),
        words_per_cycle=first["glb_words_per_cycle"].to_numpy(float),
    )
