"""Working memory of a device for a microbatch, in addition to states and stored activations.

A batch has its peak where most is stored and a layer is processed. One candidate is the start of the backward
pass, when the gradient of the logits exists next to the activations of all blocks. The other is the last
block, with gradients of its activations and, under recomputation, the recomputed activations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from phaze.layout import Layout, Recompute
from phaze.plan.kept import HALF, KEPT, LayerMemory
from phaze.spec.system import Stack
from phaze.workload.operators import Operator
from phaze.workload.workload import Layer

UNSHARDED = 2
"""Blocks whose weights, and whose gradients, are gathered at once with ZeRO 3.

The current one and the one that is fetched or sent (PyTorch, FSDP).
"""


@dataclass(frozen=True)
class WorkingBytes:
    """Peak working memory of a stage for a microbatch."""

    work: float
    made: float
    """Temporaries in `work` whose number depends on the runtime.

    These exclude recomputed activations, and keys and values of the whole sequence.
    """
    copies: float
    """Upper bound on temporary copies in addition to `work`."""


def working_bytes(
    held: Sequence[tuple[LayerMemory, Recompute]], layout: Layout, stack: Stack, *, flash: bool
) -> WorkingBytes:
    """Peak working memory of a stage with these layers for a microbatch.

    The activations stored by later layers are already free.
    """
    layers = [cost.layer for cost, _ in held]
    blocks = [layer.trained for layer in layers if layer.name not in KEPT]
    empty = HALF * max(blocks, default=0) if stack.second_gradients == "layer" else 0
    gathered = stack.gathered_tensors * _whole_bytes(layers, layout)
    unshared = unshared_bytes(layers, layout) if layout.zero >= 3 else 0.0
    again = _again_bytes(held, layout)
    made = (_made_bytes(layer, layout, stack, flash=flash) for layer in layers)
    work = empty + gathered + unshared + max(sum(each) for each in zip(again, made, strict=True))
    return WorkingBytes(work, work - max(*again, 0.0), copied_bytes(layers, layout, stack))


def _again_bytes(held: Sequence[tuple[LayerMemory, Recompute]], layout: Layout) -> list[float]:
    """Recomputed activations, and keys and values of the whole sequence, while each layer is processed.

    The head's stored activations are subtracted: they are free before blocks go backward.
    """
    freed = sum(cost.kept_bytes(way)[0] for cost, way in held if cost.layer.name == "head")
    return [
        cost.kept_bytes(way, layout.offloaded)[1] - (freed if cost.layer.name not in KEPT else 0.0)
        for cost, way in held
    ]


def copied_bytes(layers: Sequence[Layer], layout: Layout, stack: Stack) -> float:
    """Upper bound on temporary copies in bytes.

    These are buffers of overlapped tensor-parallel communication, and with ZeRO 3 the buffers from which a
    block's weights are gathered and its gradients scattered (PyTorch, FSDP2).
    """
    overlapped = stack.overlap_buffers * ("tp" in stack.overlap)
    buffers = overlapped * _whole_bytes(layers, layout)
    if layout.zero < 3:
        return buffers
    blocks = [(layer.parameters, layer.trained) for layer in layers if layer.name not in KEPT]
    gathered, scattered = (max((both[i] for both in blocks), default=0) for i in (0, 1))
    return buffers + layout.bytes_per_element * gathered + stack.gradient_bytes * scattered


def _whole_bytes(layers: Sequence[Layer], layout: Layout) -> float:
    """Bytes of a whole activation between layers, if sequence parallelism shards it; otherwise 0."""
    if not layout.cuts_sequence:
        return 0.0
    return layout.tp * max(max(layer.input_bytes, layer.output_bytes) for layer in layers)


def unshared_bytes(layers: Iterable[Layer], layout: Layout) -> float:
    """Weights and gradients that ZeRO 3 gathers while a stage works: of its ends, and of two blocks."""
    held = {layer.name: (layer.parameters, layer.trained) for layer in layers}
    blocks = max((sum(both) for name, both in held.items() if name not in KEPT), default=0)
    ends = sum(parameters for name, (parameters, _) in held.items() if name in KEPT)
    return layout.bytes_per_element * (ends + 1.0 * UNSHARDED * blocks)


def _made_bytes(layer: Layer, layout: Layout, stack: Stack, *, flash: bool) -> float:
    """Bytes of gradients in the backward pass of a layer.

    These are gradients of activations, and of a head's weights if they are stored separately from accumulated
    ones.
    """
    if layer.name == "embedding":
        return 0.0
    results, inputs = _largest_products(layer, flash=flash)
    if layer.name != "head":
        return layout.bytes_per_element * (results + inputs)
    of_weights = HALF * layer.trained if stack.second_gradients == "layer" else 0.0
    return max(stack.logit_bytes - layout.bytes_per_element, 0) * results + of_weights  # logits are stored


def _largest_products(layer: Layer, *, flash: bool) -> tuple[int, int]:
    """Elements of the largest results that GEMMs compute from one input, and of that input."""
    core = layer.attention("forward") if flash else ()
    found = [(0, 0)]
    dense = (operator for operator in layer.forward.operators if operator not in core)
    for is_product, together in groupby(dense, key=lambda operator: operator.core == "tensor"):
        if is_product:
            for (batch, m, k), parts in groupby(_parts(together), key=lambda part: part[:3]):
                found.append((sum(batch * m * part[3] for part in parts), batch * m * k))
    return max(found)


def _parts(operators: Iterable[Operator]) -> list[tuple[int, int, int, int]]:
    """Shapes of the GEMMs of operators: batch, m, k, n."""
    return [(part.batch, part.m, part.k, part.n) for operator in operators for part in operator.parts]
