"""Suggestions for misspelt names in messages."""

from collections.abc import Collection
from difflib import get_close_matches

MOST_SHOWN = 10
"""Maximum number of names that a message lists in full; of more names it shows only the nearest."""


def nearest(name: str, known: Collection[str], cutoff: float = 0.6) -> list[str]:
    """Up to three similar names, ignoring case, the nearest first."""
    by_case = {one.lower(): one for one in reversed(list(known))}
    return [by_case[one] for one in get_close_matches(name.lower()[:200], by_case, cutoff=cutoff)]


def choices(name: str, known: Collection[str], where: str) -> str:
    """All known names as text if there are few; else the three nearest names, and where all are listed."""
    if len(known) <= MOST_SHOWN:
        return ", ".join(known)
    return f"{', '.join(nearest(name, known, 0.0))} (nearest of {len(known)}, all are in {where})"


def did_you_mean(name: str, known: Collection[str], where: str) -> str:
    """Suggestion for a misspelt name: similar names and where all are listed, or the known names."""
    near = nearest(name, known)
    if not near:
        return f"known are {choices(name, known, where)}"
    rest = f"known are {', '.join(known)}" if len(known) <= MOST_SHOWN else f"all {len(known)} are in {where}"
    return f"did you mean {' or '.join(near)}? {rest}"
