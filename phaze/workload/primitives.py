"""Primitive operators of one layer, before fusion, and the builder that puts them together.

Every primitive has one output tensor. A tensor that several primitives need passes through a `fork`, whose
backward pass sums the gradients of its readers, so that every operator of the backward pass mirrors one of
the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from phaze.workload.kinds import KINDS, Kind

INPUT = -1
"""Source of what the layer before hands over."""


@dataclass(frozen=True)
class Gemm:
    """A batch of products (m x k)(k x n)."""

    batch: int
    m: int
    k: int
    n: int
    unrolled: int = 0
    """Elements of all (m x k) beyond those in memory, where a convolution unrolls its input on the chip."""

    @property
    def result_elements(self) -> int:
        """Return the elements of the result."""
        return self.batch * self.m * self.n

    def left_gradient(self) -> Gemm:
        """Return the product that gives the gradient of the left operand, (m x n)(n x k)."""
        return Gemm(self.batch, self.m, self.n, self.k, self.unrolled)

    def right_gradient(self) -> Gemm:
        """Return the product that gives the gradient of the right operand, (k x m)(m x n)."""
        return Gemm(self.batch, self.k, self.m, self.n, self.unrolled)


@dataclass(frozen=True)
class Tensor:
    """A tensor that a primitive reads: all of a primitive's output, or a piece of it."""

    source: int
    """Index of the primitive that makes it, or INPUT."""
    elements: int
    piece: int = 0
    """Number of the piece, where several readers get disjoint pieces."""
    gradient: bool = True
    """Whether a gradient flows back along it."""


@dataclass(frozen=True)
class Primitive:
    """One operator before fusion."""

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    elements: int
    """Elements of the output."""
    gemm: Gemm | None = None
    parameters: int = 0
    constant_bytes: int = 0
    """Bytes of indices, masks or tables that are read beside the inputs, in both passes; never stashed."""

    @property
    def traits(self) -> Kind:
        """Return what all primitives of the kind share."""
        return KINDS[self.kind]

    @property
    def parameters_read(self) -> int:
        """Return the parameters that it touches: of an embedding table only the rows it looks up."""
        return min(self.elements, self.parameters) if self.kind == "lookup" else self.parameters


@dataclass(frozen=True)
class LayerGraph:
    """The primitives of a layer in topological order."""

    name: str
    primitives: tuple[Primitive, ...]
    input_elements: int
    """Elements that arrive from the layer before, 0 in the first layer."""
    output_elements: int
    """Elements handed to the layer after it, 0 in the last layer."""

    def readers(self) -> list[list[tuple[int, Tensor]]]:
        """Return for every primitive who reads its output, and what of it."""
        return self._readers

    @cached_property
    def _readers(self) -> list[list[tuple[int, Tensor]]]:
        found: list[list[tuple[int, Tensor]]] = [[] for _ in self.primitives]
        for reader, primitive in enumerate(self.primitives):
            for tensor in primitive.inputs:
                if tensor.source != INPUT:
                    found[tensor.source].append((reader, tensor))
        return found


class LayerBuilder:
    """Collects the primitives of a layer in topological order."""

    def __init__(self, input_elements: int = 0) -> None:
        self._primitives: list[Primitive] = []
        self._input_elements = input_elements

    @property
    def input(self) -> Tensor:
        """Return the tensor that the layer before hands over."""
        return Tensor(INPUT, self._input_elements)

    def add(
        self,
        kind: str,
        name: str,
        *inputs: Tensor,
        elements: int | None = None,
        gemm: Gemm | None = None,
        parameters: int = 0,
        constant_bytes: int = 0,
    ) -> Tensor:
        """Append a primitive and return its output, by default of the size of its first input."""
        size = inputs[0].elements if elements is None else elements
        self._primitives.append(Primitive(name, kind, inputs, size, gemm, parameters, constant_bytes))
        return Tensor(len(self._primitives) - 1, size)

    def dense(self, name: str, x: Tensor, tokens: int, wide: int, *, bias: bool) -> Tensor:
        """Append a matrix multiplication with a weight, (tokens x k)(k x wide), and its bias."""
        gemm = Gemm(1, tokens, x.elements // tokens, wide)
        y = self.add("matmul", name, x, elements=tokens * wide, gemm=gemm, parameters=gemm.k * wide)
        return self.bias(name, y, wide) if bias else y

    def bias(self, name: str, x: Tensor, wide: int) -> Tensor:
        """Append the addition of a bias."""
        return self.add("bias", f"{name}_bias", x, parameters=wide)

    def dropout(self, name: str, x: Tensor, share: float) -> Tensor:
        """Append a dropout, unless it drops nothing."""
        return self.add("dropout", f"{name}_dropout", x) if share else x

    def finish(self, name: str, output_elements: int) -> LayerGraph:
        """Return the layer, with a fork after every tensor that several primitives need."""
        return with_forks(LayerGraph(name, tuple(self._primitives), self._input_elements, output_elements))


def with_forks(layer: LayerGraph) -> LayerGraph:
    """Return the layer with a fork behind every tensor that gets more than one gradient back."""
    forked = _forked(layer)
    made: list[Primitive] = []
    place: dict[int, int] = {}
    """Old index -> new index of what to read instead: the primitive or its fork."""
    if INPUT in forked:
        made.append(
            Primitive("input_fork", "fork", (Tensor(INPUT, layer.input_elements),), layer.input_elements)
        )
        place[INPUT] = 0
    for index, primitive in enumerate(layer.primitives):
        inputs = tuple(replace(x, source=place.get(x.source, x.source)) for x in primitive.inputs)
        made.append(replace(primitive, inputs=inputs))
        place[index] = len(made) - 1
        if index in forked:
            whole = (Tensor(place[index], primitive.elements),)
            made.append(Primitive(f"{primitive.name}_fork", "fork", whole, primitive.elements))
            place[index] = len(made) - 1
    return replace(layer, primitives=tuple(made))


def _forked(layer: LayerGraph) -> set[int]:
    """Return whose output several primitives read as a whole and send a gradient back to."""
    count: dict[int, int] = {}
    for primitive in layer.primitives:
        for tensor in primitive.inputs:
            shares = tensor.source != INPUT and layer.primitives[tensor.source].kind in ("split", "fork")
            count[tensor.source] = count.get(tensor.source, 0) + (tensor.gradient and not shares)
    return {source for source, readers in count.items() if readers > 1}
