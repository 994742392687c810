"""What a program is made from: a component on one architecture, with its bounds, in units of its latency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.schedule.bounds import Bounded, ComponentTask, overlaps
from phaze.schedule.graphs import FUSED, NETWORK, TENSOR, VECTOR, Edges

SCALE = 100.0
"""Feasible latency in the units of the program: solvers' tolerances are absolute."""
ROUNDING = 1e-9
"""Room at proven bounds for the rounding of sums."""
SMALLEST = 1e-6
"""Part of the latency below which the rest of it is rounding."""
TYPES = ("tensor", "vector")
"""Types of core that may need an assignment."""


@dataclass(frozen=True, eq=False)
class ProgramData:
    """A component in units in which its feasible latency is SCALE."""

    kinds: Ints
    order: Bools
    edges: Edges
    """Pairs (i, j) with i ≺ j and nothing between them."""
    rivals: Edges
    """Pairs (i, j) with i ∥ j and i < j."""
    one: Floats
    """ℓ; of operators that must run on all cores ℓ̂, so that it is finite."""
    every: Floats
    """ℓ̂."""
    must: Bools
    """Operators that must run on all cores, because they hold the link."""
    num_tc: int
    num_vc: int
    lower: float
    """No schedule is shorter."""
    feasible: float
    """Some schedule is this short."""
    overlapping: bool
    """Network operators may run beside others."""
    unit_s: float
    """Seconds in a unit."""
    assigned: frozenset[str] = frozenset()
    """Types of core that operators are assigned to."""

    @cached_property
    def operators(self) -> range:
        """Positions of the operators."""
        return range(len(self.kinds))

    @cached_property
    def pairs(self) -> int:
        """Cores that fused operators can use."""
        return min(self.num_tc, self.num_vc)

    @cached_property
    def wide(self) -> Bools:
        """Operators that run on all cores in every schedule of interest: they must, or the path through them
        on one core is too long, shape (n,).
        """
        shortest = np.minimum(self.one, self.every)
        head, tail = paths_around(self.order, shortest)
        return self.must | (head + self.one + tail > self.feasible * (1 + ROUNDING))

    @property
    def stopped(self) -> float:
        """Time for which a clock stands still that stops while these run."""
        return 0.0 if self.overlapping else float(self.every[self.wide].sum())

    def on_clock(self) -> ProgramData:
        """Instance in units in which SCALE passes on that clock, so that little is not lost beside
        much.
        """
        rest = self.feasible - self.stopped
        factor = SCALE / rest if rest > SMALLEST * self.feasible else 1.0
        return replace(
            self,
            one=self.one * factor,
            every=self.every * factor,
            lower=self.lower * factor,
            feasible=self.feasible * factor,
            unit_s=self.unit_s / factor,
        )

    def users(self, core: str) -> list[int]:
        """Operators that use a type of core."""
        kind = TENSOR if core == "tensor" else VECTOR
        return [i for i in self.operators if self.kinds[i] in (kind, FUSED)]

    def count(self, core: str) -> int:
        """Cores of a type."""
        return self.num_tc if core == "tensor" else self.num_vc

    def excludes(self, i: int, j: int) -> bool:
        """Whether operator i on all cores keeps j from running; it spares the network beside it."""
        return not (self.overlapping and self.kinds[j] == NETWORK and self.kinds[i] != NETWORK)


def make_instance(task: ComponentTask, bounded: Bounded) -> ProgramData:
    """Instance of a component between its bounds."""
    feasible_s = bounded.schedule.latency_s
    unit_s = feasible_s / SCALE if feasible_s > 0 else 1.0
    must = np.isinf(task.one_s)
    return ProgramData(
        kinds=task.component.kinds,
        order=task.component.order,
        edges=task.component.edges,
        rivals=task.component.rivals,
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
    """Longest paths before and behind every operator, itself left out, shape (n,)."""
    head, tail = np.zeros(len(latency)), np.zeros(len(latency))
    for j in range(len(latency)):
        before = order[:, j]
        head[j] = (head[before] + latency[before]).max(initial=0.0)
    for i in reversed(range(len(latency))):
        after = order[i]
        tail[i] = (tail[after] + latency[after]).max(initial=0.0)
    return head, tail
