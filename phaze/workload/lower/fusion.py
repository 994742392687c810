"""Which primitives run together as one operator.

The rules are those of Phaze, Section 4 and C.2, and the injective fusion of TVM (Chen et al. 2018; what is
elementwise behind a softmax in its pull request 8909).

A primitive joins the operator that makes its input if nobody else reads that input:

- an elementwise primitive or a view joins a matrix multiplication, and what is elementwise or a view,
- a reduction (softmax, norm, loss) joins what is elementwise or a view, but no matrix multiplication,
- what is elementwise joins a reduction, whose last pass is elementwise as well (the dropout of attention its
  softmax), if `after_reductions` says so; nothing else does, and nothing joins a collective,
- a matrix multiplication joins nothing,
- an operator has at most one matrix multiplication or reduction.

Only the last primitive of an operator is read from outside. So whatever leaves an operator comes after all
that enters it, and contracting operators leaves the graph acyclic.
"""

from __future__ import annotations

from phaze.workload.primitives import INPUT, LayerGraph

Group = tuple[int, ...]
"""Primitives of one operator, in topological order; the last one makes its output."""


def fuse(
    layer: LayerGraph, *, enabled: bool = True, products: bool = True, after_reductions: bool = False
) -> tuple[Group, ...]:
    """Operators of a layer in topological order; without fusion every primitive is one.

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
            joined = group | groups[source] if enabled and alone else set()
            if joined and _may_join(
                layer,
                index,
                joined,
                max(groups[source]),
                products=products,
                after_reductions=after_reductions,
            ):
                group = joined
                groups.pop(source)
        groups[index] = group
    return tuple(tuple(sorted(group)) for _, group in sorted(groups.items()))


def _may_join(
    layer: LayerGraph, index: int, joined: set[int], source: int, *, products: bool, after_reductions: bool
) -> bool:
    """Whether a primitive, with what joined it, may join the group that ends with its source."""
    role, last = (layer.primitives[i].traits.role for i in (index, source))
    if role in ("matmul", "network") or last == "network":
        return False
    if last == "reduction" and not (after_reductions and role == "injective"):
        return False
    roles = [layer.primitives[i].traits.role for i in joined]
    reductions = roles.count("reduction")
    return reductions <= 1 and roles.count("matmul") <= (1 if products and not reductions else 0)
