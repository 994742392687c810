"""Cases of partition and map: which graphs, cut by whom, on which topologies (Parmesan, Section VIII)."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from phaze.spec.names import Partitioner
from phaze.spec.noun import Noun
from phaze.spec.topology import RandomBlocks, Topology, UniformDist
from phaze.spec.values import Label, Location, Name, Positive, PositiveInt, refuse_unknown

Shape = Annotated[tuple[PositiveInt, PositiveInt], Field(description="Stages S and replicas R.")]


Search = Literal["ours", "authors"]
"""All searches and the local search; or the better of the two instantiations of the paper."""
Judge = Literal["step", "shared-step", "held-step", "stage-time"]
"""Objectives by which mappings are compared."""


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
    compute_factor: Positive = 1.0
    """Factor on the estimated times of all operators: another than 1 is a sensitivity, no device."""


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
        """Topology of so many devices for every seed, nothing if there is none of that size."""
        found = next((size for size in self.sizes if getattr(size, "devices", None) == devices), None)
        if found is None:
            return ()
        if not isinstance(found, (RandomBlocks, UniformDist)):
            return ((0, found),)
        seeds = self.seeds or (found.seed,)
        return tuple((seed, found.model_copy(update={"seed": seed})) for seed in seeds)


class StagesPoint(Noun):
    """Input of one partitioning job."""

    graph: Name
    """One of `maps.graphs`."""
    partitioner: Partitioner
    """Partitioner."""
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
        """Name that is also a file name."""
        size = f"s{self.stages}-r{self.replicas}-m{self.microbatches}"
        return f"{self.graph}-{self.partitioner}-k{self.hyper_operators}-{size}"


class MapReading(Noun):
    """One way to read what a paper leaves open about its speed-ups."""

    label: str
    """Assumption, as a sentence for readers."""
    graph: Name | None = None
    """One of `maps.graphs`, for speed-ups by topology; that of the case unless given."""
    partitioner: Partitioner = "full"
    """Partitioner; for speed-ups by partitioner, the one that stands for PipeDream."""
    search: Search = "ours"
    """Mapper: ours (three searches and the local search) or the authors' (the better of (6) and (7))."""
    judge: Judge = "step"
    """By what mappings are compared: the simulated step; the same where the devices of a node share its port,
    or where messages under way hold both devices; or the longest stage time (5). The searches do not know."""
    topologies: dict[Name, Name] = Field(default_factory=dict)
    """Topologies of the case that the reading is about, and which of `maps.topologies` stand for them; all,
    as they are, unless given."""
    sensitivity: bool = False
    """Whether it assumes what the paper rules out: shown to see what depends on it, never as the nearest."""


class Unexplained(Noun):
    """Printed figures that no reading comes near."""

    about: str
    """Printed figure and why it is odd, as a sentence for readers."""
    topologies: tuple[Name, ...] = ()
    """Their topologies; all of the case unless given."""
    graphs: tuple[Name, ...] = ()
    """Their graphs; all of the case unless given."""
    shapes: tuple[Shape, ...] = ()
    """Their shapes; all of the case unless given."""


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
    """Partitioner."""
    microbatches: tuple[PositiveInt, ...] = Field((4,), min_length=1)
    """MB."""
    hyper_operators: tuple[PositiveInt, ...] = ()
    """K; that of the graph unless given."""
    readings: dict[Name, MapReading] = Field(default_factory=dict)
    """Readings of printed speed-ups, side by side; only with `show: topologies` or `partitioners`."""
    unexplained: tuple[Unexplained, ...] = ()
    """Printed figures that no reading explains."""

    @model_validator(mode="after")
    def _readings_of_what_is_printed(self) -> Self:
        if self.readings and self.show not in ("topologies", "partitioners"):
            raise ValueError(f"readings: are of speed-ups by topology or by partitioner, not of {self.show}")
        if self.readings and self.show == "topologies" and len(self.graphs) > 1:
            raise ValueError("readings: by topology are of one graph")
        for name, reading in self.readings.items():
            refuse_unknown(f"readings.{name}.topologies", reading.topologies, self.topologies)
            if self.show == "partitioners":
                refuse_unknown(f"readings.{name}.partitioner", [reading.partitioner], self.partitioners)
        return self

    @model_validator(mode="after")
    def _unexplained_are_of_the_case(self) -> Self:
        for one in self.unexplained:
            for key in ("topologies", "graphs", "shapes"):
                for value in getattr(one, key):
                    if value not in getattr(self, key):
                        raise ValueError(f"unexplained.{key}: {value!r} is not among the case's {key}")
        return self

    @property
    def plain_readings(self) -> tuple[Name, ...]:
        """Readings that may be the nearest: no sensitivities."""
        return tuple(name for name, reading in self.readings.items() if not reading.sensitivity)


