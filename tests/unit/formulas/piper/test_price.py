"""A given plan costs the time of Piper's formula, and is refused for violated limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.formulas.piper.chain import price, read_layers, why_outside
from phaze.formulas.piper.layers import FlatCluster, ProfiledLayers
from phaze.layout import Layout, Recompute
from tests.unit.formulas.phaze.examples import random_chain, uniform_chain
from tests.unit.formulas.piper.exhaustive import stage_time

CLUSTER = FlatCluster(devices=8, memory_bytes=1e3, bandwidth_bytes_per_s=2.0, microbatches=8)
HALVES = [range(3), range(3, 6)]


def uniform() -> ProfiledLayers:
    chain = uniform_chain()
    return read_layers({Layout(): chain, Layout(tp=2): chain}, ["block"] * 6, (False, True))


def halves(data: int = 2, tensor: int = 1, recompute: Recompute = "none") -> list[Layout]:
    return [Layout(tp=tensor, dp=data, recompute=recompute)] * 2


def test_a_plan_is_priced_by_hand() -> None:
    # 3 layers of 3 s over 2 replicas; 2 * 2 bytes on the edge; 4 (1/2) 30 bytes of gradients, 8 microbatches.
    assert price(uniform(), CLUSTER, HALVES, halves()) == pytest.approx((9 + 4 / 2) / 2 + 60 / 8 / 2)
    # Forward twice; the edge and what the two slices exchange of it, there and back.
    again = price(uniform(), CLUSTER, HALVES, halves(1, 2, "full"))
    assert again == pytest.approx(3 * 4 + 2 * (2 + 2) / 2)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(["batch", "round"]), st.booleans())
def test_a_priced_plan_takes_the_time_of_its_slowest_stage(seed: int, together: str, again: bool) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, int(rng.integers(2, 6)), 2)
    layers = read_layers({Layout(): chain, Layout(tp=2): chain}, ["layer"] * len(chain), (again,))
    cluster = replace(CLUSTER, synchronisation=together, memory_bytes=float(rng.integers(50, 900)))
    cut = int(rng.integers(1, len(chain)))
    kept: Recompute = "full" if again else "none"
    layouts = [Layout(tp=int(rng.integers(1, 3)), dp=int(rng.integers(1, 4)), recompute=kept) for _ in "ab"]
    cuts, (first, last) = [range(cut), range(cut, len(chain))], layouts
    found = price(layers, cluster, cuts, layouts)
    if first.devices + last.devices > 8:
        assert str(found).startswith("devices")
        return
    times = [
        stage_time(layers, cluster, frozenset(members), layout.tp, layout.dp, degree)
        for members, layout, degree in zip(cuts, layouts, (first.dp + last.dp, last.dp), strict=True)
    ]
    assert (np.inf if isinstance(found, str) else found) == pytest.approx(max(times), rel=1e-12)


def test_data_widths_that_do_not_divide_the_batch_are_priced_but_none_of_pipers() -> None:
    assert isinstance(price(uniform(), CLUSTER, HALVES, halves(3)), float)
    assert why_outside(CLUSTER, halves(3)) == "data: 3 does not divide the 8 microbatches of a batch"
    assert not why_outside(CLUSTER, halves(2))
    assert not why_outside(replace(CLUSTER, synchronisation="round"), halves(3))


@pytest.mark.parametrize(
    ("layouts", "cluster", "reason"),
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
def test_what_is_no_plan_of_piper_says_why(layouts: list[Layout], cluster: FlatCluster, reason: str) -> None:
    assert str(price(uniform(), cluster, HALVES, layouts)).startswith(reason)
