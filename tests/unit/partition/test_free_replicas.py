"""Stages with numbers of devices of their own."""

from itertools import product

import numpy as np
import pytest

from phaze.partition.program import cut_within
from phaze.partition.weights import stage_memory, stage_times
from tests.oracles.free_replicas import cut_freely
from tests.unit.partition.graphs import all_partitions, random_weights, weights_of


@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_best_of_all_partitions_on_all_numbers_of_devices(seed: int) -> None:
    weights = random_weights(seed, 2 + seed % 5, 0.4, (np.inf, 12.0)[seed % 2])
    for stages, devices in product((1, 2, 3), (2, 3, 5)):
        shares = [one for one in product(range(1, devices + 1), repeat=stages) if sum(one) == devices]
        least = np.inf
        for stage_of in all_partitions(weights, stages):
            for share in shares:
                if (stage_memory(weights, stage_of) <= weights.limit_bytes * np.array(share)).all():
                    least = min(least, (stage_times(weights, stage_of) / share).max())
        found = cut_freely(weights, stages, devices)
        assert (found is None) == np.isinf(least)
        if found is not None:
            assert found.time_s == pytest.approx(least)
            assert found.devices.sum() == devices
            times = stage_times(weights, found.stage_of) / found.devices
            assert times.max() == pytest.approx(found.time_s)


def test_equal_devices_are_never_better() -> None:
    for seed in range(8):
        weights = random_weights(seed, 9, 0.3)
        equal, free = cut_within(weights, 3), cut_freely(weights, 3, 6)
        assert equal is not None
        assert free is not None
        assert free.time_s <= equal.time_s / 2 * (1 + 1e-9)


def test_a_long_operator_takes_more_devices() -> None:
    weights = weights_of([1.0, 3.0], [(0, 1)], [0.0])
    found = cut_freely(weights, 2, 4)
    assert found is not None
    assert (found.devices.tolist(), found.time_s) == ([1, 3], 1.0)
    assert cut_freely(weights, 2, 1) is None
