"""Order of operators, series components, and valid layers."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.schedule.graphs import (
    Edges,
    ScheduledLayer,
    downsets,
    make_graph,
    series_components,
    sort_topologically,
    transitive_order,
)

DIAMOND: Edges = ((0, 1), (0, 2), (1, 3), (2, 3))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, Edges]:
    """Draw a graph of up to eight operators with edges from lower to higher numbers."""
    n = draw(st.integers(1, 8))
    pairs = [(i, j) for j in range(n) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return n, tuple(chosen)


def layer(**changes: object) -> ScheduledLayer:
    """Return a layer of two operators with some fields changed."""
    plain = ScheduledLayer(("tensor", "vector"), np.array([2.0, 1.0]), np.ones(2), ((0, 1),), 2, 1)
    return replace(plain, **changes)


def test_the_order_is_the_transitive_closure_of_the_edges() -> None:
    """A path makes two operators comparable, with or without an edge between them."""
    order = transitive_order(4, DIAMOND)
    assert np.argwhere(order).tolist() == [[0, 1], [0, 2], [0, 3], [1, 3], [2, 3]]


def test_a_cycle_is_an_error_that_names_its_operators() -> None:
    """Operators on a cycle cannot be scheduled."""
    with pytest.raises(PhazeError, match=r"operators \[1, 2\]: the edges between them contain a cycle"):
        sort_topologically(3, ((1, 2), (2, 1)))


def test_an_edge_to_nowhere_is_an_error() -> None:
    """An edge connects existing operators."""
    with pytest.raises(PhazeError, match=r"edge \(0, 5\): operators are numbered from 0 to 1"):
        sort_topologically(2, ((0, 5),))


def test_operators_need_not_be_numbered_in_topological_order() -> None:
    """The graph gives the order, not the numbers."""
    graph = make_graph(("tensor", "tensor", "vector"), ((2, 0), (0, 1)))
    assert graph.topological == (2, 0, 1)
    assert [component.operators for component in graph.components] == [(2,), (0,), (1,)]


def test_an_operator_comparable_with_all_others_is_a_component_by_itself() -> None:
    """The ends of a diamond are separate components; its middle is one."""
    assert series_components(transitive_order(4, DIAMOND)) == [[0], [1, 2], [3]]


def test_no_ops_pass_the_order_on_and_belong_to_no_component() -> None:
    """A reshape between two operators orders them without being scheduled."""
    graph = make_graph(("tensor", "none", "vector"), ((0, 1), (1, 2)))
    assert [component.operators for component in graph.components] == [(0,), (2,)]


@given(graphs())
def test_components_follow_each_other_and_cover_all_operators(graph: tuple[int, Edges]) -> None:
    """One component precedes the next, and incomparable operators share a component."""
    n, edges = graph
    order = transitive_order(n, edges)
    parts = series_components(order)
    assert sorted(i for part in parts for i in part) == list(range(n))
    for before, after in pairwise(parts):
        assert order[np.ix_(before, after)].all()
    of = {i: k for k, part in enumerate(parts) for i in part}
    for i, j in np.argwhere(~(order | order.T)):
        assert of[i] == of[j]


@given(graphs())
def test_the_edges_of_a_component_are_the_fewest_with_its_order(graph: tuple[int, Edges]) -> None:
    """The transitive reduction has the same closure, and loses it without any of its edges."""
    n, edges = graph
    for component in make_graph(("tensor",) * n, edges).components:
        size = len(component.operators)
        assert (transitive_order(size, component.edges) == component.order).all()
        for edge in component.edges:
            fewer = tuple(other for other in component.edges if other != edge)
            assert (transitive_order(size, fewer) != component.order).any()


@given(graphs())
def test_downsets_are_all_sets_without_a_missing_predecessor(graph: tuple[int, Edges]) -> None:
    """Every subset is tried: it is listed if and only if it is closed downwards."""
    n, edges = graph
    order = transitive_order(n, edges)
    closed = [d for d in range(2**n) if all(not d >> j & 1 or d >> i & 1 for i, j in np.argwhere(order))]
    found = downsets(order, 2**n)
    assert sorted(found or []) == closed
    assert downsets(order, len(closed) - 1) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_tc": 0}, "num_tc and num_vc must be at least 1, got 0 and 1"),
        ({"latency_s": np.array([1.0])}, r"layer of 2 operators: latencies must have shape \(2,\)"),
        ({"latency_s": np.array([1.0, np.nan])}, "latency_s must be finite and not negative"),
        ({"latency_all_s": np.array([1.0, -1.0])}, "latency_all_s must be finite and not negative"),
    ],
)
def test_a_layer_that_cannot_be_scheduled_is_refused(changes: dict[str, object], message: str) -> None:
    """Invalid numbers are detected on input."""
    with pytest.raises(PhazeError, match=message):
        layer(**changes)


def test_an_unknown_core_type_is_an_error_that_lists_the_known_ones() -> None:
    """A misspelt type would otherwise run on no core."""
    with pytest.raises(PhazeError, match="must be one of tensor, vector, fused, network, none, got tensr"):
        _ = layer(core=("tensr", "vector")).kinds


def test_network_operators_hold_the_accelerator_unless_communication_overlaps() -> None:
    """If they run alone, they have no latency on a single core (Section 7)."""
    assert layer(core=("network", "vector")).single_s.tolist() == [np.inf, 1.0]
    assert layer(core=("network", "vector"), overlap_communication=True).single_s.tolist() == [2.0, 1.0]
