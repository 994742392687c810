"""A given plan costs what the formula of Piper's planner says, and is refused for what it lacks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.layout import Layout, Recompute
from phaze.plan.piper.chain import read_layers
from phaze.plan.piper.layers import Cluster, Layers, Plan
from phaze.plan.piper.price import Given, price, why_outside
from phaze.plan.piper.stages import best_stage
from tests.unit.plan.phaze.examples import random_chain, uniform_chain

CLUSTER = Cluster(devices=8, memory_bytes=1e3, bandwidth_bytes_per_s=2.0, microbatches=8)


def uniform(recompute: tuple[bool, ...] = (False, True)) -> Layers:
    return read_layers({1: uniform_chain(), 2: uniform_chain()}, ["block"] * 6, recompute)


def halves(data: int = 2, tensor: int = 1, recompute: Recompute = "none") -> list[Given]:
    layout = Layout(tp=tensor, dp=data, recompute=recompute)
    return [Given(part, layout) for part in ((0, 1, 2), (3, 4, 5))]


def test_a_plan_is_priced_by_hand() -> None:
    found = price(uniform(), CLUSTER, halves())
    assert isinstance(found, Plan)
    first, last = found.stages
    # 3 layers of 3 s over 2 replicas; 2 * 2 bytes on the edge; 4 (1/2) 30 bytes of gradients, 8 microbatches.
    assert first.time_s == pytest.approx((9 + 4 / 2) / 2 + 60 / 8 / 2)
    assert last.time_s == first.time_s
    assert (first.in_flight, last.in_flight) == (2, 1)
    assert first.memory_bytes == 3 * (4 * 2 + 30)
    assert found.degree == 4


def test_recomputing_and_slices_are_priced_by_hand() -> None:
    found = price(uniform(), CLUSTER, halves(1, 2, "full"))
    assert isinstance(found, Plan)
    # Forward twice; the edge and what the two slices exchange of it, there and back.
    assert found.stages[0].time_s == pytest.approx(3 * 4 + 2 * (2 + 2) / 2)
    assert found.stages[1].memory_bytes == 3 * (2 * 1 + 30 + 2)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.integers(0, 10**6), st.sampled_from(["batch", "round"]), st.booleans())
def test_a_priced_plan_is_what_the_planners_formula_gives(seed: int, together: str, again: bool) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(2, 6)), 2)
    layers = read_layers({1: chain, 2: chain}, ["layer"] * len(chain), (again,))
    cluster = replace(CLUSTER, synchronisation=together, memory_bytes=float(rng.integers(50, 900)))  # type: ignore[arg-type]
    cut = int(rng.integers(1, len(chain)))
    widths = rng.choice([1, 2, 3], 2), rng.choice([1, 2], 2)
    kept: Recompute = "full" if again else "none"
    parts = (tuple(range(cut)), tuple(range(cut, len(chain))))
    stages = [
        Given(p, Layout(tp=int(t), dp=int(d), recompute=kept)) for p, d, t in zip(parts, *widths, strict=True)
    ]
    degree = stages[1].layout.dp
    expected = [
        best_stage(layers, cluster, parts[0], stages[0].layout, degree + stages[0].layout.dp),
        best_stage(layers, cluster, parts[1], stages[1].layout, degree),
    ]
    found = price(layers, cluster, stages)
    if isinstance(found, str) or why_outside(cluster, stages):
        too_many = sum(s.layout.devices for s in stages) > cluster.devices
        assert too_many or None in expected
        return
    for ours, theirs in zip(found.stages, expected, strict=True):
        assert theirs is not None
        assert ours.time_s == pytest.approx(theirs.time_s, rel=1e-12)
        assert ours.memory_bytes == pytest.approx(theirs.memory_bytes, rel=1e-12)
        assert (ours.layers, ours.in_flight, ours.configurations) == (
            theirs.layers, theirs.in_flight, theirs.configurations,
        )  # fmt: skip


def test_data_widths_that_do_not_divide_the_batch_are_priced_but_none_of_pipers() -> None:
    assert isinstance(price(uniform(), CLUSTER, halves(3)), Plan)
    assert why_outside(CLUSTER, halves(3)) == "data: 3 does not divide the 8 microbatches of a batch"
    assert not why_outside(CLUSTER, halves(2))
    assert not why_outside(replace(CLUSTER, synchronisation="round"), halves(3))


@pytest.mark.parametrize(
    ("stages", "cluster", "reason"),
    [
        (halves(5), CLUSTER, "devices: it takes 10, 8 given"),
        (
            halves(4),
            replace(CLUSTER, microbatches=4),
            "batch: data widths sum to 8, above the 4 microbatches",
        ),
        (halves(1, 4), CLUSTER, "stage 0: tensor: no layer has a configuration of width 4"),
        (halves(1), replace(CLUSTER, memory_bytes=100.0), "stage 0: memory: it needs"),
        (halves(1, recompute="selective"), CLUSTER, "stage 0: configuration: not every layer can selective"),
    ],
)
def test_what_is_no_plan_of_piper_says_why(stages: list[Given], cluster: Cluster, reason: str) -> None:
    found = price(uniform(), cluster, stages)
    assert isinstance(found, str)
    assert found.startswith(reason)
