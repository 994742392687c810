"""The placement equals published optima and exhaustive search, and follows its cost model."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.formulas.flushing import Chain, Setting
from phaze.formulas.phaze.flush import Infeasible, Placement, place_chain, place_widths
from phaze.formulas.phaze.instance import place_instance, read_instance
from phaze.layout import Layout
from tests.unit.formulas.phaze import exhaustive
from tests.unit.formulas.phaze.examples import (
    ample_setting,
    random_chain,
    random_setting,
    relaxed,
    uniform_chain,
)


def best_time(chain: Chain, tensor: int, setting: Setting) -> float:
    found = place_chain(chain, Layout(tp=tensor), setting)
    return found.time_s if isinstance(found, Placement) else inf


@pytest.mark.parity
@pytest.mark.parametrize("name", ["gpt3", "bert", "gpt-2.5b", "llama2-7b", "small-memory"])
def test_the_published_optima_are_reached(name: str, shared_data: Path) -> None:
    with (shared_data / "placement" / "optima.csv").open() as file:
        optimum = next(row for row in csv.DictReader(file) if row["instance"] == name)
    result = place_instance(read_instance(shared_data / "placement" / f"{name}.json"))
    time_s = float(optimum["time_per_batch_s"])
    assert result.final_time_per_batch == pytest.approx(time_s, rel=1e-12, abs=1e-9)
    assert result.tensor_parallel_degree == int(optimum["tensor"])
    assert result.data_parallel_degree == int(optimum["data"])
    assert len(result.stages) == int(optimum["stages"])


def test_no_placement_is_faster_than_the_one_found() -> None:
    for seed in range(120):
        rng = np.random.default_rng(seed)
        tensor = int(rng.choice([1, 2, 3]))
        chain = random_chain(rng, int(rng.integers(1, 7)), tensor)
        setting = random_setting(rng, chain)
        best_s = exhaustive.best_time_s(chain, tensor, setting)
        assert best_time(chain, tensor, setting) == pytest.approx(best_s, rel=1e-12)


def test_what_is_found_is_a_placement_that_fits_and_takes_the_time_stated() -> None:
    for seed in range(120):
        rng = np.random.default_rng(1000 + seed)
        tensor = int(rng.choice([1, 2, 3]))
        chain = random_chain(rng, int(rng.integers(1, 9)), tensor)
        setting = random_setting(rng, chain)
        found = place_chain(chain, Layout(tp=tensor), setting)
        if isinstance(found, Infeasible):
            assert found.limit in ("memory", "devices")
            continue
        stages = [range(stage[0], stage[-1] + 1) for stage in found.layers]
        assert [layer for stage in stages for layer in stage] == list(range(len(chain)))
        assert found.devices == tuple(exhaustive.devices(chain, stage, tensor) for stage in stages)
        assert exhaustive.fits(chain, stages, tensor, found.data, setting)
        assert exhaustive.time_s(chain, stages, found.data, setting) == pytest.approx(found.time_s, rel=1e-12)


@given(st.integers(0, 10**6))
def test_more_memory_devices_or_bandwidth_is_never_slower(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(2, 10)), 2)
    setting = random_setting(rng, chain)
    better = relaxed(setting, rng)
    assert best_time(chain, 2, better) <= best_time(chain, 2, setting) * (1 + 1e-12)


def test_the_formula_of_the_time_per_batch_in_a_case_done_by_hand() -> None:
    setting = Setting(devices=4, microbatches=8, bandwidth_bytes_per_s=4.0, memory_bytes=1e9)
    found = place_chain(uniform_chain(), Layout(tp=1), setting)
    assert isinstance(found, Placement)
    # Two pipelines of two stages of three layers: 3 + 6 + 0.5 of transfer at each end of the cut.
    assert (found.data, found.starts) == (2, (0, 3))
    assert found.max_load_s == pytest.approx(9.5)
    assert found.sync_s == pytest.approx(4 * 0.5 * 30 / 4)
    assert found.time_s == pytest.approx(9.5 * (8 // 2 + 2 - 1) + 15)


def test_equal_times_go_to_the_fewest_devices() -> None:
    setting = Setting(100, 8, bandwidth_bytes_per_s=np.inf, memory_bytes=1e9)
    found = place_chain(uniform_chain(1), Layout(tp=1), setting)
    assert isinstance(found, Placement)
    assert found.data == found.devices_used == 8


def test_too_little_memory_is_reported_with_what_is_missing_and_the_devices_that_would_do() -> None:
    found = place_chain(uniform_chain(), Layout(tp=1), replace(ample_setting(devices=2), memory_bytes=60.0))
    assert found == Infeasible(
        "memory: the leanest placement (t = 1, 2 stages) needs 84 B on its fullest device, 60 B given: "
        "24 B too little; with 4 devices instead of 2 it would fit"
    )


def test_too_few_devices_are_reported_with_their_number() -> None:
    chain = replace(uniform_chain(), tensor_parallel=np.full(6, True))
    found = place_chain(chain, Layout(tp=8), ample_setting(devices=5))
    assert found == Infeasible("devices: a pipeline needs at least 8, 5 given: 3 too few")


def test_the_memory_named_in_a_reason_is_the_least_that_suffices() -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        tensor = int(rng.choice([1, 2]))
        chain = random_chain(rng, int(rng.integers(1, 6)), tensor)
        setting = replace(random_setting(rng, chain), devices=int(rng.integers(2, 9)), memory_bytes=1e-3)
        counts = {data: -(-setting.microbatches // data) for data in range(1, setting.microbatches + 1)}
        least = min(
            max(
                exhaustive.memory_bytes(chain, stage, len(cut) - number, setting, counts[data])
                for number, stage in enumerate(cut)
            )
            for cut in exhaustive.cuts(len(chain))
            for data in range(1, min(setting.devices, setting.microbatches) + 1)
            if exhaustive.fits(chain, cut, tensor, data, replace(setting, memory_bytes=inf))
        )
        enough = place_chain(chain, Layout(tp=tensor), replace(setting, memory_bytes=max(least, 1e-3)))
        assert isinstance(enough, Placement)
        if least >= 1:
            found = place_chain(chain, Layout(tp=tensor), replace(setting, memory_bytes=least - 0.5))
            assert isinstance(found, Infeasible)
            assert f"needs {least:.4g} B" in found.reason


def test_the_best_tensor_width_is_chosen() -> None:
    narrow = uniform_chain()
    wide = replace(narrow, forward_s=0.1 * narrow.forward_s, tensor_parallel=np.full(6, True))
    found = place_widths({Layout(): narrow, Layout(tp=2): wide}, ample_setting(devices=2, microbatches=1))
    assert isinstance(found, Placement)
    assert found.layout.tp == 2


def test_a_reason_speaks_of_the_tensor_width_that_comes_closest() -> None:
    narrow = uniform_chain()
    wide = replace(narrow, static_bytes=0.5 * narrow.static_bytes, tensor_parallel=np.full(6, True))
    setting = replace(ample_setting(devices=3), memory_bytes=50.0)
    found = place_widths({Layout(): narrow, Layout(tp=2): wide}, setting)
    assert isinstance(found, Infeasible)
    # Width 1 in three stages needs 40 + 8 + 2 * 8 bytes, width 2 in one stage 60 + 24.
    assert found.reason.startswith("memory: the leanest placement (t = 1, 3 stages) needs 64 B")
