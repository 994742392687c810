"""Files of pipeline stages: output of a partition, input of a mapping to devices (Parmesan, Section V).

A file lists the stages in order, the tensors between them, and the number of replicas. Results of a partition
are optional in files written by hand: the operators of the stages, memory, settings and times.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.operators import ProfiledModule, refuse
from phaze.spec.values import Count, Index, Positive, Result, Size, Text, repeated


class StoredStage(Noun):
    """Pipeline stage: the work of one device on one microbatch."""

    operators: tuple[Text, ...] = ()
    """Names of the operators in a topological order."""
    forward_s: Size
    """Forward time of a microbatch in seconds."""
    backward_s: Size
    """Backward time of a microbatch in seconds, including recomputation if any."""
    parameter_bytes: Size
    """Bytes of gradients that the replicas of the stage all-reduce."""
    memory_bytes: Result | None = None
    """Peak memory in bytes by Parmesan's equation (14)."""


class StoredMessage(Noun):
    """Tensor passed from one stage to a later one."""

    source: Index
    """Sending stage, counted from 0."""
    target: Index
    """Receiving stage, later than `source`."""
    bytes: Size
    """Bytes per microbatch sent forward; gradients of the same size return."""


class PartitionSettings(Noun):
    """Settings of the partition that produced the stages."""

    partitioner: Text
    """Partitioner that cut the graph."""
    microbatch: Count
    """Samples per microbatch."""
    bandwidth_bytes_per_s: Positive
    """Bandwidth between any two devices in bytes per second, assumed by the partition (Parmesan, Section
    VI)."""
    hyper_operators: Count | None = None
    """K, the target number of clusters that operators were merged into."""
    alpha: Size | None = None
    """Weight of communication in the clustering cost (4)."""
    moves: Index | None = None
    """Number of accepted moves of the refinement."""


class StoredStages(Noun):
    """Pipeline stages of a partition, in order."""

    format: Literal["phaze-stages"]
    """Kind of file."""
    version: Literal[1]
    """Version of the file format."""
    model: Text
    """Name of the model."""
    replicas: Count
    """R, replicas of the pipeline, equal to the devices per stage."""
    microbatches: Count
    """MB, microbatches per training step on each replica."""
    recompute: Annotated[bool, Field(strict=True)]
    """True if backward passes recompute the forward pass."""
    device_memory_bytes: Positive | None = None
    """Memory limit of a device in bytes, which no stage exceeds."""
    stages: tuple[StoredStage, ...] = Field(min_length=1)
    """Stages in pipeline order."""
    edges: tuple[StoredMessage, ...]
    """Tensors between stages, at most one for each pair, skip connections included."""
    stage_time_s: Result | None = None
    """Time (3) in seconds of the slowest stage at the bandwidth in `settings`."""
    step_time_s: Result | None = None
    """Simulated time of a training step in seconds at the bandwidth in `settings`."""
    settings: PartitionSettings | None = None
    """Settings of the partition."""
    profiled: ProfiledModule | None = None
    """PyTorch module of the operators, if `phaze profile` measured them."""

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
