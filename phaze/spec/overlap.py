"""Overlap of communication with compute."""

from collections.abc import Mapping
from typing import Literal, get_args

from phaze.spec.noun import Noun
from phaze.spec.values import Fraction

Overlap = tuple[Literal["tp", "dp", "pp", "ep"], ...]
Overlapped = Literal["tp", "dp", "pp", "ep", "cp"]
"""Kinds of communication that may overlap with compute; ring exchanges of context parallelism (cp) always
do."""


class OverlapShare(Noun):
    """Fractions of a kind of communication that overlap with compute; the rest is exposed."""

    expected: Fraction = 1.0
    """Share of the transfer time that prices assume to overlap, limited by the compute available next to
    it."""
    proven: Fraction = 0.0
    """Share shown by published measurements of the software; 0 without any."""


def proven_shares(shares: Mapping[Overlapped, OverlapShare]) -> dict[Overlapped, OverlapShare]:
    """Overlap fractions of all kinds of communication, with the expected fractions set to the proven ones."""
    proven = {kind: shares.get(kind, OverlapShare()).proven for kind in get_args(Overlapped)}
    return {kind: OverlapShare(expected=share, proven=share) for kind, share in proven.items()}
