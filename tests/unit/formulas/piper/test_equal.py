"""Equal stages: the best of all, with the published times and those of the authors' program."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.units import GIB
from phaze.formulas.piper.baselines import without_tensor_parallelism
from phaze.formulas.piper.equal import depth_first_order, equal_cuts, plan_equally, uniform_choices
from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers
from tests.unit.formulas.piper.exhaustive import choices_of, draw_options
from tests.unit.formulas.piper.test_planner import assert_is_whole, time_of

BANDWIDTH = 25.0 * GIB


def test_groups_differ_by_one_layer_at_most_and_the_longer_come_last() -> None:
    cuts = list(equal_cuts([f"layer {i}" for i in range(7)]))
    assert cuts[:4] == [(0,), (0, 3), (0, 2, 4), (0, 1, 3, 5)]
    assert len(cuts) == 7


def test_what_surrounds_repeated_layers_joins_them_or_stands_apart() -> None:
    names = ["mask", "embedding", "block", "block", "block", "mask", "block", "block", "head"]
    assert list(equal_cuts(names))[:4] == [(0,), (0, 2, 8), (0, 4), (0, 2, 4, 8)]
    assert list(equal_cuts(["block", "block", "head"])) == [(0,), (0, 2), (0, 1), (0, 1, 2)]
    assert list(equal_cuts(["block", "block"])) == [(0,), (0, 1)]


def test_a_layer_without_a_configuration_of_that_name_takes_its_fastest() -> None:
    layer, time = np.array([0, 0, 1, 1]), np.array([3.0, 1.0, 1.0, 2.0])
    none = np.zeros((4, 0))
    options = Configurations(("a", "b", "b", "c"), layer, time, time, time, time, none, none)
    assert [chosen.tolist() for chosen in uniform_choices(options, 2)] == [[0, 2], [1, 2], [1, 3]]
    assert list(uniform_choices(options, 3)) == []


def draw(seed: int) -> tuple[ProfiledLayers, FlatCluster]:
    """Return an embedding, equally named blocks and a head with branches, and a cluster."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    names = [str(rng.choice(["embedding", "block"])), *["block"] * (n - 2), "head"][:n]
    number = rng.permutation(n)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if j == i + 1 or rng.random() < 0.3]
    edges = np.array([(number[i], number[j]) for i, j in pairs], dtype=np.int64).reshape(-1, 2)

    def options(width: int) -> Configurations:
        drawn = draw_options(rng, np.full(n, 2), *edges.T, alike=False)
        return replace(drawn, names=("plain", "again") * n, time_s=drawn.time_s / width)

    layers = ProfiledLayers(
        ids=tuple(range(n)),
        names=tuple(names[i] for i in np.argsort(number)),
        edges=edges,
        edge_bytes=rng.integers(0, 5, len(pairs)).astype(float),
        options={width: options(width) for width in (1, 3)},
    )
    cluster = FlatCluster(
        devices=int(rng.integers(1, 13)),
        memory_bytes=float(rng.integers(5, 90)),
        bandwidth_bytes_per_s=float(rng.choice([1.0, 10.0, 100.0])),
        microbatches=int(rng.integers(1, 9)),
        exactly=bool(rng.random() < 0.3),
        synchronisation="batch" if rng.random() < 0.5 else "round",
    )
    return layers, cluster


