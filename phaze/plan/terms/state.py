"""Bytes and seconds of model state: weights, gradients, optimizer states, and their update.

`parameters` are those of a rank before ZeRO shards their states over `ranks` ranks. All terms increase with
the parameters, in proportion to them. Ranks and ZeRO stage are given for every layout, so no bound depends on
how terms change with them: a second copy of gradients in buckets, or whole gradients of a pipeline, may make
a layout with more ranks or a higher stage larger.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from phaze.base.arrays import Number
from phaze.cost.memory import (
    HALF,
    SINGLE,
    ParameterBytes,
    parameter_bytes,
    sharers,
    state_bytes,
    update_bytes,
)
from phaze.layout import Optimizer, Precision
from phaze.spec.system import Stack

CONVERSION_BYTES = 34
"""Bytes per parameter that Megatron-LM's mixed-precision update moves, in addition to the optimizer's own.

Gradients are converted to single precision (2 + 4), unscaled and checked (4 + 4), their norm is computed (4),
they are clipped (4 + 4) and zeroed (2). The other 6 are the single-precision gradients that the optimizer
reads, and the weights for the next batch.
"""
BUFFER_PASSES = 3
"""Passes over a replica's whole gradient buffer under ZeRO 1, which shards the other states.

Gradients are divided by the replicas before they are summed, read and written, and zeroed for the next batch
(Megatron-Core, `param_and_grad_buffer`).
"""
ACCUMULATION_PASSES = 3
"""Passes over the gradients to accumulate those of a microbatch: two reads and one write."""


@dataclass(frozen=True)
class StateTerms:
    """Memory and update time of model state, for an optimizer, a precision and a software stack."""

    optimizer: Optimizer
    precision: Precision
    stack: Stack
    hbm_bytes_per_s: float
    offloaded: bool = False
    """True if optimizer states stay in host memory between two steps."""

    @cached_property
    def size(self) -> ParameterBytes:
        """Bytes of weights, gradients and optimizer states per parameter."""
        return parameter_bytes(self.optimizer, self.precision, self.stack.gradient_bytes)

    def device_bytes(self, parameters: Number, zero: Number, ranks: Number, *, pipelined: bool) -> Number:
        """Bytes of weights, gradients and optimizer states of trained parameters on a device.

        `pipelined` is true with several pipeline ranks.
        """
        stack, size = self.stack, self.size
        total = state_bytes(parameters, size, zero, ranks)
        if stack.whole_gradients and pipelined:
            total = total + parameters * (SINGLE - size.gradients / ranks) * (zero >= 2)
        # A second copy in half precision: autograd's, which is then added to the accumulated gradients.
        doubled = stack.second_gradients in ("all", "buckets") and stack.gradient_bytes > HALF
        if doubled and self.precision == "mixed":
            # Buckets are a further copy, from which ZeRO 0 all-reduces.
            buckets = (zero < 1) * (ranks > 1) * (stack.second_gradients == "buckets")
            total = total + HALF * parameters * (1 + buckets)
        return total - self.host_bytes(parameters, zero, ranks)

    def host_bytes(self, parameters: Number, zero: Number, ranks: Number) -> Number:
        """Bytes of optimizer states of trained parameters in host memory between two steps."""
        if not self.offloaded:
            return parameters * 0.0
        states = replace(self.size, weights=0, gradients=0)
        return state_bytes(parameters, states, zero, ranks)

    def frozen_bytes(self, parameters: Number, zero: Number, ranks: Number) -> Number:
        """Bytes of frozen weights, which have no gradient and no optimizer state, on a device."""
        weights = replace(self.size, gradients=0, optimizer=0)
        return state_bytes(parameters, weights, zero, ranks)

    def update_bytes(self, parameters: Number, zero: Number, ranks: Number) -> Number:
        """HBM bytes that the optimizer step moves, with the conversions and checks of gradients."""
        moved = update_bytes(parameters, self.optimizer, self.precision, zero, ranks)
        if self.precision == "mixed":
            moved = moved + CONVERSION_BYTES * parameters / sharers(ranks, zero, 1)
        return moved + BUFFER_PASSES * (self.size.gradients * parameters) * ((zero >= 1) * (zero < 2))

    def accumulation_s(self, parameters: Number, zero: Number, ranks: Number, microbatches: Number) -> Number:
        """Time to add the gradients of a microbatch to those of the batch, in seconds.

        A single microbatch adds none, and neither do GEMMs that accumulate into the gradients. From ZeRO 2 on
        a replica accumulates only its shard.
        """
        moved = ACCUMULATION_PASSES * (self.size.gradients * parameters) / sharers(ranks, zero, 2)
        apart = not self.stack.fused_gradients
        return moved / self.hbm_bytes_per_s * ((microbatches > 1) * apart)
