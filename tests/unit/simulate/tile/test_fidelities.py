"""One stage at three fidelities."""

from __future__ import annotations

import pytest

from phaze.errors import PhazeError
from phaze.simulate.network.mapping import s_shaped
from phaze.simulate.network.mesh import Grid, Memory, Wires
from phaze.simulate.tile import Chip, Mode, Stage, Tile, Training, Transformer, measure
from phaze.simulate.tile.group import simulate
from phaze.simulate.tile.operators import Degrees
from phaze.simulate.training_state import Zero

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


def test_a_fidelity_has_a_name() -> None:
    with pytest.raises(
        PhazeError, match="fidelity must be one of tile-by-tile, virtual, analytical, got exact"
    ):
        simulate(OWN_PORTS, [], "exact")  # type: ignore[arg-type]