def best_of_all(layers: ProfiledLayers, cluster: FlatCluster) -> float:
    """Return the minimum time over widths, names, cuts and every d, each stage priced separately."""
    order = depth_first_order(layers).tolist()
    best = inf
    for cut in equal_cuts([layers.names[v] for v in order]):
        stages = [frozenset(order[i:j]) for i, j in pairwise((*cut, len(order)))]
        for tensor in layers.options:
            for data in range(1, cluster.devices // (tensor * len(stages)) + 1):
                degree = data * len(stages)
                divides = cluster.synchronisation == "round" or cluster.microbatches % data == 0
                most = cluster.microbatches
                if divides and (degree == most if cluster.exactly else degree <= most):
                    times = (_slowest(layers, cluster, stages, tensor, data, name) for name in (0, 1))
                    best = min(best, *times)
    return best


def _slowest(
    layers: ProfiledLayers,
    cluster: FlatCluster,
    stages: list[frozenset[int]],
    tensor: int,
    data: int,
    name: int,
) -> float:
    slowest = 0.0
    for j, stage in enumerate(stages):
        in_flight = -(-data * (len(stages) - j) // data)
        chosen = [choice[name] for choice in choices_of(layers, cluster, stage, tensor, data, in_flight)]
        if sum(memory for _, memory in chosen) > cluster.memory_bytes:
            return inf
        slowest = max(slowest, sum(time for time, _ in chosen))
    return slowest


@given(st.integers(0, 2**32 - 1))
def test_the_plan_is_the_best_of_all_alike_complete_in_the_order_of_the_flow_and_within_limits(
    seed: int,
) -> None:
    layers, cluster = draw(seed)
    found = plan_equally(layers, cluster)
    assert time_of(found) == pytest.approx(best_of_all(layers, cluster), rel=1e-12)
    order = np.argsort(depth_first_order(layers))
    assert all(order[u] < order[v] for u, v in layers.pairs)
    if found is None:
        return
    assert_is_whole(layers, cluster, found)
    assert len({stage.layout for stage in found.stages}) == 1
    assert [stage.in_flight for stage in found.stages] == list(range(len(found.stages), 0, -1))
    for stage in found.stages:
        options = layers.options[stage.layout.tp]
        assert [int(options.layer[x]) for x in stage.configurations] == list(stage.layers)


def test_the_order_goes_into_depth_along_edges_as_given() -> None:
    """From 0: first 2, which has no successor, then 1; layers found last come first."""
    edges = [(0, 2), (0, 1), (1, 3)]
    layers = ProfiledLayers((0, 1, 2, 3), ("", "", "", ""), {}, edges=np.array(edges), edge_bytes=np.zeros(3))
    assert depth_first_order(layers).tolist() == [0, 1, 3, 2]


TABLE_1 = {
    "gnmt": "2 2.5 325.026, 2 3.5 260.268, 4 1.2 OOM, 4 2.5 162.533, 8 1.2 137.518, 8 2.4 81.2712, "
    "16 1.2 55.8757, 32 0.8 71.1943",
    "resnet": "8 4 OOM, 8 8 164.159, 8 16 108.886, 16 2 OOM, 16 4 OOM, 16 8 82.0797, 16 16 54.4429, "
    "32 1.5 OOM, 32 2 OOM, 32 4 OOM, 32 8 41.0398, 32 16 27.2214, 64 1.5 OOM, 64 2 OOM, 64 4 OOM, "
    "64 8 20.5199, 64 16 13.6107, 128 1 OOM, 128 1.5 OOM, 128 2 OOM, 128 4 OOM, 128 8 10.26, 128 16 6.80536",
}
"""Column `equi` of Table 1 (Tarnawski et al., NeurIPS 2021): devices, GB per device, time per sample."""


@pytest.mark.parity
@pytest.mark.parametrize("name", TABLE_1)
def test_the_papers_table_1_comes_out_to_the_printed_digits(name: str, shared_data: Path) -> None:
    """With gradients synchronised once per round, and any d."""
    instance = read_instance(shared_data / "piper" / f"{name}.json")
    layers, differ = instance.layers(), []
    for row in TABLE_1[name].split(", "):
        devices, memory, printed = row.split()
        cluster = FlatCluster(
            int(devices), float(memory) * GIB, BANDWIDTH, instance.mbs_in_batch, synchronisation="round"
        )
        found = plan_equally(layers, cluster)
        if (f"{found.time_per_sample_s:.6g}" if found else "OOM") != printed:
            differ.append((row, found))
    assert differ == []


@pytest.mark.parity
@pytest.mark.parametrize("column", ["equi", "equi_no_tp"])
def test_the_optima_of_the_authors_program_come_out(column: str, shared_data: Path) -> None:
    layers = read_instance(shared_data / "piper" / "bert32a100.json").layers()
    if column == "equi_no_tp":
        layers = without_tensor_parallelism(layers)
    optima = pd.read_csv(shared_data / "piper" / "optima.csv").dropna(subset=column)
    assert len(optima) == 6
    for row in optima.to_dict("records"):
        cluster = FlatCluster(row["devices"], row["memory_gib"] * GIB, BANDWIDTH, row["microbatches"])
        found = plan_equally(layers, cluster)
        if row[column] == "infeasible":
            assert found is None
        else:
            assert found is not None
            assert found.time_per_sample_s == pytest.approx(float(row[column]), rel=1e-9)
