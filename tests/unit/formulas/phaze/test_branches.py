"""The placement of graphs with branches equals exhaustive search, and the chain placement on chains."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from math import inf

import numpy as np
import pytest
from numpy.random import Generator

from phaze.base.errors import PhazeError
from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze import cuttings
from phaze.formulas.phaze.branches import place_graphs
from phaze.formulas.phaze.flush import Infeasible, Placement, place_chain
from phaze.layout import Layout
from phaze.workload.graphs import edge_arrays
from tests.unit.formulas.phaze import exhaustive_graphs as exhaustive
from tests.unit.formulas.phaze.examples import random_chain, random_setting

CASES = 300


def random_graph(rng: Generator, layers: int, tensor: int = 1) -> Chain:
    """Return a graph in topological order with whole numbers, so that sums have no rounding."""
    whole, density = bool(rng.random() < 0.5), float(rng.choice([0.2, 0.4, 0.7]))
    weights = rng.integers(0, 20, layers).astype(float)
    return Chain(
        forward_s=rng.integers(0, 12, layers).astype(float),
        backward_s=rng.integers(0, 16, layers).astype(float),
        parameter_bytes=weights,
        static_bytes=weights * rng.integers(2, 5),
        activation_bytes=rng.integers(0, 20, layers).astype(float),
        tensor_parallel=np.full(layers, False) if tensor == 1 else whole | (rng.random(layers) < 0.6),
        **edge_arrays(
            (i, j, float(rng.integers(0, 60)))
            for i in range(layers)
            for j in range(i + 1, layers)
            if rng.random() < density
        ),
    )


def random_case(seed: int, most_layers: int = 5) -> tuple[Chain, int, Setting]:
    """Return a graph, a TMP width and a setting in which memory often binds."""
    rng = np.random.default_rng(seed)
    tensor = int(rng.choice([1, 2, 4]))
    graph = random_graph(rng, int(rng.integers(2, most_layers + 1)), tensor)
    setting = replace(random_setting(rng, graph), gradients="first-stage")
    bandwidth = float(rng.choice([4.0, 16.0, 1024.0]))
    devices = int(rng.integers(1, 6)) * int(rng.choice([1, tensor]))
    return graph, tensor, replace(setting, bandwidth_bytes_per_s=bandwidth, devices=devices)


def place_graph(graph: Chain, layout: Layout, setting: Setting) -> Placement | Infeasible:
    return place_graphs({layout: graph}, setting)


def best_time(graph: Chain, tensor: int, setting: Setting) -> float:
    """Return the time that is found, infinite for none."""
    found = place_graph(graph, Layout(tp=tensor), setting)
    return found.time_s if isinstance(found, Placement) else inf


@pytest.mark.slow
def test_no_placement_is_faster_than_the_one_found() -> None:
    for seed in range(CASES):
        graph, tensor, setting = random_case(seed)
        assert best_time(graph, tensor, setting) == exhaustive.best(graph, tensor, setting), seed


def test_no_placement_of_six_layers_is_faster_than_the_one_found() -> None:
    for seed in range(2):
        graph = random_graph(np.random.default_rng(seed), 6, 2)
        setting = replace(random_case(seed)[2], devices=8)
        assert best_time(graph, 2, setting) == exhaustive.best(graph, 2, setting)


def test_the_cases_are_not_all_alike() -> None:
    """Memory, more devices than t, recomputation and both schedules change the best in many cases."""
    cases = [random_case(seed) for seed in range(CASES)]
    times = np.array([best_time(*case) for case in cases])
    free = np.array([best_time(g, t, replace(s, memory_bytes=1e9)) for g, t, s in cases])
    assert CASES / 10 < np.count_nonzero(np.isinf(times)) < CASES / 2
    assert np.count_nonzero((free < times) & np.isfinite(times)) > CASES / 12
    pairs = zip(cases, times, strict=True)
    needed = [case for case, time in pairs if exhaustive.best(*case, wide=False) > time]
    assert len(needed) > CASES / 14
    assert {tensor for _, tensor, _ in needed} == {1, 2, 4}
    kinds = {(setting.schedule, setting.recompute) for _, _, setting in needed}
    assert kinds == {*product(("1f1b", "gpipe"), (False, True))}


def test_what_is_found_is_a_placement_that_fits_and_takes_the_time_stated() -> None:
    for seed in range(1000, 1150):
        graph, tensor, setting = random_case(seed, 6)
        found = place_graph(graph, Layout(tp=tensor), setting)
        if isinstance(found, Infeasible):
            assert found.limit in ("memory", "devices")
            continue
        position = {v: number for number, stage in enumerate(found.layers) for v in stage}
        assert sorted(position) == list(range(len(graph)))
        assert all(position[u] <= position[v] for u, v in graph.pairs)
        assert found.devices_used <= setting.devices
        chosen = tuple(priced(graph, tensor, setting, found, n) for n in range(found.stages))
        only = replace(setting, devices=found.devices_used)
        stages = [frozenset(stage) for stage in found.layers]
        assert exhaustive.best_data_s(graph, stages, chosen, only) <= found.time_s
        assert found.max_load_s == max(load for _, load, _ in chosen)
        microbatches = -(-setting.microbatches // found.data)
        assert exhaustive.fits(graph, chosen, setting, microbatches)
        assert found.time_s == found.max_load_s * (microbatches + len(stages) - 1) + found.sync_s


def priced(graph: Chain, tensor: int, setting: Setting, found: Placement, number: int) -> exhaustive.Choice:
    """Return devices, load and groups of a stage as the second implementation sees them."""
    recompute = setting.recompute and number < found.stages - 1
    stage, bandwidth = frozenset(found.layers[number]), setting.bandwidth_bytes_per_s
    choices = exhaustive.choices(graph, stage, tensor, bandwidth, recompute=recompute)
    return next(choice for choice in choices if choice[0] == found.devices[number])


def test_a_chain_is_placed_as_the_planner_of_chains_places_it() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        tensor = int(rng.choice([1, 2, 4]))
        chain = random_chain(rng, int(rng.integers(1, 10)), tensor)
        setting = replace(random_setting(rng, chain), gradients="first-stage")
        expected, found = (place(chain, Layout(tp=tensor), setting) for place in (place_chain, place_graph))
        if isinstance(expected, Placement):
            expected = replace(expected, layers=tuple(tuple(stage) for stage in expected.layers))
        assert found == expected, seed


def test_layers_on_one_group_run_as_fast_as_any_order_allows() -> None:
    """The list schedule of one group, which waits only if all remaining layers have to, is optimal."""
    for seed in range(40):
        graph = random_graph(np.random.default_rng(seed), 5)
        # An outside source of every tensor: a stage without it gets all of them from another stage.
        fed = replace(
            graph,
            forward_s=np.append(0.0, graph.forward_s),
            backward_s=np.append(0.0, graph.backward_s),
            parameter_bytes=np.append(0.0, graph.parameter_bytes),
            **edge_arrays(
                [(u + 1, v + 1, size) for u, v, size in graph.tensors]
                + [(0, v + 1, float(7 * ((seed + 3 * v) % 5))) for v in range(5)]
            ),
        )
        groups = (tuple(range(1, 6)),)
        found = exhaustive.ends(fed, groups, 4.0, [0.0], forward=True, arrivals=True)
        assert found == [min(end_of(fed, order) for order in permutations(range(1, 6)))]


def end_of(graph: Chain, order: tuple[int, ...]) -> float:
    """Return the end of layers that run in this order, infinite if an edge forbids it; 4 bytes/s."""
    end = 0.0
    for place, v in enumerate(order):
        before = [(u, size) for u, target, size in graph.tensors if target == v]
        if any(u in order[place:] for u, _ in before):
            return inf
        end = max([end, *(size / 4 for u, size in before if u not in order)]) + float(graph.forward_s[v])
    return end


def two_towers(length: int = 3) -> Chain:
    """Return two equal towers without a join: 1 s forward, 2 s backward and 10 bytes a layer."""
    ones = np.ones(2 * length)
    edges = [(i, i + 1, 2.0) for start in (0, length) for i in range(start, start + length - 1)]
    return Chain(
        ones, 2 * ones, 10 * ones, 20 * ones, 4 * ones, np.full(2 * length, True), **edge_arrays(edges)
    )


def test_two_towers_run_side_by_side_on_twice_the_devices() -> None:
    setting = Setting(devices=4, microbatches=1, bandwidth_bytes_per_s=1e9, memory_bytes=1e9)
    found = place_graph(two_towers(), Layout(tp=2), setting)
    assert isinstance(found, Placement)
    assert (found.layers, found.devices) == (((0, 1, 2, 3, 4, 5),), (4,))
    assert (found.data, found.max_load_s, found.time_s) == (1, 9.0, 9.0)


def test_many_branches_one_by_one_are_no_better_than_all_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [random_case(seed, 7) for seed in range(40)]
    best = [best_time(graph, tensor, replace(setting, memory_bytes=1e9)) for graph, tensor, setting in cases]
    monkeypatch.setattr(cuttings, "MOST_BRANCHES", 1)
    listed = [best_time(*case) for case in cases]
    free = [best_time(graph, tensor, replace(setting, memory_bytes=1e9)) for graph, tensor, setting in cases]
    assert np.all(np.array(listed) >= best)
    assert np.array_equal(np.isfinite(free), np.isfinite(best))
    assert np.count_nonzero(np.array(free) > best) < 7


def test_the_best_tensor_width_is_chosen() -> None:
    narrow = replace(two_towers(), tensor_parallel=np.full(6, False))
    wide = replace(two_towers(), forward_s=0.1 * narrow.forward_s, backward_s=0.1 * narrow.backward_s)
    setting = Setting(2, 1, bandwidth_bytes_per_s=1e9, memory_bytes=1e9)
    found = place_graphs({Layout(): narrow, Layout(tp=2): wide}, setting)
    assert isinstance(found, Placement)
    assert found.layout.tp == 2


def test_too_little_memory_is_reported_with_what_is_missing_and_the_devices_that_would_do() -> None:
    setting = Setting(devices=2, microbatches=1, bandwidth_bytes_per_s=1e9, memory_bytes=71.0)
    assert place_graph(two_towers(), Layout(tp=2), setting) == Infeasible(
        "memory: the leanest placement (t = 2, 1 stages) needs 144 B on its fullest device, 71 B given: "
        "73 B too little; with 6 devices instead of 2 it would fit"
    )


def test_the_memory_named_in_a_reason_suffices_and_less_does_not() -> None:
    named = 0
    for seed in range(40):
        graph, tensor, setting = random_case(seed)
        found = place_graph(graph, Layout(tp=tensor), replace(setting, memory_bytes=1e-3))
        if isinstance(found, Infeasible) and found.limit == "memory":
            least = float(found.reason.split("needs ")[1].split(" B")[0])
            assert best_time(graph, tensor, replace(setting, memory_bytes=least)) < inf
            assert best_time(graph, tensor, replace(setting, memory_bytes=least - 0.5)) == inf
            named += 1
    assert named > 20


def test_too_few_devices_are_reported_with_their_number() -> None:
    setting = Setting(devices=5, microbatches=1, bandwidth_bytes_per_s=1e9, memory_bytes=1e9)
    assert place_graph(two_towers(), Layout(tp=8), setting) == Infeasible(
        "devices: a pipeline needs at least 8, 5 given: 3 too few"
    )


def test_too_many_downsets_or_stages_are_refused_with_their_number() -> None:
    with pytest.raises(PhazeError, match=r"16 downsets and 84 possible stages, allowed are 50 stages: merge"):
        cuttings.few_downsets(two_towers(), most_stages=50)
    with pytest.raises(PhazeError, match="more than 10 downsets, allowed are 10: merge"):
        cuttings.few_downsets(two_towers(), most_downsets=10)
