"""User options for planning an instance with Piper, in a module that the command line loads quickly."""

from dataclasses import dataclass
from typing import Annotated

from phaze.spec.questions import Described


@dataclass(frozen=True, kw_only=True)
class PiperChoices:
    """Overrides of an instance's cluster and batch, and planner options; None keeps the instance's value."""

    memory_gib: Annotated[
        float | None,
        Described(text="Piper: memory of a device in GiB. Default: the instance's.", least=0),
    ] = None
    microbatches: Annotated[
        int | None,
        Described(text="Piper: microbatches in a batch, N. Default: the instance's.", least=1),
    ] = None
    bandwidth_gib: Annotated[
        float | None,
        Described(text="Piper: bandwidth of a device in GiB/s. Default: the instance's.", least=0),
    ] = None
    exactly: Annotated[bool, Described(text="Piper: data widths must sum to exactly N, not at most N.")] = (
        False
    )
    paper_table1: Annotated[
        bool,
        Described(
            text="Piper: count as the paper's Table 1: one linear order, gradients exchanged every d "
            "microbatches."
        ),
    ] = False
    exact_knapsack: Annotated[
        bool, Described(text="Piper: choose configurations exactly, not by the paper's greedy rule.")
    ] = False
    baselines: Annotated[bool, Described(text="Piper: add plans of the paper's baselines.")] = False
    levels: Annotated[
        str | None,
        Described(text="Piper: network levels from the inside out, each units@GiB/s, such as 8@300,8@25."),
    ] = None
    max_downsets: Annotated[
        int | None,
        Described(
            text="Piper: maximum number of downsets of a graph. Default: 100,000, or 2,000 with --levels.",
            least=1,
        ),
    ] = None
