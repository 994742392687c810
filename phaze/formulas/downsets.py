"""Downsets of a directed acyclic graph, stored as bit sets (Piper, Section 4).

A set of nodes is a downset if it contains every successor of each of its nodes (Definition 4.1): the rest of
a pipeline from some point on. The difference of two nested downsets is a contiguous set, and every contiguous
set is such a difference (Fact 4.2).

Nodes are decided in order from the sinks. A node may join once all its successors have joined, so every valid
set of decided nodes is also a downset of the whole graph. Therefore there are never more sets in memory than
at the end, no set occurs twice, and an exceeded limit is detected early.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.base.bitsets import BITS, Words, members_of, pack, unpack, word_count
from phaze.base.errors import PhazeError
from phaze.base.room import refuse_beyond_memory

Edges = Sequence[tuple[int, int]]

LIMIT = 1_000_000
"""Default maximum number of enumerated downsets."""
COPIES = 5
"""Number of copies of all downsets' bits in memory during enumeration and sorting."""
INSTEAD = "merge parallel layers, or plan with the prefixes of one linear order"


class DownsetsError(PhazeError):
    """Error for a graph with more downsets than allowed."""


@dataclass(frozen=True, eq=False)
class Downsets:
    """Downsets of a graph with n nodes, from the empty set to the whole graph, smaller ones first."""

    nodes: int
    words: Words
    """Bit sets, (count, words): node v is bit v % 64 of word v // 64."""

    def __len__(self) -> int:
        """Number of downsets."""
        return len(self.words)

    @property
    def sizes(self) -> Ints:
        """Number of nodes in each downset, (count,)."""
        sizes: Ints = np.bitwise_count(self.words).sum(axis=1, dtype=np.int64)
        return sizes

    @property
    def membership(self) -> Bools:
        """Mask (count, nodes): True if downset i contains node v."""
        return unpack(self.words, self.nodes)

    def members(self, i: int) -> tuple[int, ...]:
        """Nodes of downset i, ascending."""
        return members_of(self.words[i], self.nodes)

    def difference(self, outer: int, inner: int) -> tuple[int, ...]:
        """Nodes of downset `outer` that are not in downset `inner`, ascending."""
        return members_of(self.words[outer] & ~self.words[inner], self.nodes)

    def within(self, i: int) -> Ints:
        """Indices of the downsets contained in downset i, including itself, smaller ones first."""
        return np.flatnonzero(~(self.words & ~self.words[i]).any(axis=1)).astype(np.int64)

    def take(self, chosen: Ints) -> Downsets:
        """Downsets at the indices `chosen`, in that order."""
        return Downsets(self.nodes, self.words[chosen])


def enumerate_downsets(nodes: int, edges: Edges, limit: int = LIMIT, each_bytes: int = 0) -> Downsets:
    """Enumerate all downsets of a graph.

    Raises PhazeError for a cycle, an unknown node of an edge, more than `limit` downsets, or more than the
    machine has memory for. `each_bytes` is the memory per downset that the caller needs in addition to its
    bits.
    """
    order = linear_order(nodes, edges)
    heads = np.zeros((nodes, nodes), dtype=np.bool_)
    for u, v in edges:
        heads[u, v] = True
    after = pack(heads)
    words = np.zeros((1, word_count(nodes)), dtype=np.uint64)
    for decided, v in enumerate(order, 1):
        # In reverse topological order a node may join if all its successors are members.
        may_join = ~(after[v] & ~words).any(axis=1)
        count = len(words) + int(np.count_nonzero(may_join))
        if count > limit:
            raise DownsetsError(
                f"the graph has at least {count} downsets ({decided} of its {nodes} nodes make that many), "
                f"allowed are {limit}: allow more, {INSTEAD}"
            )
        refuse_beyond_memory(
            count * (each_bytes + COPIES * words.itemsize * words.shape[1]),
            f"the graph's downsets, at least {count} ({decided} of its {nodes} nodes make that many),",
            INSTEAD,
        )
        grown = words[may_join]
        grown[:, v // BITS] |= np.uint64(1 << v % BITS)
        words = np.concatenate([words, grown])
    sizes = np.bitwise_count(words).sum(axis=1)
    return Downsets(nodes, words[np.lexsort((*words.T, sizes))])


def enumerate_prefixes(nodes: int, edges: Edges) -> Downsets:
    """Enumerate only the n + 1 downsets that are prefixes of `linear_order`."""
    member = np.zeros((nodes + 1, nodes), dtype=np.bool_)
    for taken, v in enumerate(linear_order(nodes, edges), 1):
        member[taken:, v] = True
    return Downsets(nodes, pack(member))


def linear_order(nodes: int, edges: Edges) -> tuple[int, ...]:
    """Nodes in reverse topological order; if several nodes can come next, the smallest does."""
    import networkx as nx  # slow import that planners of chains do not need

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(nodes))
    for u, v in edges:
        if not (0 <= u < nodes and 0 <= v < nodes):
            raise PhazeError(f"edge ({u}, {v}): nodes are numbered from 0 to {nodes - 1}")
        graph.add_edge(v, u)
    order: list[int] = []
    with suppress(nx.NetworkXUnfeasible):
        order.extend(nx.lexicographical_topological_sort(graph))
    if len(order) < nodes:
        cyclic = sorted(set(range(nodes)) - set(order))
        raise PhazeError(f"nodes {cyclic}: the edges between them contain a cycle")
    return tuple(order)
