"""A model on one architecture as Piper's layers: its configurations are Phaze's own estimates and schedules.

Every TMP width of the study gives each layer two configurations, as far as the study allows them: to stash
its activations, which takes p = forward + backward, or to recompute them, p = 2 forward + backward. Latencies
are the scheduled ones, with the communication between the slices; memory is that of one slice under
PipeDream-2BW (`memory`), with gradients and optimizer state as `cost.memory` counts them. A layer that is
not tensor parallel runs whole on each of the t devices, as its tables at width t say.

A tensor on an edge arrives at one of the t devices, and each of them needs all of it (Appendix B): c_fw and
c_bw are its bytes for t > 1, and nothing for t = 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.layout import Recompute
from phaze.pipeline.flushing import Chain, edge_arrays
from phaze.plan.piper.layers import Layers, Options
from phaze.plan.piper.memory import Affine, Sizes, affine_memory

STASH, RECOMPUTE = "stash", "recompute"
"""Names of the configurations."""
CONFIGURATIONS: dict[Recompute, str] = {"none": STASH, "full": RECOMPUTE, "selective": "selective"}
"""By what a layout recomputes; no layer has one that recomputes a part."""


@dataclass(frozen=True)
class _Kind:
    """One configuration of every layer."""

    name: str
    time_s: Floats
    memory: Affine


def read_layers(chains: Mapping[int, Chain], names: Sequence[str], recompute: Sequence[bool]) -> Layers:
    """Return a model on an architecture from its chains by TMP width, all for one microbatch.

    `names` are those of the layers; `recompute` says which configurations there are: stash for False,
    recompute for True.
    """
    widths = sorted(chains)
    sources, targets, sizes = edge_arrays(chains[widths[0]].edges)
    return Layers(
        ids=tuple(range(len(names))),
        names=tuple(names),
        sources=sources,
        targets=targets,
        edge_bytes=sizes,
        options={width: _options(chains[width], width, recompute) for width in widths},
    )


def _options(chain: Chain, tensor: int, recompute: Sequence[bool]) -> Options:
    kinds = [_recomputing(chain) if again else _stashing(chain) for again in sorted(recompute)]
    layer = np.repeat(np.arange(len(chain)), len(kinds))
    sources, targets, sizes = edge_arrays(chain.edges)
    synchronised = sizes if tensor > 1 else np.zeros(len(sizes))
    return Options(
        names=tuple(kind.name for kind in kinds) * len(chain),
        layer=layer,
        time_s=_by_layer([kind.time_s for kind in kinds]),
        weight_bytes=_by_layer([chain.weight_bytes] * len(kinds)),
        stash_bytes=_by_layer([kind.memory.stash_bytes for kind in kinds]),
        fixed_bytes=_by_layer([kind.memory.fixed_bytes for kind in kinds]),
        forward_sync_bytes=_at(layer, targets, synchronised),
        backward_sync_bytes=_at(layer, sources, synchronised),
    )


def _stashing(chain: Chain) -> _Kind:
    memory = affine_memory(_sizes(chain), "pipedream-2bw", recompute=False)
    return _Kind(STASH, chain.forward_s + chain.backward_s, memory)


def _recomputing(chain: Chain) -> _Kind:
    sizes = _sizes(chain)
    # An input that the backward pass does not need has to be there to recompute from.
    needed = replace(sizes, activation_bytes=np.maximum(sizes.activation_bytes, sizes.input_bytes))
    memory = affine_memory(needed, "pipedream-2bw", recompute=True)
    return _Kind(RECOMPUTE, 2.0 * chain.forward_s + chain.backward_s, memory)


def _sizes(chain: Chain) -> Sizes:
    """Return what the layers keep, with the tensors on their incoming edges for inputs."""
    _, targets, sizes = edge_arrays(chain.edges)
    arriving = np.zeros(len(chain))
    np.add.at(arriving, targets, sizes)
    return Sizes(
        weight_bytes=chain.weight_bytes,
        rest_bytes=chain.static_bytes - chain.weight_bytes,
        activation_bytes=chain.activation_bytes,
        input_bytes=arriving,
    )


def _by_layer(kinds: list[Floats]) -> Floats:
    """Return one value for every layer and configuration, by layer, from arrays over the layers."""
    return np.stack(kinds, axis=1).ravel()


def _at(layer: Ints, ends: Ints, sizes: Floats) -> Floats:
    """Return (C, E) the bytes of every edge at the configurations of the layer at that end of it."""
    return np.where(layer[:, None] == ends, sizes, 0.0)
