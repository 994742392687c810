"""Backward pass of a layer, on the reversed graph of its forward operators.

`paired`: one operator per forward operator computes the gradients of its inputs and of its parameters. It
runs the primitives of the forward operator in reverse, a matrix multiplication as two. `split`: gradients of
inputs and of parameters are separate operators; the latter are leaves that nothing depends on.

The arriving gradient is counted as the operand of the first matrix multiplication that follows, so its read
is counted there. A gradient made inside an operator is written to HBM if another operator or a second matrix
multiplication needs it. A norm computes the gradients of its input and of its parameters in one pass over the
data in `paired`, and in two passes in `split`. The traffic of accumulating gradients over microbatches is not
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from phaze.workload.kinds import BACKWARD, GATHERS
from phaze.workload.lower.forward import entering, group_edges, group_name, shared_regions, vector_parts
from phaze.workload.lower.fusion import Group
from phaze.workload.lower.memory import Stash, stashes
from phaze.workload.operators import Edge, LayerPass, Operator, Part, collectives, product
from phaze.workload.primitives import INPUT, LayerGraph, Primitive

Form = Literal["paired", "split", "data"]
"""Backward form: one operator per forward operator, data and weight gradients split, or data gradients only.
"""
Gradients = Literal["both", "data", "weight"]
"""Gradients that an operator computes: of inputs and parameters, of inputs only, or of parameters only."""

OUTSIDE = -1
"""Value of `Gradient.maker` for a gradient that arrives from another operator."""

_BY_ENDS = attrgetter("source", "target")
_SUFFIX: dict[Gradients, str] = {"both": "backward", "data": "data_gradient", "weight": "weight_gradient"}


@dataclass(frozen=True)
class Gradient:
    """Gradient inside a fused operator, with the primitive that computes it."""

    maker: int
    """Primitive whose backward pass computes the gradient, or OUTSIDE."""
    slot: int
    """Index of the maker's input to which the gradient belongs."""
    elements: int


def backward_pass(
    layer: LayerGraph, groups: tuple[Group, ...], bytes_per_element: int, form: Form
) -> LayerPass:
    """Build the backward pass of a layer from its fused forward operators."""
    kept = [stashes(layer, index, bytes_per_element) for index in range(len(layer.primitives))]
    builders = [_BackwardBuilder(layer, group, bytes_per_element, form, kept) for group in reversed(groups)]
    last = len(groups) - 1
    forward = group_edges(layer, groups, bytes_per_element)
    # Gradients flow against the tensors, and operators run in reverse: index i becomes last - i.
    edges = tuple(Edge(last - e.target, last - e.source, e.nbytes) for e in forward)
    if form == "split":
        return _split_graph(builders, edges)
    gradients: Gradients = "data" if form == "data" else "both"
    return LayerPass(tuple(m.operator(gradients) for m in builders), tuple(sorted(edges, key=_BY_ENDS)))


def _split_graph(builders: list[_BackwardBuilder], edges: tuple[Edge, ...]) -> LayerPass:
    """Backward pass with a separate leaf operator for each operator's parameter gradients."""
    operators: list[Operator] = []
    data: dict[int, int] = {}
    weight: dict[int, int] = {}
    for number, builder in enumerate(builders):
        for gradients in builder.operators():
            (weight if gradients == "weight" else data)[number] = len(operators)
            operators.append(builder.operator(gradients))
    split_edges = [
        Edge(data[e.source], (data if e.target in data else weight)[e.target], e.nbytes) for e in edges
    ]
    for number in weight.keys() & data.keys():
        inner = builders[number].inner_weight_bytes()
        # Gradients made inside the data operator reach the leaf from there, all others from their sources.
        if inner:
            split_edges.append(Edge(data[number], weight[number], inner))
        else:
            split_edges += [
                Edge(data[e.source], weight[number], e.nbytes) for e in edges if e.target == number
            ]
    return LayerPass(tuple(operators), tuple(sorted(split_edges, key=_BY_ENDS)))


