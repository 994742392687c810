"""Mapping files: the devices of each replica of every pipeline stage, and step times."""

from typing import Literal

from pydantic import Field

from phaze.spec.names import MapMethod
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Index, Result, Text


class StoredSearch(Noun):
    """Result of one mapping algorithm."""

    name: MapMethod
    """Algorithm. `p2p` minimises c_u + c_m (6), `allreduce` c_u + c_AR (7), and `exact` all three terms by
    Algorithm 1. `local-search` is simulated annealing. `cs-map` and `p2p-map` are heuristics."""
    step_time_s: Result
    """Simulated step time in seconds with this mapping."""
    objective_s: Result | None = None
    """Longest stage time in seconds, over the cost terms that the algorithm minimises."""
    bound_s: Result | None = None
    """Proven lower bound in seconds on the objective of any mapping."""
    proven: bool | None = None
    """True if this mapping is proven optimal."""
    searched: bool | None = None
    """True if the search found the mapping; false if it is the one of the initial upper bound."""
    gave_up: bool | None = None
    """True if the search abandoned a target after its maximum number of tries."""
    timed_out: bool | None = None
    """True if the wall-clock limit ended the search; another run may give another result."""
    tries: Index | None = None
    """Devices tried by the search, or swaps tried by the local search."""


class StoredRankTime(Noun):
    """Step time of a training plan with the mapping that one algorithm found."""

    name: Text
    """Algorithm, one of `ways` or `heuristics`."""
    time_s: Result
    """Step time in seconds as `plan` prices it, with the links between the devices of every group."""


class StoredRankMap(Noun):
    """Mapping of a training plan's ranks to the devices of a topology.

    The search treats pipeline ranks as stages, data-parallel ranks as replicas, and the tp · cp ranks of one
    replica and stage as a unit of consecutive devices.
    """

    unit: Count
    """Devices per unit; unit u starts at device u · `unit`."""
    devices: tuple[Index, ...] = Field(min_length=1)
    """Device of every rank, in the runtime's order of ranks."""
    time_s: Result
    """Step time in seconds with this mapping."""
    default_s: Result
    """Step time in seconds with rank r on device r."""
    times: tuple[StoredRankTime, ...] = Field(min_length=1)
    """Step time by algorithm, where CS map is the runtime's own order; after a time limit, only those
    computed by then."""


class StoredMapping(Noun):
    """Mapping of pipeline stages to the devices of a topology."""

    format: Literal["phaze-mapping"]
    """Kind of file."""
    version: Literal[1]
    """Version of the file format."""
    model: Text
    """Model name in the file of stages."""
    topology: Text
    """Topology file."""
    devices: Count
    """Number of devices of the topology, or of units for a plan, numbered from 0. Devices without a stage are
    unused."""
    mapping: tuple[tuple[Index, ...], ...] = Field(min_length=1)
    """Devices of the replicas of every stage, one list per stage, in the order of their ring. For a plan
    these are units, whose devices are in `ranks`."""
    found_by: Text
    """Algorithm that found the mapping, one of `ways`: the one with the shortest step."""
    step_time_s: Result
    """Simulated time of a training step in seconds: GPipe, all-reduce and update."""
    pipeline_s: Result
    """Time in seconds at which the last stage to finish has done its forward and backward passes."""
    all_reduce_s: Result
    """All-reduce time in seconds of the stage that finishes last."""
    update_s: Result
    """Update time in seconds of the stage that finishes last."""
    compute_s: Result
    """Step time in seconds on a network with zero transfer time."""
    objective_s: Result
    """Longest stage time c_u + c_m + c_AR in seconds."""
    bound_s: Result
    """Proven lower bound in seconds on the objective of any mapping."""
    proven: bool
    """True if the objective is proven minimal."""
    seed: Index
    """Seed of all random numbers."""
    ways: tuple[StoredSearch, ...] = Field(min_length=1)
    """Result of each algorithm."""
    heuristics: tuple[StoredSearch, ...]
    """Results of the heuristic mappings, including those that are not candidates for `mapping`."""
    ranks: StoredRankMap | None = None
    """For a training plan of `phaze plan`: the devices of its ranks and step times."""
