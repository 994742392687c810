"""Files of mappings: which device does which stage of which replica, and what is known of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from phaze.spec.noun import Noun
from phaze.spec.numbers import Count, Index, Result


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
    """Devices of the topology, numbered from 0; those that no stage is on are not used."""
    mapping: tuple[tuple[Index, ...], ...] = Field(min_length=1)
    """Devices of the replicas of every stage, a list for each stage; replicas in the order of their ring."""
    found_by: str
    """The way that found it, one of `ways`."""
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
    """What each way found; the mapping of the file is that with the shortest step."""
    heuristics: tuple[StoredSearch, ...]
    """What mappings by hand lead to, whether or not they could be chosen."""
