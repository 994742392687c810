"""Plans of planners from the literature, as stored in a plan file."""

from __future__ import annotations

from phaze.spec.noun import Noun
from phaze.spec.values import Count, Flag, Index, Label, PositiveInt, Result, Text


class PlannerStage(Noun):
    """Pipeline stage in the plan of a planner from the literature."""

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
    """Plan of a planner from the literature for the same request, priced by phaze."""

    planner: Label
    """Name of the planner: phaze or piper."""
    time_s: Result | None = None
    """Step time in seconds; null if the planner finds no plan."""
    planned_s: Result | None = None
    """Step time in seconds that the planner itself predicts."""
    tokens_per_s_per_device: Result | None = None
    """Throughput in tokens per second, per device, idle devices included."""
    fullest_gib: Result | None = None
    """Highest peak memory of any device, in GiB."""
    fits: Flag | None = None
    """True if peak memory fits into the device memory available to a plan."""
    schedule: Label | None = None
    """Pipeline schedule."""
    microbatch: PositiveInt | None = None
    """Samples per microbatch."""
    stages: tuple[PlannerStage, ...] = ()
    """Pipeline stages in order of the data flow."""
    reason: Text | None = None
    """Reason why the runtime cannot run the plan, or why there is no plan."""
