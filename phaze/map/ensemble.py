"""Best mapping found by several methods, judged by simulated step time (Parmesan, V-B and VIII-C)."""

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.deadline import Deadline, OutOfTimeError
from phaze.base.progress import counted
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.map.annealing import AnnealingTask, Cooling, anneal, new_state, step_task
from phaze.map.heuristics import compact_maps, consecutive_map, p2p_map, random_map
from phaze.map.objective import INSTANTIATIONS, MappingProblem, choose_instantiation, lower_bound_s
from phaze.map.schemes import near_devices
from phaze.map.search import SearchLimits, SearchResult, proves, search
from phaze.pipeline.gpipe import simulate_step, step_time_s
from phaze.spec.mapping import StoredMapping, StoredSearch
from phaze.spec.names import Instantiation, InstantiationChoice, MapMethod
from phaze.workload.operator_graphs import StageGraph

AUTHORS: tuple[Instantiation, ...] = ("p2p", "allreduce")
"""The paper's two instantiations. Its Table VI reports the better one by simulated throughput."""


@dataclass(frozen=True)
class MapSettings:
    """Settings of a mapping search."""

    instantiation: InstantiationChoice = "ensemble"
    seed: int = 0
    heuristics: bool = True
    """True if CS map and p2p map are candidates and initial upper bounds of the searches, as in the paper."""
    limits: SearchLimits = field(default_factory=SearchLimits)
    steps: int = 1_000_000
    """Number of swaps that each chain of the local search tries."""
    memory_bytes_per_s: float = math.inf
    """Memory bandwidth of the parameter update."""


@dataclass(frozen=True, eq=False)
class MappingCandidate:
    """A mapping, its method, and its simulated step time."""

    method: MapMethod
    mapping: Ints
    step_s: float
    search: SearchResult | None = None
    """Result of the search, None for other methods."""


@dataclass(frozen=True, eq=False)
class Mapped:
    """All mappings found, and the best of them."""

    problem: MappingProblem
    """Mapping problem with all three terms of the stage time."""
    candidates: tuple[MappingCandidate, ...]
    """Candidate mappings that may be chosen."""
    heuristics: tuple[MappingCandidate, ...]
    """Heuristic mappings: CS map and p2p map."""
    bound_s: float
    """Lower bound on the longest stage time of any mapping, with all three terms."""
    seconds: dict[str, float]
    """Wall time of each method."""

    @property
    def best(self) -> MappingCandidate:
        """Mapping with the shortest step; the first one on ties."""
        return min(self.candidates, key=lambda one: one.step_s)


def map_stages(
    stages: StageGraph, network: DeviceNetwork, settings: MapSettings, deadline: Deadline | None = None
) -> Mapped:
    """Map stages to the devices of a network with the methods that the settings select.

    deadline: deadline of the caller; None: a new one from the settings' time limit.
    """
    run = _MappingMethods(stages, network, settings, deadline or Deadline(settings.limits.time_s))
    by_hand = run.by_hand()
    kinds = _instantiations(stages, settings.instantiation)
    searched = [
        run.search(kind) for kind in counted(kinds, "search") if kind == kinds[0] or not run.deadline.passed
    ]
    candidates = [*searched]
    if settings.instantiation == "ensemble" and not run.deadline.passed:
        with suppress(OutOfTimeError):
            candidates.append(run.anneal([*searched, *(by_hand if settings.heuristics else ())]))
    if settings.heuristics:
        candidates += by_hand
    exact = MappingProblem(stages, network, "exact")
    bounds = [candidate.search.bound_s for candidate in searched if candidate.search is not None]
    bound_s = max(lower_bound_s(exact, run.deadline), *bounds)
    return Mapped(exact, tuple(candidates), by_hand, bound_s, run.seconds)


def _instantiations(stages: StageGraph, choice: InstantiationChoice) -> tuple[Instantiation, ...]:
    if choice == "ensemble":
        return INSTANTIATIONS
    if choice == "authors":
        return AUTHORS
    return (choose_instantiation(stages),) if choice == "auto" else (choice,)


