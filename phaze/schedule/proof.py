"""How components are to be solved, and what is known of them afterwards."""

from dataclasses import dataclass, field
from typing import Literal

from phaze.schedule.graphs import Schedule
from phaze.solver import Limits

Formulation = Literal["sparse", "paper"]
Status = Literal["optimal", "feasible", "timed_out"]


@dataclass(frozen=True)
class Proof:
    """How to solve programs."""

    solver: tuple[str, ...] = ("highs",)
    """Solvers in order of preference."""
    formulation: Formulation = "sparse"
    limits: Limits = field(default_factory=Limits)
    programs: Literal["open", "all"] = "open"
    """Where to solve programs: where bounds leave a gap, or everywhere."""


@dataclass(frozen=True, eq=False)
class Solution:
    """What is known of the shortest schedule of a component."""

    status: Status
    schedule: Schedule
    bound_s: float
    """No schedule is shorter."""
    method: Literal["bounds", "program"] = "bounds"
    solver: str = "none"
    version: str = "none"
    variables: int = 0
    constraints: int = 0
    z_needed: bool = False
    """What is shortest without counting cores needs too many: the program had to assign operators to them."""
    repeatable: bool = True
    """No solver failed on the way: one that was killed or short of memory may answer next time."""
