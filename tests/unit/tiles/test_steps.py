"""Steps of stages on tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires
from phaze.spec.tiled import Tile
from phaze.tiles.chip import Chip
from phaze.tiles.operators import Linear, Pool, TransformerLayer
from phaze.tiles.steps import StagePart, StageProgram, TileStage, TileStep
from phaze.tiles.tile import Access, TileExecution

GRID = TileGrid(4, 4)
TILES = tuple(range(16))
TILE = Tile(clock_hz=1e9, pe_x=8, pe_y=8, sram_bytes=1e3, sram_bandwidth_bytes_per_s=1e12)
CHIP = Chip("chip", GRID, TILE, Wires(1e9), PortMemory(GRID.edge(), 1e9))
STAGE = TileStage(TILES, ((TransformerLayer(16, 64, 32, 16), (4, 4, 1, 1)),))
TRAINED = StageProgram(CHIP, STAGE, TileExecution())
INFERENCE = StageProgram(CHIP, STAGE, TileExecution(training=False, shared=True))


def exchanged(steps: tuple[TileStep, ...]) -> list[list[tuple[str, float]]]:
    return [[(some.kind, some.size_bytes) for some in step.after] for step in steps]


def test_a_transformer_reduces_twice_in_each_direction() -> None:
    """Megatron: after the projection and after the feed-forward part, backward before both."""
    tensor = [("all_reduce", 16 / 4 * 32 * 64 * 2)]
    assert exchanged(TRAINED.steps("forward")) == [[], [], [], tensor, [], tensor]
    assert exchanged(TRAINED.steps("backward")) == [[], tensor, [], [], [], tensor]


def test_operators_go_backward_in_reverse_order_with_twice_the_work() -> None:
    work = [step.work_s for step in TRAINED.steps("forward")]
    assert [step.work_s for step in TRAINED.steps("backward")] == [2 * seconds for seconds in work[::-1]]
    assert TRAINED.steps("recompute") == TRAINED.steps("forward")


def test_gradients_are_reduced_once_a_batch() -> None:
    sync = exchanged(TRAINED.steps("sync"))
    assert [kind for ((kind, _),) in sync] == ["all_reduce"] * 4
    assert sum(size for ((_, size),) in sync) == 12 * 64**2 / 4 * 2


def test_shared_weights_are_gathered_before_the_work() -> None:
    """By replicas with one shard each; a linear operator gathers over m before it multiplies."""
    gathered = [some for step in INFERENCE.steps("forward") for some in step.before]
    assert {some.kind for some in gathered} == {"all_gather"}
    assert sum(some.size_bytes for some in gathered) == 12 * 64**2 / 4 * 2
    assert sum(each.weights for each in INFERENCE.sizes) == 12 * 64**2 / 4 * 2 / 4
    stage = TileStage(TILES, ((Linear(8, 8, 32, 32), (2, 2, 2, 2)),))
    (step,) = replace(INFERENCE, stage=stage).steps("forward")
    assert [some.size_bytes for some in step.before] == [32 * 32 / 4 * 2 / 2, 32 * 32 / 4 * 2]


def test_every_tile_is_in_one_group_of_an_exchange() -> None:
    for program in (TRAINED, INFERENCE):
        for part in get_args(StagePart):
            for step in program.steps(part):
                for some in (*step.before, *step.after):
                    assert sorted(tile for group in some.groups for tile in group) == list(TILES)


def test_what_fits_into_sram_needs_no_memory() -> None:
    large = replace(CHIP, tile=TILE.model_copy(update={"sram_bytes": 1e9}), memory=None)
    found = StageProgram(large, STAGE, TileExecution())
    assert found.strategy == "S_WSG_ACT"
    assert all(step.access == Access() for part in get_args(StagePart) for step in found.steps(part))
    with pytest.raises(
        PhazeError, match=r"chip: has no memory, but the stage holds .* of which its SRAM has 1000"
    ):
        StageProgram(replace(CHIP, memory=None), STAGE, TileExecution()).steps("forward")


def test_operators_of_several_kinds_have_their_own_groups() -> None:
    operators = ((Pool(16, 16, 8, window=2, stride=2), (16, 1, 1, 1)), (Linear(16, 8, 32, 32), (1, 1, 4, 4)))
    pool, linear = replace(INFERENCE, stage=TileStage(TILES, operators)).steps("forward")
    assert pool.after == ()
    (some,) = linear.after
    assert (some.kind, some.size_bytes) == ("all_reduce", 16 * 8 * 32 / 4 * 2)
    assert {len(group) for group in some.groups} == {4}


def test_a_stage_has_operators_for_all_its_tiles() -> None:
    with pytest.raises(PhazeError, match=r"product of the degrees \(2, 4, 1, 1\) must be the 16 tiles"):
        TileStage(TILES, ((TransformerLayer(16, 64, 32, 16), (2, 4, 1, 1)),))
