"""What the tiles of a group do for the operators of a stage, step by step (PALM, IV.A, Figure 5).

A step is one operator in one part: arrays work while memory is read and written, then collectives follow each
other, then the next step begins, as each sub-process of PALM waits for the one before.

    forward, recompute    all-reduces of sums; with ZeRO 3 weights are gathered before
    backward              two products an operator, all-reduces of gradients of inputs; with ZeRO 2 and 3
                          gradients of weights are reduced beside the operators that follow
    overlapped backward   the last one of a batch, if gradients are reduced beside the operators that follow
    sync                  once a batch, if they are not: all-reduce, reduce-scatter with ZeRO 1
    update                full-precision weights are loaded and stored back
    gather                updated weights, with ZeRO 1 and 2
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from phaze.base.arrays import Floats
from phaze.base.errors import PhazeError
from phaze.cost.memory import parameter_bytes
from phaze.cost.network.network import Collective, sent_bytes
from phaze.tiles import tile
from phaze.tiles.chip import Chip
from phaze.tiles.operators import Axis, Communication, Degrees, Operator, Share, axes, shares
from phaze.tiles.placement import Placed, Tiles, axis_groups
from phaze.tiles.tile import Access, Rate, Sizes, Strategy, Training, Work

Part = Literal["forward", "recompute", "backward", "overlapped backward", "sync", "update", "gather"]
"""What a microbatch goes through, or a batch at its end; backward passes have operators in reverse order."""


IDLE, NOTHING = Work(), Access()


@dataclass(frozen=True)
class Exchange:
    """The same collective in several groups at once, of a tensor of so many bytes on each member."""

    kind: Collective
    groups: tuple[Tiles, ...]
    """Each in the order of its ring."""
    size_bytes: float

    @property
    def sent_bytes(self) -> float:
        """Bytes that a member sends, on average over the group: (p − 1)/p of the tensor, or twice that."""
        return sent_bytes(self.kind, self.size_bytes, len(self.groups[0]))


@dataclass(frozen=True)
class Step:
    """What every tile of a group does for one operator: work and access at once, then collectives."""

    name: str
    work: Work = IDLE
    access: Access = NOTHING
    exchanges: tuple[Exchange, ...] = ()
    beside: tuple[Exchange, ...] = ()
    """Collectives after the work that the next step does not wait for; the last one does."""
    before: tuple[Exchange, ...] = ()
    """Collectives that the work waits for."""


@dataclass(frozen=True)
class Stage:
    """Operators on a group of tiles, each with the degrees into which it is cut."""

    tiles: Tiles
    operators: tuple[tuple[Operator, Degrees], ...]
    placed: Placed = "near"
    """Whether the groups along the last axes, tensor parallelism, have the closest tiles."""

    def __post_init__(self) -> None:
        if not self.operators:
            raise PhazeError("stage: must have at least one operator")
        for operator, degrees in self.operators:
            if prod(degrees) != len(self.tiles):
                raise PhazeError(
                    f"stage: {operator.name}: the product of the degrees {degrees} must be the "
                    f"{len(self.tiles)} tiles of the stage, got {prod(degrees)}"
                )


@dataclass(frozen=True)
class Mode:
    """How a stage is executed."""

    training: Training = field(default_factory=Training)
    rate: Rate = "array"

    def __post_init__(self) -> None:
        tile.one_of("mode", "rate", self.rate, get_args(Rate))


@dataclass(frozen=True)
class Program:
    """A stage on a chip, taken apart into steps."""

    chip: Chip
    stage: Stage
    mode: Mode

    @cached_property
    def parts(self) -> tuple[tuple[Share, Mapping[Axis, tuple[Tiles, ...]]], ...]:
        """What one tile has, operator by operator, and the groups along the axes of each."""
        found = []
        for operator, degrees in self.stage.operators:
            groups = axis_groups(self.chip.grid, self.stage.tiles, axes(operator, degrees), self.stage.placed)
            found += [(share, groups) for share in shares(operator, degrees)]
        return tuple(found)

    @cached_property
    def sizes(self) -> tuple[Sizes, ...]:
        """Bytes that a tile holds of each."""
        return tuple(tile.sizes(share, self.mode.training) for share, _ in self.parts)

    @cached_property
    def held_bytes(self) -> tuple[float, float]:
        """Bytes of WSG and of activations that a tile holds."""
        return tile.held(self.sizes, self.mode.training)

    @cached_property
    def strategy(self) -> Strategy:
        """What stays in SRAM."""
        return tile.allocate(*self.held_bytes, self.chip.tile.sram_bytes)

    @property
    def flops(self) -> float:
        """FLOPs of one tile in a forward pass."""
        return sum(share.flops for share, _ in self.parts)

    def steps(self, part: Part) -> tuple[Step, ...]:
        """Return the steps of a part, those with something to do.

        Raises `PhazeError` where a chip without memory needs some.
        """
        if not self._done(part):
            return ()
        reverse = part in ("backward", "overlapped backward", "sync")
        places = range(len(self.parts))
        steps = tuple(self._step(part, place) for place in (places[::-1] if reverse else places))
        if self.chip.memory is None and any(step.access.total_bytes for step in steps):
            raise PhazeError(
                f"chip {self.chip.name}: has no memory, but the stage holds {sum(self.held_bytes):.6g} bytes "
                f"a tile, of which its SRAM has {self.chip.tile.sram_bytes:.6g}"
            )
        return tuple(step for step in steps if step != Step(step.name))

    def _done(self, part: Part) -> bool:
        """Return whether there is such a part."""
        training = self.mode.training
        if part == "forward":
            return True
        return training.backward and (part != "recompute" or training.recompute)

    def _step(self, part: Part, place: int) -> Step:
        share, groups = self.parts[place]
        name, training = f"{share.name}, {part}", self.mode.training
        if part == "update":
            return Step(name, access=tile.update_access(self.strategy, share, training))
        if part == "sync":
            return Step(name, exchanges=self._sync(place) if training.zero < 2 else ())
        if part == "gather":
            return Step(name, exchanges=self._gather(place) if training.zero in (1, 2) else ())
        back = "backward" in part
        return Step(
            name,
            self._work(share, back),
            (tile.backward_access if back else tile.forward_access)(
                self.strategy, self.sizes[place], self.chip.tile.part_bytes
            ),
            tuple(
                Exchange(some.kind, groups[some.axis], some.elements * training.activation_bytes)
                for some in share.communications
                if some.phase == ("backward" if back else "forward")
            ),
            beside=self._sync(place) if back and (training.zero >= 2 or part != "backward") else (),
            before=self._gather(place) if training.zero == 3 else (),
        )

    def _work(self, share: Share, back: bool) -> Work:
        run = tile.backward_work if back else tile.forward_work
        return run(self.chip.tile, share, self.mode.training.activation_bytes, self.mode.rate)

    def _sync(self, place: int) -> tuple[Exchange, ...]:
        """Return how replicas reduce gradients: along one axis after the other, with ZeRO of what is left."""
        share, groups = self.parts[place]
        size = share.weights * parameter_bytes("sgd", self.mode.training.precision).gradients
        found = []
        for some in _along(share):
            kind: Collective = "reduce_scatter" if self.mode.training.zero else "all_reduce"
            found.append(Exchange(kind, groups[some.axis], size))
            size /= some.width if self.mode.training.zero else 1
        return tuple(found)

    def _gather(self, place: int) -> tuple[Exchange, ...]:
        """Return how replicas gather the weights that each has a part of."""
        share, groups = self.parts[place]
        size = share.weights * self.mode.training.weight_bytes
        found = []
        for some in _along(share):
            found.append(Exchange("all_gather", groups[some.axis], size))
            size /= some.width
        return tuple(found[::-1])


def _along(share: Share) -> list[Communication]:
    """Return the axes along which gradients of weights are reduced."""
    return [some for some in share.communications if some.phase == "update"]


Bound = Literal["compute", "sram", "dram", "links"]
"""What can bind a time; the way of an access through the network belongs to dram."""

Spent = Mapping[Bound, float]
"""Seconds that nothing else covers, by what took them; their sum is the time."""


@dataclass(frozen=True)
class Activity:
    """Steps of one group of tiles, all of which do the same."""

    tiles: Tiles
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Outcome:
    """Activities that started together."""

    finish_s: tuple[float, ...]
    """When every activity is over."""
    spent: tuple[Spent, ...]
    """What took the time of every activity."""
    busy_s: Floats
    """Seconds for which every resource of the network was held, (resources,)."""

    @property
    def time_s(self) -> float:
        """When all are over."""
        return max(self.finish_s, default=0.0)

    @property
    def bound_by(self) -> tuple[Bound, ...]:
        """What took most of the time of every activity; the first of several."""
        return tuple(max(spent, key=lambda bound: spent[bound]) for spent in self.spent)


@lru_cache(maxsize=64)
def port_resources(chip: Chip) -> NDArray[np.bool_]:
    """Return which resources of the network are ports of memories, (resources,), not to be changed."""
    found = np.zeros(chip.topology.resources, np.bool_)
    for link, resource in zip(chip.topology.links, chip.topology.resource_of, strict=True):
        found[resource] |= link.buffered
    found.setflags(write=False)
    return found
