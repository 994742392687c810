"""Fusion of primitives into operators.

The rules follow Phaze, Section 4 and C.2, and the injective fusion of TVM (Chen et al. 2018; elementwise
operations after a softmax in its pull request 8909).

A primitive joins the operator that makes its input if that input has no other reader:

- an elementwise primitive or a view joins a matrix multiplication, an elementwise primitive or a view,
- a reduction (softmax, norm, loss) joins elementwise primitives and views, but no matrix multiplication,
- an elementwise primitive joins a reduction, whose last pass is elementwise too (the dropout of attention its
  softmax), if `after_reductions`; nothing else joins a reduction, and nothing joins a collective,
- a matrix multiplication joins nothing,
- an operator has at most one matrix multiplication or reduction.

Only the last primitive of an operator is read from outside. Its output therefore comes after all its inputs,
and contracting operators leaves the graph acyclic.
"""

from __future__ import annotations

from phaze.workload.primitives import INPUT, LayerGraph

Group = tuple[int, ...]
"""Primitives fused into one operator, in topological order; the last one produces its output."""


def fuse(
    layer: LayerGraph, *, enabled: bool = True, products: bool = True, after_reductions: bool = False
) -> tuple[Group, ...]:
    """Fuse a layer's primitives into operators, in topological order; one per primitive if disabled.

    If `products` is false, nothing joins a matrix multiplication. That is the case of library products next
    to the fused elementwise kernels of Megatron-LM (Narayanan et al., SC 2021, Section 4.2).
    """
    groups: dict[int, set[int]] = {}
    """Maps the last primitive of a group to all primitives of the group."""
    for index, primitive in enumerate(layer.primitives):
        group = {index}
        # The latest producer joins first: its result is the most recent.
        for source in sorted({t.source for t in primitive.inputs} - {INPUT}, reverse=True):
            alone = enabled and len(layer.readers[source]) == 1
            joined = group | groups[source]
            if alone and _may_join(
                layer, index, joined, source, products=products, after_reductions=after_reductions
            ):
                group |= groups.pop(source)
        groups[index] = group
    return tuple(tuple(sorted(group)) for _, group in sorted(groups.items()))


def _may_join(
    layer: LayerGraph, index: int, joined: set[int], source: int, *, products: bool, after_reductions: bool
) -> bool:
    """True if a primitive may be fused into the group that ends with the primitive `source`."""
    role, last = (layer.primitives[i].traits.role for i in (index, source))
    if role in ("matmul", "network") or last == "network":
        return False
    # The last pass of a reduction is elementwise, so only elementwise primitives can follow it in a kernel.
    if last == "reduction" and not (after_reductions and role == "injective"):
        return False
    roles = [layer.primitives[i].traits.role for i in joined]
    reductions = roles.count("reduction")
    return reductions <= 1 and roles.count("matmul") <= (1 if products and not reductions else 0)
