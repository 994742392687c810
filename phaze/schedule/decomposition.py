"""Schedule of a layer, combined from the schedules of its series components.

Every operator of one component precedes every operator of the next, so the shortest schedule of a layer is
that of its components one after the other. A component whose bounds meet needs no program. The formulation
`paper` is solved as printed, for the layer as a whole.

Solutions are stored by content: core types, latencies, order, usable cores, solver settings and versions, and
the code. Only solutions of programs are stored, for all jobs of a study. A stored solution is verified again
as a schedule when it is read. Solves that reached the wall-time limit, or in which a solver failed, are not
stored: they might do better next time.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import numpy as np

from phaze.base.provenance import source_digest
from phaze.base.store import Plain, Store
from phaze.schedule.bounds import (
    EQUAL,
    Bounded,
    ComponentTask,
    bound_task,
    join_schedules,
    layer_of,
    overlaps,
    tasks_of,
    tensor_users,
    vector_users,
    whole_task,
)
from phaze.schedule.graphs import CORES, LayerSchedule, ScheduledLayer, Solution
from phaze.schedule.verify import find_faults
from phaze.solver import relative_gap, solver_versions
from phaze.spec.settings import ScheduleSettings

log = logging.getLogger(__name__)

STATUSES = ("optimal", "feasible", "timed_out")
"""All statuses, from the best to the worst."""


@dataclass(frozen=True, eq=False)
class LayerSolution:
    """Best schedule found for a layer, with its bounds."""

    schedule: LayerSchedule
    parts: tuple[Solution, ...]
    """Solutions of the components, or of the layer as a whole."""

    @property
    def objective_s(self) -> float:
        """Latency of the schedule."""
        return self.schedule.latency_s

    @property
    def bound_s(self) -> float:
        """Lower bound on the latency of any schedule."""
        return min(sum(part.bound_s for part in self.parts), self.objective_s)

    @property
    def gap(self) -> float:
        """(objective − bound) / objective."""
        return relative_gap(self.objective_s, self.bound_s)

    @property
    def status(self) -> str:
        """Worst status among the solutions of the layer's parts."""
        return max((part.status for part in self.parts), key=STATUSES.index, default="optimal")

    @property
    def programs(self) -> list[Solution]:
        """Solutions found by an integer program, the largest program first."""
        return sorted((part for part in self.parts if part.method == "program"), key=lambda p: -p.variables)


def solve_layer(layer: ScheduledLayer, settings: ScheduleSettings, store: Store) -> LayerSolution:
    """Find the best schedule of a layer and verify it."""
    if settings.formulation == "paper":
        tasks, parts = _solve_whole(layer, settings, store)
    else:
        tasks = tasks_of(layer)
        parts = tuple(solve_task(task, settings, store) for task in tasks)
    pieces = [(task.component, part.schedule) for task, part in zip(tasks, parts, strict=True)]
    solution = LayerSolution(join_schedules(layer, pieces), parts)
    faults = find_faults(layer, solution.schedule)
    if faults:
        raise RuntimeError(f"schedule of a layer of {len(layer.core)} operators: {'; '.join(faults)}")
    return solution


def _solve_whole(
    layer: ScheduledLayer, settings: ScheduleSettings, store: Store
) -> tuple[tuple[ComponentTask, ...], tuple[Solution, ...]]:
    """Solve a layer as one task, unless the bounds of all its components meet."""
    tasks = tasks_of(layer)
    bounds = [bound_task(task) for task in tasks]
    if settings.programs == "open" and all(bounded.proven for bounded in bounds):
        return tasks, tuple(_proven(task, bounded) for task, bounded in zip(tasks, bounds, strict=True))
    layer_task = whole_task(layer)
    pieces = [(task.component, bounded.schedule) for task, bounded in zip(tasks, bounds, strict=True)]
    joined = join_schedules(layer, pieces)
    members = list(layer_task.component.operators)
    schedule = LayerSchedule(joined.start_s[members], joined.end_s[members], joined.core[members])
    lower = min(sum(bounded.lower_s for bounded in bounds), schedule.latency_s)
    return (layer_task,), (
        _solved(
            layer_task, settings, store, lambda: _verified(layer_task, Bounded(lower, schedule), settings)
        ),
    )


def solve_task(task: ComponentTask, settings: ScheduleSettings, store: Store) -> Solution:
    """Best schedule of a component: from the store, by bounds that meet, or by an integer program."""
    if len(task.component.operators) == 1:
        return _proven(task, bound_task(task))
    return _solved(task, settings, store, lambda: _decide(task, bound_task(task), settings))


def _solved(
    task: ComponentTask, settings: ScheduleSettings, store: Store, solve: Callable[[], Solution]
) -> Solution:
    """Look up the solution of a component in the store, or solve the component now."""
    content = store.of(
        task_content(task, settings),
        lambda: _content_of(solve()),
        holds=lambda content: _is_sound(task, _solution_of(content)),
        lasts=lambda content: _lasts(_solution_of(content)),
    )
    return _solution_of(content)


