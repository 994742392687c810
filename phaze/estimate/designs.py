"""Distinct core designs of a shard: what an estimate depends on, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from phaze.ndarrays import Floats, Ints
from phaze.theory.ranking import distinct_rows

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
        distinct, place = distinct_rows(frame[columns].to_numpy(np.float64))
        ids[f"{core}_design"] = pd.Series(first + place, index=frame.index)
        first += len(distinct)
    return ids


def designs_of(architectures: pd.DataFrame, core: str) -> Designs:
    """Return the distinct designs of a core type in table architectures."""
    ids, first = np.unique(architectures[f"{core}_design"].to_numpy(np.int64), return_index=True)
    sizes = ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "l2_tc_bytes", "l2_vc_bytes", "glb_bytes")
    of = {name: architectures[name].to_numpy(np.int64)[first] for name in sizes}
    pairs = np.minimum(of["num_tc"], of["num_vc"])
    return Designs(
        ids=ids,
        cores={"tensor": of["num_tc"], "vector": of["num_vc"], "fused": pairs}[core],
        rows=of["pe_x"],
        columns=of["pe_y"],
        lanes=of["pe_vc"],
        l2_tc_bytes=of["l2_tc_bytes"],
        l2_vc_bytes=of["l2_vc_bytes"],
        glb_bytes=of["glb_bytes"],
        words_per_cycle=architectures["glb_words_per_cycle"].to_numpy(float)[first],
    )
