"""Units: SI base units internally, binary prefixes where they are customary."""

import math

KIB = 2**10
MIB = 2**20
GIB = 2**30
UM2_PER_MM2 = 1e6


def digits(value: float, count: int = 3) -> str:
    """Format a number with `count` significant digits, without powers of ten for usual sizes."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, count - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"
