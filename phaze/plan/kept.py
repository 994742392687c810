"""Bytes that a layer keeps of a microbatch for the backward pass, under what runs forward again and what
waits in the host's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phaze.layout import ON_DEVICE, OPERAND_BYTES, Layout, Offloaded, Recompute, modules_of
from phaze.spec.system import Stack
from phaze.workload.lower.memory import WIDE
from phaze.workload.operators import Operator, Part
from phaze.workload.primitives import Region
from phaze.workload.workload import Layer

HALF = 2
"""Bytes of a number in half precision."""
SINGLE = 4
"""Bytes of a number in single precision."""
STATISTIC = 4
"""Bytes of the log-sum-exp of a row of scores."""
SCAN: frozenset[Region] = frozenset({"scan"})
KEPT = ("embedding", "head")
"""Layers that are never recomputed, and are in half precision whatever the others are."""


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """Activations of a layer for one microbatch."""

    layer: Layer
    repeated_bytes: float
    """Activations that selective recomputation makes again."""

    def kept_bytes(
        self, recompute: Recompute, offloaded: Offloaded = ON_DEVICE, blocks: int = 1
    ) -> tuple[float, float]:
        """Bytes that the layer keeps of a microbatch, and those that it holds while it is at work: what it
        recomputes, keys and values of the whole sequence, and what is on its way to the host or back.

        Where as many blocks as are said keep nothing, a mean over the `blocks` of a device.
        """
        kept, held = self._kept_bytes(recompute)
        waiting = self.waiting_bytes(recompute, offloaded)
        return kept - waiting * offloaded.part(blocks), held + waiting

    def waiting_bytes(self, recompute: Recompute, offloaded: Offloaded) -> float:
        """Bytes that wait in the host's memory, of what the layer would keep of a microbatch.

        Of a layer that runs forward again as a whole nothing does, nor of embedding and head.
        """
        if recompute == "full" or self.layer.name in KEPT:
            return 0.0
        if offloaded.layers:
            return self._kept_bytes(recompute)[0]
        return self.layer.waiting_bytes(offloaded.modules, modules_of(recompute))

    def _kept_bytes(self, recompute: Recompute) -> tuple[float, float]:
        layer, gathered = self.layer, self.layer.gathered_bytes
        if recompute == "none" or layer.name in KEPT:
            return layer.activation_bytes, gathered
        if recompute == "full":
            return layer.input_bytes, layer.activation_bytes + gathered
        again = self.repeated_bytes if recompute == "selective" else layer.freed_bytes(modules_of(recompute))
        return layer.activation_bytes - again, again + gathered


def kept_by(stack: Stack, layer: Layer, layout: Layout) -> Layer:
    """Layer with the activations that a stack keeps: kernels of scans make all inside again (Dao and Gu,
    Mamba-2, ICML 2024), one kernel for a gated activation its first factor, and operands of products are kept
    in the precision in which they are multiplied.
    """
    made_again: frozenset[Region] = frozenset({"scan", "gate"} if stack.fused_gate else {"scan"})
    kept = layer.without(made_again)
    if stack.copied_keys:
        copies = sum(
            2 * HALF * one.batch * one.n * one.k for one in first_products(layer.attention("forward"))
        )
        kept = replace(kept, activation_bytes=kept.activation_bytes + copies)
    if layout.compute == "bf16" or layer.name in KEPT:
        return kept
    operands = sum(o.stashed_bytes for o in layer.forward.operators if multiplies_weights(o))
    share = OPERAND_BYTES[layout.compute] / HALF
    lower = tuple(replace(o, nbytes=int(o.nbytes * share)) if o.operand else o for o in kept.kept)
    return replace(kept, kept=lower, activation_bytes=kept.activation_bytes - operands * (1.0 - share))


def kept_with_flash(layer: Layer) -> Layer:
    """Layer whose attention core is one kernel, which keeps a number for each row of scores and nothing else
    (Dao et al., NeurIPS 2022), and whose norms keep their statistics.
    """
    kept = layer.without(frozenset({"core_attn"}))
    rows = sum(part.batch * part.m for part in first_products(layer.attention("forward")))
    return replace(kept, activation_bytes=kept.activation_bytes + layer.statistics_bytes + STATISTIC * rows)


def multiplies_weights(operator: Operator) -> bool:
    """Whether an operator is a product with weights, or of what makes their gradients, that is brought to a
    lower precision.
    """
    return operator.core == "tensor" and not operator.attention and not operator.regions & WIDE


def first_products(core: Sequence[Operator]) -> list[Part]:
    """Products of queries and keys: of each pair of products in the core of attention the first."""
    return [part for operator in core for part in operator.parts if part.kind == "matmul"][::2]
