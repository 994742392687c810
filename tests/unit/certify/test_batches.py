"""The plain time per batch equals that of the other implementations, which share no code with it."""

from dataclasses import replace

import numpy as np
import pytest

from phaze.certify.audit import LayerChain, PlacementLimits, best_time_s
from phaze.formulas.flushing import Setting
from phaze.formulas.phaze.chains import Runs, best_times
from phaze.layout import Layout

BANDWIDTH = 1e8


@pytest.mark.parametrize("seed", range(60))
def test_the_time_is_that_of_the_search_over_many_architectures(seed: int) -> None:
    """Any chain, TMP width, memory and pipeline schedule, also with layers that cannot be split."""
    rng = np.random.default_rng(seed)
    counts = (1 if seed % 3 else 2, int(rng.integers(1, 11)), 1)
    tensor, split = int(rng.choice([1, 2, 4])), rng.random(3) < 0.6
    weights, static, activation, output = rng.integers(1, 100, (4, 3)) * [[1e6], [3e6], [1e6], [1e5]]
    runs = Runs(counts, weights, static, activation, output, split)
    forward, backward = rng.random((1, 3)), 2 * rng.random((1, 3))
    chain = LayerChain(*(np.repeat(each, counts) for each in (weights, static, activation, output, split)))
    infinite = 0
    for memory in (2e8, 6e8, 2e9, 1e12):
        cluster = PlacementLimits(
            int(rng.integers(1, 40)), int(rng.integers(1, 64)), BANDWIDTH, memory, bool(seed % 2),
            seed % 5 == 0, Layout(tp=tensor), bool(seed % 4 < 2), float(rng.choice([2.0, 4.0])),
        )  # fmt: skip
        setting = Setting(
            cluster.devices, cluster.microbatches, BANDWIDTH, memory, cluster.recompute,
            "gpipe" if cluster.gpipe else "1f1b", "every-stage" if cluster.every_stage else "first-stage",
            cluster.all_reduce_factor,
        )  # fmt: skip
        expected = best_times(runs, forward, backward, Layout(tp=tensor), [setting])[0, 0]
        found = best_time_s(chain, np.repeat(forward[0], counts), np.repeat(backward[0], counts), cluster)
        assert found == pytest.approx(expected, rel=1e-12)
        infinite += np.isinf(found)
    assert infinite < 4


def test_two_layers_by_hand() -> None:
    """Two stages of 1 s forward, 2 s backward and 1 s of transfer; in a pipeline, or one stage alone."""
    flat = np.array([1e8, 1e8])
    chain = LayerChain(flat, flat, np.zeros(2), flat, np.array([False, False]))
    alone = PlacementLimits(1, 3, BANDWIDTH, 1e12, False, False, Layout())
    ones, twos = np.ones(2), np.full(2, 2.0)
    assert best_time_s(chain, ones, twos, alone) == 3 * 6
    pair = replace(alone, devices=2, memory_bytes=1e8)
    assert best_time_s(chain, ones, twos, pair) == (3 + 1) * 4
    assert best_time_s(chain, ones, twos, replace(pair, recompute=True)) == (3 + 1) * 4
    assert best_time_s(chain, ones, twos, replace(pair, memory_bytes=9e7)) == np.inf
    both = replace(alone, devices=2)
    assert best_time_s(chain, ones, twos, both) == 2 * 6 + 4 * (1 / 2) * 2