class _BackwardBuilder:
    """Builder of the backward operators of one forward operator."""

    def __init__(
        self,
        layer: LayerGraph,
        group: Group,
        bytes_per_element: int,
        form: Form,
        kept: Sequence[tuple[Stash, ...]],
    ) -> None:
        self._layer = layer
        self._kept = kept
        self._group = group
        self._width = bytes_per_element
        self._form = form
        self._arriving, self._sent = _trace(layer, group)
        self._written = self._in_memory()

    def operators(self) -> tuple[Gradients, ...]:
        """Kinds of operators that the split form needs: for data gradients, weight gradients, or both."""
        weight = any(self._primitive(i).parameters for i in self._group)
        data = any(self._keys(i, "data") or self._products(i, "data") for i in self._group)
        sends = any(tensor.gradient for tensor in entering(self._layer, self._group))
        # An operator without input gradients is still needed if it is the only one.
        kinds: list[Gradients] = ["data"] if data or sends or not weight else []
        return (*kinds, "weight") if weight else tuple(kinds)

    def operator(self, gradients: Gradients) -> Operator:
        """Build the operator that computes the given gradients."""
        order = self._group[::-1]
        read: set[Stash] = set()
        parts = [part for index in order for part in self._parts(index, gradients, read)]
        read_stashes = {s for index in order for s in self._stashes(index, gradients)}
        arriving = self._arriving_bytes() if gradients != "weight" else self._weight_bytes(with_operand=True)
        return Operator(
            name=f"{group_name(self._layer, self._group)}.{_SUFFIX[gradients]}",
            parts=tuple(parts),
            input_bytes=arriving + sum(s.nbytes for s in read_stashes),
            parameter_bytes=self._width * sum(self._scales(i) for i in order) if gradients != "weight" else 0,
            output_bytes=self._output_bytes(gradients),
            attention=any(self._primitive(i).attention for i in order),
            regions=shared_regions([self._primitive(i) for i in order]),
        )

    def inner_weight_bytes(self) -> int:
        """Bytes that the weight-gradient operator reads from the data-gradient operator; 0 if none."""
        needed = {self._arriving[i] for i in self._group if self._primitive(i).parameters}
        return self._width * sum(g.elements for g in needed if g.maker != OUTSIDE)

    def _primitive(self, index: int) -> Primitive:
        return self._layer.primitives[index]

    def _parts(self, index: int, gradients: Gradients, read: set[Stash]) -> tuple[Part, ...]:
        """Backward parts of one primitive; `read` collects the stashes that the operator has already read."""
        primitive = self._primitive(index)
        gradients = _trained(primitive, gradients)
        if primitive.kind in BACKWARD:
            # Regathering over tp overlaps with a product; regathering keys and values over cp is exposed.
            regathers = primitive.axis in ("cp", "cp-ring") and primitive.kind in GATHERS
            kinds = (BACKWARD[primitive.kind], *[primitive.kind] * regathers)
            return tuple(
                part for kind in kinds for part in collectives(primitive, "backward", self._width, kind)
            )
        keys = self._keys(index, gradients)
        if not keys:
            return self._products(index, gradients)
        # Primitives of one operator share a stash on chip, so only the first reads it from HBM.
        fresh = set(self._stashes(index, gradients)) - read
        read |= fresh
        streamed = sum(s.nbytes for s in fresh) + primitive.constant_bytes
        streamed += self._parameter_traffic(index, gradients)
        elements = primitive.elements + sum(tensor.elements for tensor in primitive.inputs)
        streamed += self._width * primitive.traits.rereads * elements
        if gradients == "weight":
            streamed += self._weight_bytes(with_operand=False) if index == self._first(gradients) else 0
        else:
            streamed += self._width * sum(g.elements for g in self._written if g.maker == index)
            streamed += self._unmapped_arriving_bytes() if index == self._first(gradients) else 0
        return vector_parts(primitive, keys, "backward", streamed)

    def _keys(self, index: int, gradients: Gradients) -> tuple[str, ...]:
        primitive = self._primitive(index)
        keys = primitive.traits.backward
        # The sum of n gradients takes n - 1 additions.
        if primitive.kind == "fork" and gradients != "weight":
            return ("add",) * (len(self._layer.readers[index]) - 1)
        if primitive.gemm is not None or not primitive.parameters or gradients == "both":
            return keys if gradients != "weight" else ()
        # Split form: a norm sums its parameter gradients over the rows in an operator of its own. The input
        # gradient of a bias or a lookup is no work, so its only operator is that of the parameters.
        if primitive.traits.role == "reduction":
            return keys if gradients == "data" else ("add",)
        return keys if gradients == "weight" else ()

    def _products(self, index: int, gradients: Gradients) -> tuple[Part, ...]:
        primitive = self._primitive(index)
        if primitive.gemm is None:
            return ()
        left_part = product(primitive.gemm.left_gradient(), "data_gradient")
        if not primitive.parameters:
            # Both operands are activations, as in attention.
            right_part = product(primitive.gemm.right_gradient(), "data_gradient")
            return (left_part, right_part) if gradients != "weight" else ()
        right_part = product(primitive.gemm.right_gradient(), "weight_gradient")
        # The pixels that the first layer of a model of images reads need no gradient.
        sends = gradients != "weight" and primitive.inputs[0].gradient
        return (left_part,) * sends + (right_part,) * (gradients != "data")

    def _stashes(self, index: int, gradients: Gradients) -> tuple[Stash, ...]:
        """Stashes that one primitive reads; a GEMM with weights needs them only for the weight gradient."""
        primitive = self._primitive(index)
        gradients = _trained(primitive, gradients)
        # The input gradient of a GEMM needs its weights and the arriving gradient, not the stored input.
        weights = primitive.parameters > 0
        needs = {"both": True, "data": not weights or primitive.gemm is None, "weight": weights}[gradients]
        return self._kept[index] if needs else ()

    def _scales(self, index: int) -> int:
        """Number of parameters that the primitive reads to compute its input gradients."""
        primitive = self._primitive(index)
        return 0 if primitive.kind in ("bias", "lookup") else primitive.parameters

    def _parameter_traffic(self, index: int, gradients: Gradients) -> int:
        """Bytes of a norm's scale and of parameter gradients; embedding rows are both read and written."""
        primitive = self._primitive(index)
        scale = self._scales(index) if gradients != "weight" else 0
        times = {"lookup": 2}.get(primitive.kind, 1)
        written = primitive.parameters_read * times if gradients != "data" else 0
        return self._width * (scale + written)

    def _first(self, gradients: Gradients) -> int:
        """First primitive in backward order that performs any vector operation."""
        return next(i for i in self._group[::-1] if self._keys(i, _trained(self._primitive(i), gradients)))

    def _arriving_bytes(self) -> int:
        last = self._group[-1]
        readers = self._layer.readers[last]
        if not readers:
            return self._primitive(last).elements * self._width
        return sum(tensor.elements for _, tensor in readers if tensor.gradient) * self._width

    def _unmapped_arriving_bytes(self) -> int:
        """Bytes of arriving gradients that are not counted as the operand of a matrix multiplication."""
        operand = sum(p.gemm.result_elements for p in map(self._primitive, self._group) if p.gemm is not None)
        return max(0, self._arriving_bytes() - operand * self._width)

    def _weight_bytes(self, *, with_operand: bool) -> int:
        """Bytes that the weight-gradient operator reads, with or without the operands of its GEMMs."""
        weighted = [i for i in self._group if self._primitive(i).parameters]
        operands = {self._arriving[i] for i in weighted if self._primitive(i).gemm is not None}
        needed = {self._arriving[i] for i in weighted} - (set() if with_operand else operands)
        return self._width * sum(g.elements for g in needed)

    def _output_bytes(self, gradients: Gradients) -> int:
        sent = sum(t.elements for t in entering(self._layer, self._group) if t.gradient)
        weights = sum(p.parameters_read for p in map(self._primitive, self._group) if not p.frozen)
        return self._width * {"both": sent + weights, "data": sent, "weight": weights}[gradients]

    def _in_memory(self) -> set[Gradient]:
        """Gradients that pass through HBM: another operator or a second matrix multiplication reads them."""
        needed = {
            gradient
            for (index, slot), gradient in self._sent.items()
            if (tensor := self._primitive(index).inputs[slot]).gradient and tensor.source not in self._group
        }
        for index in self._group:
            # A leaf of the split form runs apart from its data operator and reads the gradient from HBM.
            leaf = self._form == "split" and self._primitive(index).parameters
            if leaf or self._primitive(index).gemm is not None:
                needed.add(self._arriving[index])
        return needed


def _trained(primitive: Primitive, gradients: Gradients) -> Gradients:
    """Gradients that a primitive computes: of its inputs only, if its parameters are frozen."""
    return "data" if primitive.frozen and gradients == "both" else gradients


def _trace(layer: LayerGraph, group: Group) -> tuple[dict[int, Gradient], dict[tuple[int, int], Gradient]]:
    """Incoming gradient of every primitive of an operator, and the gradient sent to each of its inputs."""
    arriving: dict[int, Gradient] = {}
    sent: dict[tuple[int, int], Gradient] = {}
    passed_to: dict[int, Gradient] = {}
    for index in reversed(group):
        primitive = layer.primitives[index]
        arriving[index] = passed_to.get(index, Gradient(OUTSIDE, 0, primitive.elements))
        # A fork adds gradients of several readers, so what it sends is new.
        passes = primitive.traits.passes_gradient and primitive.kind != "fork"
        for slot, tensor in enumerate(primitive.inputs):
            sent[index, slot] = arriving[index] if passes else Gradient(index, slot, tensor.elements)
            if tensor.source != INPUT:
                passed_to[tensor.source] = sent[index, slot]
    return arriving, sent
