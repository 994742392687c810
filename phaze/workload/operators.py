"""Operators as they are scheduled: what runs inside them, and what they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from phaze.layout import Axis
from phaze.workload.kinds import COLLECTIVES
from phaze.workload.primitives import Gemm, Primitive, Region, Scores


@dataclass(frozen=True, order=True)
class Part:
    """One matrix multiplication, vector operation or collective inside an operator."""

    kind: str
    """'matmul', a collective, or a key of the vector cycle tables."""
    role: str
    """'forward', 'backward', 'data_gradient' or 'weight_gradient'."""
    batch: int = 0
    m: int = 0
    k: int = 0
    n: int = 0
    elements: int = 0
    streamed_bytes: int = 0
    """HBM bytes read or written beside the operands and the result of a matrix multiplication."""
    network_bytes: int = 0
    unrolled: int = 0
    """Elements of a matrix multiplication that a convolution makes of others on the chip, see `Gemm`."""
    axis: Axis | Literal[""] = ""
    """Whose group a collective is of, see `Layout.group`; empty for anything else."""

    @property
    def tensor_flops(self) -> int:
        """FLOPs of a matrix multiplication, 0 for anything else."""
        return 2 * self.batch * self.m * self.k * self.n

    @property
    def vector_flops(self) -> int:
        """FLOPs of a vector operation, one an output element; 0 for anything else."""
        return 0 if self.kind in ("matmul", *COLLECTIVES) else self.elements


def product(gemm: Gemm, role: str) -> Part:
    """Part that is a matrix multiplication."""
    return Part("matmul", role, gemm.batch, gemm.m, gemm.k, gemm.n, unrolled=gemm.unrolled)


def collectives(primitive: Primitive, role: str, bytes_per_element: int, kind: str) -> tuple[Part, ...]:
    """Collective of a primitive in one pass, or the messages of a ring, in each of which a rank passes one
    part on; the data comes from HBM and goes back there.
    """
    own = primitive.inputs[0].elements
    elements = own if kind == "ring" else max(primitive.elements, own)
    size = elements * bytes_per_element
    part = Part(
        "send" if kind == "ring" else kind,
        role,
        elements=elements,
        streamed_bytes=2 * size,
        network_bytes=size,
        axis=primitive.axis,
    )
    return (part,) * (primitive.elements // own - 1 if kind == "ring" else 1)


@dataclass(frozen=True)
class Operator:
    """A node of the operator graph."""

    name: str
    parts: tuple[Part, ...]
    input_bytes: int
    """Activations and gradients read, stashes included."""
    parameter_bytes: int
    """Parameters read."""
    output_bytes: int
    """Activations and gradients written, those of parameters included."""
    stashed_bytes: int = 0
    """What this operator is the first to ask to be kept for the backward pass."""
    attention: bool = False
    """Whether it has part in the core of attention, see `Primitive`."""
    regions: frozenset[Region] = field(default=frozenset(), compare=False)
    """What all of it is part of; no table has them."""
    scores: Scores | None = field(default=None, compare=False)
    """Shape of the attention core whose scores it makes; no table has it."""

    @property
    def tensor_flops(self) -> int:
        """FLOPs of its matrix multiplications."""
        return sum(part.tensor_flops for part in self.parts)

    @property
    def vector_flops(self) -> int:
        """FLOPs of everything else."""
        return sum(part.vector_flops for part in self.parts)

    @cached_property
    def core(self) -> str:
        """Core type that runs it."""
        kinds = {part.kind for part in self.parts}
        if not kinds:
            return "none"
        if kinds & set(COLLECTIVES):
            return "network"
        if "matmul" not in kinds:
            return "vector"
        return "fused" if len(kinds) > 1 else "tensor"


@dataclass(frozen=True)
class Edge:
    """Data that one operator hands to another."""

    source: int
    target: int
    nbytes: int


@dataclass(frozen=True)
class LayerPass:
    """One pass of a layer: operators in topological order and the edges between them."""

    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]

    @property
    def tensor_flops(self) -> int:
        """FLOPs of all matrix multiplications."""
        return sum(operator.tensor_flops for operator in self.operators)

    @property
    def vector_flops(self) -> int:
        """FLOPs of everything else."""
        return sum(operator.vector_flops for operator in self.operators)
