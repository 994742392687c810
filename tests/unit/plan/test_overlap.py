"""What hides behind computing, what keeps it from doing so, and what kernels lose to it meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.layout import Layout
from phaze.pipeline.pipeline import StageCost, with_exchanges
from phaze.plan.machines import load_machine
from phaze.plan.overlap import kept_apart, lost_share, lost_to_messages

H100, GB300 = load_machine("h100"), load_machine("gb300")


def test_slices_hide_with_sequence_parallelism_inside_one_domain() -> None:
    hides = Layout(tp=8, dp=4, sequence_parallel=True)
    assert not kept_apart(hides, H100)
    assert "sequence parallelism" in kept_apart(replace(hides, sequence_parallel=False), H100)
    assert "one NVLink domain" in kept_apart(replace(hides, tp=16, dp=2), H100)
    assert not kept_apart(replace(hides, tp=16, dp=2), GB300)  # a domain of 72
    without = replace(H100, stack=H100.stack.model_copy(update={"overlap": ("dp",)}))
    assert "the stack does not" in kept_apart(hides, without)


def test_slices_and_shards_do_not_both_hide_before_blackwell() -> None:
    sharded = Layout(tp=8, dp=4, sequence_parallel=True, zero=3)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in kept_apart(sharded, H100)
    assert not kept_apart(sharded, GB300)


def test_a_collective_holds_sixteen_processors_and_a_message_two() -> None:
    assert lost_share(H100) == pytest.approx(16 / 132)
    assert lost_to_messages(H100) == pytest.approx(2 / 132)
    none = replace(H100, stack=H100.stack.model_copy(update={"held_processors": 0}))
    assert (lost_share(none), lost_to_messages(none)) == (0.0, 0.0)


def test_a_pass_is_longer_by_what_kernels_lose_until_the_exchange_is_longer() -> None:
    """Ten operators: of nine the exchange of the next one is beside them."""
    stage = StageCost(forward_s=1.0, operators=10)
    short = with_exchanges(stage, 0.5, 0.0, lost=0.1)
    assert short.forward_s == pytest.approx(0.05 + 0.9 * (1.0 + 0.1 * 0.5) + 0.1)
    long = with_exchanges(stage, 2.0, 0.0, lost=0.1)
    assert long.forward_s == with_exchanges(stage, 2.0, 0.0).forward_s
    apart = with_exchanges(stage, 0.5, 0.0, overlap=False, lost=0.1)
    assert apart.forward_s == pytest.approx(1.5)
