"""Networks with levels, and plans that follow them (Piper, Appendix E).

K_L devices of the highest level share the batch. Each consists of K_{L-1} devices of the level below, and
so on down to level 1, whose devices compute. Devices of level l within one device of level l + 1 exchange
data at B_l.

A plan cuts the layers into superstages of the highest level. One with data parallel degree d runs on d
devices of that level, each of which takes every d-th microbatch and cuts the same layers again for the
devices inside it. What is cut at level 1 are stages with data and tensor parallelism, as on a flat network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.plan.piper.layers import PlannedStage, Synchronisation

Memory = Literal["exact", "crude", "lossy"]
"""How s, and with it the microbatches in flight, is counted: `exact`, from the degrees of all later stages;
`crude`, as if it were K in every stage, divided only by the stage's own d; `lossy`, as if it were N."""


@dataclass(frozen=True)
class Hierarchy:
    """Devices in levels, from the inside out, and the batch; what is not positive is an error."""

    counts: tuple[int, ...]
    """K_1, ..., K_L: devices of a level in one device of the next."""
    bandwidths_bytes_per_s: tuple[float, ...]
    """B_1, ..., B_L, in and out of a device of the level."""
    memory_bytes: float
    """M, of a device of level 1."""
    microbatches: int
    """N: what the data parallel degrees of all stages may sum up to; replicas at several levels multiply."""
    exactly: bool = False
    """The degrees must sum up to N, rather than to N at most."""
    synchronisation: Synchronisation = "batch"
    """`batch`: every level synchronises once for N microbatches of the whole, and the product of the degrees
    around and of a stage divides N; `round`: a level synchronises once for d microbatches that reach the
    device around it, with any d, as Appendix E prints it."""

    def __post_init__(self) -> None:
        """Reject what is no network."""
        if not self.counts or len(self.counts) != len(self.bandwidths_bytes_per_s):
            raise PhazeError(
                f"levels: {len(self.counts)} counts and {len(self.bandwidths_bytes_per_s)} bandwidths, "
                f"one of each is needed for every level, and at least one level"
            )
        for level, (count, bandwidth) in enumerate(
            zip(self.counts, self.bandwidths_bytes_per_s, strict=True), 1
        ):
            if count < 1 or not bandwidth > 0:
                raise PhazeError(
                    f"level {level}: {count} devices at {bandwidth:g} bytes/s, both must be positive"
                )
        if not self.memory_bytes > 0:
            raise PhazeError(f"memory: must be positive, got {self.memory_bytes:g} bytes")
        if self.microbatches < 1:
            raise PhazeError(f"microbatches: must be >= 1, got {self.microbatches}")

    @property
    def levels(self) -> int:
        """Return L."""
        return len(self.counts)

    @property
    def devices(self) -> int:
        """Return K, the devices of level 1 in all."""
        return prod(self.counts)

    def inside(self, level: int) -> int:
        """Return the devices of level 1 in one device of a level."""
        return prod(self.counts[: level - 1])

    def microbatches_inside(self, around: int) -> int:
        """Return N divided by the product of all d around, rounded up."""
        return -(-self.microbatches // around)

    def degrees(self, level: int, around: int) -> tuple[int, ...]:
        """Return the d that a level may use when those outside multiply to `around`."""
        most = min(self.counts[level - 1], self.microbatches // around)
        each = range(1, most + 1)
        if self.synchronisation == "round":
            return tuple(each)
        return tuple(d for d in each if self.microbatches % (around * d) == 0)

    def sync_weight(self, data: int, around: int) -> float:
        """Return what a device sends for each byte of weights and each microbatch of its own."""
        share = Flat(1.0, BOTH_DIRECTIONS).charged_bytes("all_reduce", 1.0, data)
        return share if self.synchronisation == "round" else share * data * around / self.microbatches


@dataclass(frozen=True)
class Superstage:
    """Consecutive layers on d devices of a level above the first, each of which runs all of `parts`."""

    level: int
    layers: tuple[int, ...]
    """Positions, rising."""
    data: int
    """d, at this level."""
    time_s: float
    """Communication of a device of this level, per sample of the whole."""
    parts: tuple[Superstage, ...] | tuple[PlannedStage, ...]
    """What each of the d devices is cut into, in the order of the data flow."""

    @property
    def degree(self) -> int:
        """Return the data parallel degrees of the stages inside, summed up, times d."""
        return self.data * degree_of(self.parts)


Parts = tuple[Superstage, ...] | tuple[PlannedStage, ...]


@dataclass(frozen=True)
class NestedPlan:
    """Superstages of the highest level in the order of the data flow, or stages where there is one level.

    A stage's time is per sample of the whole: replicas at higher levels share its work.
    """

    parts: Parts

    @property
    def time_per_sample_s(self) -> float:
        """Return the time per sample of the slowest device of any level."""
        return max(part.time_s for _, part in walk(self.parts))

    @property
    def degree(self) -> int:
        """Return s, the sum of the data parallel degrees."""
        return degree_of(self.parts)

    @property
    def devices(self) -> int:
        """Return how many devices of the highest level are used."""
        return sum(p.layout.devices if isinstance(p, PlannedStage) else p.data for p in self.parts)

    @property
    def stages(self) -> tuple[tuple[int, PlannedStage], ...]:
        """Return the stages of level 1 in the order of the data flow, with the product of d around each."""
        return tuple((n, part) for n, part in walk(self.parts) if isinstance(part, PlannedStage))

    @property
    def binding_level(self) -> int:
        """Return the level of the slowest device, the innermost where several are."""
        slowest = self.time_per_sample_s
        return min(level_of(part) for _, part in walk(self.parts) if part.time_s == slowest)


def walk(parts: Parts, around: int = 1) -> Iterator[tuple[int, Superstage | PlannedStage]]:
    """Yield everything in a plan, outer before inner, each with the product of d around it."""
    for part in parts:
        yield around, part
        if isinstance(part, Superstage):
            yield from walk(part.parts, around * part.data)


def degree_of(parts: Parts) -> int:
    """Return the sum of the data parallel degrees."""
    return sum(part.layout.dp if isinstance(part, PlannedStage) else part.degree for part in parts)


def level_of(part: Superstage | PlannedStage) -> int:
    """Return the level whose devices run it."""
    return part.level if isinstance(part, Superstage) else 1
