"""The complete flow: near the optimum on model-like graphs, with clear messages for infeasible inputs."""

from dataclasses import replace

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.partition.flow import SLACK, CutOptions, partition, problem_of
from phaze.partition.program import cut_within
from phaze.partition.study import Shape, search, shapes, stored_stages
from phaze.partition.weights import PartitionTerms, stage_graph_of, stage_memory, stage_times, weigh
from phaze.workload.operator_graphs import OperatorGraph, stage_graph
from tests.unit.partition.graphs import bert_like, operator_graph, random_weights, series_parallel

TERMS = PartitionTerms(1e10, recompute=False)
GRAPHS = {
    "bert": operator_graph(bert_like(6)),
    "forks": operator_graph(series_parallel(150, 1)),
    "wide": operator_graph(series_parallel(40, 2, width=6)),
    "any": operator_graph(random_weights(3, 16, 0.2)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_flow_is_within_two_per_cent_of_the_optimum(name: str) -> None:
    """The dynamic program runs over all operators, without clusters, windows or a limit."""
    graph = GRAPHS[name]
    for stages, hyper_operators in ((2, 8), (4, 24), (7, 8)):
        best = cut_within(weigh(graph, TERMS), stages, most_sets=200_000)
        found = partition(graph, TERMS, stages, 2, CutOptions(hyper_operators))
        assert best is not None
        assert found.chosen.time_s <= (1 + SLACK) * best.time_s
        assert found.bound_s <= best.time_s * (1 + 1e-9)
        assert not found.proven or found.bound_s == pytest.approx(best.time_s)
        least = min(one.time_s for one in found.candidates)
        near = [one.step_s for one in found.candidates if one.time_s <= (1 + SLACK) * least]
        assert found.chosen.step_s == min(near)


@pytest.mark.parametrize("stages", [2, 4])
def test_with_few_subgraphs_allowed_it_works_on_near_the_borders(
    monkeypatch: pytest.MonkeyPatch, stages: int
) -> None:
    graph = operator_graph(series_parallel(400, 5))
    exact = partition(graph, TERMS, stages, 1, CutOptions(24))
    monkeypatch.setattr("phaze.partition.flow.MOST_SETS", 40)
    few = partition(graph, TERMS, stages, 1, CutOptions(24))
    assert exact.proven
    assert few.chosen.time_s <= min(one.time_s for one in few.candidates if one.alpha) * (1 + SLACK)
    assert few.bound_s <= exact.bound_s * (1 + 1e-9)
    assert few.chosen.time_s <= 1.1 * exact.chosen.time_s


def test_the_papers_flow_takes_the_fastest_step_of_all_alphas() -> None:
    found = partition(GRAPHS["bert"], TERMS, 4, 2, CutOptions(16, flow="paper"))
    assert {one.made_by for one in found.candidates} <= {"clusters", "refinement"}
    assert {one.alpha for one in found.candidates} == {0.01, 1.0, 100.0}
    assert found.chosen.step_s == min(one.step_s for one in found.candidates)
    assert not found.proven


def test_the_memory_of_every_stage_is_kept() -> None:
    sizes = np.random.default_rng(1).random(len(GRAPHS["bert"].names))
    graph = replace(GRAPHS["bert"], forward_bytes=1e9 * sizes, backward_bytes=1e9 * sizes)
    free = partition(graph, TERMS, 4, 1, CutOptions(16))
    needed = stage_memory(weigh(graph, TERMS), free.chosen.stage_of).max()
    tight = replace(TERMS, device_memory_bytes=0.97 * needed)
    found = partition(graph, tight, 4, 1, CutOptions(16))
    assert stage_memory(weigh(graph, tight), found.chosen.stage_of).max() <= tight.device_memory_bytes
    assert found.chosen.time_s >= free.bound_s * (1 - 1e-9)


def chain(edge_bytes: float) -> OperatorGraph:
    """Return twelve equal operators, each after the other."""
    one = np.ones(12)
    return OperatorGraph(
        names=tuple("abcdefghijkl"),
        forward_s=one, backward_s=one, parameter_bytes=0 * one, forward_bytes=one, backward_bytes=one,
        edges=np.stack([np.arange(11), np.arange(1, 12)], axis=1), edge_bytes=np.full(11, edge_bytes),
    )  # fmt: skip


def test_clusters_that_do_not_fit_leave_it_to_the_operators() -> None:
    """Twelve equal operators in a chain, four per device: the clusters must be exactly the stages."""
    found = partition(chain(1e-3), PartitionTerms(1e10, device_memory_bytes=4.01), 3, 1, CutOptions(3))
    assert np.bincount(found.chosen.stage_of).tolist() == [4, 4, 4]


def test_recomputation_adds_a_forward_pass_and_saves_memory() -> None:
    graph = GRAPHS["bert"]
    with_it, without = weigh(graph, replace(TERMS, recompute=True)), weigh(graph, TERMS)
    assert np.allclose(with_it.compute_s - without.compute_s, graph.forward_s)
    assert (with_it.memory_bytes <= without.memory_bytes).all()


@pytest.mark.parametrize(
    ("stages", "memory", "said"),
    [
        (13, np.inf, "13 stages need as many operators, the graph has 12"),
        (2, 0.5, "operator a needs 1 bytes, a device has 0.5"),
        (2, 5.0, "each of 2 stages on average needs 6 bytes, a device has 5"),
        (2, 6.5, "the one found with the least needs 7 bytes, a device has 6.5"),
    ],
)
def test_what_cannot_be_is_said(stages: int, memory: float, said: str) -> None:
    terms = replace(TERMS, device_memory_bytes=memory, recompute=True)
    for flow in ("full", "paper"):
        with pytest.raises(PhazeError, match=said):
            partition(chain(1.0), terms, stages, 1, CutOptions(8, flow=flow))  # type: ignore[arg-type]


def test_the_search_tries_all_divisors_and_takes_the_most_samples() -> None:
    graph = GRAPHS["bert"]
    found = search(graph, TERMS, (None, None, 12), CutOptions())
    assert sorted((one.stages, one.replicas) for one in found) == [
        (1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1),
    ]  # fmt: skip
    rates = [one.microbatches_per_s for one in found]
    assert rates == sorted(rates, reverse=True)
    assert found[0].partition is not None
    assert rates[0] == pytest.approx(4 * found[0].replicas / found[0].partition.chosen.step_s)


def test_a_configuration_that_does_not_fit_says_why() -> None:
    graph = GRAPHS["bert"]
    whole = weigh(graph, replace(TERMS, recompute=True)).memory_bytes.sum()
    terms = PartitionTerms(1e10, device_memory_bytes=0.6 * whole)
    found = search(graph, terms, (None, None, 4), CutOptions())
    assert [one.stages for one in found if one.partition is None] == [1]
    assert "memory" in found[-1].reason


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((4, 4, 8), "4 stages of 4 replicas need 16 devices, there are 8"),
        ((3, None, None), "needs the stages and the replicas, or the devices"),
        ((16, None, 8), "8 devices cannot be shared evenly by 16 stages"),
        ((None, 5, 8), "8 devices cannot be shared evenly by 5 replicas"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(shape: Shape, said: str) -> None:
    with pytest.raises(PhazeError, match=said):
        shapes(*shape, most=100)


def test_what_is_given_of_a_shape_stays() -> None:
    assert shapes(4, None, 8, 100) == [(4, 2)]
    assert shapes(None, 2, 8, 100) == [(4, 2)]
    assert shapes(4, 2, None, 100) == [(4, 2)]
    assert shapes(None, None, 8, 4) == [(1, 8), (2, 4), (4, 2)]
    assert shapes(None, None, 12, 5) == [(1, 12), (2, 6), (3, 4), (4, 3)]


def test_a_partition_survives_its_file() -> None:
    graph = GRAPHS["forks"]
    found = partition(graph, TERMS, 3, 2, CutOptions(16)).chosen
    stored = stored_stages(graph, found, TERMS, "forks", 2, 4)
    assert [name for stage in stored.stages for name in stage.operators] == [
        graph.names[v] for v in np.argsort(found.stage_of, kind="stable")
    ]
    ours, again = stage_graph_of(graph, found.stage_of, TERMS, 2), stage_graph(stored)
    assert (again.edges == ours.edges).all()
    assert (again.edge_bytes == ours.edge_bytes).all()
    assert (again.backward_s == ours.backward_s).all()
    assert stored.stage_time_s == stage_times(weigh(graph, TERMS), found.stage_of).max()
    assert stored.step_time_s == problem_of(graph, TERMS, 3, 2).step_s(found.stage_of)
