"""Whether a schedule is as short as can be, by an integer program without any other bounds."""

from phaze.schedule.bounds import Bounded, whole_task
from phaze.schedule.graphs import Layer, Schedule
from phaze.schedule.proof import Proof
from phaze.solver import Limits
from phaze.spec.settings import ScheduleSettings


def confirm_schedule(
    layer: Layer, schedule: Schedule, lower_s: float, settings: ScheduleSettings
) -> tuple[float, float]:
    """Return a proven lower bound on the latency of a layer, and the latency of the shortest known schedule.

    `schedule` can be executed, and no schedule is shorter than `lower_s`.
    """
    from phaze.schedule.program import solve_program  # Pyomo takes its time: most audits do without

    task = whole_task(layer)
    members = list(task.component.operators)
    known = Schedule(schedule.start_s[members], schedule.end_s[members], schedule.core[members])
    limits = Limits(nodes=settings.node_limit, wall_s=settings.wall_limit_s)
    found = solve_program(task, Bounded(lower_s, known), Proof(("highs",), "sparse", limits))
    return found.bound_s, found.schedule.latency_s
