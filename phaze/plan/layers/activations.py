"""Activations that a layer stores per microbatch, and the additional working memory of a device.

Stored activations depend on the options of recomputing and offloading them. Memory peaks when the most bytes
are stored while a layer is processed. One candidate is the start of the backward pass, when the gradient of
the logits exists next to the activations of all blocks. The other is the last block, with gradients of its
activations and, under recomputation, the recomputed activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from phaze.base.arrays import Number
from phaze.cost.memory import HALF
from phaze.layout import ON_DEVICE, OPERAND_BYTES, Layout, Offloaded, Recompute, modules_of
from phaze.spec.system import Stack
from phaze.workload.lower.attention import first_products
from phaze.workload.lower.memory import WIDE
from phaze.workload.operators import Operator
from phaze.workload.primitives import Region
from phaze.workload.workload import Layer

SCAN: frozenset[Region] = frozenset({"scan"})
KEPT = ("embedding", "head")
"""Layers that are never recomputed and always computed in half precision."""
UNSHARDED = 2
"""Number of blocks whose weights and gradients are unsharded at the same time under ZeRO 3.

The current one and the one that is fetched or sent (PyTorch, FSDP).
"""


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """Activation memory of a layer for one microbatch."""

    layer: Layer
    repeated_bytes: float
    """Bytes of activations that selective recomputation recomputes."""

    def kept_bytes(
        self, recompute: Recompute, offloaded: Offloaded = ON_DEVICE, blocks: int = 1
    ) -> tuple[float, float]:
        """Bytes that a layer stores per microbatch, and temporary bytes while it is processed.

        Temporaries are recomputed activations, keys and values of the whole sequence, and data in transfer to
        or from the host. The stored bytes are a mean over the `blocks` of a device, of which some may be
        offloaded.
        """
        stored, temporary = self._kept_bytes(recompute)
        waiting = self.waiting_bytes(recompute, offloaded)
        return stored - waiting * offloaded.part(blocks), temporary + waiting

    def waiting_bytes(self, recompute: Recompute, offloaded: Offloaded) -> float:
        """Bytes of a layer's activations per microbatch that are offloaded to host memory.

        A fully recomputed layer offloads its input, if whole layers are offloaded (TRL, offloaded
        checkpoints). Embedding and head offload none.
        """
        if self.layer.name in KEPT or offloaded == ON_DEVICE:
            return 0.0
        if offloaded.layers:
            return self._kept_bytes(recompute)[0]
        if recompute == "full":
            return 0.0
        return self.layer.waiting_bytes(offloaded.modules, modules_of(recompute))

    def _kept_bytes(self, recompute: Recompute) -> tuple[float, float]:
        layer, gathered = self.layer, self.layer.gathered_bytes
        if recompute == "none" or layer.name in KEPT:
            return layer.activation_bytes, gathered
        if recompute == "full":
            return layer.input_bytes, layer.activation_bytes + gathered
        recomputed = (
            self.repeated_bytes if recompute == "selective" else layer.freed_bytes(modules_of(recompute))
        )
        return layer.activation_bytes - recomputed, recomputed + gathered


def kept_by(stack: Stack, layer: Layer, layout: Layout) -> Layer:
    """Copy of a layer with only the activations that a software stack stores.

    Scan kernels recompute everything inside (Dao and Gu, Mamba-2, ICML 2024), and a fused kernel for a gated
    activation recomputes its first factor. Operands of products are stored in the precision of the product.
    """
    made_again: frozenset[Region] = frozenset({"scan", "gate"} if stack.fused_gate else {"scan"})
    stored = layer.without(made_again)
    if stack.copied_keys:
        copies = sum(
            2 * HALF * product.batch * product.n * product.k
            for product in first_products(layer.attention("forward"))
        )
        stored = replace(stored, activation_bytes=stored.activation_bytes + copies)
    if layout.compute == "bf16" or layer.name in KEPT:
        return stored
    operands = sum(o.stashed_bytes for o in layer.forward.operators if multiplies_weights(o))
    share = OPERAND_BYTES[layout.compute] / HALF
    lower = tuple(replace(o, nbytes=int(o.nbytes * share)) if o.operand else o for o in stored.kept)
    return replace(stored, kept=lower, activation_bytes=stored.activation_bytes - operands * (1.0 - share))


def multiplies_weights(operator: Operator) -> bool:
    """True for a low-precision GEMM that multiplies weights or computes their gradients."""
    return operator.core == "tensor" and not operator.attention and not operator.regions & WIDE


@dataclass(frozen=True)
class WorkingBytes:
    """Peak working memory of a stage for a microbatch, in bytes."""

    work: float
    made: float
    """Temporaries in `work` whose number depends on the runtime.

    These exclude recomputed activations, and keys and values of the whole sequence.
    """
    copies: float
    """Upper bound on temporary copies in addition to `work`."""


def working_bytes(
    options: Sequence[tuple[LayerMemory, Recompute]], layout: Layout, stack: Stack, *, flash: bool
) -> WorkingBytes:
    """Peak working memory of a stage with these layers, for one microbatch.

    The activations stored by later layers are already free.
    """
    layers = [cost.layer for cost, _ in options]
    blocks = [layer.trained for layer in layers if layer.name not in KEPT]
    # Autograd's gradient of the largest block exists next to the accumulated one for a moment.
    empty = HALF * max(blocks, default=0) if stack.second_gradients == "layer" else 0
    gathered = stack.gathered_tensors * _whole_bytes(layers, layout)
    unshared = unshared_bytes(layers, layout) if layout.zero >= 3 else 0.0
    recomputed = _again_bytes(options, layout)
    temporaries = (_made_bytes(layer, layout, stack, flash=flash) for layer in layers)
    work = (
        empty
        + gathered
        + unshared
        + max(sum(layer_bytes) for layer_bytes in zip(recomputed, temporaries, strict=True))
    )
    return WorkingBytes(work, work - max(*recomputed, 0.0), copied_bytes(layers, layout, stack))


def _again_bytes(options: Sequence[tuple[LayerMemory, Recompute]], layout: Layout) -> list[float]:
    """Bytes of recomputed activations, and of keys and values of the whole sequence, for each layer.

    The head's stored activations are subtracted: they are free before blocks go backward.
    """
    # The head goes backward first, so its activations are free when blocks need memory.
    freed = sum(cost.kept_bytes(recompute)[0] for cost, recompute in options if cost.layer.name == "head")
    return [
        cost.kept_bytes(recompute, layout.offloaded)[1] - (freed if cost.layer.name not in KEPT else 0.0)
        for cost, recompute in options
    ]


def copied_bytes(layers: Sequence[Layer], layout: Layout, stack: Stack) -> float:
    """Upper bound on the bytes of temporary communication buffers.

    These are buffers of overlapped tensor-parallel communication, and with ZeRO 3 the buffers from which a
    block's weights are gathered and its gradients scattered (PyTorch, FSDP2).
    """
    buffers = buffers_bytes(stack, _whole_bytes(layers, layout))
    if layout.zero < 3:
        return buffers
    blocks = [(layer.parameters, layer.trained) for layer in layers if layer.name not in KEPT]
    gathered, scattered = (max((both[i] for both in blocks), default=0) for i in (0, 1))
    return buffers + layout.bytes_per_element * gathered + stack.gradient_bytes * scattered


def buffers_bytes(stack: Stack, whole_bytes: Number) -> Number:
    """Bytes of all buffers of overlapped tensor-parallel communication, each of a whole activation's size."""
    return stack.overlap_buffers * ("tp" in stack.overlap) * whole_bytes


