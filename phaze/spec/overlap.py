"""Communication that overlaps with compute, and how much of it."""

from collections.abc import Mapping
from typing import Literal, get_args

from phaze.spec.noun import Noun
from phaze.spec.values import Fraction

Overlap = tuple[Literal["tp", "dp", "pp", "ep"], ...]
Overlapped = Literal["tp", "dp", "pp", "ep", "cp"]
"""Communication that may overlap with compute; cp, that of context parallelism in a ring, always does."""


class OverlapShare(Noun):
    """Shares of the time of some communication that overlap with compute; the rest is always exposed."""

    expected: Fraction = 1.0
    """The share that prices assume, at most: no more overlaps than there is compute next to it."""
    proven: Fraction = 0.0
    """The share that published measurements of the software show; 0 without any."""


def proven_shares(shares: Mapping[Overlapped, OverlapShare]) -> dict[Overlapped, OverlapShare]:
    """Shares of all communication of which the proven ones are expected."""
    proven = {kind: shares.get(kind, OverlapShare()).proven for kind in get_args(Overlapped)}
    return {kind: OverlapShare(expected=share, proven=share) for kind, share in proven.items()}
