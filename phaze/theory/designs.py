"""From estimates of distinct works on distinct designs to the latencies of operators on architectures."""

from __future__ import annotations

import numpy as np

from phaze.ndarrays import Floats, Ints


def gather_latencies(
    works: Ints, designs: Ints, estimated_work: Ints, estimated_design: Ints, values: Floats
) -> Floats:
    """Return values[architecture, operator] from an estimate for each (work, design).

    `works` (n,) is the work of every operator, -1 for one without; `designs` (A, n) the design on which each
    architecture runs it. Raises KeyError if an estimate is missing.
    """
    width = int(max(estimated_design.max(initial=0), designs.max(initial=0))) + 1
    keys = estimated_work * width + estimated_design
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    wanted = np.where(works < 0, 0, works * width + designs)
    place = np.searchsorted(sorted_keys, wanted).clip(max=max(len(keys) - 1, 0))
    idle = np.broadcast_to(works < 0, wanted.shape)
    if len(keys) == 0 or (missing := ~idle & (sorted_keys[place] != wanted)).any():
        if len(keys) == 0 and idle.all():
            return np.zeros(wanted.shape)
        where = np.argwhere(missing)[0] if len(keys) else (0, 0)
        raise KeyError(f"no estimate for operator {where[1]} of architecture {where[0]}")
    return np.where(idle, 0.0, values[order][place])


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
