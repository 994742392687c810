"""From estimates of distinct works on distinct designs to the latencies of operators on architectures."""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints


def gather_latencies(
    works: Ints, designs: Ints, estimated_work: Ints, estimated_design: Ints, values: Floats
) -> Floats:
    """Return values[architecture, operator] from an estimate for each (work, design).

    `works` (n,) is the work of every operator, -1 for one without; `designs` (A, n) the design on which each
    architecture runs it. Raises KeyError if an estimate is missing.
    """
    rows = int(max(estimated_work.max(initial=-1), works.max(initial=-1))) + 1
    columns = int(max(estimated_design.max(initial=-1), designs.max(initial=-1))) + 1
    table = np.full((rows + 1, columns), np.nan)
    table[estimated_work, estimated_design] = values
    table[-1] = 0.0  # where work -1 looks
    found: Floats = table[works, designs]
    if (missing := np.isnan(found)).any():
        where = np.argwhere(missing)[0]
        raise KeyError(f"no estimate for operator {where[1]} of architecture {where[0]}")
    return found


def designs_of_operators(cores: list[str], tensor: Ints, vector: Ints, fused: Ints) -> Ints:
    """Return the design ids (A, n) of operators by core type; a collective reduces on the vector cores."""
    by_core = {
        "tensor": tensor,
        "vector": vector,
        "fused": fused,
        "network": vector,
        "none": np.zeros_like(tensor),
    }
    return np.stack([by_core[core] for core in cores], axis=1)
