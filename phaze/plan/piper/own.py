"""A model of ours on an architecture of ours as an input of Piper, from tables of layers and solves."""

from __future__ import annotations

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.base.units import GIB
from phaze.pipeline.flushing import Chain
from phaze.plan.phaze.point import Conditions, read_devices, read_point
from phaze.plan.piper.chain import read_layers
from phaze.plan.piper.layers import Cluster, Layers


def own_layers(
    layers: pd.DataFrame,
    graph: pd.DataFrame,
    solves: pd.DataFrame,
    architectures: pd.DataFrame,
    architecture: str,
    conditions: Conditions,
) -> Layers:
    """Return the model's layers with configurations for every TMP width of tables layers and solves.

    The tables are of one microbatch. Raises PhazeError if the architecture is not in them.
    """
    chip = architectures[architectures["architecture"] == architecture].drop_duplicates("architecture")
    if chip.empty:
        raise PhazeError(f"architecture {architecture}: is not among the architectures that were evaluated")
    wanted = pd.DataFrame({"architecture": [architecture], "kept": True})
    chains: dict[int, Chain] = {}
    names: list[str] = []
    for layout, mine in layers.groupby("layout", sort=False):
        point = read_point(mine, graph, conditions)
        (device,) = read_devices(point, solves[solves["layout"] == layout], chip, wanted, conditions)
        chains[point.layout.tp] = point.runs.chain(*device.latencies)
        names = point.layers
    return read_layers(chains, names, conditions.training.recompute)


def own_cluster(conditions: Conditions, microbatch: int) -> Cluster:
    """Return the cluster of the study, with its largest HBM."""
    return Cluster(
        devices=conditions.scenario.devices,
        memory_bytes=max(conditions.training.hbm_gib) * GIB,
        bandwidth_bytes_per_s=conditions.scenario.network_bandwidth_bytes_per_s,
        microbatches=conditions.scenario.global_batch // microbatch,
    )