class _MappingMethods:
    """Runner of all mapping methods for the same stages and network."""

    def __init__(
        self, stages: StageGraph, network: DeviceNetwork, settings: MapSettings, deadline: Deadline
    ) -> None:
        self.stages, self.network, self.settings = stages, network, settings
        self.shape = MappingProblem(stages, network, "exact").shape
        self.seconds: dict[str, float] = {}
        self.deadline = deadline

    def by_hand(self) -> tuple[MappingCandidate, ...]:
        """Heuristic mappings: CS map and p2p map."""
        return (
            self._candidate("cs-map", consecutive_map(*self.shape)),
            self._candidate("p2p-map", p2p_map(*self.shape)),
        )

    def search(self, instantiation: Instantiation) -> MappingCandidate:
        """Best mapping that Algorithm 1 finds for an instantiation."""
        problem, settings = MappingProblem(self.stages, self.network, instantiation), self.settings
        drawn = random_map(*self.shape, self.network.devices, settings.seed)
        with self._timed(instantiation):
            start = None if settings.heuristics else (drawn,)
            result = search(problem, settings.limits, settings.seed, start, self.deadline)
        return self._candidate(instantiation, result.mapping, result)

    def anneal(self, starts: list[MappingCandidate]) -> MappingCandidate:
        """Mapping by local search, started from `starts` and from mappings on nearby devices."""
        settings = self.settings
        task = step_task(self.stages, self.network, settings.memory_bytes_per_s)
        problem = MappingProblem(self.stages, self.network, "exact")
        near = near_devices(problem, 0, self.deadline)
        compact = [
            self._candidate("local-search", mapping)
            for mapping in compact_maps(problem, self.deadline)
            if not self.deadline.passed
        ]
        ranked = sorted([*starts, *compact], key=lambda candidate: candidate.step_s)

        chains = Chains(settings.seed, settings.steps)
        with self._timed("local-search"):
            _, best = best_of_chains(
                task, [candidate.mapping for candidate in ranked], near, chains, self.deadline
            )
        return self._candidate("local-search", best)

    def _candidate(
        self, method: MapMethod, mapping: Ints, result: SearchResult | None = None
    ) -> MappingCandidate:
        step = step_time_s(self.stages, mapping, self.network, self.settings.memory_bytes_per_s)
        return MappingCandidate(method, mapping, step, result)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began


@dataclass(frozen=True)
class Chains:
    """Settings of the annealing chains of the local search."""

    seed: int = 0
    steps: int = 1_000_000
    """Number of swaps that each chain tries."""
    count: int = 4
    """Number of chains, one thread each."""


def best_of_chains(
    task: AnnealingTask, starts: list[Ints], near: Ints, chains: Chains, deadline: Deadline | None = None
) -> tuple[float, Ints]:
    """Best objective and mapping (S, R) that several annealing chains find before the deadline.

    Chains start at good mappings, one in four at a random one, at different temperatures. `starts` are
    ranked, the best first. `near` holds the devices near each device, shape (D, D).
    """
    stages, replicas = starts[0].shape
    devices, until = len(near), deadline or Deadline()

    def chain(k: int) -> tuple[float, int, Ints]:
        rng = np.random.default_rng([chains.seed, k])
        hot = 0.02 if k % 2 else 0.002
        mapping = starts[k // 2 % len(starts)]
        if k % 4 == 3:
            hot, mapping = 0.05, random_map(stages, replicas, devices, chains.seed + k)
        cooling = Cooling(chains.steps, hot, 1e-5)
        annealed, value = anneal(
            task, new_state(task, _with_free(mapping, devices)), near, rng, cooling, until
        )
        return value, k, annealed

    with ThreadPoolExecutor(chains.count) as pool, until.for_threads():
        value, _, annealed = min(pool.map(chain, range(chains.count)), key=lambda outcome: outcome[:2])
    return value, annealed[: stages * replicas].reshape(stages, replicas)


def _with_free(mapping: Ints, devices: int) -> Ints:
    """Device of every slot, followed by the free devices, shape (D,)."""
    used = mapping.reshape(-1)
    return np.concatenate([used, np.setdiff1d(np.arange(devices), used)])


def stored_mapping(
    mapped: Mapped, model: str, topology: str, settings: MapSettings, chosen: MappingCandidate | None = None
) -> StoredMapping:
    """Build the mapping file of a result, with the chosen mapping or by default the best one.

    `topology` is the name or path as the user gave it.
    """
    best, problem = chosen or mapped.best, mapped.problem
    step = simulate_step(problem.stages, best.mapping, problem.network, settings.memory_bytes_per_s)
    value = problem.value_s(best.mapping)
    last = step.critical_stage
    return StoredMapping(
        format="phaze-mapping",
        version=1,
        model=model,
        topology=topology,
        devices=problem.network.devices,
        mapping=tuple(tuple(row) for row in best.mapping.tolist()),
        found_by=best.method,
        step_time_s=step.step_s,
        pipeline_s=step.pipeline_s,
        all_reduce_s=float(step.all_reduce_s[last]),
        update_s=float(step.update_s[last]),
        compute_s=step.compute_s,
        objective_s=value,
        bound_s=min(mapped.bound_s, value),
        proven=proves(mapped.bound_s, value),
        seed=settings.seed,
        ways=tuple(_stored_candidate(candidate) for candidate in mapped.candidates),
        heuristics=tuple(_stored_candidate(candidate) for candidate in mapped.heuristics),
    )


def _stored_candidate(candidate: MappingCandidate) -> StoredSearch:
    result = candidate.search
    if result is None:
        return StoredSearch(name=candidate.method, step_time_s=candidate.step_s)
    return StoredSearch(
        name=candidate.method,
        step_time_s=candidate.step_s,
        objective_s=result.value_s,
        bound_s=result.bound_s,
        proven=result.proven,
        searched=result.searched,
        gave_up=result.stopped,
        timed_out=result.timed_out,
        tries=result.tries,
    )
