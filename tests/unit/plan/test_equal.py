"""Equal stages are found by trying them all, and never beat Phaze's planner."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.layout import Layout
from phaze.plan.even import equal_cuts, place_equally
from phaze.plan.phaze.flush import Infeasible, Placement, evaluate_cut, place_chain
from phaze.plan.phaze.reasons import why_not_stages
from tests.unit.plan.phaze.examples import ample_setting, random_chain, random_setting, uniform_chain


def test_stages_hold_equal_numbers_of_repeated_layers_with_the_outer_ones_joined_or_apart() -> None:
    assert list(equal_cuts(8, 1, 6)) == [
        (0,), (0, 1, 7),
        (0, 4), (0, 1, 4, 7),
        (0, 3, 5), (0, 1, 3, 5, 7),
        (0, 2, 3, 4, 5, 6), (0, 1, 2, 3, 4, 5, 6, 7),
    ]  # fmt: skip
    assert list(equal_cuts(4, 0, 4)) == [(0,), (0, 2), (0, 1, 2, 3)]


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 10**6))
def test_equal_stages_are_those_of_plain_search_and_never_beat_free_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tensor = int(rng.choice([1, 2]))
    chain = random_chain(rng, int(rng.integers(3, 8)), tensor)
    setting = random_setting(rng, chain)
    found = place_equally(chain, Layout(tp=tensor), setting, 1, len(chain) - 2)
    best = inf
    for starts in equal_cuts(len(chain), 1, len(chain) - 2):
        for data in range(1, min(setting.devices, setting.microbatches) + 1):
            tried = evaluate_cut(chain, Layout(tp=tensor, dp=data), setting, starts)
            per_pipeline = -(-setting.microbatches // data)
            fits = not why_not_stages(chain.footprints, starts, setting, per_pipeline)
            if tried.devices_used <= setting.devices and fits:
                best = min(best, tried.time_s)
    assert (found.time_s if isinstance(found, Placement) else inf) == pytest.approx(best, rel=1e-12)
    free = place_chain(chain, Layout(tp=tensor), setting)
    if isinstance(found, Placement):
        assert isinstance(free, Placement)
        assert free.time_s <= found.time_s * (1 + 1e-12)


def test_what_is_in_the_way_is_said() -> None:
    setting = ample_setting()
    memory = place_equally(uniform_chain(), Layout(tp=1), replace(setting, memory_bytes=1.0), 0, 6)
    devices = place_equally(
        replace(uniform_chain(), tensor_parallel=np.full(6, True)), Layout(tp=10**6), setting, 0, 6
    )
    assert isinstance(memory, Infeasible)
    assert isinstance(devices, Infeasible)
    assert memory.limit == "memory"
    assert devices.limit == "devices"
