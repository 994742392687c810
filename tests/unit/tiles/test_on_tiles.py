"""Transformers in a pipeline on groups of tiles: bounds, bytes, and invariants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import PortMemory, TileGrid, Wires
from phaze.layout import Layout
from phaze.tiles.chains import PalmLayers
from phaze.tiles.chip import Chip, Tile
from phaze.tiles.on_tiles import TiledOutcome, simulate_on_tiles
from phaze.tiles.placement import line, s_shaped
from phaze.tiles.runs import TiledRun
from tests.oracles.chips import slower
from tests.oracles.ideal_pipeline import ideal_time_s

GRID = TileGrid(4, 8)
TILE = Tile(clock_hz=1e9, pe_x=16, pe_y=16, sram_bytes=1e6)
CHIP = Chip("toy", GRID, TILE, Wires(1e10, 1e-9, (4, 4), 2.5e9), PortMemory(GRID.edge(), 2e9, 1e-9))
LAYERS = PalmLayers(count=8, hidden=256, heads=4, sequence=128)
RUN = TiledRun(LAYERS, batch=48, microbatches=6, layout=Layout(tp=4, dp=2), groups=s_shaped(GRID, 2, 4))


@pytest.fixture(scope="module", name="found")
def simulated() -> TiledOutcome:
    return simulate_on_tiles(CHIP, RUN)


def test_work_alone_is_least_and_contention_most(found: TiledOutcome) -> None:
    assert 0 < found.alone_s < found.uncontended_s < found.time_s
    for share in ("compute_share", "most_link_share", "most_dram_share", "model_share"):
        assert 0 < found.row[share] <= 1  # type: ignore[operator]


def test_every_byte_that_is_sent_is_received(found: TiledOutcome) -> None:
    sent, received = found.carried.sent_bytes, found.carried.received_bytes
    assert sent.sum() == pytest.approx(received.sum(), rel=1e-12)
    assert sent[GRID.tiles :].sum() > 0
    assert received[GRID.tiles :].sum() > 0


def test_work_alone_takes_the_ideal_pipelines_time() -> None:
    """PALM's equation (1): equal stages with forward pass, recomputation, and a backward pass of two."""
    found = simulate_on_tiles(CHIP, RUN)
    forward_s = 2 * (24 * 128 * 256**2 + 4 * 128**2 * 256) * 8 / 8 / TILE.flops
    loads = np.full(4, 4 * forward_s)
    assert found.alone_s == pytest.approx(ideal_time_s(loads, 0.0, 6), rel=1e-9)
    assert found.carried.work_s[0] == pytest.approx(6 * 4 * forward_s)


@pytest.mark.parametrize("part", ["links", "dram"])
def test_half_of_any_bandwidth_is_never_faster(found: TiledOutcome, part: str) -> None:
    slow = simulate_on_tiles(slower(CHIP, part), RUN)  # type: ignore[arg-type]
    assert slow.uncontended_s >= found.uncontended_s
    assert slow.time_s >= found.time_s
    assert slow.alone_s == pytest.approx(found.alone_s)


def test_a_mirrored_mapping_on_a_mirrored_chip_takes_as_long(found: TiledOutcome) -> None:
    """Rows counted from the other end: equal tiles in mirrored places."""
    mirrored = tuple(tuple(_flipped(tile) for tile in group) for group in RUN.groups)
    assert simulate_on_tiles(CHIP, replace(RUN, groups=mirrored)).time_s == pytest.approx(found.time_s)


def _flipped(tile: int) -> int:
    row, column = GRID.place(tile)
    return GRID.tile(GRID.rows - 1 - row, column)


def test_more_microbatches_never_lower_the_use_of_tiles_without_contention() -> None:
    shares = [
        found.carried.work_s[:4].mean() / found.alone_s
        for found in (simulate_on_tiles(CHIP, replace(RUN, microbatches=m)) for m in (1, 2, 6, 24))
    ]
    assert shares == sorted(shares)


def test_stages_hold_what_the_schedule_has_in_flight(found: TiledOutcome) -> None:
    timeline = found.carried.timeline
    assert [timeline.most_in_flight(stage) for stage in range(4)] == [4, 3, 2, 1]
    assert timeline.peak_bytes[0] > timeline.peak_bytes[3]


def test_without_dram_everything_must_fit_into_sram() -> None:
    small = replace(RUN, chain=PalmLayers(4, 8, 4, 4), batch=12)
    chip = replace(CHIP, memory=None)
    found = simulate_on_tiles(chip, small)
    assert set(found.strategies) == {"S_WSG_ACT"}
    assert found.row["dram_share"] == 0
    with pytest.raises(PhazeError, match="has no memory, but the stage holds"):
        simulate_on_tiles(chip, RUN)


def test_any_mapping_will_do() -> None:
    rows = simulate_on_tiles(CHIP, replace(RUN, groups=line(GRID, 4)))
    far = simulate_on_tiles(CHIP, replace(RUN, placed="far"))
    assert rows.alone_s == pytest.approx(far.alone_s)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chain": replace(LAYERS, count=3)}, "every one of 4 needs a part of the model, which has 3 layers"),
        ({"batch": 11}, "a sample for each of 6 microbatches × 2 replicas, got 11"),
        ({"layout": Layout(tp=3, dp=2)}, "the product of the degrees"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        simulate_on_tiles(CHIP, replace(RUN, **changes))  # type: ignore[arg-type]
