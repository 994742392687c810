"""Topologies have the bandwidths of the Parmesan paper (Appendix D-B, Table IX)."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from phaze.base.units import GIB
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.cost.network.topologies import INTER, MB_PER_US, hops_of_grid, make_network, node_sizes
from phaze.spec.plain import read_yaml
from phaze.spec.topology import TOPOLOGY, MeshOrTorus, RandomBlocks, UniformDist


def network(name: str) -> DeviceNetwork:
    return make_network(TOPOLOGY.validate_python(read_yaml(Path("config/topologies") / f"{name}.yaml")))


def test_one_gb_per_s_of_the_paper_is_1024_mb_in_10_6_us() -> None:
    assert 1024e-6 * MB_PER_US == GIB


def test_machines_of_four_have_pcie_inside_and_ethernet_between() -> None:
    found = network("two-level").bandwidth_bytes_per_s / GIB
    assert found.shape == (16, 16)
    assert (found[0, 3], found[3, 4], found[0, 15]) == (11, 1.1, 1.1)


def test_every_v100_of_a_dgx_1_has_six_nvlinks() -> None:
    found = network("dgx-1").bandwidth_bytes_per_s[:8, :8] / GIB
    links = (found == 43.2) * 2 + (found == 21.4) * 1
    assert (links.sum(axis=1) == 6).all()
    assert ((found == 10.1).sum(axis=1) - 1 == 3).all()
    assert network("dgx-1").bandwidth_bytes_per_s[7, 8] == 1.4 * GIB


def test_31_hops_belong_to_the_first_of_the_ranges_that_overlap() -> None:
    hops = MeshOrTorus.model_validate(
        {**dict(read_yaml(Path("config/topologies/mesh-2d.yaml"))), "sides": [60]}  # type: ignore[call-overload]
    )
    row = make_network(hops).bandwidth_bytes_per_s[0] / GIB
    by_hops = {1: 78.1, 8: 4.4, 18: 0.19, 19: 0.098, 20: 0.098, 21: 0.088, 31: 0.088, 32: 0.078, 51: 0.078}
    assert {h: round(row[h], 9) for h in by_hops} == by_hops
    assert row[52] == row[59] == pytest.approx(0.068)


@pytest.mark.parametrize(("torus", "far"), [(False, 3 + 5), (True, 2 + 3)])
def test_hops_go_along_axes_and_around_a_torus(torus: bool, far: int) -> None:
    hops = hops_of_grid((4, 6), torus=torus)
    assert hops.max() == far
    assert hops[0, 5] == (1 if torus else 5)
    assert (hops == hops.T).all()


def test_blocks_of_one_bandwidth_are_joined_by_another() -> None:
    found = make_network(RandomBlocks(kind="random-blk-1", devices=40, nodes=5, seed=3)).bandwidth_bytes_per_s
    off = found[~np.eye(40, dtype=bool)] / MB_PER_US
    assert len(np.unique(off.round(12))) <= 6
    assert off.min() == pytest.approx(INTER)
    assert off.max() <= 1e-2


def test_far_blocks_are_joined_by_less() -> None:
    topology = RandomBlocks(kind="random-blk-2", devices=12, nodes=12, seed=1)
    found = make_network(topology).bandwidth_bytes_per_s
    assert found[0, 1] / found[0, 4] == pytest.approx(4)
    assert (found == found.T).all()


def test_blocks_may_be_joined_by_one_bandwidth_however_far() -> None:
    """Random_blk_2 without |i - j|: a tenth of the mean bandwidth inside, between any two nodes."""
    falling, even = (
        make_network(RandomBlocks(kind="random-blk-2", devices=12, nodes=3, seed=1, falling=falling))
        for falling in (True, False)
    )
    sizes = node_sizes(12, 3, np.random.default_rng(1))
    node = np.repeat(np.arange(3), sizes)
    apart = node[:, None] != node[None, :]
    found, inside = even.bandwidth_bytes_per_s, (~apart) & ~np.eye(12, dtype=bool)
    assert found[apart] == pytest.approx(found[inside].mean() / 10)
    assert (found[~apart] == falling.bandwidth_bytes_per_s[~apart]).all()


def test_devices_of_a_block_may_share_one_bandwidth() -> None:
    topology = RandomBlocks(kind="random-blk-2", devices=40, nodes=5, seed=3, own_pairs=False)
    found = make_network(topology).bandwidth_bytes_per_s[~np.eye(40, dtype=bool)]
    assert len(np.unique((found / MB_PER_US).round(12))) <= 5 + 4


@pytest.mark.parametrize("key", ["falling", "own_pairs"])
def test_readings_of_random_blk_2_are_refused_for_random_blk_1(key: str) -> None:
    with pytest.raises(ValidationError, match=f"{key}: applies to random-blk-2"):
        TOPOLOGY.validate_python({"kind": "random-blk-1", "devices": 8, key: False})


@pytest.mark.parametrize("nodes", [1, 4, 10])
def test_random_sizes_sum_up(nodes: int) -> None:
    sizes = node_sizes(10, nodes, np.random.default_rng(0))
    assert (sizes.sum(), len(sizes)) == (10, nodes)
    assert sizes.min() >= 1


def test_a_seed_gives_the_same_bandwidths_and_another_others() -> None:
    one, same, other = (
        make_network(UniformDist(kind="uniform-dist", devices=20, seed=seed)).bandwidth_bytes_per_s
        for seed in (1, 1, 2)
    )
    assert (one == same).all()
    assert (one != other).any()
    assert (one == one.T).all()
    assert 1e-5 * MB_PER_US <= one.min() <= one.max() <= 1e-2 * MB_PER_US
