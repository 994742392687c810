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


def percent(value: float, decimals: int = 1) -> str:
    """Format a fraction as a percentage, for example 12.5 %; a dash if it is not finite."""
    return f"{100 * value:,.{decimals}f} %" if math.isfinite(value) else "–"


def signed(share: float, decimals: int = 1) -> str:
    """Format a fraction as a percentage with a sign unless it rounds to zero, for example +2.5 %."""
    text = percent(abs(share), decimals)
    sign = "" if text in (percent(0.0, decimals), "–") else "-" if share < 0 else "+"
    return f"{sign}{text}"
