"""Choices of a user for planning an instance with Piper; light, as the command line imports them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PiperChoices:
    """Overrides of an instance's cluster and batch, and rules of the planner; None: the instance's value."""

    memory_gib: float | None = None
    microbatches: int | None = None
    bandwidth_gib: float | None = None
    """GiB/s."""
    exactly: bool = False
    paper_table1: bool = False
    """Plan as in the paper's Table 1: along one linear order, with gradients synchronised once per round."""
    exact_knapsack: bool = False
    baselines: bool = False
    levels: str | None = None
    """Devices and bandwidth of a network's levels, innermost first, such as 8@300,8@25 (GiB/s)."""
    max_downsets: int | None = None
    """None: the planner's default."""
