"""What a machine with libraries runs of an operator, as works of an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from phaze.cost.mapper.works import Works
from phaze.workload.operators import Operator, Part

Kernel = tuple[Part, ...]
"""Parts that run as one: a matrix multiplication, or vector operations."""


def kernels_of(operator: Operator) -> list[Kernel]:
    """Return a kernel for every matrix multiplication, or one for all vector operations."""
    if operator.core == "network":
        return []
    return [(part,) for part in operator.parts] if operator.core == "tensor" else [operator.parts]


def works_of_kernels(kernels: Sequence[Kernel], vector_cycles: Mapping[tuple[str, str], float]) -> Works:
    """Return kernels as works of one estimate, with vector cycles by (role, kind)."""
    parts = [part for kernel in kernels for part in kernel]
    return Works(
        ids=np.arange(len(kernels)),
        of_part=np.repeat(np.arange(len(kernels)), [len(kernel) for kernel in kernels]),
        shapes=np.array([(p.batch, p.m, p.k, p.n) for p in parts], np.int64),
        elements=np.array([p.elements for p in parts], float),
        cycles=np.array([0.0 if p.kind == "matmul" else vector_cycles[p.role, p.kind] for p in parts]),
        streamed_bytes=np.array([p.streamed_bytes for p in parts], float),
        network_bytes=np.zeros(len(parts)),
        unrolled=np.array([p.unrolled for p in parts], float),
        kinds=np.array([p.kind for p in parts], str),
    )
