"""Ranks of a plan on devices: groups follow their ranks, and no mapping is worse than the default."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from phaze.base.arrays import Ints
from phaze.cost.network.device_networks import DeviceNetwork, flat_network
from phaze.layout import Axis, Layout
from phaze.map.ensemble import MapSettings
from phaze.map.rank_maps import Arranged, map_ranks, ranks_on
from phaze.map.search import SearchLimits
from phaze.spec.training_plan import TrainingPlan
from tests.plans import plan_of, planner_of

QUICK = MapSettings(limits=SearchLimits(tries=2000), steps=2000)
LAYOUT = Layout(tp=2, cp=2, pp=2, dp=3, ep=3, sequence_parallel=True)


def drawn_network(devices: int, rng: np.random.Generator) -> DeviceNetwork:
    shape = (devices, devices)
    return DeviceNetwork(rng.uniform(1e9, 1e11, shape), rng.uniform(0, 1e-5, shape))


def nodes_of(order: Ints, width: int) -> DeviceNetwork:
    """Network whose nodes have `width` devices that are adjacent in a given order."""
    place = np.argsort(order) // width
    bandwidth = np.where(place[:, None] == place[None, :], 4e11, 1e9)
    return DeviceNetwork(bandwidth, np.zeros_like(bandwidth))


def planned(fixed: dict[str, int | str]) -> TrainingPlan:
    return plan_of(planner_of(4, devices=16, global_batch=32, fixed=fixed), 1)


def test_a_collective_takes_as_long_as_the_slowest_of_the_groups_of_its_kind() -> None:
    rng, ranks = np.random.default_rng(0), np.arange(LAYOUT.devices).reshape(2, 3, 2, 2)  # pp, dp, cp, tp
    network, order = drawn_network(LAYOUT.devices, rng), rng.permutation(LAYOUT.devices)
    arranged = Arranged(network, order)
    axes: dict[Axis, list[list[int]]] = {
        "tp": [list(ranks[p, d, c]) for p, d, c in product(range(2), range(3), range(2))],
        "cp": [list(ranks[p, d, :, t]) for p, d, t in product(range(2), range(3), range(2))],
        "dp-cp": [list(ranks[p, :, :, t].ravel()) for p, t in product(range(2), range(2))],
        "ep": [list(ranks[p].ravel()[k : k + 3]) for p, k in product(range(2), range(0, 12, 3))],
        "pp": [list(ranks[:, d, c, t]) for d, c, t in product(range(3), range(2), range(2))],
    }
    for axis, groups in axes.items():
        for kind in ("all_reduce", "all_gather", "all_to_all"):
            slowest_s = max(network.seconds(kind, 1e8, order[group]) for group in groups)
            assert arranged.seconds(kind, 1e8, LAYOUT.group(axis)) == pytest.approx(slowest_s)


def test_ranks_are_numbered_slices_first_then_replicas_then_stages() -> None:
    assert ranks_on(np.array([[0, 1], [2, 3]]), 2).tolist() == list(range(8))
    assert ranks_on(np.array([[3, 1], [2, 0]]), 2).tolist() == [6, 7, 2, 3, 4, 5, 0, 1]


def test_ranks_go_where_their_groups_are_near_each_other() -> None:
    plan = planned({"tp": 2, "cp": 1, "pp": 2, "dp": 4})
    shuffled = np.arange(16).reshape(4, 2, 2).transpose(1, 0, 2).ravel()  # units of a node are not in a row
    network = nodes_of(shuffled, 8)
    found = map_ranks(plan, network, network, QUICK).stored()
    assert found.time_s < 0.9 * found.default_s
    near = map_ranks(plan, nodes_of(np.arange(16), 8), nodes_of(np.arange(16), 8), QUICK).stored()
    assert found.time_s == pytest.approx(near.time_s)
    assert near.time_s <= near.default_s


def test_where_all_links_are_equal_the_order_of_the_runtime_stays() -> None:
    plan, network = planned({"pp": 4, "vp": 1}), flat_network(16, 1e10)
    found = map_ranks(plan, network, network, QUICK).stored()
    assert found.devices == tuple(range(16))
    assert {one.time_s for one in found.times} == {found.default_s}
