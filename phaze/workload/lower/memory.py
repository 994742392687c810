"""What the forward pass keeps for the backward pass, each tensor once.

Matrix multiplications keep the operands whose product gives a gradient, norms and GELU or SiLU their input,
softmax and ReLU their output, a product both factors, dropout a mask of one byte an element; sums, scaling,
masks and rotary embedding keep nothing. Views are the tensor that they show. This is the accounting of
Korthikanti et al. (MLSys 2023, Section 4), whose closed form for a GPT block of one slice, sbh(10 + 24/t +
5as/(ht)) bytes, follows exactly. As there, the two numbers a row that a norm or softmax keeps are left out,
and so are token ids and labels, which are input.
"""

from __future__ import annotations

from dataclasses import dataclass

from phaze.workload.primitives import INPUT, LayerGraph, Primitive, Tensor

MASK = -2
"""Piece of a stash that is a dropout mask, not a tensor."""


@dataclass(frozen=True)
class Stash:
    """A tensor, or mask, kept from the forward to the backward pass."""

    source: int
    """The primitive that makes it, or INPUT."""
    piece: int
    elements: int
    nbytes: int


def stored(layer: LayerGraph, tensor: Tensor) -> Tensor:
    """Tensor behind any views: what really lies in memory."""
    while tensor.source != INPUT:
        view = layer.primitives[tensor.source]
        # Of a gathered tensor only the slice's own share is kept; the backward pass gathers it again.
        gathered = view.kind == "all_gather"
        is_alias = view.traits.role == "view" or view.kind == "copy"
        if not gathered and not (is_alias and tensor.elements == view.inputs[0].elements):
            break
        tensor = view.inputs[0]
    return tensor


def stashes(layer: LayerGraph, index: int, bytes_per_element: int) -> tuple[Stash, ...]:
    """Tensors and masks that the backward pass of one primitive needs, whoever else needs them, too."""
    primitive = layer.primitives[index]
    if primitive.traits.keeps == "mask":
        return (Stash(index, MASK, primitive.elements, primitive.elements),)
    kept = (stored(layer, tensor) for tensor in _kept(primitive, index))
    return tuple(Stash(t.source, t.piece, t.elements, t.elements * bytes_per_element) for t in kept)


def _kept(primitive: Primitive, index: int) -> tuple[Tensor, ...]:
    keeps = primitive.traits.keeps
    if keeps == "output":
        return (Tensor(index, primitive.elements),)
    return primitive.inputs if keeps == "inputs" else ()


def first_stashes(layer: LayerGraph, bytes_per_element: int) -> tuple[tuple[Stash, ...], ...]:
    """For every primitive the stashes that no primitive before it has asked for."""
    seen: set[Stash] = set()
    found = []
    for index in range(len(layer.primitives)):
        new = tuple(dict.fromkeys(s for s in stashes(layer, index, bytes_per_element) if s not in seen))
        seen.update(new)
        found.append(new)
    return tuple(found)
