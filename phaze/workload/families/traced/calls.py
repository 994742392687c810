"""What a module runs: calls of PyTorch's operators, with the shapes of what they read and write."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

Origin = Literal["made", "input", "parameter", "constant"]
"""Where a tensor comes from: a call, the user, the module's parameters, or anywhere else."""


@dataclass(frozen=True)
class Seen:
    """A tensor that a call reads or writes."""

    number: int
    """The same for the same tensor; a call that changes one in place writes it again."""
    shape: tuple[int, ...]
    bytes_per_element: int
    origin: Origin
    floating: bool = True
    """Real numbers, which have gradients."""

    @property
    def elements(self) -> int:
        """Return how many there are."""
        return prod(self.shape)


@dataclass(frozen=True)
class Call:
    """A call of an operator."""

    module: str
    """Path of the module that calls, empty for the outermost."""
    operator: str
    """Name without namespace and overload, such as addmm."""
    inputs: tuple[Seen, ...]
    """Tensors among the arguments, in order."""
    outputs: tuple[Seen, ...]


@dataclass(frozen=True)
class Trace:
    """The forward pass of a module."""

    calls: tuple[Call, ...]
    results: tuple[int, ...]
    """Numbers of the tensors that it returns."""
    parameters: int
    """Parameters of the module, shared ones once."""
    forward_flops: int
    """Of matrix multiplications and convolutions, as PyTorch counts them."""
    backward_flops: int
