"""User options for planning an instance with Piper, in a module that the command line loads quickly."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PiperChoices:
    """Overrides of an instance's cluster and batch, and planner options; None keeps the instance's value."""

    memory_gib: float | None = None
    microbatches: int | None = None
    bandwidth_gib: float | None = None
    """Network bandwidth in GiB/s."""
    exactly: bool = False
    paper_table1: bool = False
    """Plan as in the paper's Table 1: along one linear order, with gradients synchronised once per round."""
    exact_knapsack: bool = False
    baselines: bool = False
    levels: str | None = None
    """Device count and bandwidth of each network level, innermost first, such as 8@300,8@25 (GiB/s)."""
    max_downsets: int | None = None
    """Limit on the number of downsets; None uses the planner's default."""
