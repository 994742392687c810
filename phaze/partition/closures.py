"""What nodes of a graph take together with all their ancestors, and with all their descendants."""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.bitsets import BITS
from phaze.base.compiled import njit


def with_ancestors(values: Floats, edges: Ints) -> Floats:
    """Return the sum over each node and its ancestors, (n,); edges (e, 2) lead to later nodes."""
    order = np.argsort(edges[:, 1], kind="stable")
    first = np.searchsorted(edges[order, 1], np.arange(len(values) + 1)).astype(np.int64)
    return _closure(values, first, np.ascontiguousarray(edges[order, 0]))


def with_descendants(values: Floats, edges: Ints) -> Floats:
    """Return the sum over each node and its descendants, (n,)."""
    return with_ancestors(values[::-1].copy(), len(values) - 1 - edges[::-1, ::-1])[::-1].copy()


@njit
def _closure(values: Floats, first: Ints, source: Ints) -> Floats:
    """Return the sums over each node and what leads to it; the edges to node v begin at first[v]."""
    n = len(values)
    words = (n + BITS - 1) // BITS
    reached, total = np.zeros((n, words), np.uint64), np.zeros(n)
    for v in range(n):
        reached[v, v // BITS] |= np.uint64(1) << np.uint64(v % BITS)
        for k in range(first[v], first[v + 1]):
            for w in range(source[k] // BITS + 1):
                reached[v, w] |= reached[source[k], w]
        for w in range(v // BITS + 1):
            word, node = reached[v, w], w * BITS
            while word != 0:
                if word & np.uint64(1):
                    total[v] += values[node]
                word >>= np.uint64(1)
                node += 1
    return total
