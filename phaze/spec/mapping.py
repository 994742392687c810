"""Files of mappings: which device does which stage of which replica, and what is known of it."""

from typing import Literal

from pydantic import Field

from phaze.spec.noun import Noun
from phaze.spec.values import Count, Index, Result


class StoredSearch(Noun):
    """What one way to map has found."""

    name: Literal["p2p", "allreduce", "exact", "local-search", "cs-map", "p2p-map"]
    """c_u + c_m (6), c_u + c_AR (7), or all three by Algorithm 1; local search; the heuristics."""
    step_time_s: Result
    """Simulated time of a step with its mapping."""
    objective_s: Result | None = None
    """Longest stage time of what an instantiation counts."""
    bound_s: Result | None = None
    """No mapping has a shorter one."""
    proven: bool | None = None
    """Whether no mapping is better."""
    searched: bool | None = None
    """Whether the search found the mapping; otherwise it is that of the initial upper bound."""
    gave_up: bool | None = None
    """Whether a target was given up at the limit of tries."""
    timed_out: bool | None = None
    """Whether the wall-clock limit ended the search; another run may find something else."""
    tries: Index | None = None
    """Devices tried by the search, or changes of places by the local search."""


class StoredPlanTime(Noun):
    """How long a batch of a plan takes under the mapping of one way."""

    name: str
    """The way, one of `ways` or `heuristics`."""
    simulated_s: Result
    """A batch, event by event, every link with one message at a time."""


class StoredPlanMap(Noun):
    """A plan of a study on the devices of a topology.

    Its pipelines beside each other are the replicas of a mapping; a stage with more replicas than there are
    pipelines has several workers in each, and every worker is a stage of the mapping. The slices of a replica
    are on a unit of devices with consecutive numbers, as many as the largest tensor parallel width.
    """

    architecture: str
    """Of the plan."""
    hbm_gib: Result
    """Of the plan."""
    planner: str
    """Of the plan."""
    unit: Count
    """Devices of a unit: unit u has the devices from u times this on."""
    workers: tuple[tuple[Index, Index], ...] = Field(min_length=1)
    """For every stage of the mapping, the plan's stage that it is part of and its number there."""
    devices: tuple[tuple[tuple[Index, ...], ...], ...] = Field(min_length=1)
    """Devices of the slices of every replica of every stage of the plan."""
    planned_s: Result
    """A batch as the planner has it."""
    alone_s: Result
    """A batch on a network that takes no time."""
    simulated_s: Result
    """A batch under the mapping of the file."""
    times: tuple[StoredPlanTime, ...] = Field(min_length=1)
    """The same for each way, CS and p2p map included; at a time limit for those that there was time for."""


class StoredRankTime(Noun):
    """How long a step of a training plan takes under the mapping of one way."""

    name: str
    """The way, one of `ways` or `heuristics`."""
    time_s: Result
    """A step by the plan's price, all of its groups on the links between their devices."""


class StoredRankMap(Noun):
    """The ranks of a training plan on the devices of a topology.

    For the search pipeline ranks are stages, data-parallel ranks replicas, and the tp * cp ranks beside each
    other a unit of devices with consecutive numbers.
    """

    unit: Count
    """Devices of a unit: unit u has the devices from u times this on."""
    devices: tuple[Index, ...] = Field(min_length=1)
    """Device of every rank, in the order in which the runtime numbers ranks."""
    time_s: Result
    """A step with them."""
    default_s: Result
    """A step with every rank on the device of its own number."""
    times: tuple[StoredRankTime, ...] = Field(min_length=1)
    """The same for each way, CS map being the order of the runtime; at a time limit for those that there was
    time for."""


class StoredMapping(Noun):
    """A mapping of the stages of a file to the devices of a topology."""

    format: Literal["phaze-mapping"]
    """What the file holds."""
    version: Literal[1]
    """Version of the format."""
    model: str
    """Name of the model in the file of stages."""
    topology: str
    """File of the topology."""
    devices: Count
    """Devices of the topology, or units of a plan, from 0; those that no stage is on are not used."""
    mapping: tuple[tuple[Index, ...], ...] = Field(min_length=1)
    """Devices of the replicas of every stage, a list for each stage; replicas in the order of their ring.

    Of a plan they are units, whose devices are in `plan`."""
    found_by: str
    """The way that found it, one of `ways`: that with the shortest step, or the shortest batch of a plan."""
    step_time_s: Result
    """Simulated time of a training step: GPipe, all-reduce, update."""
    pipeline_s: Result
    """When the passes of the stage that ends the step are over."""
    all_reduce_s: Result
    """All-reduce of that stage."""
    update_s: Result
    """Update of that stage."""
    compute_s: Result
    """The step on a network that takes no time."""
    objective_s: Result
    """Longest stage time c_u + c_m + c_AR."""
    bound_s: Result
    """No mapping has a shorter one."""
    proven: bool
    """Whether the objective is proven to be the least."""
    seed: Index
    """Of all random numbers."""
    ways: tuple[StoredSearch, ...] = Field(min_length=1)
    """What each way found."""
    heuristics: tuple[StoredSearch, ...]
    """What mappings by hand lead to, whether or not they could be chosen."""
    plan: StoredPlanMap | None = None
    """Of a plan of a study: its devices, and how long it takes."""
    ranks: StoredRankMap | None = None
    """Of a plan of `plan`: the devices of its ranks, and how long a step takes."""
