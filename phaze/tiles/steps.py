"""What the tiles of a group do for the operators of a stage, step by step (PALM, IV.A, Figure 5).

A step is one operator in one part: arrays work while memory is read and written, then collectives follow each
other, then the next step begins, as each sub-process of PALM waits for the one before.

    forward, recompute    all-reduces of sums; in inference shared weights are gathered before
    backward              two products an operator, all-reduces of gradients of inputs
    sync                  once a batch: all-reduce of gradients of weights
    update                full-precision weights are loaded and stored back
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

from phaze.base.errors import PhazeError
from phaze.cost.network.network import Collective
from phaze.tiles import tile
from phaze.tiles.chip import Chip
from phaze.tiles.operators import AXES, Degrees, TileAxis, TileOperator, TileShare, shares
from phaze.tiles.placement import Placed, Tiles, axis_groups
from phaze.tiles.tile import Access, SramStrategy, TileBytes, TileExecution

StagePart = Literal["forward", "recompute", "backward", "sync", "update"]
"""What a microbatch goes through, or a batch at its end; backward passes have operators in reverse order."""


class GroupCollective(NamedTuple):
    """The same collective in several groups at once, of a tensor of so many bytes on each member."""

    kind: Collective
    groups: tuple[Tiles, ...]
    """Each in the order of its ring."""
    size_bytes: float


class TileStep(NamedTuple):
    """What every tile of a group does for one operator: work and access at once, then collectives."""

    work_s: float = 0.0
    access: Access = Access()
    after: tuple[GroupCollective, ...] = ()
    before: tuple[GroupCollective, ...] = ()
    """Collectives that the work waits for."""


@dataclass(frozen=True)
class TileStage:
    """Operators on a group of tiles, each with the degrees into which it is cut."""

    tiles: Tiles
    operators: tuple[tuple[TileOperator, Degrees], ...]
    placed: Placed = "near"
    """Whether the groups along the last axes, tensor parallelism, have the closest tiles."""

    def __post_init__(self) -> None:
        for _, degrees in self.operators:
            if prod(degrees) != len(self.tiles):
                raise PhazeError(
                    f"stage: the product of the degrees {degrees} must be the {len(self.tiles)} tiles of the "
                    f"stage, got {prod(degrees)}"
                )


@dataclass(frozen=True)
class StageProgram:
    """A stage on a chip, taken apart into steps."""

    chip: Chip
    stage: TileStage
    execution: TileExecution

    @cached_property
    def parts(self) -> tuple[tuple[TileShare, Mapping[TileAxis, tuple[Tiles, ...]]], ...]:
        """What one tile has, operator by operator, and the groups along the axes of each."""
        found = []
        for operator, degrees in self.stage.operators:
            axes = dict(zip(AXES[type(operator)], degrees, strict=False))
            groups = axis_groups(self.chip.grid, self.stage.tiles, axes, self.stage.placed)
            found += [(share, groups) for share in shares(operator, degrees)]
        return tuple(found)

    @cached_property
    def sizes(self) -> tuple[TileBytes, ...]:
        """Bytes that a tile holds of each."""
        return tuple(tile.tile_bytes(share, self.execution) for share, _ in self.parts)

    @cached_property
    def strategy(self) -> SramStrategy:
        """What stays in SRAM."""
        return tile.allocate(*tile.held_bytes(self.sizes, self.execution), self.chip.tile.sram_bytes)

    @property
    def flops(self) -> float:
        """FLOPs of one tile in a forward pass."""
        return sum(share.flops for share, _ in self.parts)

    def steps(self, part: StagePart) -> tuple[TileStep, ...]:
        """Steps of a part with something to do.

        Raises `PhazeError` where a chip without memory needs some.
        """
        places = range(len(self.parts))
        reverse = part in ("backward", "sync")
        steps = tuple(self._step(part, place) for place in (places[::-1] if reverse else places))
        if self.chip.memory is None and any(step.access.total_bytes for step in steps):
            held = sum(tile.held_bytes(self.sizes, self.execution))
            raise PhazeError(
                f"chip {self.chip.name}: has no memory, but the stage holds {held:.6g} bytes "
                f"a tile, of which its SRAM has {self.chip.tile.sram_bytes:.6g}"
            )
        return tuple(step for step in steps if step != TileStep())

    def _step(self, part: StagePart, place: int) -> TileStep:
        share, groups = self.parts[place]
        size, strategy, part_bytes = self.sizes[place], self.strategy, self.chip.part_bytes
        if part == "update":
            return TileStep(access=tile.update_access(strategy, share))
        if part == "sync":
            size_bytes = share.weights * tile.TRAINED.gradients
            some = share.along("update")
            return TileStep(
                after=tuple(GroupCollective("all_reduce", groups[o.axis], size_bytes) for o in some)
            )
        element_bytes = self.execution.element_bytes
        access = tile.backward_access if part == "backward" else tile.forward_access
        return TileStep(
            self._work_s(part, share),
            access(strategy, size, part_bytes),
            tuple(
                GroupCollective("all_reduce", groups[some.axis], some.elements * element_bytes)
                for some in share.along("backward" if part == "backward" else "forward")
            ),
            self._gathers(place) if self.execution.shared else (),
        )

    def _work_s(self, part: StagePart, share: TileShare) -> float:
        if self.execution.training:
            return tile.training_s(self.chip.tile, share, 2 if part == "backward" else 1)
        return tile.inference_s(self.chip.tile, share, self.execution.element_bytes)

    def _gathers(self, place: int) -> tuple[GroupCollective, ...]:
        """All-gathers of the weights of which each replica fetches a part, along one axis after the other."""
        share, groups = self.parts[place]
        size, found = share.weights * self.execution.element_bytes, []
        for some in share.along("update"):
            found.append(GroupCollective("all_gather", groups[some.axis], size))
            size /= some.width
        return tuple(found[::-1])
