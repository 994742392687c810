"""Tiled accelerators as data."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from phaze.base.errors import PhazeError
from phaze.cost.network.mesh import Grid, Memory, Wires
from phaze.tiles.chip import Chip, Tile
from tests.oracles.chips import slower

CORE = Tile(rows=64, columns=128, clock_hz=0.9765625e9, sram_bytes=3.75e6, sram_bandwidth_bytes_per_s=inf)
GRID = Grid(4, 4)
CHIP = Chip("four by four", GRID, CORE, Wires(1024e9, 1e-9), Memory(GRID.edge(), 256e9))


def test_sixteen_cores_of_the_wafer_have_256_tflops() -> None:
    """PALM, Table VI."""
    assert CHIP.peak_flops_per_s == pytest.approx(256e12)


def test_every_tile_uses_the_nearest_port() -> None:
    assert CHIP.memory is not None
    for tile in range(GRID.tiles):
        port = CHIP.memory.ports[CHIP.port(tile) - GRID.tiles]
        assert GRID.distance(tile, port) == min(GRID.distance(tile, other) for other in CHIP.memory.ports)


def test_a_chip_without_memory_has_no_ports() -> None:
    bare = replace(CHIP, memory=None)
    with pytest.raises(PhazeError, match="four by four: has no memory"):
        bare.port(0)
    with pytest.raises(PhazeError, match="has no memory whose bandwidth could change"):
        slower(bare, "dram")


def test_one_bandwidth_changes_at_a_time() -> None:
    chip = replace(
        CHIP,
        tile=replace(CORE, sram_bandwidth_bytes_per_s=8e9),
        wires=replace(CHIP.wires, block=(2, 2), between_bandwidth_bytes_per_s=256e9),
    )
    assert slower(chip, "sram") == replace(chip, tile=replace(CORE, sram_bandwidth_bytes_per_s=4e9))
    half = replace(chip.wires, bandwidth_bytes_per_s=512e9, between_bandwidth_bytes_per_s=128e9)
    assert slower(chip, "links") == replace(chip, wires=half)
    assert slower(chip, "dram") == replace(chip, memory=Memory(GRID.edge(), 128e9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "tile: rows must be > 0, got 0"),
        ({"sram_bytes": float("nan")}, "tile: sram_bytes must be > 0, got nan"),
        ({"lanes": -1}, "tile: lanes must be ≥ 0, got -1"),
        ({"dataflows": ()}, "tile: dataflows must be some of weight, input, output, got "),
        ({"dataflows": ("row",)}, "tile: dataflows must be some of weight, input, output, got row"),
    ],
)
def test_what_no_tile_can_be_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError, match=f"^{message}"):
        replace(CORE, **change)  # type: ignore[arg-type]


def test_a_chip_needs_memory_that_holds_something() -> None:
    with pytest.raises(PhazeError, match="dram_bytes must be > 0, got 0"):
        replace(CHIP, dram_bytes=0)
