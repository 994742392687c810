"""Loads, footprints and time per batch, compared with a layer-by-layer simulation of each stage."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.formulas.flushing import (
    Setting,
    batch_time_s,
    room,
    stage_footprints,
    stage_loads,
    sync_s,
    useful_widths,
)
from phaze.layout import Layout
from tests.unit.formulas.phaze import exhaustive
from tests.unit.formulas.phaze.examples import random_chain, random_setting


@pytest.mark.parametrize("seed", range(30))
def test_the_load_of_every_stage_is_that_of_a_simulation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(1, 8)))
    bandwidth = float(rng.choice([2.0, 10.0, 1e9]))
    loads = stage_loads(chain, bandwidth)
    for i in range(len(chain)):
        for j in range(i + 1, len(chain) + 1):
            for recompute in (False, True):
                expected = exhaustive.load_s(chain, range(i, j), bandwidth, recompute=recompute)
                assert loads.of(recompute)[i, j] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(30))
def test_what_fits_is_what_the_formula_of_the_memory_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(1, 8)))
    setting = random_setting(rng, chain)
    n, microbatches = len(chain), int(rng.integers(1, 10))
    fitting = room(stage_footprints(chain), setting, microbatches)
    for i in range(n):
        last = exhaustive.memory_bytes(chain, range(i, n), 1, setting, microbatches)
        assert fitting.last_fits[i] == (last <= setting.memory_bytes)
        for j in range(i + 1, n + 1):
            for s in range(2, n + 1):
                memory = exhaustive.memory_bytes(chain, range(i, j), s, setting, microbatches)
                assert (fitting.most_stages[i, j] >= s) == (memory <= setting.memory_bytes)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_a_useful_width_is_the_narrowest_of_its_microbatches(microbatches: int, limit: int) -> None:
    counts, widths = useful_widths(microbatches, limit)
    every = range(1, min(microbatches, limit) + 1)
    narrowest: dict[int, int] = {}
    for d in every:
        narrowest.setdefault(ceil(microbatches / d), d)
    assert dict(zip(counts.tolist(), widths.tolist(), strict=True)) == narrowest
    assert np.all(np.diff(widths) > 0)


@pytest.mark.parametrize("microbatches", [1, 512, 4096, 10000])
def test_there_are_about_twice_the_root_of_the_batch_many_useful_widths(microbatches: int) -> None:
    assert len(useful_widths(microbatches, microbatches)[0]) <= 2 * microbatches**0.5


def test_the_time_per_batch_adds_the_synchronisation_to_the_flushed_pipeline() -> None:
    setting = Setting(4, 4, bandwidth_bytes_per_s=10.0, memory_bytes=1e9)
    weights = np.array([100.0, 200.0, 50.0])
    assert sync_s(weights, Layout(dp=1), setting) == 0.0
    assert sync_s(weights, Layout(dp=4), setting) == pytest.approx(4 * 3 / 4 * 10)
    everybody = replace(setting, gradients="every-stage", all_reduce_factor=2.0)
    assert sync_s(weights, Layout(dp=4), everybody) == pytest.approx(2 * 3 / 4 * 20)
    assert batch_time_s(2.0, Layout(pp=3, dp=4), 9, 30.0) == pytest.approx(2.0 * (3 + 3 - 1) + 30.0)
