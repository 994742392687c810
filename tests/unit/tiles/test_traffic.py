"""Traffic aggregated between groups of tiles: as long as link by link, at a cost that tiles do not raise."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.cost.network.mesh import PortMemory, TileGrid, Wires
from phaze.spec.models import load_transformer
from phaze.spec.tiled import Tile
from phaze.spec.tiled_study import TiledPoint
from phaze.tiles import exchanges
from phaze.tiles.blocks import TileBlock, groups_in_block, stage_blocks, stage_rows
from phaze.tiles.chip import Chip, load_tiled_machine
from phaze.tiles.on_tiles import TiledOutcome, outcomes
from phaze.tiles.placement import axis_groups
from tests.effort import if_every

GRID = TileGrid(40, 40)
WIRES = Wires(1024e9, 1e-9, (4, 4), 256e9, 1e-9)
TILE = Tile(clock_hz=1e9, pe_x=64, pe_y=128, sram_bytes=3.75e6)
SIDES = PortMemory(GRID.edge(), 64e9, 1e-9)
"""Memory at both ends of every row."""
AROUND = PortMemory(tuple(t for t in range(GRID.tiles) if {0, 39} & {*GRID.place(t)}), 6400e9, 1e-9)
"""Fast memory at all four edges, so that links limit."""


def simulated(chip: Chip, links: str, **settings: object) -> TiledOutcome:
    point = TiledPoint.parse(
        {"show": "table", "system": "grid", "model": "t-18b", "sequence": 512, "links": links, **settings},
        "x",
    )
    ((_, outcome),) = outcomes("x", point, load_transformer("t-18b", "x"), chip)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "stages", "layout", "placed"),
    [
        (SIDES, 20, "s-shaped", "near"),
        (SIDES, 4, "line", "far"),
        (AROUND, 20, "s-shaped", "far"),
        (AROUND, 20, "line", "near"),
        pytest.param(AROUND, 4, "s-shaped", "near", marks=if_every),
    ],
)
def test_40_by_40_tiles_take_as_long_as_link_by_link(
    memory: PortMemory, stages: int, layout: str, placed: str
) -> None:
    chip = Chip("grid", GRID, TILE, WIRES, memory)
    shared = {
        "batch": 1600 // stages * 2, "stages": stages, "microbatches": [4], "tensor": [8],
        "layouts": [layout], "placed": [placed],
    }  # fmt: skip
    each, groups = (simulated(chip, links, **shared) for links in ("each", "groups"))
    assert groups.time_s == pytest.approx(each.time_s, rel=0.05)
    assert groups.alone_s == pytest.approx(each.alone_s)
    assert groups.row["bound_by"] == each.row["bound_by"]
    assert groups.row["sent_bytes"] == pytest.approx(each.row["sent_bytes"], rel=0.02)


def test_the_wafer_scale_engine_takes_no_more_messages_than_40_by_40_tiles() -> None:
    shared = {"stages": 20, "microbatches": [4], "tensor": [8]}
    started_s = time.process_time()
    wafer = simulated(load_tiled_machine("wse2").chip, "auto", batch=4 * 4320, **shared)
    assert time.process_time() - started_s < 60
    small = simulated(Chip("grid", GRID, TILE, WIRES, SIDES), "groups", batch=40, **shared)
    assert sum(map(len, wafer.run.groups)) > 0.9 * 757 * 996
    # Margins that no stage uses add cells, and far ports nothing.
    assert wafer.carried.topology.nodes < 1.5 * small.carried.topology.nodes
    assert len(wafer.carried.timeline.start_s) == len(small.carried.timeline.start_s)


@given(st.sampled_from([(1, 6), (4, 8), (6, 6), (8, 12)]), st.integers(0, 2**16))
@settings(max_examples=30)
def test_groups_of_a_block_are_those_of_its_tiles(sides: tuple[int, int], seed: int) -> None:
    grid = TileGrid(12, 12)
    block = TileBlock(grid, 2, 0, *sides)
    width = [w for w in (1, 2, 4, 6, 8) if len(block) % w == 0 and max(sides) % w == 0][seed % 2]
    axes = {"d": len(block) // width, "t": width}
    lazily, listed = groups_in_block(block, axes), axis_groups(grid, tuple(block), axes)  # type: ignore[arg-type]
    for axis in axes:
        assert _sets(lazily[axis]) == _sets(listed[axis])  # type: ignore[index]


def _sets(groups: Sequence[Sequence[int]]) -> set[frozenset[int]]:
    return {frozenset(group) for group in groups}


@given(
    st.integers(1, 60), st.integers(1, 60), st.integers(1, 40), st.sampled_from([stage_blocks, stage_rows])
)
def test_stages_of_any_number_have_equal_disjoint_blocks(
    rows: int, columns: int, stages: int, place: object
) -> None:
    grid = TileGrid(rows, columns)
    if stages > grid.tiles:
        return
    blocks = place(grid, stages)  # type: ignore[operator]
    tiles = [*itertools.chain(*blocks)]
    assert len(blocks) == stages
    assert len({block.sides for block in blocks}) == 1
    assert len({*tiles}) == len(tiles)
    assert max(tiles) < grid.tiles


@pytest.mark.parametrize("width", [8, 64, 512])
def test_a_shrunk_group_takes_as_long_as_the_whole_one(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires(100e9, 1e-9)
    groups = groups_in_block(TileBlock(TileGrid(64, 64), 0, 0, 64, 64), {"d": 4096 // width, "t": width})
    whole = exchanges.alone_s(wires, "all_reduce", groups["t"], 1e8)
    monkeypatch.setattr(exchanges, "MOST_ALONE", 200)
    exchanges._alone_s.cache_clear()
    assert exchanges.alone_s(wires, "all_reduce", groups["t"], 1e8) == pytest.approx(whole, rel=0.05)
    exchanges._alone_s.cache_clear()
