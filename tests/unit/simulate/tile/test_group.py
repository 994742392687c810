"""Stages on groups of tiles."""

from __future__ import annotations

from math import inf

import pytest

from phaze.simulate.network.mapping import s_shaped
from phaze.simulate.network.mesh import Grid, Memory, Wires
from phaze.simulate.tile import Chip, Mode, Stage, Tile, Training, Transformer, measure
from phaze.simulate.tile.group import GroupTimes

GRID = Grid(8, 8)
CORE = Tile(64, 128, 0.9765625e9, 3.75e6, inf)
CHIP = Chip("small wafer", GRID, CORE, Wires(1024e9, 1e-9, (4, 4), 256e9), Memory(GRID.edge(), 256e9))
LAYER = Transformer(8, 1024, 512, 16)


def run(chip: Chip = CHIP, mode: Mode | None = None) -> GroupTimes:
    return measure(chip, Stage(s_shaped(GRID, 4, 4)[0], ((LAYER, (4, 4, 1, 1)),) * 2), mode)


def test_a_stage_takes_at_least_the_time_of_its_flops() -> None:
    times = run(mode=Mode(Training(recompute=True)))
    for part, passes in (("forward", 1), ("recompute", 1), ("backward", 2)):
        flops = passes * 2 * (24 * 8 * 512 * 1024**2 + 4 * 8 * 512**2 * 1024)
        assert times.seconds(part) >= flops / (16 * CORE.peak_flops_per_s)  # type: ignore[arg-type]
        assert 0 < times.parts[part].compute_utilisation <= 1  # type: ignore[index]
        assert sum(times.parts[part].spent.values()) == pytest.approx(times.seconds(part))  # type: ignore[arg-type,index]


def test_inference_has_a_forward_pass_only() -> None:
    times = run(mode=Mode(Training(backward=False)))
    assert list(times.parts) == ["forward"]
    assert times.stage_cost().backward_s == 0
