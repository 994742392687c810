"""Stages mapped to a topology of a study: rows of its tables.

By every way, for every seed; and how far the local search alone stays from the best mappings, with no search
before it and no mapping by hand.
"""

import time
from dataclasses import dataclass, field

import pandas as pd

from phaze.cost.network.topologies import make_network
from phaze.map.annealing import stage_task
from phaze.map.ensemble import Candidate, Chains, Mapped, MapSettings, best_of_chains, map_stages
from phaze.map.heuristics import compact_maps
from phaze.map.objective import INSTANTIATIONS, Problem, choose_instantiation
from phaze.map.schemes import near_devices
from phaze.map.search import Found, Limits, search
from phaze.pipeline.gpipe import Step, held_step_s, simulate_step
from phaze.pipeline.shared_ports import shared_step_s
from phaze.spec.map_study import MapTopology, StagesPoint
from phaze.spec.stages import StoredStages
from phaze.spec.topology import MatrixFile
from phaze.tables import MapDurations, MappedDevices, Mappings
from phaze.workload.operator_graphs import stage_graph

Row = dict[str, object]


@dataclass
class Record:
    """Rows of the tables of a job."""

    mappings: list[Row] = field(default_factory=list)
    devices: list[Row] = field(default_factory=list)
    durations: list[Row] = field(default_factory=list)

    def frames(self) -> dict[str, pd.DataFrame]:
        """Return the tables by name."""
        return {
            "mappings": Mappings.check(pd.DataFrame(self.mappings)),
            "mapped_devices": MappedDevices.check(pd.DataFrame(self.devices)),
            "map_durations": MapDurations.check(pd.DataFrame(self.durations)),
        }


def map_point(
    stored: StoredStages, point: StagesPoint, topology: tuple[str, MapTopology], settings: MapSettings
) -> Record:
    """Return what mapping the stages of a file to a topology, given with its name, leads to.

    The searches start without the heuristics: their own results count.
    """
    name, sizes = topology
    record, stages = Record(), stage_graph(stored)
    samples = stored.replicas * stored.microbatches * (stored.settings.microbatch if stored.settings else 1)
    for number, (seed, made) in enumerate(sizes.drawn(point.stages * point.replicas)):
        assert not isinstance(made, MatrixFile)
        mapped = map_stages(stages, make_network(made), settings)
        key: Row = {**point.model_dump(), "topology": name, "seed": seed}
        judge = _Judge(mapped, settings.memory_bytes_per_s, made.devices_per_port)
        for one in (*mapped.ways, *mapped.heuristics):
            record.mappings.append({**key, **judge.row(one, samples)})
        record.durations += [
            {**key, "way": way, "seconds": seconds} for way, seconds in mapped.seconds.items()
        ]
        if number == 0:
            for one in (mapped.best, *mapped.heuristics):
                record.devices += [{**key, **row} for row in device_rows(one)]
    return record


@dataclass(frozen=True)
class _Judge:
    """What steps with the mappings of the same stages take."""

    mapped: Mapped
    memory_bytes_per_s: float
    devices_per_port: int | None
    """Devices that share a port."""

    def row(self, one: Candidate, samples: int) -> Row:
        """Return what a mapping leads to, without its key."""
        problem = self.mapped.problem
        step = simulate_step(problem.stages, one.mapping, problem.network, self.memory_bytes_per_s)
        return {
            "way": one.way,
            "step_s": step.step_s,
            "shared_step_s": self._shared_s(one, step),
            "held_step_s": held_step_s(problem.stages, one.mapping, problem.network, self.memory_bytes_per_s),
            "stage_time_s": problem.value_s(one.mapping),
            "compute_s": step.compute_s,
            "samples_per_s": samples / step.step_s,
            **_proof(self.mapped, one),
        }

    def _shared_s(self, one: Candidate, alone: Step) -> float:
        problem, node = self.mapped.problem, self.devices_per_port
        if node is None:
            return alone.step_s
        return shared_step_s(problem.stages, one.mapping, problem.network, node, self.memory_bytes_per_s)


def _proof(mapped: Mapped, one: Candidate) -> Row:
    """Return what is known of a mapping's longest stage time."""
    problem = mapped.problem
    found, value = one.found, problem.value_s(one.mapping)
    bound = min(mapped.bound_s, value) if found is None else found.bound_s
    value = value if found is None else found.value_s
    return {
        "counted": "exact" if found is None else one.way,
        "value_s": value,
        "bound_s": bound,
        "proven": bound >= value * (1 - 2e-9),
        "by_sizes": one.way == choose_instantiation(problem.stages),
        "searched": found is None or found.searched,
        "gave_up": found is not None and found.stopped,
        "tries": 0 if found is None else found.tries,
    }


def device_rows(one: Candidate) -> list[Row]:
    """Return the devices of a mapping by stage and replica."""
    return [
        {"way": one.way, "stage": s, "replica": r, "device": device}
        for s, row in enumerate(one.mapping.tolist())
        for r, device in enumerate(row)
    ]


@dataclass(frozen=True, eq=False)
class Gap:
    """What the local search reaches for an instantiation, and what is known of better mappings."""

    local_s: float
    seconds: float
    found: Found
    """Of Algorithm 1, which begins with the mapping of the local search."""


def find_gap(problem: Problem, chains: Chains, limits: Limits) -> Gap:
    """Return how far the local search alone stays from the least longest stage time."""
    began = time.perf_counter()
    starts = sorted(compact_maps(problem), key=problem.value_s)
    _, mapping = best_of_chains(stage_task(problem), starts, near_devices(problem, 0), chains)
    seconds = time.perf_counter() - began
    return Gap(problem.value_s(mapping), seconds, search(problem, limits, chains.seed, (mapping,)))


def gap_rows(
    stored: StoredStages,
    point: StagesPoint,
    topology: tuple[str, MapTopology],
    chains: Chains,
    limits: Limits,
) -> tuple[list[Row], list[Row]]:
    """Return rows of tables search_gaps and gap_durations, for the first seed of a topology with its name."""
    name, sizes = topology
    seed, made = sizes.drawn(point.stages * point.replicas)[0]
    assert not isinstance(made, MatrixFile)
    stages, network = stage_graph(stored), make_network(made)
    gaps, durations = [], []
    for counted in INSTANTIATIONS:
        one = find_gap(Problem(stages, network, counted), chains, limits)
        key: Row = {**point.model_dump(), "topology": name, "seed": seed, "counted": counted}
        known = {"local_s": one.local_s, "least_s": one.found.value_s, "bound_s": one.found.bound_s}
        gaps.append({**key, **known, "proven": one.found.proven})
        durations.append({**key, "seconds": one.seconds})
    return gaps, durations
