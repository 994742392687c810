"""Integer programs alone, without the bounds that would make many of them superfluous."""

from dataclasses import dataclass

import numpy as np

from phaze.schedule.bounds import Bounded, ComponentTask, join_schedules, tasks_of
from phaze.schedule.graphs import ALL_CORES, LayerSchedule, ScheduledLayer, Solution
from phaze.schedule.program import solve_program
from phaze.spec.settings import ScheduleSettings

PATIENT = ScheduleSettings(solver=("highs",), node_limit=100_000, wall_limit_s=100.0)
"""Settings with which all programs of the tests are proven."""


@dataclass(frozen=True)
class Proven:
    """Proof of a layer by programs."""

    schedule: LayerSchedule
    parts: tuple[Solution, ...]

    @property
    def z_needed(self) -> bool:
        """True if cores had to be assigned in any component."""
        return any(part.z_needed for part in self.parts)


def known_schedule(task: ComponentTask) -> Bounded:
    """Return a trivial starting point: no bound, and all operators in sequence."""
    latency = np.minimum(task.one_s, task.every_s)
    end = np.cumsum(latency)
    core = np.where(task.every_s < task.one_s, ALL_CORES, 0)
    return Bounded(0.0, LayerSchedule(end - latency, end, core))


def patient(formulation: str, solver: str = "highs") -> ScheduleSettings:
    """Return settings for a formulation and a solver."""
    return PATIENT.model_copy(update={"solver": (solver,), "formulation": formulation})


def prove(layer: ScheduledLayer, formulation: str, solver: str) -> Proven:
    """Return the schedule of a layer that programs alone find, component by component."""
    settings = patient(formulation, solver)
    tasks = tasks_of(layer)
    parts = tuple(solve_program(task, known_schedule(task), settings) for task in tasks)
    pieces = [(task.component, part.schedule) for task, part in zip(tasks, parts, strict=True)]
    return Proven(join_schedules(layer, pieces), parts)
