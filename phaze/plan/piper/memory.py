"""Memory of a layer as an affine function of the microbatches in flight (Piper, Section 3.5 and Appendix A).

In steady state, a stage and those behind it work on s microbatches, the sum of their data parallel degrees.
All of them wait for their backward pass in the stage, in equal shares on its d devices: ceil(s/d) on each
(`in_flight`). A device holds a ceil(s/d) + b bytes. What is in a, for each microbatch, and in b, once:

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

from dataclasses import dataclass
from typing import Literal

import numpy as np

from phaze.base.arrays import Floats

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


@dataclass(frozen=True)
class Affine:
    """Memory of layers (or one)."""

    stash_bytes: Floats
    """a, for each microbatch in flight."""
    fixed_bytes: Floats
    """b, beside that."""

    def bytes_with(self, microbatches: int) -> Floats:
        """Return the memory with so many microbatches in flight."""
        return self.stash_bytes * microbatches + self.fixed_bytes


def affine_memory(sizes: Sizes, scheme: Scheme, *, recompute: bool) -> Affine:
    """Return a and b of a layer; inputs are at most the activations."""
    weights, activations = np.asarray(sizes.weight_bytes), np.asarray(sizes.activation_bytes)
    kept = np.asarray(sizes.input_bytes) if recompute else activations
    versions = {"pipedream": (weights, 0.0 * weights), "pipedream-2bw": (0.0 * weights, 2.0 * weights)}
    stashed, fixed = versions[scheme]
    return Affine(
        stash_bytes=stashed + kept, fixed_bytes=fixed + np.asarray(sizes.rest_bytes) + (activations - kept)
    )


def in_flight(degree: int, data: int) -> int:
    """Return ceil(s/d): microbatches on each device of a stage, s being its and all later stages' degrees."""
    return -(-degree // data)
