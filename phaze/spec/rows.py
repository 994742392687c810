"""Records that tables and files store field by field; a field's docstring also describes its column.

Later packages extend them with what can be computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phaze.layout import Axis

PartRole = Literal["forward", "backward", "data_gradient", "weight_gradient"]
"""Pass to which a part of an operator belongs."""


@dataclass(frozen=True)
class Gemm:
    """Batch of matrix products (m x k)(k x n)."""

    batch: int
    """Number of products."""
    m: int
    """Rows of the first matrix."""
    k: int
    """Columns of the first matrix."""
    n: int
    """Columns of the second matrix."""
    unrolled: int = 0
    """Elements that unrolling a convolution's input adds to those stored in memory."""

    @property
    def result_elements(self) -> int:
        """Number of elements in the result."""
        return self.batch * self.m * self.n

    def left_gradient(self) -> Gemm:
        """GEMM that computes the gradient of the left operand, (m x n)(n x k)."""
        return Gemm(self.batch, self.m, self.n, self.k, self.unrolled)

    def right_gradient(self) -> Gemm:
        """GEMM that computes the gradient of the right operand, (k x m)(m x n)."""
        return Gemm(self.batch, self.k, self.m, self.n, self.unrolled)


@dataclass(frozen=True, order=True)
class PartSizes:
    """Sizes of a matrix multiplication, vector operation or collective inside an operator."""

    kind: str
    """Kind of operation: matmul, a collective, or a key of the vector cycle tables."""
    role: PartRole
    """Pass to which the part belongs."""
    batch: int = 0
    """Number of independent products of a matmul, 0 for other parts."""
    m: int = 0
    """Rows of the left operand."""
    k: int = 0
    """Contracted dimension."""
    n: int = 0
    """Columns of the right operand."""
    elements: int = 0
    """Number of output elements of a vector operation or collective."""
    streamed_bytes: float = 0
    """HBM bytes read or written in addition to the operands and result of a matmul."""
    network_bytes: float = 0
    """Bytes of the tensor that a collective combines."""
    unrolled: int = 0
    """Operand elements of a matmul that are unrolled on chip from others, for a convolution."""
    axis: Axis | Literal[""] = ""
    """Axis whose group runs a collective, see `Layout.group`; empty for other parts."""


@dataclass(frozen=True)
class ClaimTexts:
    """Texts that describe a claim of a publication."""

    statement: str
    """Text of the claim."""
    source: str
    """Place of the value in the publication."""
    published: str
    """Published value."""
    ours: str
    """Value that phaze computes."""


@dataclass(frozen=True)
class OperatorBytes:
    """Name of an operator, and the bytes that it reads and writes."""

    name: str
    """Readable name of the operator."""
    input_bytes: float
    """Bytes of activations and gradients read, including stashes."""
    parameter_bytes: float
    """Bytes of parameters read."""
    output_bytes: float
    """Bytes of activations and gradients written, including parameter gradients."""
    stashed_bytes: float = 0
    """Bytes stored for the backward pass, excluding what earlier operators already store."""
    attention: bool = False
    """True if the operator belongs to the attention core, which selective recomputation recomputes."""


@dataclass(frozen=True, kw_only=True)
class StageLoad:
    """Times of a placed stage for one microbatch, in seconds, and activation bytes on each of its devices."""

    forward_s: float
    """Time of the forward pass of one microbatch."""
    load_s: float
    """Sum of the times of forward pass, backward pass and transfers."""
    activation_bytes: float
    """Bytes of the current microbatch's activations."""
    stashed_bytes: float
    """Bytes stored for the microbatches in flight."""
