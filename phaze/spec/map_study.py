"""Partitioning and mapping cases of a study: graphs, partitioners, topologies (Parmesan, Section VIII)."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from phaze.spec.names import Partitioner
from phaze.spec.noun import Noun
from phaze.spec.topology import RandomBlocks, Topology, UniformDist
from phaze.spec.values import Label, Location, Name, Positive, PositiveInt, Text, refuse_unknown

Shape = Annotated[tuple[PositiveInt, PositiveInt], Field(description="Stages S and replicas R.")]


Search = Literal["ours", "authors"]
"""Mapper: all of our searches with local search, or the better of the paper's two algorithms."""
Judge = Literal["step", "shared-step", "held-step", "stage-time"]
"""Objective by which mappings are compared."""


class MapGraph(Noun):
    """Operator graph to partition, extracted from a model."""

    label: Label
    """Display name."""
    model: Location
    """File in config/models, or path of one."""
    microbatch: PositiveInt
    """Samples in a microbatch."""
    system: Location
    """System whose device runs the model: a name in config/systems, or a path."""
    hyper_operators: PositiveInt | None = None
    """Number of clusters of operators, K; default: the model's."""
    bandwidth_gib_per_s: Positive = 11.0
    """Flat bandwidth that the partition assumes, GiB/s."""
    compute_factor: Positive = 1.0
    """Factor on the estimated times of all operators. Values other than 1 are for sensitivity studies."""


class MapTopology(Noun):
    """One topology in several sizes."""

    label: Label
    """Display name."""
    sizes: tuple[Topology, ...] = Field(min_length=1)
    """One topology per number of devices."""
    seeds: tuple[int, ...] = ()
    """Seeds of a random topology; default: the seed in the topology."""

    @model_validator(mode="after")
    def _each_size_once(self) -> Self:
        devices = [getattr(size, "devices", None) for size in self.sizes]
        if None in devices or len(set(devices)) < len(devices):
            raise ValueError("sizes: must have different numbers of devices, and no files")
        return self

    def drawn(self, devices: int) -> tuple[tuple[int, Topology], ...]:
        """Topologies with this number of devices, one per seed; empty if no size has that number."""
        topology = next((size for size in self.sizes if getattr(size, "devices", None) == devices), None)
        if topology is None:
            return ()
        if not isinstance(topology, (RandomBlocks, UniformDist)):
            return ((0, topology),)
        seeds = self.seeds or (topology.seed,)
        return tuple((seed, topology.model_copy(update={"seed": seed})) for seed in seeds)


class StagesPoint(Noun):
    """Job that partitions a graph into stages."""

    graph: Name
    """One of `maps.graphs`."""
    partitioner: Partitioner
    """Partitioner."""
    hyper_operators: PositiveInt
    """Number of clusters, K."""
    stages: PositiveInt
    """Number of stages, S."""
    replicas: PositiveInt
    """Number of replicas, R."""
    microbatches: PositiveInt
    """Microbatches per step and replica, MB."""

    @property
    def name(self) -> str:
        """Name of the job, which can also be a file name."""
        size = f"s{self.stages}-r{self.replicas}-m{self.microbatches}"
        return f"{self.graph}-{self.partitioner}-k{self.hyper_operators}-{size}"


class MapReading(Noun):
    """Interpretation of details that a paper leaves open about its speed-ups."""

    label: Text
    """Assumption, as a sentence for readers."""
    graph: Name | None = None
    """One of `maps.graphs`, for speed-ups by topology; default: the graph of the case."""
    partitioner: Partitioner = "full"
    """Partitioner. For speed-ups by partitioner: the one used for PipeDream."""
    search: Search = "ours"
    """Mapper: ours (three searches and the local search) or the authors' (the better of (6) and (7))."""
    judge: Judge = "step"
    """Objective for comparing mappings: the simulated step, without or with a port shared by the devices of a
    node, or with messages that occupy both devices; or the longest stage time (5). The searches do not use
    it.
    """
    topologies: dict[Name, Name] = Field(default_factory=dict)
    """Topologies of the case to which the interpretation applies, each with the one of `maps.topologies` for
    it; default: all, unchanged.
    """
    sensitivity: bool = False
    """True if the interpretation contradicts the paper. It is shown as a sensitivity and never chosen as the
    nearest.
    """


