"""What stages on tiles do step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.collectives import collective
from phaze.cost.network.mesh import Grid, Memory, Wires
from phaze.cost.network.network import Collective
from phaze.layout import Zero
from phaze.tiles.chip import Chip, Tile
from phaze.tiles.operators import Linear, Pool, Transformer
from phaze.tiles.steps import Exchange, Mode, Part, Program, Stage, Step
from phaze.tiles.tile import Access, Training
from tests.oracles.state_traffic import state_traffic

GRID = Grid(4, 4)
TILES = tuple(range(16))
CHIP = Chip("chip", GRID, Tile(8, 8, 1e9, 1e3, 1e12), Wires(1e9), Memory(GRID.edge(), 1e9))
LAYER = Transformer(16, 64, 32, 16)
STAGE = Stage(TILES, ((LAYER, (4, 4, 1, 1)),))


def program(training: Training | None = None, chip: Chip = CHIP, stage: Stage = STAGE) -> Program:
    return Program(chip, stage, Mode(training or Training()))


def named(steps: tuple[Step, ...], field: str) -> dict[str, list[tuple[str, float]]]:
    return {
        step.name.split(",")[0].removeprefix("transformer "): [
            (some.kind, some.size_bytes) for some in getattr(step, field)
        ]
        for step in steps
        if getattr(step, field)
    }


def test_a_transformer_reduces_twice_in_each_direction() -> None:
    """Megatron: after the projection and after the feed-forward part, backward before both."""
    tensor = [("all_reduce", 16 / 4 * 32 * 64 * 2)]
    assert named(program().steps("forward"), "exchanges") == {"projection": tensor, "down": tensor}
    assert named(program().steps("backward"), "exchanges") == {"up": tensor, "qkv": tensor}


def test_operators_go_backward_in_reverse_order() -> None:
    names = [step.name.split(",")[0] for step in program().steps("forward")]
    assert [step.name.split(",")[0] for step in program().steps("backward")] == names[::-1]


def test_nothing_is_done_again_unless_activations_are_not_kept() -> None:
    assert program().steps("recompute") == ()
    again = program(Training(recompute=True)).steps("recompute")
    assert [replace(step, name="") for step in again] == [
        replace(step, name="") for step in program(Training(recompute=True)).steps("forward")
    ]


def test_gradients_are_reduced_once_a_batch_or_beside_what_follows() -> None:
    sync = named(program().steps("sync"), "exchanges")
    assert {name: kind for name, ((kind, _),) in sync.items()} == dict.fromkeys(
        ("qkv", "projection", "up", "down"), "all_reduce"
    )
    assert sum(size for ((_, size),) in sync.values()) == 12 * 64**2 / 4 * 2
    assert named(program().steps("backward"), "beside") == {}
    assert named(program().steps("overlapped backward"), "beside") == sync


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero_sends_what_the_pipeline_level_counts(zero: Zero) -> None:
    """`state_traffic`, over N_d replicas, in bytes that each of them sends."""
    found = program(Training(zero=zero, recompute=True))
    wanted = state_traffic(12 * 64**2 / 4, "mixed", zero, 4)

    def sent(part: Part, field: str) -> float:
        return sum(
            {"all_reduce": 2}.get(kind, 1) * 3 / 4 * size
            for some in named(found.steps(part), field).values()
            for kind, size in some
        )

    assert sent("sync", "exchanges") == wanted.sync_bytes
    assert sent("gather", "exchanges") == wanted.gather_bytes
    assert sent("backward", "beside") == wanted.reduce_bytes
    for part in ("forward", "recompute", "backward"):
        assert sent(part, "before") == wanted.pass_bytes  # type: ignore[arg-type]


def test_two_axes_of_replicas_share_what_is_left() -> None:
    """A linear operator sums its gradients over b, then over m; with ZeRO the second has a half."""
    stage = Stage(TILES, ((Linear(8, 8, 32, 32), (2, 2, 2, 2)),))
    whole = 32 * 32 / 4 * 2
    for zero, kind, second in ((0, "all_reduce", whole), (1, "reduce_scatter", whole / 2)):
        (step,) = program(Training(zero=zero), stage=stage).steps("sync")  # type: ignore[arg-type]
        assert [(some.kind, some.size_bytes) for some in step.exchanges] == [(kind, whole), (kind, second)]
    (step,) = program(Training(zero=1), stage=stage).steps("gather")
    assert [some.size_bytes for some in step.exchanges] == [whole / 2, whole]


def test_every_tile_is_in_one_group_of_an_exchange() -> None:
    for part in get_args(Part):
        for step in program(Training(zero=1, recompute=True)).steps(part):
            for exchange in (*step.before, *step.exchanges, *step.beside):
                assert sorted(tile for group in exchange.groups for tile in group) == list(TILES)


def test_inference_only_goes_forward() -> None:
    found = program(Training(backward=False))
    assert [part for part in get_args(Part) if found.steps(part)] == ["forward"]


def test_what_fits_into_sram_needs_no_memory() -> None:
    large = replace(CHIP, tile=replace(CHIP.tile, sram_bytes=1e9), memory=None)
    found = program(chip=large)
    assert found.strategy == "S_WSG_ACT"
    assert all(step.access == Access() for part in get_args(Part) for step in found.steps(part))
    with pytest.raises(
        PhazeError, match=r"chip: has no memory, but the stage holds .* of which its SRAM has 1000"
    ):
        program(chip=replace(CHIP, memory=None)).steps("forward")


def test_operators_of_several_kinds_have_their_own_groups() -> None:
    stage = Stage(TILES, ((Pool(16, 8, 8, 16, 2, 2), (16, 1, 1, 1)), (Linear(16, 8, 32, 32), (1, 1, 4, 4))))
    pool, linear = program(stage=stage).steps("forward")
    assert pool.exchanges == ()
    assert linear.exchanges == (Exchange("all_reduce", linear.exchanges[0].groups, 16 * 8 * 32 / 4 * 2),)
    assert {len(group) for group in linear.exchanges[0].groups} == {4}


def test_a_stage_has_operators_for_all_its_tiles() -> None:
    with pytest.raises(PhazeError, match=r"product of the degrees \(2, 4, 1, 1\) must be the 16 tiles"):
        Stage(TILES, ((LAYER, (2, 4, 1, 1)),))
    with pytest.raises(PhazeError, match="stage: must have at least one operator"):
        Stage(TILES, ())


@pytest.mark.parametrize("kind", get_args(Collective))
@pytest.mark.parametrize("width", [2, 3, 8])
def test_members_of_a_collective_send_what_its_plan_has(kind: Collective, width: int) -> None:
    exchange = Exchange(kind, (tuple(range(width)),), 24.0)
    plan = collective(kind, range(width), 24.0)
    assert exchange.sent_bytes == pytest.approx(sum(message.size_bytes for message in plan) / width)


def test_a_rate_has_a_name() -> None:
    with pytest.raises(PhazeError, match="mode: rate must be one of array, peak, got fast"):
        Mode(rate="fast")  # type: ignore[arg-type]
