"""Plans of planners from the literature, as stored in a plan file."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from phaze.spec.noun import Noun
from phaze.spec.values import Count, Flag, Index, Label, PositiveInt, Result, Size, Text

SplitKind = Literal["whole", "tensor", "sequence", "expert"]
"""How a layer is split over its devices: not, its products, also its activations, also its experts."""


class LayerTiming(Noun):
    """Times and stored activations of a layer under one configuration, for one microbatch."""

    model_config = ConfigDict(populate_by_name=True)

    layer: Text
    """Name of the layer, such as block; layers of the same name are alike."""
    microbatch: PositiveInt = 1
    """Samples per microbatch."""
    t: PositiveInt
    """Number of devices that share the layer."""
    recompute: Text = "none"
    """Recomputed activations, an option of the runtime such as none or full."""
    kind: SplitKind
    """Split of the layer over its devices: whole, tensor, sequence or expert."""
    forward_s: Size
    """Time of the forward pass in seconds, with messages between the devices."""
    backward_s: Size
    """Time of the backward pass in seconds, with recomputation and messages."""
    stash_bytes: Size = Field(alias="bytes")
    """Bytes of activations that each device stores until the backward pass."""


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
    configurations: Text | None = None
    """Number of layers with each configuration of Piper, such as 3 × tensor, 1 × tensor, recompute full."""


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
    runs: PositiveInt | None = None
    """Number of Piper's runs: one for each microbatch size b' and number g of accumulated rounds."""
    stages: tuple[PlannerStage, ...] = ()
    """Pipeline stages in order of the data flow."""
    reason: Text | None = None
    """Reason why the runtime cannot run the plan, or why there is no plan."""
