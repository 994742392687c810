"""Which primitives run together as one operator.

The rules are those of Phaze, Section 4 and C.2, and the injective fusion of TVM (Chen et al. 2018).

A primitive joins the operator that makes its input if nobody else reads that input:

- an elementwise primitive or a view joins a matrix multiplication, and what is elementwise or a view,
- a reduction (softmax, norm, loss) joins what is elementwise or a view, but no matrix multiplication,
- nothing joins a reduction or a collective, and a matrix multiplication joins nothing,
- an operator has at most one matrix multiplication.

Only the last primitive of an operator is read from outside. So whatever leaves an operator comes after all
that enters it, and contracting operators leaves the graph acyclic.
"""

from __future__ import annotations

from phaze.extract.primitives import INPUT, LayerGraph

Group = tuple[int, ...]
"""Primitives of one operator, in topological order; the last one makes its output."""


def fuse(layer: LayerGraph, *, enabled: bool = True, products: bool = True) -> tuple[Group, ...]:
    """Return the operators of a layer in topological order; without fusion every primitive is one.

    With `products` false nothing joins a matrix multiplication: the kernels of a library beside those of
    Megatron-LM, which fuse what is elementwise (Narayanan et al., SC 2021, Section 4.2).
    """
    groups: dict[int, set[int]] = {}
    """Last primitive -> its group."""
    readers = layer.readers()
    for index, primitive in enumerate(layer.primitives):
        group = {index}
        # The producer that ran last joins first: its result is the one still at hand.
        for source in sorted({t.source for t in primitive.inputs} - {INPUT}, reverse=True):
            alone = len(readers[source]) == 1
            if enabled and alone and _may_join(layer, index, group, groups[source], products=products):
                group |= groups.pop(source)
        groups[index] = group
    return tuple(tuple(sorted(group)) for _, group in sorted(groups.items()))


def _may_join(layer: LayerGraph, index: int, group: set[int], producer: set[int], *, products: bool) -> bool:
    """Return whether a primitive, with what joined it already, may join the group that makes its input."""
    role = layer.primitives[index].traits.role
    last = layer.primitives[max(producer)].traits.role
    if role in ("matmul", "network") or last in ("reduction", "network"):
        return False
    count = sum(layer.primitives[i].traits.role == "matmul" for i in group | producer)
    return count <= (1 if products and role != "reduction" else 0)
