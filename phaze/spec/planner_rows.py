"""Plans of planners of the literature, as the file of a plan lists them."""

from __future__ import annotations

from phaze.spec.noun import Noun
from phaze.spec.values import Count, Flag, Index, Label, PositiveInt, Result


class PlannerStage(Noun):
    """A stage of a planner of the literature."""

    first_layer: Index
    """Its first layer; the embedding is layer 0."""
    layers: Count
    """Layers, with the embedding and the head."""
    tp: PositiveInt
    """Tensor parallel."""
    dp: PositiveInt
    """Data parallel."""
    recompute: Flag
    """Whether layers of it run forward again."""


class PlannerRow(Noun):
    """What a planner of the literature makes of the question, at the same price."""

    planner: Label
    """Its name: phaze or piper."""
    time_s: Result | None = None
    """Seconds of a step; none where the planner has no plan."""
    planned_s: Result | None = None
    """Seconds that the planner itself expects."""
    tokens_per_s_per_device: Result | None = None
    """Throughput of a device of all that there are."""
    fullest_gib: Result | None = None
    """Memory of the fullest device."""
    fits: Flag | None = None
    """Whether that is what a device has for a plan."""
    schedule: Label | None = None
    """Order of the passes."""
    microbatch: PositiveInt | None = None
    """Samples of a microbatch."""
    stages: tuple[PlannerStage, ...] = ()
    """Stages in the order of the data flow."""
    reason: str | None = None
    """Why the runtime cannot run the plan, or why there is none."""
