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

import numpy as np

from phaze.base.arrays import Floats
from phaze.formulas.flushing import Chain
from phaze.formulas.piper.layers import Configurations, ProfiledLayers
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
