"""Time of the screen of a large shard: a few seconds, most of them for the bounds of layers."""

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from phaze.search.bounds import bound_layers
from phaze.search.pareto import uncovered
from phaze.search.stage import screen_architectures
from phaze.spec.settings import ScreenSettings, Training
from phaze.spec.system import Scenario
from tests.unit.search.shard import ENERGY, make_shard

SIZE = 15_000


@pytest.mark.slow
def test_screen_of_a_large_shard(benchmark: BenchmarkFixture) -> None:
    """Fifteen thousand architectures, three HBM sizes, with and without recomputation."""
    shard = make_shard(SIZE)
    frame = benchmark(
        screen_architectures,
        *shard,
        Scenario(devices=16, global_batch=64),
        Training(hbm_gib=(6, 12, 32)),
        ScreenSettings(),
        ENERGY,
    )
    assert len(frame) == SIZE * 6


def test_bounds_of_the_layers_of_a_large_shard(benchmark: BenchmarkFixture) -> None:
    """Three layers, both passes, without the placement."""
    shard = make_shard(SIZE)
    bounds = benchmark(bound_layers, shard.operators, shard.edges, shard.estimates, shard.architectures)
    assert all(len(b.lower_s) == SIZE for b in bounds.values())


@pytest.mark.slow
def test_front_of_all_points_of_a_model(benchmark: BenchmarkFixture) -> None:
    """Three million: 29,360 architectures at 16 points, three HBM sizes, with and without recomputation."""
    rng = np.random.default_rng(0)
    area = rng.random(29_360)[rng.integers(0, 29_360, 3_000_000)]
    time, energy = rng.random((2, len(area)))
    front = benchmark.pedantic(uncovered, (time + 1.0 / area, area, energy), rounds=3)
    assert 0 < front.sum() < len(area) / 100
