"""Batches on groups of tiles."""

from __future__ import annotations

from math import inf

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid, Memory, Wires
from phaze.cost.training_state import Zero
from phaze.tiles.chip import Chip, Tile
from phaze.tiles.execution import balanced, execute
from phaze.tiles.group import Fidelity
from phaze.tiles.mapping import s_shaped
from phaze.tiles.operators import Linear, Transformer
from phaze.tiles.sram import Training
from phaze.tiles.steps import Mode, Stage

GRID = Grid(4, 8)
CHIP = Chip(
    "two blocks",
    GRID,
    Tile(64, 64, 1e9, 1e6, inf),
    Wires(256e9, 1e-9, (4, 4), 64e9),
    Memory(GRID.edge(), 64e9),
)
LAYER = Transformer(16, 256, 64, 16)
BLOCKS = [Stage(tiles, ((LAYER, (4, 4, 1, 1)),) * 2) for tiles in s_shaped(GRID, 4, 4)]
WHOLE = Stage(tuple(range(32)), ((LAYER, (8, 4, 1, 1)),) * 4)
INFERENCE = Mode(Training(backward=False))


@pytest.mark.parametrize(
    ("zero", "fidelity"), [(0, "tile-by-tile"), (1, "virtual"), (2, "analytical"), (3, "analytical")]
)
def test_layer_wise_execution_is_one_pass_after_the_other(zero: Zero, fidelity: Fidelity) -> None:
    mode = Mode(Training(recompute=True, zero=zero))
    found = execute(CHIP, [WHOLE], 5, "layer-wise", mode, fidelity)
    seconds = found.groups[0].seconds
    passes = seconds("forward") + seconds("recompute") + seconds("backward")
    wanted = 5 * passes + seconds("sync") + seconds("update") + seconds("gather")
    assert found.time_s == pytest.approx(wanted, rel=1e-12)


def test_inference_layer_by_layer_takes_a_forward_pass_for_each_microbatch() -> None:
    found = execute(CHIP, [WHOLE], 5, "inference", INFERENCE)
    forward = found.groups[0].seconds("forward")
    assert list(found.groups[0].parts) == ["forward"]
    assert found.time_s == pytest.approx(5 * forward)
    assert found.microbatches_per_s == pytest.approx(1 / forward)


def test_inference_in_a_pipeline_has_the_rate_of_its_slowest_stage() -> None:
    """Set-up and drain are left out (PALM, V.A.3)."""
    unequal = [BLOCKS[0], Stage(BLOCKS[1].tiles, BLOCKS[1].operators * 2)]
    found = execute(CHIP, unequal, 5, "inference", INFERENCE)
    slowest = max(group.seconds("forward") for group in found.groups)
    assert found.microbatches_per_s == pytest.approx(1 / slowest)
    assert found.time_s > 5 * slowest


def test_a_pipeline_sends_what_each_tile_has() -> None:
    """Activations of a replica, 16/4 × 64 × 256 elements of 2 bytes, over 4 hops."""
    found = execute(CHIP, BLOCKS, 8)
    first, second = found.pipeline.stages
    alone = 4e-9 + 4 * 64 * 256 * 2 / 64e9
    assert first.send_activation_s == pytest.approx(4 * alone), "the tiles of a row share the link"
    assert second.send_gradient_s == pytest.approx(first.send_activation_s)
    assert second.send_activation_s == first.send_gradient_s == 0
    assert found.microbatches_per_s == pytest.approx(8 / found.time_s)


def test_what_does_not_train_needs_another_schedule() -> None:
    with pytest.raises(PhazeError, match=r"schedule inference has no backward pass: .* must be False"):
        execute(CHIP, [WHOLE], 4, "inference")
    with pytest.raises(PhazeError, match=r"schedule gpipe needs a backward pass: .* must be True"):
        execute(CHIP, [WHOLE], 4, "gpipe", INFERENCE)


def test_groups_that_follow_each_other_have_equally_many_tiles() -> None:
    short = Stage((0, 1), ((LAYER, (2, 1, 1, 1)),))
    with pytest.raises(PhazeError, match="must have equally many tiles, got 2 and 16"):
        execute(CHIP, [short, BLOCKS[1]], 4)


def test_stages_are_balanced_by_flops_unless_they_are_bound() -> None:
    small, large = Linear(16, 16, 64, 64), Linear(16, 16, 64, 64 * 3)
    operators = [(some, (16, 1, 1, 1)) for some in (large, small, small, small)]
    stages = balanced(operators, [stage.tiles for stage in BLOCKS], "far")
    assert [len(stage.operators) for stage in stages] == [1, 3]
    assert [stage.tiles for stage in stages] == [stage.tiles for stage in BLOCKS]
    assert {stage.placed for stage in stages} == {"far"}
    with pytest.raises(PhazeError, match="stages must be between 1 and the 1 operators, got 2"):
        balanced(operators[:1], [stage.tiles for stage in BLOCKS])
