"""Steps of the tiles of a stage, operator by operator (PALM, IV.A, Figure 5).

A step is one operator in one part of a batch. Arrays compute while memory is read and written; then
collectives follow one after the other; then the next step begins. Likewise, each sub-process of PALM waits
for the previous one.

    forward, recompute    all-reduces of partial sums; in inference, shared weights are gathered first
    backward              two products per operator, all-reduces of input gradients
    sync                  once per batch: all-reduce of weight gradients
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
"""Parts of a microbatch and of the end of a batch (sync, update); backward and sync reverse the operators."""


class GroupCollective(NamedTuple):
    """Collective run concurrently by several groups, on a tensor of `size_bytes` bytes per member."""

    kind: Collective
    groups: tuple[Tiles, ...]
    """Groups of tiles, each in ring order."""
    size_bytes: float


class TileStep(NamedTuple):
    """Step of every tile of a group for one operator: concurrent work and memory access, then collectives."""

    work_s: float = 0.0
    access: Access = Access()
    after: tuple[GroupCollective, ...] = ()
    before: tuple[GroupCollective, ...] = ()
    """Collectives that precede the work."""


@dataclass(frozen=True)
class TileStage:
    """Operators on a group of tiles, each with the degrees by which its dimensions are split."""

    tiles: Tiles
    operators: tuple[tuple[TileOperator, Degrees], ...]
    placed: Placed = "near"
    """Near: groups along the last axes (tensor parallelism) have the closest tiles; far: the first axes."""

    def __post_init__(self) -> None:
        for _, degrees in self.operators:
            if prod(degrees) != len(self.tiles):
                raise PhazeError(
                    f"stage: the product of the degrees {degrees} must be the {len(self.tiles)} tiles of the "
                    f"stage, got {prod(degrees)}"
                )


@dataclass(frozen=True)
class StageProgram:
    """Stage on a chip as a sequence of steps: compute, memory accesses and collectives."""

    chip: Chip
    stage: TileStage
    execution: TileExecution

    @cached_property
    def parts(self) -> tuple[tuple[TileShare, Mapping[TileAxis, tuple[Tiles, ...]]], ...]:
        """One tile's share of every GEMM, with the groups of tiles along each axis of its operator."""
        shares_and_groups = []
        for operator, degrees in self.stage.operators:
            axes = dict(zip(AXES[type(operator)], degrees, strict=False))
            groups = axis_groups(self.chip.grid, self.stage.tiles, axes, self.stage.placed)
            shares_and_groups += [(share, groups) for share in shares(operator, degrees)]
        return tuple(shares_and_groups)

    @cached_property
    def sizes(self) -> tuple[TileBytes, ...]:
        """Bytes of one tile's tensors, for each of `parts`."""
        return tuple(tile.tile_bytes(share, self.execution) for share, _ in self.parts)

    @cached_property
    def strategy(self) -> SramStrategy:
        """Data that stays in SRAM (the tile strategy)."""
        return tile.allocate(*tile.held_bytes(self.sizes, self.execution), self.chip.tile.sram_bytes)

    @property
    def flops(self) -> float:
        """FLOPs of one tile per forward pass of a microbatch."""
        return sum(share.flops for share, _ in self.parts)

    def steps(self, part: StagePart) -> tuple[TileStep, ...]:
        """Non-empty steps of one part of the batch.

        Raises `PhazeError` if a step accesses memory on a chip without memory.
        """
        places = range(len(self.parts))
        reverse = part in ("backward", "sync")
        steps = tuple(self._step(part, place) for place in (places[::-1] if reverse else places))
        if self.chip.memory is None and any(step.access.total_bytes for step in steps):
            held_bytes = sum(tile.held_bytes(self.sizes, self.execution))
            raise PhazeError(
                f"chip {self.chip.name}: has no memory, but the stage holds {held_bytes:.6g} bytes "
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
            reduction = share.along("update")
            return TileStep(
                after=tuple(GroupCollective("all_reduce", groups[o.axis], size_bytes) for o in reduction)
            )
        element_bytes = self.execution.element_bytes
        access = tile.backward_access if part == "backward" else tile.forward_access
        return TileStep(
            self._work_s(part, share),
            access(strategy, size, part_bytes),
            tuple(
                GroupCollective("all_reduce", groups[reduction.axis], reduction.elements * element_bytes)
                for reduction in share.along("backward" if part == "backward" else "forward")
            ),
            self._gathers(place) if self.execution.shared else (),
        )

    def _work_s(self, part: StagePart, share: TileShare) -> float:
        if self.execution.training:
            return tile.training_s(self.chip.tile, share, 2 if part == "backward" else 1)
        return tile.inference_s(self.chip.tile, share, self.execution.element_bytes)

    def _gathers(self, place: int) -> tuple[GroupCollective, ...]:
        """All-gathers of weights, axis by axis, if each replica fetches only a share of the weights."""
        share, groups = self.parts[place]
        size, gathers = share.weights * self.execution.element_bytes, []
        for reduction in share.along("update"):
            gathers.append(GroupCollective("all_gather", groups[reduction.axis], size))
            size /= reduction.width
        return tuple(gathers[::-1])
