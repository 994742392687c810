"""Tensors that the forward pass stores for the backward pass, each counted once.

Matrix multiplications store the operands needed for gradients, norms, GELU and SiLU their input, softmax and
ReLU their output, a product both factors, and dropout a mask of one byte per element. Sums, scaling, masks
and rotary embedding store nothing. A view counts as the tensor behind it. This is the accounting of
Korthikanti et al. (MLSys 2023, Section 4). Its closed form for a GPT block on one tensor-parallel rank,
sbh(10 + 24/t + 5as/(ht)) bytes, follows exactly. As there, the two values per row that a norm or softmax
stores are left out, and so are token ids and labels, which are input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phaze.layout import OffloadedModule
from phaze.workload.kinds import GATHERS
from phaze.workload.primitives import INPUT, LayerGraph, Primitive, Region, Tensor

MASK = -2
"""Piece number that marks a stash as a dropout mask instead of a tensor."""
WIDE: frozenset[Region] = frozenset({"scan", "router", "logits"})
"""Regions whose GEMMs no recipe runs in a lower precision.

Routers and heads are not Transformer Engine layers (Megatron-Core, `TopKRouter`,
`MultiTokenPredictionLayer`), and scans are kernels of their own.
"""
OUTPUTS: frozenset[Region] = frozenset({"layernorm", "moe_act", "mla_up_proj"})
"""Modules that also recompute their output (Megatron-Core, `CheckpointWithoutOutput`)."""
GATED = ("silu", "gelu")
"""Activation functions that may multiply the result of another GEMM, as gates."""
SINGLE = 4
"""Bytes per row statistic, in single precision."""


@dataclass(frozen=True)
class Stash:
    """Tensor or mask that the forward pass stores for the backward pass."""

    source: int
    """Index of the primitive that produces the tensor, or INPUT."""
    piece: int
    elements: int
    nbytes: int


@dataclass(frozen=True)
class StoredTensor:
    """Stored tensor: its bytes, and the regions whose recomputation frees it."""

    nbytes: int
    regions: frozenset[Region]
    keepers: tuple[frozenset[Region], ...] = ()
    """Regions of every primitive that stores the tensor; it can be offloaded if all of them allow it."""
    operand: bool = False
    """True if only GEMMs with weights store the tensor, in the precision in which they compute."""

    def is_offloaded_with(self, modules: frozenset[OffloadedModule]) -> bool:
        """True if offloading the inputs of `modules` to host memory offloads this tensor."""
        return bool(self.keepers) and all(regions & modules for regions in self.keepers)


def stored(layer: LayerGraph, tensor: Tensor) -> Tensor:
    """Tensor in memory to which a tensor refers, found by looking through views."""
    while tensor.source != INPUT:
        view = layer.primitives[tensor.source]
        # Only a rank's own shard of a gathered tensor is stored; the backward pass gathers it again.
        gathered = view.kind in GATHERS
        is_alias = view.traits.role == "view" or view.kind == "copy"
        if not gathered and not (is_alias and tensor.elements == view.inputs[0].elements):
            break
        tensor = view.inputs[0]
    return tensor


def stashes(layer: LayerGraph, index: int, bytes_per_element: int) -> tuple[Stash, ...]:
    """Tensors and masks that the backward pass of one primitive needs, even if it shares them with others."""
    primitive = layer.primitives[index]
    if primitive.frozen and primitive.gemm is not None:
        return ()  # the input gradient needs the weights only
    if primitive.traits.keeps == "mask":
        return (Stash(index, MASK, primitive.elements, primitive.elements),)
    operands = primitive.inputs if primitive.traits.keeps == "inputs" else ()
    if primitive.traits.keeps == "output":
        operands = (Tensor(index, primitive.elements),)
    tensors = (stored(layer, tensor) for tensor in operands)
    return tuple(Stash(t.source, t.piece, t.elements, t.elements * bytes_per_element) for t in tensors)


def first_stashes(layer: LayerGraph, bytes_per_element: int) -> tuple[tuple[Stash, ...], ...]:
    """Tensors that every primitive stores for the backward pass, except those already stored by another."""
    seen: set[Stash] = set()
    first = []
    for index in range(len(layer.primitives)):
        new = tuple(dict.fromkeys(s for s in stashes(layer, index, bytes_per_element) if s not in seen))
        seen.update(new)
        first.append(new)
    return tuple(first)


def kept_tensors(layer: LayerGraph, bytes_per_element: int) -> tuple[StoredTensor, ...]:
    """Tensors that a layer stores for the backward pass, each listed once."""
    keepers: dict[Stash, list[Primitive]] = {}
    for index, primitive in enumerate(layer.primitives):
        for stash in stashes(layer, index, bytes_per_element):
            keepers.setdefault(stash, []).append(primitive)
    tensors = [
        StoredTensor(
            stash.nbytes,
            _freeing(layer, stash),
            tuple(p.regions for p in primitives),
            all(p.kind == "matmul" and p.parameters and not p.regions & WIDE for p in primitives),
        )
        for stash, primitives in keepers.items()
    ]
    tensors += [
        StoredTensor(p.kept_bytes, p.regions - OUTPUTS, (p.regions,))
        for p in layer.primitives
        if p.kept_bytes
    ]
    return tuple(tensors)


def statistics_bytes(layer: LayerGraph) -> int:
    """Bytes of the statistics that fused norm kernels store, one or two values per row."""
    norms = ((p.traits.statistics, p.elements, p.parameters) for p in layer.primitives)
    # A norm has as many parameter vectors as statistics (layer norm two, RMS norm one), so its width is
    # parameters / statistics.
    return SINGLE * sum(
        values * (elements * values // scales) for values, elements, scales in norms if values
    )


def _freeing(layer: LayerGraph, stash: Stash) -> frozenset[Region]:
    """Regions whose recomputation frees a tensor: they contain it and its readers, or recompute it."""
    if stash.source == INPUT:
        return frozenset()
    source = layer.primitives[stash.source]
    readers = list(_readers(layer, stash.source))
    # A reader outside the recomputed region still needs the tensor to be stored.
    inside = frozenset.intersection(source.regions, *(reader.regions for reader in readers))
    # A fused gate recomputes the activation from its input, provided that nothing else reads the result.
    gate = source.kind in GATED and {reader.kind for reader in readers} == {"mul"}
    return inside | source.regions & OUTPUTS | (frozenset({"gate"}) if gate else frozenset())


def _readers(layer: LayerGraph, source: int) -> Iterator[Primitive]:
    """Yield the primitives that read a tensor, directly or through views."""
    for index, _ in layer.readers[source]:
        primitive = layer.primitives[index]
        if primitive.traits.role == "view":
            yield from _readers(layer, index)
        else:
            yield primitive
