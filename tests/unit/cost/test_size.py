"""Slowest of n devices: closed form, arrays, and its effect on kernels, memory traffic and plans."""

from __future__ import annotations

import numpy as np
import pytest

from phaze.cost.size import slowest
from phaze.plan.layers.costs import kernel_times
from phaze.plan.machines import load_machine, slowest_device


def test_the_slowest_device_is_that_of_a_logarithm() -> None:
    assert slowest(1, 0.01) == slowest(0, 0.01) == 1.0
    assert slowest(2048, 0.01) == pytest.approx(1 + 0.01 * 11 * np.log(2))
    counts = np.array([1, 8, 64, 8192])
    assert np.array_equal(slowest(counts, 0.02), [float(slowest(int(n), 0.02)) for n in counts])
    assert (np.diff(slowest(counts, 0.02)) > 0).all()


def test_largest_exponential_delay_exceeds_the_mean_by_at_most_the_logarithm() -> None:
    """H_n - 1 <= ln n: the mean of the largest of n delays with mean 1, less that mean."""
    delays = np.random.default_rng(0).exponential(size=(20_000, 64))
    excess = delays.max(axis=1).mean() - 1.0
    assert excess == pytest.approx(sum(1 / k for k in range(1, 65)) - 1.0, rel=0.02)
    assert excess < np.log(64)


def test_kernels_and_memory_of_a_machine_are_those_of_its_slowest_device() -> None:
    machine = load_machine("h100")
    one, many = machine.of_size(1), machine.of_size(2048)
    assert one.device is not None
    lag = float(slowest(2048, one.device.spread))
    assert one.hbm_bytes_per_s / many.hbm_bytes_per_s == pytest.approx(lag)
    assert slowest_device(one) is one.device
    assert slowest_device(many).sustained_clock == pytest.approx(one.device.sustained_clock / lag)
    assert kernel_times(many, 2).device.sustained_hbm == pytest.approx(one.device.sustained_hbm / lag)
