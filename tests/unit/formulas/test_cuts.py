"""The recurrence over cuts finds the smallest bottleneck for every number of stages and single-device
stages.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from phaze.formulas.cuts import PipelineCounts, SplitCosts, best_cut, devices_of, least_worst, shape_of
from phaze.layout import Layout
from tests.unit.formulas.phaze import exhaustive
from tests.unit.formulas.phaze.examples import uniform_chain


@pytest.mark.parametrize("seed", range(40))
def test_every_entry_is_the_least_worst_cost_over_all_cuts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    singles = n * int(rng.integers(0, 2))
    cost, growth = rng.random((n, n + 1)), rng.integers(0, 2) * rng.random((n, n + 1))
    last, single = rng.random(n), rng.random((n, n + 1)) < 0.3 if singles else np.zeros((n, n + 1), bool)
    # A stage that does not fit never fits with more layers.
    most = np.minimum.accumulate(rng.integers(0, n + 3, (n, n + 1)), axis=1)
    expected = np.full((n + 1, singles + 1), np.inf)
    for cut in exhaustive.cuts(n):
        u = sum(bool(single[stage.start, stage.stop]) for stage in cut)
        worst = last[cut[-1].start]
        for s, stage in enumerate(reversed(cut), start=1):
            if s > 1:
                i, j = stage.start, stage.stop
                worst = max(worst, cost[i, j] + (s - 1) * growth[i, j] if most[i, j] >= s else np.inf)
        expected[len(cut), u] = min(expected[len(cut), u], worst)
    table = least_worst(last, cost, growth, most, single, n, singles)
    np.testing.assert_allclose(table[:, :, 0], expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("flags", "tensor", "devices", "shape"),
    [
        ([False] * 6, 1, 4, (1, 4, 0)),
        ([False] * 6, 1, 100, (1, 6, 0)),
        ([True] * 6, 4, 9, (4, 2, 0)),
        ([False] * 6, 4, 5, (1, 5, 0)),
        ([False, True, True, True, True, False], 4, 9, (4, 3, 2)),
        ([True] * 6, 4, 3, (4, 0, 0)),
    ],
)
def test_the_shape_of_a_pipeline_follows_from_its_devices(
    flags: list[bool], tensor: int, devices: int, shape: tuple[int, int, int]
) -> None:
    chain = replace(uniform_chain(6), tensor_parallel=np.array(flags))
    limits = shape_of(chain, Layout(tp=tensor), devices)
    assert (limits.wide, limits.stages, limits.singles) == shape


def test_single_stages_take_one_device_each() -> None:
    assert devices_of(5, 2, 8) == 3 * 8 + 2


@pytest.mark.parametrize("caps", [(), (3.0,)])
def test_of_d_pipelines_each_exchanges_d_less_one_of_d_parts(caps: tuple[float, ...]) -> None:
    """One layer of load 1, four microbatches: 4 s on one pipeline, 2 + 3/2 s on two, and 1 + 3 · 3/4 s on
    four.
    """
    costs = SplitCosts(np.ones(1), np.ones((1, 2)), np.ones((1, 2), np.int64), np.zeros((1, 2), bool))
    for devices, expected_s, expected_data in ((1, 4.0, 1), (2, 3.5, 2), (4, 1 + 9 / 4, 4)):
        pipelines = PipelineCounts(1, devices, np.array([4, 2, 1]), np.array([1, 2, 4]))
        exchange = np.full((1, 2), 3.0)
        time_s, data, _ = best_cut(costs, exchange, np.array(caps), pipelines, 1, 1, 0, np.inf)
        assert (time_s, data) == (expected_s, expected_data)
