"""Speed of fused attention kernels of a device, fitted on kernels that were timed in a loop."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.values import Part, Positive, PositiveInt, Size

HEAD = 128
"""Head dimension that all shares are given for."""
REMOVED = ("half_sequence", "other_heads")
"""Fields of earlier versions."""


class AttentionPass(Noun):
    """Speed of one pass of an attention kernel that keeps scores on the chip (`phaze.cost.attention`).

    Processors take blocks of queries (in the backward pass of keys), the longest first as far as the kernel
    does so, and go through the keys that the mask leaves.
    """

    share: Part
    """Share of the peak that a processor reaches inside a block, with heads of 128 and a causal mask."""
    heads: dict[int, Positive] = Field(default_factory=dict)
    """Speed with other head dimensions (of queries) over that with 128; in between on a straight line."""
    unmasked: Positive = 1.0
    """Speed without a mask over that with a causal one."""
    block: PositiveInt = 128
    """Queries that a processor works on at a time."""
    fill: Size = 0.0
    """Start and end of a block: the time of so many keys with heads of 128."""
    tail: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the longest block by which the last processor ends after the mean; 0: all end together."""
    start_s: Size = 0.0
    """Time of a call in addition to its blocks."""
    traffic: Size = 0.0
    """How often kernels before and after move queries, keys, values and results, over once at the full HBM
    bandwidth: caches of keys that are written, gradients of queries that are converted."""


class AttentionKernel(Noun):
    """Speed of both passes of an attention kernel; a number stands for a pass that has only a share."""

    forward: AttentionPass
    """Forward pass: two products."""
    backward: AttentionPass | None = None
    """Backward pass, which makes the scores again: five products; without it a kernel of inference."""

    @model_validator(mode="before")
    @classmethod
    def _of_shares(cls, fields: object) -> object:
        if not isinstance(fields, Mapping):
            return fields
        for name in REMOVED:
            if name in fields:
                raise ValueError(
                    f"{name}: was removed; a pass has fill, tail and heads instead, as in "
                    "forward: {share: 0.6, fill: 150, heads: {64: 0.9}}"
                )
        return {key: value if _whole(value) else {"share": value} for key, value in fields.items()}


def _whole(value: object) -> bool:
    return value is None or isinstance(value, Mapping | AttentionPass)
