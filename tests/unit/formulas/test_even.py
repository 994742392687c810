"""A given placement is evaluated with the best boundaries for its widths, or with even ones.

Equal stages are found by trying all of them, and never beat Phaze's planner.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.formulas.even import place_evenly, place_expert
from phaze.formulas.phaze.flush import Infeasible, Placement, place_chain
from phaze.layout import Layout
from tests.unit.formulas.phaze import exhaustive
from tests.unit.formulas.phaze.examples import ample_setting, random_chain, random_setting, uniform_chain


def test_the_best_boundaries_are_those_of_exhaustive_search() -> None:
    for seed in range(70):
        rng = np.random.default_rng(seed)
        tensor = int(rng.choice([1, 2, 3]))
        chain = random_chain(rng, int(rng.integers(1, 7)), tensor)
        setting = random_setting(rng, chain)
        expert = Layout(pp=int(rng.integers(1, 5)), dp=int(rng.integers(1, 5)), tp=tensor)
        found = place_expert(chain, expert, setting)
        time_s = found.time_s if isinstance(found, Placement) else inf
        possible = expert.dp <= setting.microbatches
        expected = exhaustive.best_time_s(chain, tensor, setting, expert.pp, expert.dp) if possible else inf
        assert time_s == pytest.approx(expected, rel=1e-12), seed


@given(st.integers(0, 10**6))
def test_even_boundaries_are_never_better_than_the_best_and_these_never_than_free_widths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(2, 8)), 2)
    setting = random_setting(rng, chain)
    expert = Layout(pp=int(rng.integers(1, 5)), dp=int(rng.integers(1, 5)), tp=2)
    even = place_evenly(chain, expert, setting, 0, len(chain))
    best = place_expert(chain, expert, setting)
    free = place_chain(chain, Layout(tp=2), setting)
    if isinstance(even, Placement):
        assert isinstance(best, Placement)
        assert best.time_s <= even.time_s * (1 + 1e-12)
    if isinstance(best, Placement):
        assert isinstance(free, Placement)
        assert free.time_s <= best.time_s * (1 + 1e-12)


def test_what_precedes_and_follows_the_repeated_layers_joins_the_outer_stages() -> None:
    found = place_evenly(uniform_chain(8), Layout(pp=3, dp=1, tp=1), ample_setting(), first=1, repeated=6)
    assert isinstance(found, Placement)
    assert found.layers == (range(3), range(3, 5), range(5, 8))


@pytest.mark.parametrize(
    ("first", "repeated", "stages", "starts"),
    [
        (1, 24, 8, (0, 4, 7, 10, 13, 16, 19, 22)),
        (1, 48, 32, (0, *range(3, 35, 2), *range(34, 49))),
        (0, 5, 2, (0, 3)),
        (2, 3, 1, (0,)),
    ],
)
def test_longer_even_stages_come_first(first: int, repeated: int, stages: int, starts: tuple[int]) -> None:
    chain = uniform_chain(first + repeated + 1)
    found = place_evenly(chain, Layout(pp=stages), ample_setting(devices=64), first, repeated)
    assert isinstance(found, Placement)
    assert found.starts == starts


@pytest.mark.parametrize(
    ("expert", "devices", "reason"),
    [
        (Layout(pp=7, dp=1, tp=1), 100, "pipeline: 6 layers do not fill 7 stages"),
        (Layout(pp=2, dp=9, tp=1), 100, "data: width 9 exceeds the 8 microbatches of a batch"),
        (Layout(pp=3, dp=2, tp=4), 23, "devices: p = 3, d = 2, t = 4 takes 24, 23 given: 1 too few"),
    ],
)
def test_widths_that_cannot_be_say_why(expert: Layout, devices: int, reason: str) -> None:
    chain = replace(uniform_chain(), tensor_parallel=np.full(6, expert.tp > 1))
    for found in (
        place_expert(chain, expert, ample_setting(devices)),
        place_evenly(chain, expert, ample_setting(devices), 0, 6),
    ):
        assert isinstance(found, Infeasible)
        assert found.reason in (reason, reason.replace("layers", "repeated layers"))


def test_too_little_memory_names_the_leanest_boundaries_or_the_fullest_even_stage() -> None:
    setting = replace(ample_setting(devices=3), memory_bytes=50.0)
    expert = Layout(pp=3, dp=1, tp=1)
    # Two layers on each of three stages: 40 static, 8 of activations, and 2, 1, 0 microbatches in flight.
    best = place_expert(uniform_chain(), expert, setting)
    leanest = "memory: the leanest boundaries of 3 stages need 64 B on their fullest device, 50 B given"
    assert best == Infeasible(f"{leanest}: 14 B too little")
    even = place_evenly(uniform_chain(), expert, setting, 0, 6)
    assert even == Infeasible("memory: stage 0 of 3 needs 64 B, 50 B given: 14 B too little")


def test_too_few_devices_for_a_cut_that_leaves_single_layers_alone_say_so() -> None:
    chain = replace(uniform_chain(4), tensor_parallel=np.array([True, False, True, True]))
    found = place_expert(chain, Layout(pp=2, dp=1, tp=2), ample_setting(devices=3))
    assert found == Infeasible("devices: p = 2, d = 1, t = 2 takes 4, 3 given: 1 too few")