def _whole_bytes(layers: Sequence[Layer], layout: Layout) -> float:
    """Bytes of the largest unsharded activation between layers under sequence parallelism; otherwise 0."""
    if not layout.cuts_sequence:
        return 0.0
    return layout.tp * max(max(layer.input_bytes, layer.output_bytes) for layer in layers)


def unshared_bytes(layers: Iterable[Layer], layout: Layout) -> float:
    """Bytes of weights and gradients that ZeRO 3 gathers for a stage: embedding, head and two blocks."""
    parameters_by_name = {layer.name: (layer.parameters, layer.trained) for layer in layers}
    blocks = max((sum(both) for name, both in parameters_by_name.items() if name not in KEPT), default=0)
    # Embedding and head stay gathered for both passes; of blocks, the current and the next one.
    ends = sum(parameters for name, (parameters, _) in parameters_by_name.items() if name in KEPT)
    return layout.bytes_per_element * (ends + 1.0 * UNSHARDED * blocks)


def _made_bytes(layer: Layer, layout: Layout, stack: Stack, *, flash: bool) -> float:
    """Bytes of temporary gradients in the backward pass of a layer.

    These are gradients of activations, and of a head's weights if they are stored separately from accumulated
    ones.
    """
    # Token ids have no gradient.
    if layer.name == "embedding":
        return 0.0
    results, inputs = _largest_products(layer, flash=flash)
    if layer.name != "head":
        return layout.bytes_per_element * (results + inputs)
    of_weights = HALF * layer.trained if stack.second_gradients == "layer" else 0.0
    return max(stack.logit_bytes - layout.bytes_per_element, 0) * results + of_weights  # logits are stored


def _largest_products(layer: Layer, *, flash: bool) -> tuple[int, int]:
    """Number of elements of the largest GEMM results that share one input, and of that input."""
    core = layer.attention("forward") if flash else ()
    products = [(0, 0)]
    dense = (operator for operator in layer.forward.operators if operator not in core)
    for is_product, together in groupby(dense, key=lambda operator: operator.core == "tensor"):
        if is_product:
            for (batch, m, k), parts in groupby(_parts(together), key=lambda part: part[:3]):
                products.append((sum(batch * m * part[3] for part in parts), batch * m * k))
    return max(products)


def _parts(operators: Iterable[Operator]) -> list[tuple[int, int, int, int]]:
    """GEMM shapes of the operators: batch, m, k, n."""
    return [(part.batch, part.m, part.k, part.n) for operator in operators for part in operator.parts]
