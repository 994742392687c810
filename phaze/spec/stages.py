"""Files of stages: what a partition ends with and a mapping to devices starts from (Parmesan, Section V).

A file holds the stages of a pipeline in order, the tensors between any two of them, and how often the
pipeline is replicated. What a partition adds may be left out of a file that is written by hand: the operators
of the stages, memory, settings, and times.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.operators import refuse
from phaze.spec.values import Count, Index, Positive, Result, Size, repeated


class StoredStage(Noun):
    """A stage: what one device does for one microbatch."""

    operators: tuple[str, ...] = ()
    """Names of its operators, in a topological order."""
    forward_s: Size
    """Time of the forward pass of a microbatch."""
    backward_s: Size
    """Time of the backward pass of a microbatch, with recomputation if there is any."""
    parameter_bytes: Size
    """Bytes of gradients that the replicas of the stage reduce."""
    memory_bytes: Result | None = None
    """Peak memory by equation (14) of Parmesan."""


class StoredMessage(Noun):
    """What one stage passes to a later one."""

    source: Index
    """Stage that sends, counted from 0."""
    target: Index
    """Stage that receives, a later one."""
    bytes: Size
    """Bytes of a microbatch, forward; as many come back."""


class PartitionSettings(Noun):
    """How the stages were found."""

    partitioner: str
    """Who cut the graph."""
    microbatch: Count
    """Samples in a microbatch."""
    bandwidth_bytes_per_s: Positive
    """Bandwidth between any two devices that the partition assumes (Parmesan, Section VI)."""
    hyper_operators: Count | None = None
    """K, up to which operators were clustered."""
    alpha: Size | None = None
    """Importance of communication in the cost of clustering (4)."""
    moves: Index | None = None
    """Moves of the refinement that were kept."""


class StoredStages(Noun):
    """Stages of a partition, in the order of the pipeline."""

    format: Literal["phaze-stages"]
    """What the file holds."""
    version: Literal[1]
    """Version of the format."""
    model: str
    """Name of the model."""
    replicas: Count
    """R, devices of every stage."""
    microbatches: Count
    """MB, microbatches of a training step on each replica."""
    recompute: Annotated[bool, Field(strict=True)]
    """Whether backward passes repeat the forward pass."""
    device_memory_bytes: Positive | None = None
    """Memory of a device, which no stage exceeds."""
    stages: tuple[StoredStage, ...] = Field(min_length=1)
    """Stages in order."""
    edges: tuple[StoredMessage, ...]
    """What stages pass on, each pair of stages at most once; skip connections are edges."""
    stage_time_s: Result | None = None
    """Time (3) of the slowest stage with the bandwidth of the settings."""
    step_time_s: Result | None = None
    """Simulated time of a training step with the bandwidth of the settings."""
    settings: PartitionSettings | None = None
    """How the stages were found."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        operators = [name for stage in self.stages for name in stage.operators]
        refuse(f"stages: operator {name!r} is in {k} stages" for name, k in repeated(operators))
        refuse(self._bad_ends())
        return self

    def _bad_ends(self) -> Iterator[str]:
        last = len(self.stages) - 1
        for edge in self.edges:
            name = f"edges: {edge.source} -> {edge.target}"
            if max(edge.source, edge.target) > last:
                yield f"{name}: stages are numbered from 0 to {last}"
            elif edge.source >= edge.target:
                yield f"{name}: must lead to a later stage"
        for (source, target), times in repeated((edge.source, edge.target) for edge in self.edges):
            yield f"edges: {source} -> {target} is given {times} times"