class Unexplained(Noun):
    """Published values that no interpretation reproduces."""

    about: Text
    """The published value and why it is unexpected, as a sentence for readers."""
    topologies: tuple[Name, ...] = ()
    """Topologies of these values; default: all topologies of the case."""
    graphs: tuple[Name, ...] = ()
    """Graphs of these values; default: all graphs of the case."""
    shapes: tuple[Shape, ...] = ()
    """Shapes of these values; default: all shapes of the case."""


class MapCase(Noun):
    """Table or figure of a paper: graphs that are partitioned and mapped to topologies."""

    graphs: tuple[Name, ...] = Field(min_length=1)
    """Some of `maps.graphs`."""
    topologies: tuple[Name, ...] = Field(min_length=1)
    """Some of `maps.topologies`; a shape is skipped if a topology does not have its size."""
    shapes: tuple[Shape, ...] = Field(min_length=1)
    """Stages S and replicas R."""
    show: Literal["partitioners", "topologies", "throughput", "clusters", "gaps"]
    """Content: speed-ups over the first partitioner with CS map (Tables I, II, IV); speed-ups by topology
    (Tables III, VI); samples per second (Figure 4); by K (Figure 5); or the local search alone, compared with
    optima and bounds. The page of the papers has printed speed-ups, tables `mappings` and `search-gaps` all.
    """
    partitioners: tuple[Partitioner, ...] = Field(("full",), min_length=1)
    """Partitioners."""
    microbatches: tuple[PositiveInt, ...] = Field((4,), min_length=1)
    """Microbatches per step and replica, MB."""
    hyper_operators: tuple[PositiveInt, ...] = ()
    """Numbers of clusters, K; default: the graph's."""
    readings: dict[Name, MapReading] = Field(default_factory=dict)
    """Interpretations of the published speed-ups, shown next to each other; only with `show: topologies` or
    `partitioners`.
    """
    unexplained: tuple[Unexplained, ...] = ()
    """Published values that no interpretation reproduces."""

    @model_validator(mode="after")
    def _readings_of_what_is_printed(self) -> Self:
        if self.readings and self.show not in ("topologies", "partitioners"):
            raise ValueError(
                f"readings: must be empty for show {self.show}; only speed-ups by topology or "
                "partitioner have readings"
            )
        if self.readings and self.show == "topologies" and len(self.graphs) > 1:
            raise ValueError("readings: speed-ups by topology need exactly one graph")
        for name, reading in self.readings.items():
            refuse_unknown(f"readings.{name}.topologies", reading.topologies, self.topologies)
            if self.show == "partitioners":
                refuse_unknown(f"readings.{name}.partitioner", [reading.partitioner], self.partitioners)
        return self

    @model_validator(mode="after")
    def _unexplained_are_of_the_case(self) -> Self:
        for unexplained in self.unexplained:
            for key in ("topologies", "graphs", "shapes"):
                for value in getattr(unexplained, key):
                    if value not in getattr(self, key):
                        raise ValueError(f"unexplained.{key}: {value!r} is not in the case's {key}")
        return self

    @property
    def plain_readings(self) -> tuple[Name, ...]:
        """Interpretations among which the closest one is chosen: all except sensitivity studies."""
        return tuple(name for name, reading in self.readings.items() if not reading.sensitivity)


class Job(NamedTuple):
    """Mapping job: the stages of a partition, and the topology to map them to."""

    point: StagesPoint
    topology: Name


