"""Convert a model on one architecture to Piper's layers, with costs from Phaze's estimates and schedules.

Every TMP width of the study gives each layer up to two configurations, as the study allows: stashing its
activations, which takes p = forward + backward, or recomputing them, p = 2 forward + backward. Latencies are
the scheduled ones, including communication between tensor-parallel ranks. Memory is per rank under
PipeDream-2BW, with gradients and optimizer state as in `cost.memory`. A layer that is not tensor parallel
runs whole on each of the t devices, as in its tables for width t.

A tensor on an edge arrives at one of the t devices, and each of them needs all of it (Appendix B): c_fw and
c_bw are its bytes for t > 1, and 0 for t = 1.

Memory of a layer is an affine function of the microbatches in flight (Section 3.5 and Appendix A): a device
holds a ceil(s/d) + b bytes, with a per microbatch and b once:

                                  a                       b
    PipeDream-2BW                 activations             2 weights + the rest
    PipeDream-2BW, recomputing    inputs                  2 weights + the rest + (activations - inputs)

PipeDream-2BW stores two versions of the weights for any number of microbatches in flight. With recomputation
only the inputs of the layer wait for the backward pass, and the other activations exist for the current
microbatch. The rest exists once per parameter: gradients, optimizer state, and temporary buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.formulas.flushing import Chain
from phaze.formulas.piper.knapsack import choose_by_ratio
from phaze.formulas.piper.layers import Configurations, FlatCluster, ProfiledLayers, in_flight
from phaze.formulas.piper.stages import costs_of, planned_stage
from phaze.layout import Layout, Recompute

STASH, RECOMPUTE = "stash", "recompute"
"""Names of a layer's two configurations."""
CONFIGURATIONS: dict[Recompute, str] = {"none": STASH, "full": RECOMPUTE, "selective": "selective"}
"""Configuration name by recompute option of a layout; no layer has the selective one."""


def read_layers(
    chains: Mapping[Layout, Chain], names: Sequence[str], recompute: Sequence[bool]
) -> ProfiledLayers:
    """Build Piper's layers from a model's chain under each layout; layouts share one microbatch size.

    `names` are those of the layers; `recompute` selects the configurations: stash for False, recompute for
    True.
    """
    layouts = sorted(chains)
    graph = chains[layouts[0]]
    return ProfiledLayers(
        ids=tuple(range(len(names))),
        names=tuple(names),
        edges=graph.edges,
        edge_bytes=graph.edge_bytes,
        options={layout.tp: _configurations(chains[layout], layout, sorted(recompute)) for layout in layouts},
    )


def _configurations(chain: Chain, layout: Layout, recompute: Sequence[bool]) -> Configurations:
    inputs = np.zeros(len(chain))
    np.add.at(inputs, chain.targets, chain.edge_bytes)
    times_s, stashes, fixed = [], [], []
    for recomputes in recompute:
        # Recomputation needs an input even if the backward pass does not.
        activations = np.maximum(chain.activation_bytes, inputs) if recomputes else chain.activation_bytes
        stash = inputs if recomputes else activations
        # PipeDream-2BW keeps two versions of the weights; the static bytes have one.
        once_bytes = 2.0 * chain.parameter_bytes + (chain.static_bytes - chain.parameter_bytes)
        # Recomputation runs the forward pass twice.
        times_s.append(2.0 * chain.forward_s + chain.backward_s if recomputes else chain.compute_s)
        stashes.append(stash)
        fixed.append(once_bytes + (activations - stash))
    layer = np.repeat(np.arange(len(chain)), len(recompute))
    synchronised = chain.edge_bytes if layout.tp > 1 else np.zeros(len(chain.edges))
    return Configurations(
        names=tuple(RECOMPUTE if recomputes else STASH for recomputes in recompute) * len(chain),
        layer=layer,
        time_s=_by_layer(times_s),
        weight_bytes=np.repeat(chain.parameter_bytes, len(recompute)),
        stash_bytes=_by_layer(stashes),
        fixed_bytes=_by_layer(fixed),
        forward_sync_bytes=np.where(layer[:, None] == chain.targets, synchronised, 0.0),
        backward_sync_bytes=np.where(layer[:, None] == chain.sources, synchronised, 0.0),
    )


def _by_layer(kinds: Sequence[Floats]) -> Floats:
    return np.stack(kinds, axis=1).ravel()


def why_outside(cluster: FlatCluster, layouts: Sequence[Layout]) -> str:
    """Message if a data-parallel width does not divide the batch, which Piper requires; otherwise empty.

    Such a plan can be priced, with fewer microbatches on some replicas, but it is outside Piper's space.
    """
    for layout in layouts if cluster.synchronisation == "batch" else ():
        if cluster.microbatches % layout.dp:
            return f"data: {layout.dp} does not divide the {cluster.microbatches} microbatches of a batch"
    return ""


def price(
    layers: ProfiledLayers, cluster: FlatCluster, cuts: Sequence[range], layouts: Sequence[Layout]
) -> float | str:
    """Time per sample of the given stages under Piper's cost model, or the reason why they cannot run.

    Stages are in the order of the data flow, with layers as positions; all layers of a stage have the
    configuration of its layout. Data widths need not divide N (see `why_outside`).
    """
    degree = sum(layout.dp for layout in layouts)
    devices = sum(layout.devices for layout in layouts)
    if devices > cluster.devices:
        return f"devices: it takes {devices}, {cluster.devices} given"
    if degree > cluster.microbatches:
        return f"batch: data widths sum to {degree}, above the {cluster.microbatches} microbatches of a batch"
    slowest_s = 0.0
    for number, (cut, layout) in enumerate(zip(cuts, layouts, strict=True)):
        stage_s = _stage_s(layers, cluster, cut, layout, in_flight(degree, layout))
        if isinstance(stage_s, str):
            return f"stage {number}: {stage_s}"
        slowest_s, degree = max(slowest_s, stage_s), degree - layout.dp
    return slowest_s


def _stage_s(
    layers: ProfiledLayers, cluster: FlatCluster, cut: range, layout: Layout, waiting: int
) -> float | str:
    if layout.tp not in layers.options:
        return f"tensor: no layer has a configuration of width {layout.tp}"
    name, options = CONFIGURATIONS[layout.recompute], layers.options[layout.tp]
    # All layers of a stage share one option, so configurations with other names are dropped.
    only = replace(layers, options={layout.tp: options.take(np.array(options.names) == name)})
    member = np.isin(np.arange(len(layers)), cut)
    # Without a memory limit, so that the message can say how much memory the stage needs.
    costs = costs_of(only, replace(cluster, memory_bytes=np.inf))
    stage = planned_stage(costs, member, layout, waiting, cluster.exchanged(layout), choose_by_ratio)
    if stage is None:
        return f"configuration: not every layer can {name} at width {layout.tp}"
    if stage.memory_bytes > cluster.memory_bytes:
        return f"memory: it needs {stage.memory_bytes / GIB:.2f} GiB, {cluster.memory_bytes / GIB:g} given"
    return stage.time_s
