"""Memory that a device needs while a layer works on a microbatch, beside states and what is kept for later.

The peak of a batch is where most is kept and a layer works: where the backward pass starts, when the gradient
of the logits is made beside the activations of all blocks; or in the last block, when gradients of its
activations are made and, with recomputation, the activations themselves again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from phaze.layout import Layout, Recompute
from phaze.plan.kept import HALF, KEPT, LayerMemory
from phaze.spec.system import Stack
from phaze.workload.operators import Operator
from phaze.workload.workload import Layer

UNSHARDED = 2
"""Blocks whose weights, and whose gradients, lie there unshared at once with ZeRO 3: the one at work and the
one that is fetched or sent (PyTorch, FSDP)."""


def working_bytes(
    held: Sequence[tuple[LayerMemory, Recompute]], layout: Layout, stack: Stack, *, flash: bool
) -> float:
    """Bytes that a stage of these layers needs at most while it works on a microbatch.

    What the layers behind the one at work had kept is free by then.
    """
    freed = sum(cost.kept_bytes(way)[0] for cost, way in held if cost.layer.name == "head")
    blocks = [cost.layer.trained for cost, _ in held if cost.layer.name not in KEPT]
    empty = HALF * max(blocks, default=0) if stack.second_gradients == "layer" else 0
    gathered = 0.0
    if layout.sequence_parallel and layout.tp > 1:
        whole = max(max(cost.layer.input_bytes, cost.layer.output_bytes) for cost, _ in held)
        gathered = stack.gathered_tensors * layout.tp * whole
    return (
        empty
        + gathered
        + max(
            cost.kept_bytes(way, layout.offloaded)[1]
            + _made_bytes(cost.layer, layout, stack, flash=flash)
            - (freed if cost.layer.name not in KEPT else 0.0)
            for cost, way in held
        )
    )


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
