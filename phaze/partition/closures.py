"""What nodes of a graph take together with all their ancestors, and with all their descendants."""

from __future__ import annotations

import numpy as np

from phaze.theory.compiled import njit
from phaze.theory.operator_graphs import Floats, Ints

Words = np.typing.NDArray[np.uint64]
"""Sets of nodes: node v is bit v % 64 of word v // 64."""
BITS = 64


def with_ancestors(values: Floats, edges: Ints) -> Floats:
    """Return the sum over each node and its ancestors, (n,); edges (e, 2) lead to later nodes."""
    return _closure(values, np.ascontiguousarray(edges[:, 1]), np.ascontiguousarray(edges[:, 0]))


def with_descendants(values: Floats, edges: Ints) -> Floats:
    """Return the sum over each node and its descendants, (n,)."""
    return with_ancestors(values[::-1].copy(), len(values) - 1 - edges[::-1, ::-1])[::-1].copy()


@njit
def _closure(compute: Floats, node: Ints, earlier: Ints) -> Floats:
    """Return the sums over each node and what it reaches; nodes reach earlier ones along (node, earlier)."""
    n = len(compute)
    words = (n + BITS - 1) // BITS
    reached = np.zeros((n, words), np.uint64)
    order = np.argsort(node, kind="mergesort")
    total, k = np.zeros(n), 0
    for v in range(n):
        reached[v, v // BITS] |= np.uint64(1) << np.uint64(v % BITS)
        while k < len(order) and node[order[k]] == v:
            u = earlier[order[k]]
            for w in range(u // BITS + 1):
                reached[v, w] |= reached[u, w]
            k += 1
        for w in range(v // BITS + 1):
            word = reached[v, w]
            bit = w * BITS
            while word != 0:
                if word & np.uint64(1):
                    total[v] += compute[bit]
                word >>= np.uint64(1)
                bit += 1
    return total
