"""Chart colours, and wrapping of long names."""

from __future__ import annotations

import re

from phaze.pages import words

INK, MUTED, GRID = "#1c2430", "#5d6875", "#e4e8ec"
BLUE, SKY, AMBER, SAND, GREY, SILVER = "#0b5394", "#5b9bd5", "#d07a12", "#f0c27f", "#77828e", "#c3cad1"
RED, PURPLE, TEAL = "#b3261e", "#7b5ea7", "#2a8c82"
HUES = (BLUE, AMBER, TEAL, PURPLE, SKY, RED, SAND, GREY)
"""Colours for series without a colour of their own."""
LIMITS = {
    name: (words.LIMITS[name], colour)
    for name, colour in (
        ("compute", BLUE), ("vector", SKY), ("global_buffer", PURPLE), ("hbm", AMBER), ("network", RED),
        ("none", SILVER),
    )
}  # fmt: skip
"""Display name and colour of the bottlenecks of operators."""
COLOURS = {
    "ink": INK, "muted": MUTED, "grid": GRID, "blue": BLUE, "sky": SKY, "amber": AMBER, "sand": SAND,
    "grey": GREY, "silver": SILVER, "red": RED, "purple": PURPLE, "teal": TEAL,
}  # fmt: skip


def wrapped(name: str, width: int = 10) -> str:
    """Wrap a name at hyphens and spaces into lines of `width` characters."""
    lines = [""]
    for piece in re.split(r"(?<=[- ])", name):
        if lines[-1] and len(lines[-1] + piece.rstrip("- ")) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip("- ") for line in lines)
