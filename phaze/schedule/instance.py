"""Input of an integer program: a component on one architecture with its bounds, in units of its latency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Bools, Floats
from phaze.schedule.bounds import Bounded, ComponentTask, overlaps
from phaze.schedule.graphs import FUSED, NETWORK, TENSOR, VECTOR, Component

SCALE = 100.0
"""Value to which the feasible latency is scaled, because solver tolerances are absolute."""
ROUNDING = 1e-9
"""Relative tolerance for rounding errors of sums at proven bounds."""
SMALLEST = 1e-6
"""Share of the latency below which the remaining time counts as a rounding error."""
TYPES = ("tensor", "vector")
"""Core types for which operators may have to be assigned to cores."""


@dataclass(frozen=True, eq=False)
class ProgramData(Component):
    """Input of an integer program: a component, scaled so that its feasible latency is SCALE."""

    one: Floats
    """Latency on one core ℓ; for operators that must run on all cores ℓ̂, which is finite."""
    every: Floats
    """Latency on all cores ℓ̂."""
    must: Bools
    """True for operators that must run on all cores, because they occupy the link."""
    num_tc: int
    num_vc: int
    lower: float
    """Lower bound on the latency of any schedule."""
    feasible: float
    """Latency of a known schedule."""
    overlapping: bool
    """True if network operators may overlap with others."""
    unit_s: float
    """Duration of one time unit, in seconds."""
    assigned: frozenset[str] = frozenset()
    """Core types with assignment variables."""

    @cached_property
    def positions(self) -> range:
        """Positions of the operators in the component."""
        return range(len(self.kinds))

    @cached_property
    def pairs(self) -> int:
        """Number of core pairs for fused operators."""
        return min(self.num_tc, self.num_vc)

    @cached_property
    def wide(self) -> Bools:
        """Mask of operators that run on all cores in every schedule as short as the known one, shape (n,).

        Either they must, or the path through them on one core is too long.
        """
        shortest = np.minimum(self.one, self.every)
        head, tail = paths_around(self.order, shortest)
        return self.must | (head + self.one + tail > self.feasible * (1 + ROUNDING))

    @property
    def stopped(self) -> float:
        """Time during which the clock is stopped for the operators in `wide`."""
        return 0.0 if self.overlapping else float(self.every[self.wide].sum())

    def on_clock(self) -> ProgramData:
        """Rescale the instance so that its time on the clock is SCALE.

        This preserves small latencies next to large ones.
        """
        running = self.feasible - self.stopped
        factor = SCALE / running if running > SMALLEST * self.feasible else 1.0
        return replace(
            self,
            one=self.one * factor,
            every=self.every * factor,
            lower=self.lower * factor,
            feasible=self.feasible * factor,
            unit_s=self.unit_s / factor,
        )

    def users(self, core: str) -> list[int]:
        """Operators that use a core type."""
        kind = TENSOR if core == "tensor" else VECTOR
        return [i for i in self.positions if self.kinds[i] in (kind, FUSED)]

    def count(self, core: str) -> int:
        """Number of cores of a type."""
        return self.num_tc if core == "tensor" else self.num_vc

    def excludes(self, i: int, j: int) -> bool:
        """True if j cannot run while i runs on all cores; only an overlapping network operator j can."""
        return not (self.overlapping and self.kinds[j] == NETWORK and self.kinds[i] != NETWORK)


def make_instance(task: ComponentTask, bounded: Bounded) -> ProgramData:
    """Build the input of an integer program from a component and its bounds."""
    feasible_s = bounded.schedule.latency_s
    unit_s = feasible_s / SCALE if feasible_s > 0 else 1.0
    must = np.isinf(task.one_s)
    return ProgramData(
        operators=task.component.operators,
        kinds=task.component.kinds,
        order=task.component.order,
        one=np.where(must, task.every_s, task.one_s) / unit_s,
        every=task.every_s / unit_s,
        must=must,
        num_tc=task.num_tc,
        num_vc=task.num_vc,
        lower=bounded.lower_s / unit_s,
        feasible=feasible_s / unit_s,
        overlapping=overlaps(task.component.kinds, task.one_s),
        unit_s=unit_s,
    )


def paths_around(order: Bools, latency: Floats) -> tuple[Floats, Floats]:
    """Length of the longest path before and after each operator, without the operator itself, shape (n,)."""
    head, tail = np.zeros(len(latency)), np.zeros(len(latency))
    for j in range(len(latency)):
        before = order[:, j]
        head[j] = (head[before] + latency[before]).max(initial=0.0)
    for i in reversed(range(len(latency))):
        after = order[i]
        tail[i] = (tail[after] + latency[after]).max(initial=0.0)
    return head, tail
