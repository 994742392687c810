"""The schedule of a layer from those of its series components.

Everything in one component comes before everything in the next, so the shortest schedule of a layer is that
of its components one after the other. A component whose bounds meet needs no program. The formulation
`paper` is solved as printed, for the layer as a whole.
"""

import logging
from dataclasses import dataclass, replace

from phaze.schedule.bounds import (
    EQUAL,
    Bounded,
    Task,
    bound_task,
    join_schedules,
    layer_of,
    tasks_of,
    tensor_users,
    vector_users,
    whole_task,
)
from phaze.schedule.graphs import Layer, Schedule
from phaze.schedule.proof import Proof, Solution
from phaze.schedule.store import SolutionStore, digest_task
from phaze.schedule.verify import find_faults
from phaze.solver import relative_gap

log = logging.getLogger(__name__)

STATUSES = ("optimal", "feasible", "timed_out")
"""From the best to the worst."""


@dataclass(frozen=True, eq=False)
class LayerSolution:
    """The best schedule of a layer that was found, and what is known of it."""

    schedule: Schedule
    parts: tuple[Solution, ...]
    """Solutions of the components, or of the layer as a whole."""

    @property
    def objective_s(self) -> float:
        """Latency of the schedule."""
        return self.schedule.latency_s

    @property
    def bound_s(self) -> float:
        """No schedule is shorter."""
        return min(sum(part.bound_s for part in self.parts), self.objective_s)

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return relative_gap(self.objective_s, self.bound_s)

    @property
    def status(self) -> str:
        """The worst status of a part."""
        return max((part.status for part in self.parts), key=STATUSES.index, default="optimal")

    @property
    def programs(self) -> list[Solution]:
        """Parts that took a program, the largest first."""
        return sorted((part for part in self.parts if part.method == "program"), key=lambda p: -p.variables)


def solve_layer(layer: Layer, proof: Proof, store: SolutionStore) -> LayerSolution:
    """Return the best schedule of a layer that was found, verified."""
    if proof.formulation == "paper":
        tasks, parts = _solve_whole(layer, proof, store)
    else:
        tasks = tasks_of(layer)
        parts = tuple(solve_task(task, proof, store) for task in tasks)
    pieces = [(task.component, part.schedule) for task, part in zip(tasks, parts, strict=True)]
    solution = LayerSolution(join_schedules(layer, pieces), parts)
    faults = find_faults(layer, solution.schedule)
    if faults:
        raise RuntimeError(f"schedule of a layer of {len(layer.core)} operators: {'; '.join(faults)}")
    return solution


def _solve_whole(
    layer: Layer, proof: Proof, store: SolutionStore
) -> tuple[tuple[Task, ...], tuple[Solution, ...]]:
    """Solve a layer as one task, unless the bounds of all its components meet."""
    tasks = tasks_of(layer)
    bounds = [bound_task(task) for task in tasks]
    if proof.programs == "open" and all(bounded.proven for bounded in bounds):
        return tasks, tuple(_proven(task, bounded) for task, bounded in zip(tasks, bounds, strict=True))
    whole = whole_task(layer)
    pieces = [(task.component, bounded.schedule) for task, bounded in zip(tasks, bounds, strict=True)]
    known = join_schedules(layer, pieces)
    members = list(whole.component.operators)
    schedule = Schedule(known.start_s[members], known.end_s[members], known.core[members])
    lower = min(sum(bounded.lower_s for bounded in bounds), schedule.latency_s)
    return (whole,), (_solve_open(whole, Bounded(lower, schedule), proof, store),)


def solve_task(task: Task, proof: Proof, store: SolutionStore) -> Solution:
    """Return the best schedule of a component: from the store, by bounds that meet, or by a program."""
    if len(task.component.operators) == 1:
        return _proven(task, bound_task(task))
    digest = digest_task(task, proof)
    solution = store.load(digest, task)
    if solution is None:
        solution = _decide(task, bound_task(task), proof)
        store.save(digest, solution)
    return solution


def _decide(task: Task, bounded: Bounded, proof: Proof) -> Solution:
    """Return what bounds prove, or what a program finds where they leave a gap or are to be checked."""
    if proof.programs == "open":
        return _proven(task, bounded) if bounded.proven else _verified(task, bounded, proof)
    solution = _verified(task, Bounded(0.0, bounded.schedule), proof)
    if solution.schedule.latency_s < bounded.lower_s * (1 - EQUAL):
        raise RuntimeError(f"{solution.solver} beats the bound {bounded.lower_s} of a component")
    if bounded.proven and solution.status != "optimal":
        return _proven(task, bounded)
    return replace(solution, bound_s=max(solution.bound_s, min(bounded.lower_s, solution.schedule.latency_s)))


def _solve_open(task: Task, bounded: Bounded, proof: Proof, store: SolutionStore) -> Solution:
    digest = digest_task(task, proof)
    solution = store.load(digest, task)
    if solution is None:
        solution = _verified(task, bounded, proof)
        store.save(digest, solution)
    return solution


def _proven(task: Task, bounded: Bounded) -> Solution:
    return Solution("optimal", bounded.schedule, bounded.lower_s, z_needed=_cores_bind(task, bounded))


def _cores_bind(task: Task, bounded: Bounded) -> bool:
    """Return whether with a core for every operator there would be a shorter schedule (Appendix A)."""
    kinds = task.component.kinds
    if len(kinds) == 1:
        return False
    free = replace(task, num_tc=tensor_users(kinds), num_vc=vector_users(kinds))
    if (free.num_tc, free.num_vc) == (task.num_tc, task.num_vc):
        return False
    return bound_task(free).schedule.latency_s < bounded.schedule.latency_s * (1 - EQUAL)


def _verified(task: Task, bounded: Bounded, proof: Proof) -> Solution:
    """Return what a program finds, with the known schedule instead of one that cannot be executed."""
    from phaze.schedule.program import solve_program  # Pyomo takes its time: most jobs do without

    solution = solve_program(task, bounded, proof)
    faults = find_faults(layer_of(task), solution.schedule)
    if faults:
        log.error("%s: rejected a schedule: %s", solution.solver, "; ".join(faults))
        bound = min(solution.bound_s, bounded.schedule.latency_s)
        solution = replace(solution, status="feasible", schedule=bounded.schedule, bound_s=bound)
    return solution
