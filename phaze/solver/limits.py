"""When a solve ends, and how far from a proof it is then."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """When a solve ends without a proof."""

    nodes: int = 20000
    """Branch-and-bound nodes; the result does not depend on the machine."""
    wall_s: float = 60.0
    """Seconds; ends a solve as `timed_out`."""
    gap: float = 1e-9
    """Relative distance of objective and bound at which a solve is proven."""


def relative_gap(objective: float, bound: float) -> float:
    """Return (objective − bound) / objective: 0 when they meet, infinity when nothing is known."""
    if objective <= bound:
        return 0.0
    return (objective - bound) / objective if math.isfinite(objective) and objective > 0 else math.inf
