"""Records that tables and files store field by field: the docstring below a field also describes its column.

Later packages extend them with what can be computed from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phaze.layout import Axis

PartRole = Literal["forward", "backward", "data_gradient", "weight_gradient"]
"""Pass that a part of an operator belongs to."""


@dataclass(frozen=True)
class Gemm:
    """A batch of matrix products (m x k)(k x n)."""

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
        """Elements of the result."""
        return self.batch * self.m * self.n

    def left_gradient(self) -> Gemm:
        """Product that gives the gradient of the left operand, (m x n)(n x k)."""
        return Gemm(self.batch, self.m, self.n, self.k, self.unrolled)

    def right_gradient(self) -> Gemm:
        """Product that gives the gradient of the right operand, (k x m)(m x n)."""
        return Gemm(self.batch, self.k, self.m, self.n, self.unrolled)


@dataclass(frozen=True, order=True)
class PartSizes:
    """Sizes of a matrix multiplication, vector operation or collective inside an operator."""

    kind: str
    """Operation: matmul, a collective, or a key of the vector cycle tables."""
    role: PartRole
    """Pass that it belongs to."""
    batch: int = 0
    """Independent products of a matmul, 0 for other parts."""
    m: int = 0
    """Rows of the left operand."""
    k: int = 0
    """Contracted dimension."""
    n: int = 0
    """Columns of the right operand."""
    elements: int = 0
    """Output elements of a vector operation or collective."""
    streamed_bytes: float = 0
    """HBM bytes read or written in addition to the operands and result of a matmul."""
    network_bytes: float = 0
    """Bytes of the tensor that a collective combines."""
    unrolled: int = 0
    """Operand elements of a matmul that a convolution unrolls from others on chip."""
    axis: Axis | Literal[""] = ""
    """Axis whose group runs a collective, see `Layout.group`; empty for other parts."""


@dataclass(frozen=True)
class ClaimTexts:
    """Texts of a claim of a publication."""

    statement: str
    """Text of the claim."""
    source: str
    """Place of the printed figure in the publication."""
    published: str
    """Printed figure."""
    ours: str
    """Our figure."""


@dataclass(frozen=True)
class OperatorBytes:
    """Name of an operator, and the data that it reads and writes."""

    name: str
    """Readable name."""
    input_bytes: float
    """Activations and gradients read, including stashes."""
    parameter_bytes: float
    """Parameters read."""
    output_bytes: float
    """Activations and gradients written, including parameter gradients."""
    stashed_bytes: float = 0
    """Bytes stored for the backward pass, without those that earlier operators store."""
    attention: bool = False
    """True if it belongs to the attention core, which selective recomputation recomputes."""


@dataclass(frozen=True, kw_only=True)
class StageLoad:
    """Seconds of a placed stage for one microbatch, and bytes of activations on each of its devices."""

    forward_s: float
    """Forward pass of one microbatch."""
    load_s: float
    """Sum of forward, backward and transfers."""
    activation_bytes: float
    """Activations of the current microbatch."""
    stashed_bytes: float
    """Data stored for microbatches in flight."""


@dataclass(frozen=True)
class StageWork:
    """Seconds and tensors of one microbatch on one replica, and bytes on each of its devices."""

    forward_s: float
    """Forward pass of one microbatch on a replica."""
    recompute_s: float
    """Recomputation of one microbatch."""
    backward_s: float
    """Backward pass without recomputation."""
    arriving_bytes: float
    """Bytes of all tensors that enter the stage with a microbatch."""
    longest_arriving_bytes: float
    """Bytes of the largest tensor that enters the stage."""
    departing_bytes: float
    """Bytes of the tensors that leave the stage, whose gradients return."""
    longest_departing_bytes: float
    """Bytes of the largest tensor that leaves the stage."""
    weight_bytes: float
    """Weights that passes read; their gradients have the same size."""
    fixed_bytes: float
    """Memory used at all times, independent of in-flight microbatches."""
    stash_bytes: float
    """Memory per microbatch in flight, including the current one."""
    work_bytes: float
    """Additional memory for the current microbatch."""
    forward_hbm_bytes: float
    """HBM traffic of the forward pass of one microbatch."""
    recompute_hbm_bytes: float
    """HBM traffic of recomputation."""
    backward_hbm_bytes: float
    """HBM traffic of the backward pass."""
    forward_reduced_bytes: float
    """Bytes all-reduced by tensor-parallel ranks in the forward pass, per rank."""
    recompute_reduced_bytes: float
    """Bytes all-reduced by tensor-parallel ranks in recomputation, per rank."""
    backward_reduced_bytes: float
    """Bytes all-reduced by tensor-parallel ranks in the backward pass, per rank."""
