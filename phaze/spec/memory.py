"""What software makes of the memory of a device, and what measured figures of it count."""

from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.values import Result

MemoryKind = Literal["allocated", "reserved", "device"]
"""What a figure of memory counts: tensors, as PyTorch's allocator says; what the allocator has reserved; or
all that a device has in use, as its driver says."""


class Fragments(Noun):
    """Shares of the memory that the framework reserves for tensors in which none lies."""

    expected: float = Field(default=0.0, ge=0, lt=1)
    """Gaps that the allocator keeps while there is room and where tensors of many sizes come and go, as with
    recomputation."""
    most: float = Field(default=0.0, ge=0, lt=1)
    """The largest such share that is published."""
    lasting: float = Field(default=0.0, ge=0, lt=1)
    """Share at most when memory is short: blocks partly in use, which cannot be given back."""

    @model_validator(mode="before")
    @classmethod
    def _from_share(cls, fields: object) -> object:
        return {"expected": fields, "most": fields} if isinstance(fields, float | int) else fields

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not max(self.expected, self.lasting) <= self.most:
            raise ValueError(f"most must be at least expected and lasting, got {self.most:g}")
        return self


class UsedGib(Noun):
    """Memory in use on a device at its peak, in GiB: tensors, and all that lies beside them."""

    low: Result
    """Proven least."""
    expected: Result
    """Expected."""
    high: Result
    """Upper end: each uncertain part takes its upper constant."""
