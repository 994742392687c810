"""Downsets of a directed acyclic graph, as bits (Piper, Section 4).

A set of nodes is a downset when it holds, with a node, all that the node's edges lead to (Definition 4.1):
what is left of a pipeline from some point on. The difference of two nested downsets is a contiguous set, and
every contiguous set is one (Fact 4.2).

Nodes are decided from the sinks on. A node may join once its successors did, so that every set of decided
nodes that obeys the definition is a downset of the whole graph too: no more sets are ever held than there are
in the end, none is met twice, and a limit is noticed early.
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
"""Downsets that are enumerated unless the caller says otherwise."""
COPIES = 5
"""How often the bits of a downset are held while more are found and sorted."""
INSTEAD = "merge layers that run beside each other, or plan with the prefixes of one linear order"


class DownsetsError(PhazeError):
    """A graph has more downsets than are allowed."""


@dataclass(frozen=True, eq=False)
class Downsets:
    """Downsets of n nodes, smaller ones first: the empty one is the first, the whole graph the last."""

    nodes: int
    words: Words
    """(count, words): node v is bit v % 64 of word v // 64."""

    def __len__(self) -> int:
        """Number of downsets."""
        return len(self.words)

    @property
    def sizes(self) -> Ints:
        """Number of nodes in each, (count,)."""
        sizes: Ints = np.bitwise_count(self.words).sum(axis=1, dtype=np.int64)
        return sizes

    @property
    def membership(self) -> Bools:
        """Whether downset i holds node v, (count, nodes)."""
        return unpack(self.words, self.nodes)

    def members(self, i: int) -> tuple[int, ...]:
        """Nodes of downset i, rising."""
        return members_of(self.words[i], self.nodes)

    def difference(self, outer: int, inner: int) -> tuple[int, ...]:
        """Nodes of downset `outer` that are not in downset `inner`, rising."""
        return members_of(self.words[outer] & ~self.words[inner], self.nodes)

    def within(self, i: int) -> Ints:
        """Downsets in downset i, itself included, smaller ones first."""
        return np.flatnonzero(~(self.words & ~self.words[i]).any(axis=1)).astype(np.int64)

    def take(self, chosen: Ints) -> Downsets:
        """Some of them, in the order given."""
        return Downsets(self.nodes, self.words[chosen])


def enumerate_downsets(nodes: int, edges: Edges, limit: int = LIMIT, each_bytes: int = 0) -> Downsets:
    """All downsets of a graph; a cycle, an unknown end of an edge, more than `limit`: an error.

    So are more than the machine can hold; each_bytes: what the caller will hold of each beside its bits.
    """
    order = linear_order(nodes, edges)
    heads = np.zeros((nodes, nodes), dtype=np.bool_)
    for u, v in edges:
        heads[u, v] = True
    after = pack(heads)
    found = np.zeros((1, word_count(nodes)), dtype=np.uint64)
    for decided, v in enumerate(order, 1):
        may_join = ~(after[v] & ~found).any(axis=1)
        count = len(found) + int(np.count_nonzero(may_join))
        if count > limit:
            raise DownsetsError(
                f"the graph has at least {count} downsets ({decided} of its {nodes} nodes make that many), "
                f"allowed are {limit}: allow more, {INSTEAD}"
            )
        refuse_beyond_memory(
            count * (each_bytes + COPIES * found.itemsize * found.shape[1]),
            f"the graph's downsets, at least {count} ({decided} of its {nodes} nodes make that many),",
            INSTEAD,
        )
        grown = found[may_join]
        grown[:, v // BITS] |= np.uint64(1 << v % BITS)
        found = np.concatenate([found, grown])
    sizes = np.bitwise_count(found).sum(axis=1)
    return Downsets(nodes, found[np.lexsort((*found.T, sizes))])


def enumerate_prefixes(nodes: int, edges: Edges) -> Downsets:
    """Only the n + 1 downsets that `linear_order` passes through."""
    member = np.zeros((nodes + 1, nodes), dtype=np.bool_)
    for taken, v in enumerate(linear_order(nodes, edges), 1):
        member[taken:, v] = True
    return Downsets(nodes, pack(member))


def linear_order(nodes: int, edges: Edges) -> tuple[int, ...]:
    """Nodes from the sinks on: repeatedly the smallest whose successors are all taken."""
    import networkx as nx  # takes its time: whoever plans chains does without

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
        left = sorted(set(range(nodes)) - set(order))
        raise PhazeError(f"nodes {left}: the edges between them contain a cycle")
    return tuple(order)
