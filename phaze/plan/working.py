"""Memory that a device needs while a layer works on a microbatch, beside states and what is kept for later.

The peak of a batch is where most is kept and a layer works: where the backward pass starts, when the gradient
of the logits is made beside the activations of all blocks; or in the last block, when gradients of its
activations are made and, with recomputation, the activations themselves again.
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
"""Blocks whose weights, and whose gradients, lie there unshared at once with ZeRO 3: the one at work and the
one that is fetched or sent (PyTorch, FSDP)."""


@dataclass(frozen=True)
class WorkingBytes:
    """Bytes that a stage needs at most while it works on a microbatch."""

    work: float
    made: float
    """Of these temporaries whose number the runtime decides: all but recomputed activations, and keys and
    values of the whole sequence."""
    copies: float
    """Temporary copies that may lie beside them, at most."""


def working_bytes(
    held: Sequence[tuple[LayerMemory, Recompute]], layout: Layout, stack: Stack, *, flash: bool
) -> WorkingBytes:
    """Bytes that a stage of these layers needs while it works on a microbatch.

    What the layers behind the one at work had kept is free by then.
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
    """Bytes of recomputed activations, and of keys and values of the whole sequence, while each layer is at
    work, less those of the head, which are free before blocks pass backward.
    """
    freed = sum(cost.kept_bytes(way)[0] for cost, way in held if cost.layer.name == "head")
    return [
        cost.kept_bytes(way, layout.offloaded)[1] - (freed if cost.layer.name not in KEPT else 0.0)
        for cost, way in held
    ]


def copied_bytes(layers: Sequence[Layer], layout: Layout, stack: Stack) -> float:
    """Bytes of temporary copies at most: buffers of overlapped tensor-parallel communication, and with ZeRO 3
    those from which a block's weights are gathered and its gradients scattered (PyTorch, FSDP2).
    """
    overlapped = stack.overlap_buffers * ("tp" in stack.overlap)
    buffers = overlapped * _whole_bytes(layers, layout)
    if layout.zero < 3:
        return buffers
    blocks = [(layer.parameters, layer.trained) for layer in layers if layer.name not in KEPT]
    gathered, scattered = (max((both[i] for both in blocks), default=0) for i in (0, 1))
    return buffers + layout.bytes_per_element * gathered + stack.gradient_bytes * scattered


def _whole_bytes(layers: Sequence[Layer], layout: Layout) -> float:
    """Bytes of a whole activation between layers, of which sequence parallelism gives each rank a shard."""
    if not layout.sequence_parallel or layout.tp == 1:
        return 0.0
    return layout.tp * max(max(layer.input_bytes, layer.output_bytes) for layer in layers)


def unshared_bytes(layers: Iterable[Layer], layout: Layout) -> float:
    """Weights and gradients that ZeRO 3 holds whole while a stage works: of its ends, and of two blocks."""
    held = {layer.name: (layer.parameters, layer.trained) for layer in layers}
    blocks = max((sum(both) for name, both in held.items() if name not in KEPT), default=0)
    ends = sum(parameters for name, (parameters, _) in held.items() if name in KEPT)
    return layout.bytes_per_element * (ends + 1.0 * UNSHARDED * blocks)


def _made_bytes(layer: Layer, layout: Layout, stack: Stack, *, flash: bool) -> float:
    """Bytes of gradients in the backward pass of a layer: of activations, and of a head's weights where they
    lie beside those that are added up.
    """
    if layer.name == "embedding":
        return 0.0
    results, inputs = _largest_products(layer, flash=flash)
    if layer.name != "head":
        return layout.bytes_per_element * (results + inputs)
    of_weights = HALF * layer.trained if stack.second_gradients == "layer" else 0.0
    return max(stack.logit_bytes - layout.bytes_per_element, 0) * results + of_weights  # logits are kept


def _largest_products(layer: Layer, *, flash: bool) -> tuple[int, int]:
    """Elements of the largest results that products make of one input, and of that input."""
    core = layer.attention("forward") if flash else ()
    found = [(0, 0)]
    dense = (operator for operator in layer.forward.operators if operator not in core)
    for is_product, together in groupby(dense, key=lambda operator: operator.core == "tensor"):
        if is_product:
            for (batch, m, k), parts in groupby(_parts(together), key=lambda part: part[:3]):
                found.append((sum(batch * m * part[3] for part in parts), batch * m * k))
    return max(found)


def _parts(operators: Iterable[Operator]) -> list[tuple[int, int, int, int]]:
    """Shapes of the products of operators: batch, m, k, n."""
    return [(part.batch, part.m, part.k, part.n) for operator in operators for part in operator.parts]
