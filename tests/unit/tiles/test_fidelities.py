"""One stage at three fidelities."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid, Memory, Wires
from phaze.layout import Zero
from phaze.tiles.chip import Chip, Tile
from phaze.tiles.group import Fidelity, measure, simulate
from phaze.tiles.operators import Degrees, Transformer
from phaze.tiles.placement import s_shaped
from phaze.tiles.steps import Activity, Exchange, Mode, Part, Program, Stage, Step
from phaze.tiles.tile import Access, Training, Work

GRID = Grid(4, 8)
DYADIC = Tile(64, 64, 2.0**30, 2.0**18, 2.0**38, arrays=2)
OWN_PORTS = Chip(
    "own ports", GRID, DYADIC, Wires(2.0**40, 2.0**-30), Memory(tuple(range(32)), 2.0**36, 2.0**-25)
)
LEFT, RIGHT = s_shaped(GRID, 4, 4)
LAYER = Transformer(16, 256, 64, 16)
"""Sizes and rates are powers of two, so that sums of times are exact."""


@pytest.mark.parametrize("degrees", [(16, 1, 1, 1), (8, 2, 1, 1), (4, 4, 1, 1), (2, 8, 1, 1), (1, 16, 1, 1)])
@pytest.mark.parametrize("zero", [0, 1])
def test_a_virtual_tile_is_exact_for_symmetric_groups_with_a_port_for_every_tile(
    degrees: Degrees, zero: Zero
) -> None:
    """Near, rings of tensor parallelism share no links, so that all tiles are done at the same time."""
    stage = Stage(LEFT, ((LAYER, degrees),))
    mode = Mode(Training(recompute=True, zero=zero))
    each, virtual = (measure(OWN_PORTS, stage, mode, fidelity) for fidelity in ("tile-by-tile", "virtual"))
    assert each.strategy == "S_PTY"
    for part in set(each.parts) - {"overlapped backward"}:
        assert virtual.parts[part].time_s == each.parts[part].time_s, part


@pytest.mark.parametrize("part", ["forward", "backward", "sync", "update", "gather"])
@pytest.mark.parametrize("sram_bytes", [2.0**18, 2.0**30])
def test_virtual_tiles_of_several_groups_are_exact_where_groups_do_not_meet(
    part: Part, sram_bytes: float
) -> None:
    """With everything in SRAM and without."""
    chip = replace(OWN_PORTS, tile=replace(DYADIC, sram_bytes=sram_bytes))
    mode = Mode(Training(zero=1))
    stages = [Stage(LEFT, ((LAYER, (4, 4, 1, 1)),)), Stage(RIGHT, ((LAYER, (1, 16, 1, 1)),))]
    activities = [Activity(stage.tiles, Program(chip, stage, mode).steps(part)) for stage in stages]
    each, virtual = (
        simulate(chip, [some for some in activities if some.steps], fidelity)
        for fidelity in ("tile-by-tile", "virtual")
    )
    assert virtual.finish_s == each.finish_s


def test_a_fidelity_has_a_name() -> None:
    with pytest.raises(
        PhazeError, match="fidelity must be one of tile-by-tile, virtual, analytical, got exact"
    ):
        simulate(OWN_PORTS, [], "exact")  # type: ignore[arg-type]


SLOW = Chip("slow", Grid(1, 4), Tile(64, 64, 1e9, 1.0, 1e15), Wires(2e9, 1e-6), Memory((0,), 1e9, 1e-5))


def access(read_bytes: float = 0.0, write_bytes: float = 0.0, work_s: float = 0.0) -> Step:
    return Step("access", Work(work_s), Access(read_bytes, write_bytes))


@pytest.mark.parametrize("fidelity", get_args(Fidelity))
@pytest.mark.parametrize("tile", range(4))
@pytest.mark.parametrize("write", [False, True])
def test_an_access_takes_equation_4_and_5(fidelity: Fidelity, tile: int, write: bool) -> None:
    """Response_Time + Access_Size / BW_DRAM, then the time of the network: PALM, Equations (2), (4), (5)."""
    step = access(write_bytes=1e6) if write else access(1e6)
    noc = tile * 1e-6 + 1e6 / 2e9 if tile else 0.0
    found = simulate(SLOW, [Activity((tile,), (step,))], fidelity)
    assert found.time_s == pytest.approx(1e-5 + 1e6 / 1e9 + noc)
    assert found.bound_by == ("dram",)


@pytest.mark.parametrize("fidelity", ["tile-by-tile", "virtual"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_tiles_wait_for_each_other_at_a_port(fidelity: Fidelity, groups: int) -> None:
    """Four tiles in so many groups; whoever is last has the way to the furthest tile at most."""
    tiles = range(4)
    activities = [Activity(tuple(tiles[k::groups]), (access(1e6),)) for k in range(groups)]
    found = simulate(SLOW, activities, fidelity)
    assert found.time_s == pytest.approx(4 * (1e-5 + 1e6 / 1e9) + 3e-6 + 1e6 / 2e9)
    assert simulate(SLOW, activities, "analytical").time_s == pytest.approx(4 * (1e-5 + 1e6 / 1e9))


def test_work_hides_an_access_that_is_shorter() -> None:
    for fidelity in get_args(Fidelity):
        found = simulate(SLOW, [Activity((0,), (access(1e6, work_s=0.5),))], fidelity)
        assert found.time_s == pytest.approx(0.5)
        assert found.bound_by == ("compute",)


def test_accesses_contend_with_collectives_tile_by_tile() -> None:
    """A tile reads across the links of a ring of two others (PALM, Figure 7)."""
    ring = Step("sum", exchanges=(Exchange("all_reduce", ((1, 2),), 1e7),))
    both = [Activity((3,), (access(1e7),)), Activity((1, 2), (Step("work", Work(0.011)), ring))]
    alone = [simulate(SLOW, [some], "tile-by-tile").time_s for some in both]
    together = simulate(SLOW, both, "tile-by-tile")
    assert together.time_s > max(alone)
    assert simulate(SLOW, both, "virtual").time_s == pytest.approx(together.time_s)
    assert simulate(SLOW, both, "analytical").time_s == pytest.approx(max(alone))


def test_what_goes_on_beside_is_waited_for_at_the_end() -> None:
    ring = Exchange("all_reduce", ((0, 1),), 2e6)
    alone = 2 * (1e-6 + 1e6 / 2e9)
    short, long = (
        (Step("first", Work(1e-3), beside=(ring,)), Step("second", Work(work_s))) for work_s in (1e-4, 1.0)
    )
    for fidelity in get_args(Fidelity):
        assert simulate(SLOW, [Activity((0, 1), long)], fidelity).time_s == pytest.approx(1.001)
        ends = simulate(SLOW, [Activity((0, 1), short)], fidelity)
        assert ends.time_s == pytest.approx(1e-3 + alone if fidelity != "analytical" else 1.1e-3)


def test_a_collective_before_the_work_is_waited_for() -> None:
    gather = Exchange("all_gather", ((0, 1),), 2e6)
    step = Step("gathered", Work(1e-3), before=(gather,))
    for fidelity in get_args(Fidelity):
        found = simulate(SLOW, [Activity((0, 1), (step,))], fidelity)
        assert found.time_s == pytest.approx(1e-3 + 1e-6 + 1e6 / 2e9)


def test_nothing_takes_no_time() -> None:
    for fidelity in get_args(Fidelity):
        assert simulate(SLOW, [], fidelity).time_s == 0


@pytest.mark.parametrize("fidelity", get_args(Fidelity))
def test_blocks_that_mirror_each_other_take_the_same_time(fidelity: Fidelity) -> None:
    """Ports at both edges: the chip is its own mirror image.

    Tile by tile, those that ask for a port in the same instant are served by their number, not by their
    place: 0.02 % here.
    """
    grid = Grid(4, 8)
    chip = Chip("mirror", grid, DYADIC, Wires(2.0**40, 2.0**-30, (4, 4)), Memory(grid.edge(), 2.0**36))
    left, right = (
        measure(chip, Stage(tiles, ((LAYER, (4, 4, 1, 1)),)), fidelity=fidelity) for tiles in (LEFT, RIGHT)
    )
    for part in left.parts:
        assert left.seconds(part) == pytest.approx(
            right.seconds(part), rel=1e-3 if fidelity == "tile-by-tile" else 1e-12
        )


@pytest.mark.parametrize("fidelity", get_args(Fidelity))
def test_naming_identical_tiles_in_another_order_changes_nothing(fidelity: Fidelity) -> None:
    there, back = (
        measure(OWN_PORTS, Stage(tiles, ((LAYER, (4, 4, 1, 1)),)), fidelity=fidelity)
        for tiles in (LEFT, LEFT[::-1])
    )
    for part in set(there.parts) - {"overlapped backward"}:
        assert there.seconds(part) == back.seconds(part)
