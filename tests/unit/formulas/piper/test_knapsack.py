"""The exact knapsack finds the best choice, and the paper's rule often but not always does."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaze.base.units import GIB
from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.knapsack import cheapest, least_suffix_sums, memory_price
from phaze.formulas.piper.layers import FlatCluster, ProfiledLayers
from tests.unit.formulas.piper.knapsacks import Knapsack, arising, drawn, with_more_configurations

PAPERS = FlatCluster(512, 8.0 * GIB, 25.0 * GIB, 512)
"""Cluster of Appendix C."""


def best_of_all(knapsack: Knapsack) -> float | None:
    totals = [np.sum(chosen, axis=0) for chosen in product(*knapsack.choices)]
    return min((time for time, memory in totals if memory <= knapsack.limit_bytes), default=None)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_the_choice_is_the_best_of_all(seed: int, layers: int) -> None:
    knapsack = drawn(np.random.default_rng(seed), layers, 4)
    assert knapsack.exactly() == best_of_all(knapsack)


def test_an_integer_program_agrees_on_larger_ones() -> None:
    rng, differ, none = np.random.default_rng(3), 0, 0
    for layers in rng.integers(7, 40, 60):
        knapsack = drawn(rng, int(layers), 4)
        exact = knapsack.exactly()
        assert exact == knapsack.by_integer_program()
        differ += exact != knapsack.by_the_rule()
        none += exact is None
    assert differ > 3
    assert 0 < none < 50


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_the_price_of_memory_gives_the_best_lagrangian_bound(seed: int, layers: int) -> None:
    """No other price is better, and the bound is never above the best choice."""
    k = drawn(np.random.default_rng(seed), layers, 4)
    members = np.flatnonzero(k.member)

    def bound(price: float) -> float:
        least = least_suffix_sums(k.first, members, k.time_s, k.memory_bytes, price)[0]
        return float(least - price * k.limit_bytes)

    exact = k.exactly()
    if exact is None:
        return
    price = memory_price(k.first, members, k.time_s, k.memory_bytes, k.limit_bytes)
    assert price >= 0
    assert bound(price) <= exact + 1e-9
    others = [*np.linspace(0, 20, 201), price * 0.999, price * 1.001]
    assert bound(price) >= max(map(bound, others)) - 1e-9


def test_a_price_decides_between_time_and_memory() -> None:
    """One layer: 1 second with 10 bytes, or 3 with 4; at the price a byte is worth a third of a second."""
    first, members = np.array([0, 2]), np.array([0])
    time, memory = np.array([1.0, 3.0]), np.array([10.0, 4.0])
    assert cheapest(first, members, time, memory, 0.2) == (1.0, 10.0)
    assert cheapest(first, members, time, memory, 0.5) == (3.0, 4.0)
    assert memory_price(first, members, time, memory, 7.0) == pytest.approx(1 / 3)
    assert memory_price(first, members, time, memory, 10.0) == 0


def test_the_rule_may_take_a_step_that_a_later_one_makes_needless() -> None:
    """Two bytes too many: the rule first saves one for 1 second, then has to save ten for 11 seconds."""
    made = Knapsack(
        first=np.array([0, 2, 4]),
        member=np.ones(2, dtype=np.bool_),
        time_s=np.array([1.0, 2.0, 1.0, 12.0]),
        memory_bytes=np.array([1.0, 0.0, 11.0, 1.0]),
        limit_bytes=10.0,
    )
    assert made.by_the_rule() == 2.0 + 12.0
    assert made.exactly() == 1.0 + 12.0
    assert made.by_integer_program() == 1.0 + 12.0


def test_unlimited_memory_takes_the_fastest() -> None:
    made = drawn(np.random.default_rng(0), 30, 4)
    unlimited = Knapsack(made.first, made.member, made.time_s, made.memory_bytes, np.inf)
    assert unlimited.exactly() == sum(min(c)[0] for c in unlimited.choices)


def test_a_layer_without_configurations_has_no_choice() -> None:
    nothing = np.zeros(0)
    assert Knapsack(np.array([0, 0]), np.ones(1, dtype=np.bool_), nothing, nothing, 1.0).exactly() is None


def bert(shared_data: Path) -> ProfiledLayers:
    return read_instance(shared_data / "piper" / "bert32a100.json").layers()


@pytest.mark.parity
@pytest.mark.parametrize("most", [2, 4])
def test_stages_of_bert_are_chosen_as_an_integer_program_would(most: int, shared_data: Path) -> None:
    """And never slower than the rule, which is rarely slower for two configurations, often for four."""
    layers = bert(shared_data) if most == 2 else with_more_configurations(bert(shared_data), 1)
    slower = []
    for i, knapsack in enumerate(arising(layers, PAPERS, 400, 5)):
        exact, ruled = knapsack.exactly(), knapsack.by_the_rule()
        assert exact is not None
        assert ruled is not None
        assert exact <= ruled
        slower.append(ruled > exact * (1 + 1e-9))
        if i % 8 == 0:
            assert exact == pytest.approx(knapsack.by_integer_program(), rel=1e-9)
    low, high = {2: (0, 0.01), 4: (0.2, 0.7)}[most]
    assert low <= np.mean(slower) <= high
