"""Downsets agree with their definition, and the linear order with its rule."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.bitsets import Words, holds, members_of, pack, unpack
from phaze.base.compiled import njit
from phaze.base.errors import PhazeError
from phaze.formulas.downsets import enumerate_downsets, enumerate_prefixes, linear_order

Edges = tuple[tuple[int, int], ...]


@njit
def nested(words: Words, outer: int, inner: int) -> bool:
    """Call a function that compiled code inlines."""
    return holds(words, outer, inner)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Edges]:
    """Draw a directed acyclic graph with arbitrary numbering."""
    n = draw(st.integers(1, 7))
    number = draw(st.permutations(range(n)))
    pairs = draw(st.sets(st.sampled_from(list(combinations(range(n), 2))))) if n > 1 else set()
    return n, tuple((number[u], number[v]) for u, v in pairs)


def by_definition(n: int, edges: Edges) -> set[frozenset[int]]:
    """Return the sets that contain, with a node, all targets of its edges (Definition 4.1)."""
    subsets = chain.from_iterable(combinations(range(n), size) for size in range(n + 1))
    return {frozenset(s) for s in subsets if all(v in s for u, v in edges if u in s)}


@given(graphs())
def test_all_downsets_are_found_once_and_smaller_ones_come_first(graph: tuple[int, Edges]) -> None:
    n, edges = graph
    found = enumerate_downsets(n, edges)
    sets = [frozenset(found.members(i)) for i in range(len(found))]
    assert set(sets) == by_definition(n, edges)
    assert len(set(sets)) == len(sets)
    assert found.sizes.tolist() == sorted(map(len, sets))
    assert (found.membership.sum(axis=1) == found.sizes).all()


@given(graphs())
def test_differences_of_nested_downsets_are_the_contiguous_sets(graph: tuple[int, Edges]) -> None:
    n, edges = graph
    found = enumerate_downsets(n, edges)
    nested_pairs = [(outer, int(inner)) for outer in range(len(found)) for inner in found.within(outer)]
    reach = np.zeros((n, n), dtype=bool)
    for u, v in edges:
        reach[u, v] = True
    for via in range(n):
        reach |= np.outer(reach[:, via], reach[via])
    subsets = chain.from_iterable(combinations(range(n), size) for size in range(n + 1))
    contiguous = {
        s
        for s in subsets
        if not any(reach[u, v] and reach[v, w] for u in s for v in set(range(n)) - set(s) for w in s)
    }
    assert {found.difference(outer, inner) for outer, inner in nested_pairs} == contiguous


@given(graphs())
def test_inclusion_is_told_alike_by_members_and_by_bits(graph: tuple[int, Edges]) -> None:
    found = enumerate_downsets(*graph)
    sets = [set(found.members(i)) for i in range(len(found))]
    for outer in range(len(found)):
        inside = [inner for inner in range(len(found)) if sets[inner] <= sets[outer]]
        assert found.within(outer).tolist() == inside
        assert [nested(found.words, outer, inner) for inner in inside] == [True] * len(inside)
        assert sum(nested(found.words, outer, inner) for inner in range(len(found))) == len(inside)


@given(graphs())
def test_prefixes_are_downsets_and_grow_by_the_smallest_node_that_is_ready(graph: tuple[int, Edges]) -> None:
    n, edges = graph
    prefixes = enumerate_prefixes(n, edges)
    taken: set[int] = set()
    for i, v in enumerate(linear_order(n, edges)):
        assert set(prefixes.members(i)) == taken
        ready = [u for u in range(n) if u not in taken and all(w in taken for x, w in edges if x == u)]
        assert v == min(ready)
        taken.add(v)
    assert prefixes.members(n) == tuple(range(n))
    assert {frozenset(prefixes.members(i)) for i in range(n + 1)} <= by_definition(n, edges)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 130])
def test_sets_of_any_size_survive_packing(n: int) -> None:
    member = np.random.default_rng(n).random((5, n)) < 0.5
    words = pack(member)
    assert words.shape == (5, -(-n // 64))
    assert (unpack(words, n) == member).all()
    assert members_of(words[2], n) == tuple(np.flatnonzero(member[2]).tolist())


def test_a_chain_has_as_many_downsets_as_cuts_and_free_nodes_have_all_subsets() -> None:
    chain_of_100 = tuple((v, v + 1) for v in range(99))
    assert len(enumerate_downsets(100, chain_of_100)) == 101
    assert len(enumerate_downsets(12, ())) == 2**12
    assert len(enumerate_downsets(0, ())) == 1


def test_too_many_downsets_are_refused_with_their_number_and_a_way_out() -> None:
    assert len(enumerate_downsets(10, (), limit=1024)) == 1024
    with pytest.raises(PhazeError, match=r"at least 1024 downsets \(10 of its 10 .* allowed are 1023"):
        enumerate_downsets(10, (), limit=1023)
    with pytest.raises(PhazeError, match=r"at least 128 downsets .*prefixes of one linear order"):
        enumerate_downsets(200, (), limit=100)


def test_cycles_and_unknown_nodes_are_refused() -> None:
    with pytest.raises(PhazeError, match=r"nodes \[0, 1, 2\]: .* cycle"):
        enumerate_downsets(4, ((0, 1), (1, 2), (2, 1), (2, 3)))
    with pytest.raises(PhazeError, match=r"edge \(1, 3\): nodes are numbered from 0 to 2"):
        enumerate_downsets(3, ((1, 3),))


def test_some_downsets_are_taken_in_the_order_given() -> None:
    found = enumerate_downsets(3, ((0, 1), (1, 2)))
    assert [found.take(np.array([3, 1])).members(i) for i in range(2)] == [(0, 1, 2), (2,)]


def test_more_than_the_machine_holds_are_refused_with_both_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phaze.base.room.machine_bytes", lambda: 2**24)
    said = r"at least 524288 \(19 of its 30 nodes .* need 0\.01953 GiB of memory, .* has 0\.01562 GiB"
    with pytest.raises(PhazeError, match=said):
        enumerate_downsets(30, (), limit=10**8)
    with pytest.raises(PhazeError, match="at least 16384 "):
        enumerate_downsets(30, (), limit=10**8, each_bytes=1000)
