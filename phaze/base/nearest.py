"""Suggestions for misspelt names in messages."""

import re
from collections.abc import Collection
from difflib import get_close_matches

MOST_SHOWN = 10
"""Maximum number of names that a message lists in full; of more names it shows only the nearest."""
PART = re.compile(r"[a-z]+|\d+(?:\.\d+)?")
"""Word or number of a name, such as llama, 3.1, 8 and b of llama-3.1-8b."""


def nearest(name: str, names: Collection[str], cutoff: float = 0.6) -> list[str]:
    """Up to three similar names, ignoring case, the nearest first.

    Names with all its words and numbers come before others, such as llama-3.1-8b for `llama 3 8b`.
    """
    # Reversed, so that of two names that differ in case only the first one is suggested. A name is cut
    # because the time of difflib grows with the product of the lengths.
    by_case = {spelling.lower(): spelling for spelling in reversed(list(names))}
    given = name.lower()[:200]
    parts = {*PART.findall(given)}
    # Numbers alone, such as 8, occur in too many names.
    whole = [spelling for spelling in by_case if parts <= _parts(spelling) and re.search("[a-z]", given)]
    near = [*get_close_matches(given, whole, cutoff=0.0), *get_close_matches(given, by_case, cutoff=cutoff)]
    return [by_case[spelling] for spelling in dict.fromkeys(near)][:3]


def _parts(name: str) -> set[str]:
    """Words and numbers of a name; a version such as 3.1 also counts as its first number, 3."""
    parts = PART.findall(name)
    return {*parts, *(part.partition(".")[0] for part in parts)}


def choices(name: str, names: Collection[str], where: str) -> str:
    """All known names as text if there are few; else the three nearest names, and where all are listed."""
    if len(names) <= MOST_SHOWN:
        return ", ".join(names)
    return f"{', '.join(nearest(name, names, 0.0))} (nearest of {len(names)}, all are in {where})"


def did_you_mean(name: str, names: Collection[str], where: str) -> str:
    """Suggestion for a misspelt name: similar names and where all are listed, or the known names."""
    similar = nearest(name, names)
    if not similar:
        return f"known are {choices(name, names, where)}"
    listed = f"all {len(names)} are in {where}"
    if len(names) <= MOST_SHOWN:
        listed = f"known are {', '.join(names)}"
    return f"did you mean {' or '.join(similar)}? {listed}"
