"""Cost of the tile level at three fidelities; `pytest tests/benchmarks --benchmark-enable` measures it."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, get_args

import pytest

from phaze.cost.network.mesh import Wires
from phaze.tiles.chip import Chip, Tile
from phaze.tiles.group import Fidelity, measure, simulate
from phaze.tiles.operators import Transformer
from phaze.tiles.placement import Tiles, s_shaped
from phaze.tiles.steps import Activity, Mode, Program, Stage
from phaze.tiles.tile import Training
from tests.oracles.chips import wafer

Benchmark = Callable[..., Any]

GRID, _, MEMORY = wafer()
CORE = Tile(64, 128, 0.9765625e9, 3.75e6, inf)
CHIP = Chip("wafer", GRID, CORE, Wires(1024e9, 1e-9, (4, 4), 256e9), MEMORY)
BLOCKS = s_shaped(GRID, 4, 4)
T_18B = Transformer(8, 6144, 2048, 48)
MODE = Mode(Training(recompute=True, in_flight=20))


def activities(groups: Sequence[Tiles], layers: int = 2) -> list[Activity]:
    """Return the forward pass of some layers in each group, half of each group's tiles data parallel."""
    found = []
    for tiles in groups:
        data = 4 if len(tiles) == 16 else 8
        stage = Stage(tiles, ((T_18B, (data, len(tiles) // data, 1, 1)),) * layers)
        found.append(Activity(tiles, Program(CHIP, stage, MODE).steps("forward")))
    return found


@pytest.mark.parametrize("fidelity", get_args(Fidelity))
@pytest.mark.parametrize("groups", [1, 5, 20])
def test_groups_of_16_cores_at_the_same_time(groups: int, fidelity: Fidelity, benchmark: Benchmark) -> None:
    """T-18B on PALM's wafer, two layers a group: O(2 N²), O(N² + M), O(M) (PALM, IV.A)."""
    some = activities(BLOCKS[:groups])
    simulate(CHIP, some, fidelity)
    outcome = benchmark.pedantic(simulate, (CHIP, some, fidelity), rounds=3)  # type: ignore[attr-defined]
    benchmark.extra_info |= {"curve": f"tiles, {fidelity}", "size": 16 * groups, "bound": 1}  # type: ignore[attr-defined]
    assert outcome.time_s >= simulate(CHIP, some, "analytical").time_s * (1 - 1e-12)


def test_each_fidelity_beside_tile_by_tile(benchmark: Benchmark) -> None:
    """A group of 64 cores, of which the virtual tile stands for all: ratios in one run."""
    some = activities(s_shaped(GRID, 4, 16)[:1])

    def least_s(fidelity: Fidelity) -> float:
        return min(timeit.repeat(lambda: simulate(CHIP, some, fidelity), number=1, repeat=4))

    if benchmark.enabled:  # type: ignore[attr-defined]
        each, virtual, analytical = (least_s(fidelity) for fidelity in get_args(Fidelity))
        benchmark.extra_info |= {"virtual": each / virtual, "analytical": each / analytical}  # type: ignore[attr-defined]
        assert analytical < virtual < each
    outcome = benchmark.pedantic(simulate, (CHIP, some, "virtual"), rounds=3)  # type: ignore[attr-defined]
    assert outcome.time_s == pytest.approx(simulate(CHIP, some, "tile-by-tile").time_s, rel=0.1)


@pytest.mark.parametrize("fidelity", get_args(Fidelity))
def test_a_group_of_64_cores(fidelity: Fidelity, benchmark: Benchmark) -> None:
    some = activities(s_shaped(GRID, 4, 16)[:1])
    simulate(CHIP, some, fidelity)
    assert benchmark.pedantic(simulate, (CHIP, some, fidelity), rounds=3).time_s > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("fidelity", get_args(Fidelity))
def test_all_parts_of_a_stage(fidelity: Fidelity, benchmark: Benchmark) -> None:
    """What a search over tensor and data parallelism pays for each point."""
    stage = Stage(BLOCKS[0], ((T_18B, (4, 4, 1, 1)),) * 2)
    measure(CHIP, stage, MODE, fidelity)
    found = benchmark.pedantic(measure, (CHIP, stage, MODE, fidelity), rounds=3)  # type: ignore[attr-defined]
    assert found.seconds("backward") > found.seconds("forward") > 0
