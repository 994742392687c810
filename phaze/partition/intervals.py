"""Partitions along one order: stages are intervals of operators in a given topological order.

    T[j, s] = min over i < j of max(T[i, s - 1], t(i, j))

With the time (3) on operators this is what planners do that fix a topological order first (RaNNC); with the
larger one of computation and messages, on layers, what PipeDream does with a straight pipeline (Narayanan et
al., SOSP 2019, Section 3.1), where a stage's messages run beside its computation.
"""

from __future__ import annotations

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.compiled import njit
from phaze.partition.weights import NONE, ROUNDING, Weights


def cut_in_order(weights: Weights, stages: int, *, overlapped: bool = False) -> Ints | None:
    """Return the stage of each node (n,), None if no intervals fit the memory.

    `overlapped`: messages run beside computation, and memory is not looked at.
    """
    order = np.lexsort((weights.edges[:, 0], weights.edges[:, 1]))
    values, choices = _intervals(
        weights.compute_s,
        weights.memory_bytes,
        np.ascontiguousarray(weights.edges[order, 0]),
        np.searchsorted(weights.edges[order, 1], np.arange(len(weights) + 1)),
        weights.edge_bytes[order],
        _sent(weights),
        weights.seconds_per_byte,
        np.inf if overlapped else weights.limit_bytes * (1 + ROUNDING),
        stages,
        overlapped,
    )
    if not np.isfinite(values[stages, len(weights)]):
        return None
    ends = [len(weights)]
    for s in range(stages, 0, -1):
        ends.append(int(choices[s, ends[-1]]))
    return np.repeat(np.arange(stages), np.diff(ends[::-1]))


def _sent(weights: Weights) -> Floats:
    """Return the bytes over each border of the order, shape (n + 1,)."""
    sent = np.zeros(len(weights) + 1)
    for (u, v), size in zip(weights.edges.tolist(), weights.edge_bytes.tolist(), strict=True):
        sent[u + 1 : v + 1] += size  # never taken off again: beside a large message small ones would vanish
    return sent


@njit
def _intervals(
    compute: Floats,
    memory: Floats,
    source: Ints,
    first: Ints,
    size: Floats,
    sent: Floats,
    seconds_per_byte: float,
    most_memory: float,
    stages: int,
    overlapped: bool,
) -> tuple[Floats, Ints]:
    """Return T[s, j] and the best i for each; edges are sorted by target, of node v from first[v] on."""
    n = len(compute)
    value, choice = np.full((stages + 1, n + 1), np.inf), np.full((stages + 1, n + 1), NONE, np.int64)
    value[0, 0] = 0.0
    for i in range(n):
        time, held, passing = 0.0, 0.0, sent[i]
        for j in range(i + 1, n + 1):
            time += compute[j - 1]
            held += memory[j - 1]
            for e in range(first[j - 1], first[j]):
                if source[e] < i:
                    passing -= size[e]
            over = sent[i] + sent[j] - 2.0 * passing
            cost = max(time, seconds_per_byte * sent[j]) if overlapped else time + seconds_per_byte * over
            if held + over > most_memory:
                continue
            if time >= value[stages, n]:
                break
            for s in range(1, min(stages, j) + 1):
                reached = max(value[s - 1, i], cost)
                if reached < value[s, j]:
                    value[s, j], choice[s, j] = reached, i
    return value, choice
