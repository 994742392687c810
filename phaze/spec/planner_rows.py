"""Plans of planners from the literature, as stored in a plan file."""

from __future__ import annotations

from phaze.spec.noun import Noun
from phaze.spec.values import Count, Flag, Index, Label, PositiveInt, Result


class PlannerStage(Noun):
    """A pipeline stage of a plan from the literature's planners."""

    first_layer: Index
    """First layer of the stage; the embedding is layer 0."""
    layers: Count
    """Number of layers, embedding and head included."""
    tp: PositiveInt
    """Tensor-parallel width."""
    dp: PositiveInt
    """Data-parallel width."""
    recompute: Flag
    """True if layers of the stage are recomputed."""


class PlannerRow(Noun):
    """Plan of a planner from the literature for the same question, with phaze's price."""

    planner: Label
    """Name of the planner: phaze or piper."""
    time_s: Result | None = None
    """Step time in seconds; null if the planner finds no plan."""
    planned_s: Result | None = None
    """Step time in seconds that the planner itself predicts."""
    tokens_per_s_per_device: Result | None = None
    """Throughput in tokens per second, per device, idle devices included."""
    fullest_gib: Result | None = None
    """Memory of the device with peak memory, in GiB."""
    fits: Flag | None = None
    """True if that fits into the memory of a device available to a plan."""
    schedule: Label | None = None
    """Pipeline schedule."""
    microbatch: PositiveInt | None = None
    """Samples per microbatch."""
    stages: tuple[PlannerStage, ...] = ()
    """Pipeline stages in order of the data flow."""
    reason: str | None = None
    """Reason why the runtime cannot run the plan, or why there is none."""