class Maps(Noun):
    """Graphs to partition and map, in addition to the models of the study."""

    published: Name | None = None
    """Published results to compare with: a file in config/published."""
    graphs: dict[Name, MapGraph] = Field(default_factory=dict)
    """Graphs by name."""
    topologies: dict[Name, MapTopology] = Field(default_factory=dict)
    """Topologies by name."""
    cases: dict[Name, MapCase] = Field(default_factory=dict)
    """Tables and figures by name."""
    tries: PositiveInt = 4_000_000
    """Devices tried for one target time of a search before it is given up."""
    steps: PositiveInt = 1_000_000
    """Steps of each chain of the local search."""
    gap_steps: PositiveInt = 1_000_000
    """Steps of each chain if only the local search runs (`show: gaps`)."""
    seed: int = Field(0, ge=0)
    """Seed of the searches and the local search."""
    memory_gib_per_s: Positive = 600.0
    """Memory bandwidth of the optimizer update, GiB/s."""

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for name, case in self.cases.items():
            refuse_unknown(f"cases.{name}.graphs", case.graphs, self.graphs)
            refuse_unknown(f"cases.{name}.topologies", case.topologies, self.topologies)
            for reading_name, reading in case.readings.items():
                at = f"cases.{name}.readings.{reading_name}"
                refuse_unknown(f"{at}.graph", filter(None, [reading.graph]), self.graphs)
                refuse_unknown(f"{at}.topologies", reading.topologies.values(), self.topologies)
        return self

    def stages_of(self, case: str, reading: MapReading | None = None) -> Iterator[StagesPoint]:
        """Partitioning jobs of a case or interpretation; none for a graph without `hyper_operators` (K)."""
        map_case = self.cases[case]
        graphs = map_case.graphs if reading is None or reading.graph is None else (reading.graph,)
        # Speed-ups by partitioner compare those of the case; any other reading has one partitioner.
        one_partitioner = reading is not None and map_case.show == "topologies"
        partitioners = (reading.partitioner,) if reading and one_partitioner else map_case.partitioners
        for graph in graphs:
            clusters = map_case.hyper_operators or filter(None, [self.graphs[graph].hyper_operators])
            points = product(clusters, partitioners, map_case.shapes, map_case.microbatches)
            for k, partitioner, (stages, replicas), microbatches in points:
                yield StagesPoint(
                    graph=graph,
                    partitioner=partitioner,
                    hyper_operators=k,
                    stages=stages,
                    replicas=replicas,
                    microbatches=microbatches,
                )

    def showing(self, *shows: str) -> tuple[str, ...]:
        """Names of the cases whose `show` is one of these values."""
        return tuple(name for name, case in self.cases.items() if case.show in shows)

    @property
    def stages(self) -> dict[str, StagesPoint]:
        """Partitioning jobs of all cases, by name."""
        return {
            point.name: point
            for name, case in self.cases.items()
            for reading in (None, *case.readings.values())
            for point in self.stages_of(name, reading)
        }

    def mapped(self, case: str, reading: MapReading | None = None) -> Iterator[Job]:
        """Yield the mapping jobs of a case, or of one of its interpretations."""
        topologies: Iterable[Name] = self.cases[case].topologies
        if reading is not None and reading.topologies:
            topologies = reading.topologies.values()
        for point in self.stages_of(case, reading):
            for topology in topologies:
                if self.topologies[topology].drawn(point.stages * point.replicas):
                    yield Job(point, topology)

    def searches(self, cases: Iterable[str]) -> dict[tuple[str, Name], Search]:
        """Mapper for each mapping job of the cases, by stages and topology; "ours" if any case needs it."""
        mappers: dict[tuple[str, Name], Search] = {}
        for case in cases:
            for reading in (None, *self.cases[case].readings.values()):
                search = "ours" if reading is None else reading.search
                for point, topology in self.mapped(case, reading):
                    previous = mappers.get((point.name, topology))
                    mappers[point.name, topology] = "ours" if "ours" in (previous, search) else search
        return mappers
