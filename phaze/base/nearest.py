"""Names that a misspelt one may mean, for messages."""

from collections.abc import Collection
from difflib import get_close_matches

MOST_SHOWN = 10
"""Names that a message lists; of more it shows the nearest."""


def nearest(name: str, known: Collection[str], cutoff: float = 0.6) -> list[str]:
    """Up to three names that are like one in any case, the nearest first."""
    by_case = {one.lower(): one for one in reversed(list(known))}
    return [by_case[one] for one in get_close_matches(name.lower()[:200], by_case, cutoff=cutoff)]


def choices(name: str, known: Collection[str], where: str) -> str:
    """All of a few names; of many three that are like the one given, and where the others are."""
    if len(known) <= MOST_SHOWN:
        return ", ".join(known)
    return f"{', '.join(nearest(name, known, 0.0))} (nearest of {len(known)}, all are in {where})"
