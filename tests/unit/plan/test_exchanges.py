"""Passes with exchanges of replicas around them, by hand."""

from __future__ import annotations

from dataclasses import replace

from phaze.pipeline.stages import StageCost
from phaze.plan.pricing.stage_costs import with_exchanges


def test_the_weights_of_zero_3_are_gathered_during_the_operator_before() -> None:
    stage = StageCost(8.0, 16.0, operators=4)
    quick, slow = with_exchanges(stage, 4.0, 0.0), with_exchanges(stage, 12.0, 0.0)
    assert (quick.forward_s, quick.backward_s) == (8 + 1, 16 + 1)
    assert (slow.forward_s, slow.backward_s) == (12 + 2, 16 + 3)
    assert with_exchanges(replace(stage, operators=1), 4.0, 0.0).forward_s == 12


def test_an_exchange_waits_for_what_else_is_on_its_links() -> None:
    """Of a pass of 8 s, four are collectives: in the other four, at most four seconds' weights arrive."""
    stage = StageCost(8.0, 16.0, operators=4)
    hidden, crowded = (with_exchanges(stage, gather_s, 0.0, (4.0, 4.0)) for gather_s in (4.0, 6.0))
    assert (hidden.forward_s, hidden.backward_s) == (8 + 1, 16 + 1)
    assert crowded.forward_s == (6 + 3 * (6 + 4) + 8) / 4


def test_gradients_of_zero_2_are_scattered_during_the_backward_pass_that_goes_on() -> None:
    """With separate weight gradients, only those and the weights gathered for other passes are exposed."""
    stage = StageCost(8.0, 16.0, operators=4)
    assert with_exchanges(stage, 0.0, 4.0).backward_s == 16 + 1
    assert with_exchanges(stage, 4.0, 20.0).backward_s == 24 + 4
    apart = with_exchanges(replace(stage, weight_s=8.0), 4.0, 12.0)
    assert (apart.weight_s, apart.backward_s) == (12 + 2, 8 + 1 + 12 + 2)


def test_without_overlap_every_exchange_is_waited_for() -> None:
    stage = with_exchanges(StageCost(8.0, 16.0, operators=4), 4.0, 20.0, overlap=False)
    assert (stage.forward_s, stage.backward_s) == (8 + 4, 16 + 4 + 20)
