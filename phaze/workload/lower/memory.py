"""What the forward pass keeps for the backward pass, each tensor once.

Matrix multiplications keep the operands whose product gives a gradient, norms and GELU or SiLU their input,
softmax and ReLU their output, a product both factors, dropout a mask of one byte an element; sums, scaling,
masks and rotary embedding keep nothing. Views are the tensor that they show. This is the accounting of
Korthikanti et al. (MLSys 2023, Section 4), whose closed form for a GPT block of one slice, sbh(10 + 24/t +
5as/(ht)) bytes, follows exactly. As there, the two numbers a row that a norm or softmax keeps are left out,
and so are token ids and labels, which are input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phaze.layout import OffloadedModule
from phaze.workload.kinds import GATHERS
from phaze.workload.primitives import INPUT, LayerGraph, Primitive, Region, Tensor

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


@dataclass(frozen=True)
class Kept:
    """Bytes of a tensor that the forward pass keeps, and what frees them by running forward again."""

    nbytes: int
    regions: frozenset[Region]
    keepers: tuple[frozenset[Region], ...] = ()
    """Regions of every primitive that keeps it: it can wait elsewhere where all of them let it."""
    operand: bool = False
    """Whether only products with weights keep it, in the precision in which they multiply."""

    def waits(self, modules: frozenset[OffloadedModule]) -> bool:
        """Whether it waits in the host's memory where inputs of these modules do."""
        return bool(self.keepers) and all(own & modules for own in self.keepers)


WIDE: frozenset[Region] = frozenset({"scan", "router", "logits"})
"""Products that no recipe brings to a lower precision: routers and heads are no layers of Transformer Engine
(Megatron-Core, `TopKRouter`, `MultiTokenPredictionLayer`), and scans are kernels of their own."""
OUTPUTS: frozenset[Region] = frozenset({"layernorm", "moe_act", "mla_up_proj"})
"""Modules that also make again what they hand on (Megatron-Core, `CheckpointWithoutOutput`)."""
GATED = ("silu", "gelu")
"""Kinds of activations that multiply another product's result."""
SINGLE = 4
"""Bytes of a statistic."""


def stored(layer: LayerGraph, tensor: Tensor) -> Tensor:
    """Tensor behind any views: what really lies in memory."""
    while tensor.source != INPUT:
        view = layer.primitives[tensor.source]
        # Of a gathered tensor only the slice's own share is kept; the backward pass gathers it again.
        gathered = view.kind in GATHERS
        is_alias = view.traits.role == "view" or view.kind == "copy"
        if not gathered and not (is_alias and tensor.elements == view.inputs[0].elements):
            break
        tensor = view.inputs[0]
    return tensor


def stashes(layer: LayerGraph, index: int, bytes_per_element: int) -> tuple[Stash, ...]:
    """Tensors and masks that the backward pass of one primitive needs, whoever else needs them, too."""
    primitive = layer.primitives[index]
    if primitive.frozen and primitive.gemm is not None:
        return ()  # the gradient of its input needs the weights alone
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


def kept_tensors(layer: LayerGraph, bytes_per_element: int) -> tuple[Kept, ...]:
    """What a layer keeps, each tensor once."""
    keepers: dict[Stash, list[Primitive]] = {}
    for index, primitive in enumerate(layer.primitives):
        for stash in stashes(layer, index, bytes_per_element):
            keepers.setdefault(stash, []).append(primitive)
    found = [
        Kept(
            stash.nbytes,
            _freeing(layer, stash),
            tuple(one.regions for one in own),
            all(one.kind == "matmul" and one.parameters and not one.regions & WIDE for one in own),
        )
        for stash, own in keepers.items()
    ]
    beside = (one for one in layer.primitives if one.kept_bytes)
    found += [Kept(one.kept_bytes, one.regions - OUTPUTS, (one.regions,)) for one in beside]
    return tuple(found)


def statistics_bytes(layer: LayerGraph) -> int:
    """Bytes of the statistics that fused kernels of norms keep, one or two numbers a row."""
    found = ((p.traits.statistics, p.elements, p.parameters) for p in layer.primitives)
    return SINGLE * sum(each * (elements * each // scales) for each, elements, scales in found if each)


def _freeing(layer: LayerGraph, stash: Stash) -> frozenset[Region]:
    """Regions that make a tensor again: those it is made in, unless it is only handed on."""
    if stash.source == INPUT:
        return frozenset()
    source = layer.primitives[stash.source]
    readers = list(_readers(layer, stash.source))
    inside = frozenset.intersection(source.regions, *(reader.regions for reader in readers))
    gate = source.kind in GATED and {reader.kind for reader in readers} == {"mul"}
    return inside | source.regions & OUTPUTS | (frozenset({"gate"}) if gate else frozenset())


def _readers(layer: LayerGraph, source: int) -> Iterator[Primitive]:
    """Who reads a tensor, behind any views."""
    for index, _ in layer.readers()[source]:
        primitive = layer.primitives[index]
        if primitive.traits.role == "view":
            yield from _readers(layer, index)
        else:
            yield primitive