def task_content(task: ComponentTask, settings: ScheduleSettings) -> dict[str, Plain]:
    """All inputs that the solution of a component depends on."""
    component = task.component
    return {
        "core": [CORES[kind] for kind in component.kinds],
        "edges": component.edges,
        "latency": task.one_s.tolist(),
        "latency_all": task.every_s.tolist(),
        "cores": [task.num_tc, task.num_vc],
        "overlap": overlaps(component.kinds, task.one_s),
        "settings": settings.model_dump(mode="json", exclude={"overlap_communication"}),
        "solvers": list(solver_versions(settings.solver).items()),
        "code": _code(),
    }


@cache
def _code() -> str:
    return source_digest("phaze.schedule")


def _content_of(solution: Solution) -> dict[str, Plain]:
    schedule = {name: values.tolist() for name, values in vars(solution.schedule).items()}
    return {**vars(solution), "schedule": schedule}


def _solution_of(content: dict[str, Plain]) -> Solution:
    times = cast("dict[str, list[float]]", content["schedule"])
    schedule = LayerSchedule(**{name: np.array(values) for name, values in times.items()})
    return Solution(**{**content, "schedule": schedule})  # type: ignore[arg-type]


def _lasts(solution: Solution) -> bool:
    """True if a solution should be stored: it needed an integer program and is reproducible."""
    return solution.method == "program" and solution.status != "timed_out" and solution.repeatable


def _is_sound(task: ComponentTask, solution: Solution) -> bool:
    """True if a stored solution is valid: an executable schedule, and a bound not above its latency."""
    faults = list(find_faults(layer_of(task), solution.schedule))
    if not solution.bound_s <= solution.schedule.latency_s:
        faults.append(f"its bound {solution.bound_s} s is above its latency {solution.schedule.latency_s} s")
    if faults:
        log.warning("a solution in the store cannot be right: %s; it is solved again", faults[0])
    return not faults


def _decide(task: ComponentTask, bounded: Bounded, settings: ScheduleSettings) -> Solution:
    """Solve a component by its bounds, or by an integer program if these leave a gap or must be checked."""
    if settings.programs == "open":
        return _proven(task, bounded) if bounded.proven else _verified(task, bounded, settings)
    solution = _verified(task, Bounded(0.0, bounded.schedule), settings)
    if solution.schedule.latency_s < bounded.lower_s * (1 - EQUAL):
        raise RuntimeError(f"{solution.solver} beats the bound {bounded.lower_s} of a component")
    if bounded.proven and solution.status != "optimal":
        return _proven(task, bounded)
    return replace(solution, bound_s=max(solution.bound_s, min(bounded.lower_s, solution.schedule.latency_s)))


def _proven(task: ComponentTask, bounded: Bounded) -> Solution:
    return Solution(
        status="optimal",
        schedule=bounded.schedule,
        bound_s=bounded.lower_s,
        z_needed=_cores_bind(task, bounded),
    )


def _cores_bind(task: ComponentTask, bounded: Bounded) -> bool:
    """True if the core count limits the schedule: a core per operator would shorten it (Appendix A)."""
    kinds = task.component.kinds
    if len(kinds) == 1:
        return False
    free = replace(task, num_tc=tensor_users(kinds), num_vc=vector_users(kinds))
    if (free.num_tc, free.num_vc) == (task.num_tc, task.num_vc):
        return False
    return bound_task(free).schedule.latency_s < bounded.schedule.latency_s * (1 - EQUAL)


def _verified(task: ComponentTask, bounded: Bounded, settings: ScheduleSettings) -> Solution:
    """Solution by an integer program; an invalid schedule is replaced by the known one."""
    from phaze.schedule.program import solve_program  # Pyomo loads slowly, and most jobs do not need it

    solution = solve_program(task, bounded, settings)
    faults = find_faults(layer_of(task), solution.schedule)
    if faults:
        log.error("%s: rejected a schedule: %s", solution.solver, "; ".join(faults))
        bound = min(solution.bound_s, bounded.schedule.latency_s)
        solution = replace(solution, status="feasible", schedule=bounded.schedule, bound_s=bound)
    return solution


def confirm_schedule(
    layer: ScheduledLayer, schedule: LayerSchedule, lower_s: float, settings: ScheduleSettings
) -> tuple[float, float]:
    """Proven lower bound on the latency of a layer, and the latency of its shortest known schedule.

    The bound comes from an integer program without any other bounds. `schedule` must be executable, and no
    schedule may be shorter than `lower_s`.
    """
    from phaze.schedule.program import solve_program  # as above: most audits do not need it

    task = whole_task(layer)
    members = list(task.component.operators)
    members_schedule = LayerSchedule(
        schedule.start_s[members], schedule.end_s[members], schedule.core[members]
    )
    exact_settings = settings.model_copy(update={"solver": ("highs",), "formulation": "sparse"})
    solution = solve_program(task, Bounded(lower_s, members_schedule), exact_settings)
    return solution.bound_s, solution.schedule.latency_s
