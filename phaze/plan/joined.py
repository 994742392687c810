"""Products of one input that a stack computes as one product of concatenated matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from phaze.spec.system import Stack
from phaze.workload.operators import Operator

JOINED = (
    ("query", "key", "value"),
    ("feed_forward_in", "feed_forward_up"),
    ("shared_in", "shared_up"),
)  # fmt: skip
"""Names of products that are joined (Megatron-Core, `linear_qkv` and `linear_fc1`)."""
FORK = "_fork.backward"


def without_sums(operators: Sequence[Operator], stack: Stack) -> tuple[Operator, ...]:
    """Operators of a pass without the sums of input gradients that joined products make unnecessary.

    A sum follows the products it adds up; it remains for the gradients of other readers of the input.
    """
    found = list(operators)
    if not stack.joined_products:
        return tuple(found)
    places = {one.name: place for place, one in enumerate(found)}
    for names in JOINED:
        own = [places[f"{name}.backward"] for name in names if f"{name}.backward" in places]
        later = range(max(own, default=len(found)), len(found))
        sums = next((place for place in later if found[place].name.endswith(FORK)), None)
        if len(own) > 1 and sums is not None:
            found[sums] = _of_fewer(found[sums], len(own) - 1)
    return tuple(found)


def _of_fewer(operator: Operator, fewer: int) -> Operator:
    """Sum with fewer gradients; a single gradient needs no sum."""
    left = len(operator.parts) - fewer
    if left <= 0:
        return replace(operator, parts=())
    nbytes = sum(part.streamed_bytes for part in operator.parts)
    each = nbytes // (len(operator.parts) + 2)
    first = replace(operator.parts[0], streamed_bytes=nbytes - fewer * each)
    return replace(operator, parts=(first, *operator.parts[1:left]))
