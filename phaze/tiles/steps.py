"""Steps of the tiles of a stage, operator by operator (PALM, IV.A, Figure 5).

A step is one operator in one part of a batch. Arrays compute while memory is read and written; then
collectives follow one after the other; then the next step begins. Likewise, each sub-process of PALM waits
for the previous one.

    forward, recompute    all-reduces of partial sums; in inference, shared weights are gathered first
    backward              two products per operator, all-reduces of input gradients
    sync                  once per batch: all-reduce of weight gradients
    update                full-precision weights are loaded and stored back
    gather                once per batch: weights of which replicas update shards are gathered

ZeRO changes the collectives of weights among replicas (Rajbhandari et al., SC 2020, Section 7). From stage 1
on gradients are reduce-scattered: in sync, or from stage 2 on in every backward pass. Weights are gathered
after the update, or in stage 3 before every pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple

from phaze.base.errors import PhazeError
from phaze.cost.network.network import Collective
from phaze.tiles import tile
from phaze.tiles.chip import Chip
from phaze.tiles.operators import Degrees, TileAxis, TileOperator, TileShare, axes_of, shares
from phaze.tiles.placement import Placed, Tiles, axis_groups
from phaze.tiles.tile import Access, SramStrategy, TileBytes, TileExecution

StagePart = Literal["forward", "recompute", "backward", "sync", "update", "gather"]
"""Parts of a microbatch and of the end of a batch (from sync on); backward and sync reverse the operators."""


class GroupCollective(NamedTuple):
    """Collective run concurrently by several groups, on a tensor of `size_bytes` bytes per member."""

    kind: Collective
    groups: Sequence[Tiles]
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
    others_bytes: tuple[float, float] = (0.0, 0.0)
    """Bytes of WSG and of activations that other stages on the same tiles hold."""
    entering_elements: float | None = None
    """Elements of a microbatch that a tile receives from the previous stage; None: inputs of the first
    operator.
    """

    @cached_property
    def shares(self) -> tuple[TileShare, ...]:
        """One tile's share of every GEMM, or other operation."""
        return tuple(
            share for operator, degrees in self.stage.operators for share in shares(operator, degrees)
        )

    @cached_property
    def parts(self) -> tuple[tuple[TileShare, Mapping[TileAxis, Sequence[Tiles]]], ...]:
        """One tile's share of every GEMM, with the groups of tiles along each axis of its operator."""
        shares_and_groups = []
        for operator, degrees in self.stage.operators:
            axes = dict(zip(axes_of(operator), degrees, strict=False))
            groups = axis_groups(self.chip.grid, self.stage.tiles, axes, self.stage.placed)
            shares_and_groups += [(share, groups) for share in shares(operator, degrees)]
        return tuple(shares_and_groups)

    @cached_property
    def sizes(self) -> tuple[TileBytes, ...]:
        """Bytes of one tile's tensors, for each of `parts`."""
        return tuple(tile.tile_bytes(share, self.execution) for share in self.shares)

    @cached_property
    def held_bytes(self) -> tuple[float, float]:
        """Bytes of WSG and of activations that the stage holds on a tile."""
        return tile.held_bytes(self.sizes, self.execution, self.entering_bytes)

    @property
    def entering_bytes(self) -> float:
        """Bytes of a microbatch with which a tile recomputes the activations of the stage."""
        if self.entering_elements is None:
            return self.sizes[0].inputs
        return self.entering_elements * self.execution.element_bytes

    @cached_property
    def strategy(self) -> SramStrategy:
        """Data that stays in SRAM (the tile strategy)."""
        wsg, activations = (sum(sizes) for sizes in zip(self.held_bytes, self.others_bytes, strict=True))
        return tile.allocate(wsg, activations, self.chip.tile.sram_bytes)

    @property
    def dram_bytes(self) -> float:
        """Bytes of all tiles of the stage that do not stay in SRAM."""
        wsg, activations = self.held_bytes
        outside = wsg * (self.strategy in ("S_ACT", "S_PTY"))
        outside += activations * (self.strategy in ("S_WSG", "S_PTY"))
        return len(self.stage.tiles) * outside

    @property
    def flops(self) -> float:
        """FLOPs of one tile per forward pass of a microbatch."""
        return sum(share.flops for share in self.shares)

    def steps(self, part: StagePart) -> tuple[TileStep, ...]:
        """Non-empty steps of one part of the batch.

        Raises `PhazeError` if a step accesses memory on a chip without memory.
        """
        places = range(len(self.parts))
        reverse = part in ("backward", "sync")
        steps = tuple(self._step(part, place) for place in (places[::-1] if reverse else places))
        if self.chip.memory is None and any(step.access.total_bytes for step in steps):
            held_bytes = sum(self.held_bytes)
            raise PhazeError(
                f"chip {self.chip.name}: has no memory, but the stage holds {held_bytes:.6g} bytes "
                f"a tile, of which its SRAM has {self.chip.tile.sram_bytes:.6g}"
            )
        return tuple(step for step in steps if step != TileStep())

    def _step(self, part: StagePart, place: int) -> TileStep:
        share, groups = self.parts[place]
        size, strategy, part_bytes = self.sizes[place], self.strategy, self.chip.part_bytes
        if part == "update":
            return TileStep(access=tile.update_access(strategy, share, self.execution))
        execution = self.execution
        if part == "gather":
            return TileStep(after=self._gathers(place) if execution.zero in (1, 2) else ())
        if part == "sync":
            return TileStep(after=self._sums(place) if execution.zero < 2 else ())
        backward = part == "backward"
        access = tile.backward_access if backward else tile.forward_access
        idle = backward and share.backward_idle
        scattered = self._sums(place) if backward and execution.zero >= 2 else ()
        return TileStep(
            self._work_s(part, share),
            Access() if idle else access(strategy, size, part_bytes),
            tuple(
                GroupCollective(
                    reduction.kind, groups[reduction.axis], reduction.elements * execution.element_bytes
                )
                for reduction in share.along("backward" if backward else "forward")
            )
            + scattered,
            self._gathers(place) if execution.gathers and not idle else (),
        )

    def _work_s(self, part: StagePart, share: TileShare) -> float:
        chip_tile, element_bytes = self.chip.tile, self.execution.element_bytes
        if not self.execution.training:
            return tile.inference_s(chip_tile, share, element_bytes)
        return (tile.backward_s if part == "backward" else tile.forward_s)(chip_tile, share, element_bytes)

    def _sums(self, place: int) -> tuple[GroupCollective, ...]:
        """Sums of weight gradients over replicas, axis by axis: whole, or one shard for each replica."""
        share, groups = self.parts[place]
        size, sums = share.weights * self.execution.size.gradients, []
        for reduction in share.along("update"):
            kind: Collective = "reduce_scatter" if self.execution.zero else "all_reduce"
            sums.append(GroupCollective(kind, groups[reduction.axis], size))
            size /= reduction.width if self.execution.zero else 1
        return tuple(sums)

    def _gathers(self, place: int) -> tuple[GroupCollective, ...]:
        """All-gathers of the weights that replicas shard, axis by axis."""
        share, groups = self.parts[place]
        size, gathers = share.weights * self.execution.element_bytes, []
        for reduction in share.along("update"):
            gathers.append(GroupCollective("all_gather", groups[reduction.axis], size))
            size /= reduction.width
        return tuple(gathers[::-1])
