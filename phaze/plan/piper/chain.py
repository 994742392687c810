"""A model on one architecture as Piper's layers: its configurations are Phaze's own estimates and schedules.

Every TMP width of the study gives each layer two configurations, as far as the study allows them: to stash
its activations, which takes p = forward + backward, or to recompute them, p = 2 forward + backward. Latencies
are the scheduled ones, with the communication between the slices; memory is that of one slice under
PipeDream-2BW, with gradients and optimizer state as `cost.memory` counts them. A layer that is
not tensor parallel runs whole on each of the t devices, as its tables at width t say.

A tensor on an edge arrives at one of the t devices, and each of them needs all of it (Appendix B): c_fw and
c_bw are its bytes for t > 1, and nothing for t = 1.

Memory of a layer is an affine function of the microbatches in flight (Section 3.5 and Appendix A): a device
holds a ceil(s/d) + b bytes. What is in a, for each microbatch, and in b, once:

                                  a                       b
    PipeDream                     weights + activations   the rest
    PipeDream, recomputing        weights + inputs        the rest + (activations - inputs)
    PipeDream-2BW                 activations             2 weights + the rest
    PipeDream-2BW, recomputing    inputs                  2 weights + the rest + (activations - inputs)

PipeDream keeps the weights with which a microbatch went forward until it has come back; PipeDream-2BW keeps
two versions, however many microbatches are in flight. With recomputation only the activations that arrive at
the layer wait for the backward pass, and the others exist for the one microbatch at work. The rest is what is
there once for each parameter: gradients, optimizer state, and temporary buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from phaze.base.arrays import Floats, Ints
from phaze.layout import Recompute
from phaze.pipeline.flushing import Chain
from phaze.plan.piper.layers import Layers, Options

STASH, RECOMPUTE = "stash", "recompute"
"""Names of the configurations."""
CONFIGURATIONS: dict[Recompute, str] = {"none": STASH, "full": RECOMPUTE, "selective": "selective"}
"""By what a layout recomputes; no layer has one that recomputes a part."""


Scheme = Literal["pipedream", "pipedream-2bw"]


@dataclass(frozen=True)
class Sizes:
    """What layers (or one) keep on each of their t devices, in bytes, for one microbatch."""

    weight_bytes: Floats | float
    """One version of the weights."""
    rest_bytes: Floats | float
    """Gradients, optimizer state, and buffers."""
    activation_bytes: Floats | float
    """All that the backward pass needs, inputs included."""
    input_bytes: Floats | float
    """Of these, what arrives at the layer."""


class Affine(NamedTuple):
    """Memory of layers (or one)."""

    stash_bytes: Floats
    """a, for each microbatch in flight."""
    fixed_bytes: Floats
    """b, beside that."""


def affine_memory(sizes: Sizes, scheme: Scheme, *, recompute: bool) -> Affine:
    """Return a and b of a layer; inputs are at most the activations."""
    weights, activations = np.asarray(sizes.weight_bytes), np.asarray(sizes.activation_bytes)
    kept = np.asarray(sizes.input_bytes) if recompute else activations
    versions = {"pipedream": (weights, 0.0 * weights), "pipedream-2bw": (0.0 * weights, 2.0 * weights)}
    stashed, fixed = versions[scheme]
    return Affine(
        stash_bytes=stashed + kept, fixed_bytes=fixed + np.asarray(sizes.rest_bytes) + (activations - kept)
    )


def read_layers(chains: Mapping[int, Chain], names: Sequence[str], recompute: Sequence[bool]) -> Layers:
    """Return a model on an architecture from its chains by TMP width, all for one microbatch.

    `names` are those of the layers; `recompute` says which configurations there are: stash for False,
    recompute for True.
    """
    widths = sorted(chains)
    graph = chains[widths[0]]
    return Layers(
        ids=tuple(range(len(names))),
        names=tuple(names),
        edges=graph.edges,
        edge_bytes=graph.edge_bytes,
        options={width: _options(chains[width], width, recompute) for width in widths},
    )


def _options(chain: Chain, tensor: int, recompute: Sequence[bool]) -> Options:
    names, times_s, memories = zip(*(_kind(chain, again=again) for again in sorted(recompute)), strict=True)
    layer = np.repeat(np.arange(len(chain)), len(names))
    synchronised = chain.edge_bytes if tensor > 1 else np.zeros(len(chain.edges))
    return Options(
        names=names * len(chain),
        layer=layer,
        time_s=_by_layer(times_s),
        weight_bytes=_by_layer([chain.parameter_bytes] * len(names)),
        stash_bytes=_by_layer([one.stash_bytes for one in memories]),
        fixed_bytes=_by_layer([one.fixed_bytes for one in memories]),
        forward_sync_bytes=_at(layer, chain.targets, synchronised),
        backward_sync_bytes=_at(layer, chain.sources, synchronised),
    )


def _kind(chain: Chain, *, again: bool) -> tuple[str, Floats, Affine]:
    """Return one configuration of every layer: its name, its times and its memory."""
    sizes, time_s = _sizes(chain), chain.compute_s
    if not again:
        return STASH, time_s, affine_memory(sizes, "pipedream-2bw", recompute=False)
    # An input that the backward pass does not need has to be there to recompute from.
    needed = replace(sizes, activation_bytes=np.maximum(sizes.activation_bytes, sizes.input_bytes))
    time_s = 2.0 * chain.forward_s + chain.backward_s
    return RECOMPUTE, time_s, affine_memory(needed, "pipedream-2bw", recompute=True)


def _sizes(chain: Chain) -> Sizes:
    """Return what the layers keep, with the tensors on their incoming edges for inputs."""
    arriving = np.zeros(len(chain))
    np.add.at(arriving, chain.targets, chain.edge_bytes)
    return Sizes(
        weight_bytes=chain.parameter_bytes,
        rest_bytes=chain.static_bytes - chain.parameter_bytes,
        activation_bytes=chain.activation_bytes,
        input_bytes=arriving,
    )


def _by_layer(kinds: Sequence[Floats]) -> Floats:
    """Return one value for every layer and configuration, by layer, from arrays over the layers."""
    return np.stack(kinds, axis=1).ravel()


def _at(layer: Ints, ends: Ints, sizes: Floats) -> Floats:
    """Return (C, E) the bytes of every edge at the configurations of the layer at that end of it."""
    return np.where(layer[:, None] == ends, sizes, 0.0)
