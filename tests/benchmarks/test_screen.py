"""How long the screen of a large shard takes: a few seconds, with most of it in the layers' bounds."""

from pytest_benchmark.fixture import BenchmarkFixture

from phaze.screen import screen_architectures
from phaze.screen.bounds import bound_layers
from phaze.spec.settings import ScreenSettings, Training
from phaze.spec.system import Scenario
from tests.unit.screen.shard import ENERGY, make_shard

SIZE = 15_000


def test_screen_of_a_large_shard(benchmark: BenchmarkFixture) -> None:
    """Fifteen thousand architectures, three HBM sizes, with and without recomputation."""
    shard = make_shard(SIZE)
    frame = benchmark(
        screen_architectures,
        shard.operators,
        shard.edges,
        shard.layers,
        shard.graph,
        shard.estimates,
        shard.architectures,
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
