"""Speed of a device's fused attention kernels, fitted to kernels timed in a loop."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.values import Part, Positive, PositiveInt, Size

HEAD = 128
"""Head dimension to which all speeds refer."""
REMOVED = ("half_sequence", "other_heads")
"""Field names used by earlier versions."""


class AttentionPass(Noun):
    """Speed of one pass of a fused attention kernel, which stores no scores (`phaze.cost.attention`).

    Processors take blocks of queries (in the backward pass of keys), longest first where the kernel sorts
    them, and process the keys that the mask leaves.
    """

    share: Part
    """Share of the peak that an SM reaches inside a block, for head dimension 128 and a causal mask."""
    heads: dict[int, Positive] = Field(default_factory=dict)
    """Speed for other head dimensions (of queries) relative to 128; linear interpolation in between."""
    unmasked: Positive = 1.0
    """Speed without a mask, relative to that with a causal mask."""
    head_multiple: PositiveInt = 1
    """Head dimensions are padded to multiples of this number (32 in FlashAttention-2, flash_api.cpp)."""
    block: PositiveInt = 128
    """Number of queries in a block, which one SM processes."""
    fill: Size = 0.0
    """Start and end of a block, as the equivalent number of keys at head dimension 128."""
    tail: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Delay of the last SM behind the mean, as a share of the longest block; 0: all finish
    together."""
    start_s: Size = 0.0
    """Fixed time per call in seconds."""
    traffic: Size = 0.0
    """HBM traffic of helper kernels before and after, in multiples of queries, keys, values and results at
    the full HBM bandwidth: written key caches, converted query gradients."""


class AttentionKernel(Noun):
    """Speed of both passes of an attention kernel; a plain number is short for a pass with only a `share`."""

    forward: AttentionPass
    """Forward pass: two matrix products."""
    backward: AttentionPass | None = None
    """Backward pass, which recomputes the scores: five matrix products; null: an inference kernel."""

    @model_validator(mode="before")
    @classmethod
    def _of_shares(cls, fields: object) -> object:
        if not isinstance(fields, Mapping):
            return fields
        for name in REMOVED:
            if name in fields:
                raise ValueError(
                    f"{name}: was removed; use the fields fill, tail and heads of a pass, as in "
                    f"forward: {{share: 0.6, fill: 150, heads: {{64: 0.9}}}}"
                )
        passes = (Mapping, AttentionPass, type(None))
        return {k: v if isinstance(v, passes) else {"share": v} for k, v in fields.items()}
