"""Forward pass of a layer: fused operators and their remaining HBM traffic.

Inside an operator, results pass from core to core. HBM traffic consists of the tensors that enter, the tensor
that leaves, the parameters, and the inner tensors and dropout masks stored only for the backward pass. The
mapper counts the operands and the result of a matrix multiplication; its result serves as the operator's
output, which has the same size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phaze.spec.rows import PartRole
from phaze.workload.kinds import COLLECTIVES, GATHERS
from phaze.workload.lower.fusion import Group
from phaze.workload.lower.memory import MASK, Stash, first_stashes, stored
from phaze.workload.operators import Edge, LayerPass, Operator, Part, collectives, product
from phaze.workload.primitives import INPUT, LayerGraph, Primitive, Region, Tensor


def forward_pass(layer: LayerGraph, groups: tuple[Group, ...], bytes_per_element: int) -> LayerPass:
    """Build the forward pass of a layer: fused operators and the edges between them."""
    stashes = first_stashes(layer, bytes_per_element)
    operators = tuple(_operator(layer, group, stashes, bytes_per_element) for group in groups)
    return LayerPass(operators, group_edges(layer, groups, bytes_per_element))


def group_edges(layer: LayerGraph, groups: tuple[Group, ...], bytes_per_element: int) -> tuple[Edge, ...]:
    """Edges between fused operators, with the bytes that the target reads."""
    place = {index: number for number, group in enumerate(groups) for index in group}
    sizes: Counter[tuple[int, int]] = Counter()
    for number, group in enumerate(groups):
        for tensor in entering(layer, group):
            if tensor.source != INPUT:
                sizes[place[tensor.source], number] += tensor.elements * bytes_per_element
    return tuple(Edge(source, target, nbytes) for (source, target), nbytes in sorted(sizes.items()))


def entering(layer: LayerGraph, group: Group) -> tuple[Tensor, ...]:
    """Distinct tensors that a fused operator reads from outside."""
    inputs = (tensor for index in group for tensor in layer.primitives[index].inputs)
    return tuple(dict.fromkeys(tensor for tensor in inputs if tensor.source not in group))


def group_name(layer: LayerGraph, group: Group) -> str:
    """Name of a fused operator, joined from its primitives; views are named only if there is nothing else."""
    primitives = [layer.primitives[index] for index in group]
    work = [primitive.name for primitive in primitives if primitive.traits.role != "view"]
    return "+".join(work or [primitive.name for primitive in primitives])


def shared_regions(primitives: Sequence[Primitive]) -> frozenset[Region]:
    """Regions common to all primitives of an operator, ignoring views and biases that GEMMs add."""
    work = [primitive for primitive in primitives if primitive.traits.role != "view"]
    # A GEMM adds its bias in the epilogue, so a bias outside the region does not split the operator.
    regions = [primitive.regions for primitive in work if primitive.kind != "bias"] or [
        primitive.regions for primitive in work
    ]
    return frozenset.intersection(*regions) if regions else frozenset()


def _operator(
    layer: LayerGraph, group: Group, stashes: tuple[tuple[Stash, ...], ...], bytes_per_element: int
) -> Operator:
    members = [layer.primitives[index] for index in group]
    parts = (
        part for index in group for part in _parts(layer, group, index, stashes[index], bytes_per_element)
    )
    return Operator(
        name=group_name(layer, group),
        parts=tuple(parts),
        input_bytes=sum(t.elements for t in entering(layer, group)) * bytes_per_element,
        parameter_bytes=sum(p.parameters_read for p in members) * bytes_per_element,
        output_bytes=members[-1].elements * bytes_per_element,
        stashed_bytes=sum(stash.nbytes for index in group for stash in stashes[index]),
        attention=any(p.attention for p in members),
        regions=shared_regions(members),
        scores=next((p.scores for p in members if p.scores is not None), None),
    )


def _parts(
    layer: LayerGraph, group: Group, index: int, stashes: tuple[Stash, ...], bytes_per_element: int
) -> tuple[Part, ...]:
    """Parts of one primitive of an operator; the first part carries the primitive's traffic."""
    primitive = layer.primitives[index]
    if primitive.gemm is not None:
        return (product(primitive.gemm, "forward"),)
    if primitive.kind in COLLECTIVES or primitive.kind in GATHERS:
        return collectives(primitive, "forward", bytes_per_element, primitive.kind)
    streamed = _streamed_bytes(layer, group, index, stashes, bytes_per_element)
    return vector_parts(primitive, primitive.traits.forward, "forward", streamed)


def vector_parts(
    primitive: Primitive, keys: tuple[str, ...], role: PartRole, streamed_bytes: int
) -> tuple[Part, ...]:
    """Vector parts of a primitive, one per cycle-table key; passes that only move data have no arithmetic."""
    traits = primitive.traits
    worked_elements = primitive.inputs[0].elements if traits.per_input else primitive.elements
    elements = 0 if role in traits.idle else worked_elements * primitive.times
    return tuple(
        Part(key, role, elements=elements, streamed_bytes=0 if number else streamed_bytes)
        for number, key in enumerate(keys)
    )


def _streamed_bytes(
    layer: LayerGraph, group: Group, index: int, stashes: tuple[Stash, ...], bytes_per_element: int
) -> int:
    """HBM traffic of a vector primitive inside a fused operator, in bytes."""
    primitive = layer.primitives[index]
    tensors = dict.fromkeys(stored(layer, tensor) for tensor in primitive.inputs)
    read = sum(tensor.elements for tensor in tensors if tensor.source not in group)
    read += primitive.traits.rereads * sum(tensor.elements for tensor in primitive.inputs)
    # The stored output that the operator passes on, looking through views.
    leaving = stored(layer, Tensor(group[-1], layer.primitives[group[-1]].elements)).source
    # A GEMM in the operator writes the result: the mapper counts that traffic.
    mapped = any(layer.primitives[i].gemm is not None for i in group)
    written = primitive.elements if index == leaving and not mapped else 0
    inner = sum(s.nbytes for s in stashes if s.piece == MASK or (s.source in group and s.source != leaving))
    return (read + primitive.parameters_read + written) * bytes_per_element + primitive.constant_bytes + inner
