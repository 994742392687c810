"""User options for planning an instance with Piper, in a module that the command line loads quickly."""

from dataclasses import dataclass
from typing import Annotated

from phaze.spec.questions import Described


@dataclass(frozen=True, kw_only=True)
class PiperChoices:
    """Overrides of an instance's cluster and batch, and planner options; None keeps the instance's value."""

    memory_gib: Annotated[float | None, Described(least=0)] = None
    """Piper: memory of a device in GiB. Default: the instance's."""
    microbatches: Annotated[int | None, Described(least=1)] = None
    """Piper: microbatches in a batch, N. Default: the instance's."""
    bandwidth_gib: Annotated[float | None, Described(least=0)] = None
    """Piper: bandwidth of a device in GiB/s. Default: the instance's."""
    exactly: bool = False
    """Piper: data widths must sum to exactly N, not at most N."""
    paper_table1: bool = False
    """Piper: count as the paper's Table 1: one linear order, gradients exchanged every d microbatches."""
    exact_knapsack: bool = False
    """Piper: choose configurations exactly, not by the paper's greedy rule."""
    baselines: bool = False
    """Piper: add plans of the paper's baselines."""
    levels: str | None = None
    """Piper: network levels from the inside out, each units@GiB/s, such as 8@300,8@25."""
    max_downsets: Annotated[int | None, Described(least=1)] = None
    """Piper: maximum number of downsets of a graph. Default: 100,000, or 2,000 with --levels."""
