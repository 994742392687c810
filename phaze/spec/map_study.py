"""Cases of partition and map: which graphs, cut by whom, on which topologies (Parmesan, Section VIII)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.spec.names import Partitioner
from phaze.spec.noun import Noun
from phaze.spec.numbers import Positive
from phaze.spec.settings import Label, Location, Name, PositiveInt
from phaze.spec.topology import RandomBlocks, Topology, UniformDist

Shape = Annotated[tuple[PositiveInt, PositiveInt], Field(description="Stages S and replicas R.")]


class MapGraph(Noun):
    """Operators that are cut into stages."""

    label: Label
    """Name for readers."""
    model: Location
    """File in config/models, or path of one."""
    microbatch: PositiveInt
    """Samples in a microbatch."""
    system: Location
    """File in config/systems that says the device, or path of one."""
    hyper_operators: PositiveInt | None = None
    """K, up to which operators are clustered; that of the model unless given."""
    bandwidth_gib_per_s: Positive = 11.0
    """Flat bandwidth that the partition assumes, GiB/s."""


class MapTopology(Noun):
    """A topology in several sizes."""

    label: Label
    """Name for readers."""
    sizes: tuple[Topology, ...] = Field(min_length=1)
    """One for each number of devices."""
    seeds: tuple[int, ...] = ()
    """Seeds of a random one; its own unless given."""

    @model_validator(mode="after")
    def _each_size_once(self) -> Self:
        devices = [getattr(size, "devices", None) for size in self.sizes]
        if None in devices or len(set(devices)) < len(devices):
            raise ValueError("sizes: must have different numbers of devices, and no files")
        return self

    def drawn(self, devices: int) -> tuple[tuple[int, Topology], ...]:
        """Return the topology of so many devices for every seed, nothing if there is none of that size."""
        found = next((size for size in self.sizes if getattr(size, "devices", None) == devices), None)
        if found is None:
            return ()
        if not isinstance(found, (RandomBlocks, UniformDist)):
            return ((0, found),)
        seeds = self.seeds or (found.seed,)
        return tuple((seed, found.model_copy(update={"seed": seed})) for seed in seeds)


class StagesPoint(Noun):
    """What one job cuts."""

    graph: Name
    """One of `maps.graphs`."""
    partitioner: Partitioner
    """Who cuts."""
    hyper_operators: PositiveInt
    """K."""
    stages: PositiveInt
    """S."""
    replicas: PositiveInt
    """R."""
    microbatches: PositiveInt
    """MB."""

    @property
    def name(self) -> str:
        """Return a name that is also a file name."""
        size = f"s{self.stages}-r{self.replicas}-m{self.microbatches}"
        return f"{self.graph}-{self.partitioner}-k{self.hyper_operators}-{size}"


class MapCase(Noun):
    """A table or a figure: graphs cut by partitioners, mapped to topologies."""

    graphs: tuple[Name, ...] = Field(min_length=1)
    """Some of `maps.graphs`."""
    topologies: tuple[Name, ...] = Field(min_length=1)
    """Some of `maps.topologies`; shapes that a topology has no size for are left out."""
    shapes: tuple[Shape, ...] = Field(min_length=1)
    """Stages S and replicas R."""
    show: Literal["partitioners", "topologies", "throughput", "clusters", "gaps"]
    """Speed-ups over the first partitioner with CS map (Tables I, II, IV); speed-ups by topology (Tables III,
    VI); samples per second (Figure 4); by K (Figure 5); the local search alone beside optima and bounds."""
    partitioners: tuple[Partitioner, ...] = Field(("full",), min_length=1)
    """Who cuts."""
    microbatches: tuple[PositiveInt, ...] = Field((4,), min_length=1)
    """MB."""
    hyper_operators: tuple[PositiveInt, ...] = ()
    """K; that of the graph unless given."""


class Maps(Noun):
    """What is partitioned and mapped, apart from the models of the study."""

    published: Name | None = None
    """Published results to show beside ours, a file in config/published."""
    graphs: dict[Name, MapGraph] = Field(default_factory=dict)
    """Graphs by name."""
    topologies: dict[Name, MapTopology] = Field(default_factory=dict)
    """Topologies by name."""
    cases: dict[Name, MapCase] = Field(default_factory=dict)
    """Tables and figures by name."""
    tries: PositiveInt = 4_000_000
    """Devices tried for a target of a search before it is given up."""
    steps: PositiveInt = 1_000_000
    """Steps of each chain of the local search."""
    seed: int = Field(0, ge=0)
    """Of searches and local search."""
    memory_gib_per_s: Positive = 600.0
    """Memory bandwidth of the update, GiB/s."""

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for name, case in self.cases.items():
            for key, known in (("graphs", self.graphs), ("topologies", self.topologies)):
                for one in getattr(case, key):
                    if one not in known:
                        raise ValueError(f"cases.{name}.{key}: {one!r} is not among {sorted(known)}")
        return self

    def stages_of(self, case: str) -> Iterator[StagesPoint]:
        """Yield what the jobs of a case cut; K of every graph must be known (see `phaze.config`)."""
        of = self.cases[case]
        for graph in of.graphs:
            own = self.graphs[graph].hyper_operators
            for k in of.hyper_operators or (() if own is None else (own,)):
                for partitioner in of.partitioners:
                    for stages, replicas in of.shapes:
                        for microbatches in of.microbatches:
                            yield StagesPoint(
                                graph=graph,
                                partitioner=partitioner,
                                hyper_operators=k,
                                stages=stages,
                                replicas=replicas,
                                microbatches=microbatches,
                            )

    def showing(self, *shows: str) -> tuple[str, ...]:
        """Return the cases that are shown so."""
        return tuple(name for name, case in self.cases.items() if case.show in shows)

    @property
    def stages(self) -> dict[str, StagesPoint]:
        """Return what is cut, by name."""
        return {point.name: point for case in self.cases for point in self.stages_of(case)}

    def mapped(self, case: str) -> Iterator[tuple[StagesPoint, str]]:
        """Yield stages and topology of every job of a case that maps."""
        for point in self.stages_of(case):
            for topology in self.cases[case].topologies:
                if self.topologies[topology].drawn(point.stages * point.replicas):
                    yield point, topology
