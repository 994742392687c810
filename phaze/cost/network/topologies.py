"""Bandwidths between all pairs of devices, for the topologies of Parmesan's evaluation (Appendix D-B)."""

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.base.units import GIB
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.spec.topology import LevelLinks, LevelTopology, MeshOrTorus, Nodes, RandomBlocks, UniformDist

MB_PER_US = 1e6 * 2.0**20
"""One MB/us in bytes per second; 1 GB/s = 1024 / 10^6 MB/us."""
INTRA = {"random-blk-1": (1e-4, 1e-2), "random-blk-2": (1e-5, 1e-2)}
"""Range in MB/us of the random bandwidths inside a node."""
INTER = 1e-4
"""Bandwidth in MB/us between the nodes of random_blk_1."""
UNIFORM = (1e-5, 1e-2)
"""Range in MB/us of the random bandwidths of uniform_dist."""

Made = LevelTopology | Nodes | MeshOrTorus | RandomBlocks | UniformDist
"""Topologies generated from parameters, without a file."""


def make_network(topology: Made) -> DeviceNetwork:
    """Build the bandwidth and latency matrices between all devices of a topology."""
    if isinstance(topology, LevelTopology):
        return _of_levels(topology.levels)
    if isinstance(topology, Nodes):
        return _of_nodes(topology)
    if isinstance(topology, MeshOrTorus):
        return _of_grid(topology)
    bandwidth = _uniform(topology) if isinstance(topology, UniformDist) else _random_blocks(topology)
    return DeviceNetwork(bandwidth, np.zeros_like(bandwidth))


def _of_levels(levels: tuple[LevelLinks, ...]) -> DeviceNetwork:
    devices = np.arange(levels[-1].devices)
    shape = (len(devices), len(devices))
    bandwidth, latency = np.empty(shape), np.empty(shape)
    # From the outermost level inwards: inner groups overwrite the pairs that they contain.
    for level in reversed(levels):
        group = devices // level.devices
        together = group[:, None] == group[None, :]
        bandwidth[together], latency[together] = level.bandwidth_gib_per_s * GIB, level.latency_s
    return DeviceNetwork(bandwidth, latency)


def _of_nodes(nodes: Nodes) -> DeviceNetwork:
    size = nodes.devices_per_node
    bandwidth = np.full((size, size), nodes.inside_gib_per_s)
    latency = np.full((size, size), nodes.inside_latency_s)
    for link in nodes.links:
        a, b = np.array(link.pairs).T
        bandwidth[a, b] = bandwidth[b, a] = link.bandwidth_gib_per_s
        latency[a, b] = latency[b, a] = link.latency_s
    # Blocks of ones on the diagonal: pairs of devices within one node.
    same = np.kron(np.eye(nodes.nodes), np.ones((size, size))) > 0
    tiles = (nodes.nodes, nodes.nodes)
    return DeviceNetwork(
        np.where(same, np.tile(bandwidth, tiles), nodes.outside_gib_per_s) * GIB,
        np.where(same, np.tile(latency, tiles), nodes.outside_latency_s),
    )


def _of_grid(grid: MeshOrTorus) -> DeviceNetwork:
    hops = hops_of_grid(grid.sides, torus=grid.kind == "torus")
    if grid.link_gib_per_s is None:
        # A row without `to` covers all further hops.
        reach = [row.to or 2**31 for row in grid.hops]
        table = np.array([row.bandwidth_gib_per_s for row in grid.hops])[np.searchsorted(reach, hops)]
    else:
        table = grid.link_gib_per_s / np.maximum(hops, 1)
    return DeviceNetwork(table * GIB, hops * np.float64(grid.latency_s))


def hops_of_grid(sides: tuple[int, ...], *, torus: bool) -> Ints:
    """Number of hops between all pairs of devices in a grid, shape (D, D)."""
    hops = np.zeros((1, 1), np.int64)
    for side in sides:  # add the hops along this axis for all pairs of positions on the previous axes
        places = np.arange(side)
        apart = np.abs(places[:, None] - places[None, :])
        along = np.minimum(apart, side - apart) if torus else apart
        size = len(hops) * side
        hops = (hops[:, None, :, None] + along[None, :, None, :]).reshape(size, size)
    return hops


def _uniform(topology: UniformDist) -> Floats:
    rng = np.random.default_rng(topology.seed)
    drawn = rng.uniform(*UNIFORM, (topology.devices, topology.devices)) * MB_PER_US
    return drawn if topology.directed else _mirrored(drawn)


def _mirrored(drawn: Floats) -> Floats:
    above = np.triu(drawn, 1)
    return np.asarray(above + above.T + np.diag(np.diag(drawn)))


def _random_blocks(topology: RandomBlocks) -> Floats:
    rng = np.random.default_rng(topology.seed)
    nodes = topology.nodes or max(1, round(topology.devices / 8))
    sizes = node_sizes(topology.devices, nodes, rng)
    node = np.repeat(np.arange(nodes), sizes)
    same = node[:, None] == node[None, :]
    low, high = INTRA[topology.kind]
    if topology.kind == "random-blk-1" or not topology.own_pairs:
        inside = np.broadcast_to(rng.uniform(low, high, nodes)[node][:, None], same.shape)
    else:
        inside = _mirrored(rng.uniform(low, high, same.shape))
    between = INTER if topology.kind == "random-blk-1" else _between_nodes(inside, node, topology)
    return np.asarray(np.where(same, inside, between) * MB_PER_US)


def _between_nodes(inside: Floats, node: Ints, topology: RandomBlocks) -> Floats:
    """Inter-node bandwidth of random_blk_2, a tenth of the mean intra-node bandwidth, shape (D, D)."""
    apart = np.abs(node[:, None] - node[None, :])
    pairs = (apart == 0) & ~np.eye(len(node), dtype=bool)
    mean = inside[pairs].mean() if pairs.any() else sum(INTRA[topology.kind]) / 2
    return np.asarray(mean / 10 / (np.maximum(apart, 1) if topology.falling else np.ones(apart.shape)))


def node_sizes(devices: int, nodes: int, rng: np.random.Generator) -> Ints:
    """Draw random sizes of `nodes` nodes, at least one device each; all compositions are equally likely."""
    cuts = np.sort(rng.permutation(devices - 1)[: nodes - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [devices]]))