class Job(NamedTuple):
    """Stages that are mapped to a topology."""

    point: StagesPoint
    topology: Name


class Maps(Noun):
    """Graphs to partition and map, in addition to the models of the study."""

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
    gap_steps: PositiveInt = 1_000_000
    """The same where the local search is alone (`show: gaps`)."""
    seed: int = Field(0, ge=0)
    """Of searches and local search."""
    memory_gib_per_s: Positive = 600.0
    """Memory bandwidth of the update, GiB/s."""

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for name, case in self.cases.items():
            refuse_unknown(f"cases.{name}.graphs", case.graphs, self.graphs)
            refuse_unknown(f"cases.{name}.topologies", case.topologies, self.topologies)
            for reading, own in case.readings.items():
                at = f"cases.{name}.readings.{reading}"
                refuse_unknown(f"{at}.graph", filter(None, [own.graph]), self.graphs)
                refuse_unknown(f"{at}.topologies", own.topologies.values(), self.topologies)
        return self

    def stages_of(self, case: str, reading: MapReading | None = None) -> Iterator[StagesPoint]:
        """Graphs and shapes that a case or a reading cuts; K of every graph must be known (`spec.config`)."""
        of = self.cases[case]
        graphs = of.graphs if reading is None or reading.graph is None else (reading.graph,)
        one_cuts = reading is not None and of.show == "topologies"
        for graph in graphs:
            own = self.graphs[graph].hyper_operators
            for k in of.hyper_operators or (() if own is None else (own,)):
                for partitioner in (reading.partitioner,) if reading and one_cuts else of.partitioners:
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
        """Cases that are shown so."""
        return tuple(name for name, case in self.cases.items() if case.show in shows)

    @property
    def stages(self) -> dict[str, StagesPoint]:
        """Everything that is cut, by name."""
        return {
            point.name: point
            for case, of in self.cases.items()
            for reading in (None, *of.readings.values())
            for point in self.stages_of(case, reading)
        }

    def mapped(self, case: str, reading: MapReading | None = None) -> Iterator[Job]:
        """Stages and topologies of the jobs of a case, or of one of its readings."""
        topologies: Iterable[Name] = self.cases[case].topologies
        if reading is not None and reading.topologies:
            topologies = reading.topologies.values()
        for point in self.stages_of(case, reading):
            for topology in topologies:
                if self.topologies[topology].drawn(point.stages * point.replicas):
                    yield Job(point, topology)

    def searches(self, cases: Iterable[str]) -> dict[tuple[str, Name], Search]:
        """Search of the jobs of some cases, by stages and topology; ours includes the authors'."""
        found: dict[tuple[str, Name], Search] = {}
        for case in cases:
            for reading in (None, *self.cases[case].readings.values()):
                search = "ours" if reading is None else reading.search
                for point, topology in self.mapped(case, reading):
                    known = found.get((point.name, topology))
                    found[point.name, topology] = "ours" if "ours" in (known, search) else search
        return found
