"""Memory overheads of software, and definitions of memory measurements."""

from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.values import Result

MemoryKind = Literal["allocated", "reserved", "device"]
"""Definition of a memory measurement: tensors (`allocated`) or reserved blocks (`reserved`) of PyTorch's
allocator, or all memory in use according to the driver (`device`)."""


class Fragments(Noun):
    """Allocator fragmentation: fractions of the reserved memory that no tensor occupies."""

    expected: float = Field(default=0.0, ge=0, lt=1)
    """Expected share, while memory is plentiful and tensors of many sizes come and go, as with
    recomputation."""
    most: float = Field(default=0.0, ge=0, lt=1)
    """Largest published share."""
    lasting: float = Field(default=0.0, ge=0, lt=1)
    """Largest share when memory is short: partly used blocks, which cannot be released."""

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
    """Peak memory in use on a device in GiB: tensors and all overheads."""

    low: Result
    """Proven lower bound."""
    expected: Result
    """Expected value."""
    high: Result
    """Upper end, with every uncertain part at its upper constant."""
