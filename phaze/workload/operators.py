"""Operators as they are scheduled: their parts, and the data they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from phaze.spec.rows import Gemm, OperatorBytes, PartRole, PartSizes
from phaze.workload.kinds import COLLECTIVES, PRODUCTS
from phaze.workload.primitives import Primitive, Region, Scores


@dataclass(frozen=True, order=True)
class Part(PartSizes):
    """One matrix multiplication, vector operation or collective inside an operator."""

    @property
    def tensor_flops(self) -> int:
        """FLOPs of a matrix multiplication, 0 for other parts."""
        return 2 * self.batch * self.m * self.k * self.n

    @property
    def vector_flops(self) -> int:
        """FLOPs of a vector operation, one per output element; 0 for other parts."""
        return 0 if self.kind in (*PRODUCTS, *COLLECTIVES) else self.elements


def product(gemm: Gemm, role: PartRole) -> Part:
    """Build the part that describes a matrix multiplication."""
    return Part("matmul", role, gemm.batch, gemm.m, gemm.k, gemm.n, unrolled=gemm.unrolled)


def collectives(primitive: Primitive, role: PartRole, bytes_per_element: int, kind: str) -> tuple[Part, ...]:
    """Parts for a collective in one pass: a single part, or one per step for a ring.

    Data is read from HBM and written back there.
    """
    input_elements = primitive.inputs[0].elements
    # The whole tensor counts: the input of a reduce-scatter, or the output of an all-gather.
    elements = input_elements if kind == "ring" else max(primitive.elements, input_elements)
    size = elements * bytes_per_element
    part = Part(
        "send" if kind == "ring" else kind,
        role,
        elements=elements,
        streamed_bytes=2 * size,
        network_bytes=size,
        axis=primitive.axis,
    )
    # In a ring of r ranks every rank passes on r - 1 parts, one per step.
    return (part,) * (primitive.elements // input_elements - 1 if kind == "ring" else 1)


@dataclass(frozen=True, kw_only=True)
class Operator(OperatorBytes):
    """Operator as it is scheduled: its parts, and the data that it reads and writes."""

    parts: tuple[Part, ...]
    regions: frozenset[Region] = field(default=frozenset(), compare=False)
    """Regions that contain the whole operator; not stored in tables."""
    scores: Scores | None = field(default=None, compare=False)
    """Shape of the attention core whose scores the operator computes; not stored in tables."""

    @property
    def tensor_flops(self) -> int:
        """FLOPs of the operator's matrix multiplications."""
        return sum(part.tensor_flops for part in self.parts)

    @property
    def vector_flops(self) -> int:
        """FLOPs of the operator's vector operations."""
        return sum(part.vector_flops for part in self.parts)

    @cached_property
    def core(self) -> str:
        """Type of core on which the operator runs."""
        kinds = {part.kind for part in self.parts}
        if not kinds:
            return "none"
        # Nothing is fused into a collective, so one network part makes the whole operator one.
        if kinds & set(COLLECTIVES):
            return "network"
        if not kinds & set(PRODUCTS):
            return "vector"
        return "fused" if kinds - set(PRODUCTS) else "tensor"


@dataclass(frozen=True)
class Edge:
    """Data passed from one operator to another."""

    source: int
    target: int
    nbytes: int


@dataclass(frozen=True)
class LayerPass:
    """Forward or backward pass of a layer: operators in topological order, and the edges between them."""

    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]

    @property
    def tensor_flops(self) -> int:
        """FLOPs of all matrix multiplications."""
        return sum(operator.tensor_flops for operator in self.operators)

    @property
    def vector_flops(self) -> int:
        """FLOPs of all vector operations."""
        return sum(operator.vector_flops for operator in self.operators)
