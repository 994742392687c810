"""Stored activations of a layer per microbatch, by the options of recomputing and offloading them."""

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
"""Bytes of a half-precision element."""
SINGLE = 4
"""Bytes of a single-precision element."""
STATISTIC = 4
"""Bytes of the log-sum-exp of a row of scores."""
SCAN: frozenset[Region] = frozenset({"scan"})
KEPT = ("embedding", "head")
"""Layers that are never recomputed, and always in half precision."""


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """Activations of a layer for one microbatch."""

    layer: Layer
    repeated_bytes: float
    """Activations that selective recomputation recomputes."""

    def kept_bytes(
        self, recompute: Recompute, offloaded: Offloaded = ON_DEVICE, blocks: int = 1
    ) -> tuple[float, float]:
        """Bytes that a layer stores per microbatch, and temporary bytes while it is processed.

        Temporaries are recomputed activations, keys and values of the whole sequence, and data in transfer to
        or from the host. The stored bytes are a mean over the `blocks` of a device, of which some may be
        offloaded.
        """
        kept, held = self._kept_bytes(recompute)
        waiting = self.waiting_bytes(recompute, offloaded)
        return kept - waiting * offloaded.part(blocks), held + waiting

    def waiting_bytes(self, recompute: Recompute, offloaded: Offloaded) -> float:
        """Bytes of a layer's stored activations per microbatch that are offloaded to host memory.

        A fully recomputed layer offloads none, and neither do embedding and head.
        """
        if recompute == "full" or self.layer.name in KEPT or offloaded == ON_DEVICE:
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
    """Layer with the activations that a stack stores.

    Scan kernels recompute everything inside (Dao and Gu, Mamba-2, ICML 2024), and a fused kernel for a gated
    activation recomputes its first factor. Operands of products are stored in the precision of the product.
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
    """Layer with a fused attention core, which stores one element per row of scores.

    Its norms store their statistics. Source: Dao et al., NeurIPS 2022.
    """
    kept = layer.without(frozenset({"core_attn"}))
    rows = sum(part.batch * part.m for part in first_products(layer.attention("forward")))
    return replace(kept, activation_bytes=kept.activation_bytes + layer.statistics_bytes + STATISTIC * rows)


def multiplies_weights(operator: Operator) -> bool:
    """True for a product with weights, or for weight gradients, that is computed in lower precision."""
    return operator.core == "tensor" and not operator.attention and not operator.regions & WIDE


def first_products(core: Sequence[Operator]) -> list[Part]:
    """Products of queries and keys: the first of each pair of products in the attention core."""
    return [part for operator in core for part in operator.parts if part.kind == "matmul"][::2]
