"""Checkpoints are as frequent as is optimal, goodput is the remaining share, and the cheapest in time is
named.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from phaze.plan.answer.training_run import checkpoint_interval_s, goodput, goodput_share, training_run
from phaze.plan.answer.words import run_in_words
from phaze.spec.training_plan import AskedRun, ChosenLayout, RankedPlan

HOUR_S = 3600.0


@pytest.mark.parametrize(("hours", "minutes"), [(24.0, 117.0), (6.0, 57.0), (0.25, 9.1)])
def test_intervals_are_those_of_daly(hours: float, minutes: float) -> None:
    """Daly 2006, Figures 3 to 5: five minutes per checkpoint."""
    assert checkpoint_interval_s(hours * HOUR_S, 300.0) / 60 == pytest.approx(minutes, abs=0.5)


def test_no_interval_trains_a_thousandth_more() -> None:
    for failure_s in (600.0, 3.1 * HOUR_S, 200 * HOUR_S):
        for checkpoint_s in (5.0, 60.0, 300.0):
            own = goodput_share(
                checkpoint_interval_s(failure_s, checkpoint_s), failure_s, checkpoint_s, 400.0
            )
            best = minimize_scalar(
                lambda log_s, m=failure_s, c=checkpoint_s: -goodput_share(float(np.exp(log_s)), m, c, 400.0),
                bounds=(0.0, 16.0),
            )
            assert -best.fun * 0.999 <= own <= -best.fun * (1 + 1e-9)


def test_goodput_is_that_of_a_training_with_failures_at_random() -> None:
    """Monte Carlo: segments are repeated until no failure occurs in them, and so are restarts."""
    rng = np.random.default_rng(0)
    failure_s, checkpoint_s, restart_s, interval_s, segments = 3000.0, 60.0, 200.0, 500.0, 40_000
    spent = 0.0
    for _ in range(segments):
        while (fails := rng.exponential(failure_s)) < interval_s + checkpoint_s:
            spent += fails
            while (again := rng.exponential(failure_s)) < restart_s:
                spent += again
            spent += restart_s
        spent += interval_s + checkpoint_s
    share = goodput_share(interval_s, failure_s, checkpoint_s, restart_s)
    assert share == pytest.approx(segments * interval_s / spent, rel=0.01)


def test_a_checkpoint_waits_for_a_step() -> None:
    asked = AskedRun(tokens=1e12, mtbf_hours=50_000.0, checkpoint_s=0.001, restart_s=60.0)
    found = goodput(asked, 1024, 100.0)
    assert found is not None
    assert found.interval_s == 100.0
    assert goodput(AskedRun(tokens=1e12), 1024, 100.0) is None


def test_days_are_those_of_the_expected_step_and_the_prudent_ones_are_said() -> None:
    layout = ChosenLayout(
        tp=1, cp=1, ep=1, etp=1, pp=1, vp=1, dp=64, microbatch=1, sequence_parallel=False, zero=1,
        recompute="none", schedule="1f1b", pipeline_layout="Et*32L",
    )  # fmt: skip
    plan = RankedPlan(
        time_s=6.0, time_s_low=5.0, time_s_high=7.0, prudent_s=6.6, tokens_per_s_per_device=10_000.0, mfu=0.5,
        memory_gib=(70.0,), bubble_share=0.0, exposed_communication_share=0.0, bound_by="HBM",
        recomputed_layers=0, layout=layout,
    )  # fmt: skip
    run = training_run(plan, 64, AskedRun(tokens=1e12))
    assert run.days == pytest.approx(1e12 / 64e4 / 86400)
    assert run.days_prudent == pytest.approx(1.1 * run.days)
    assert (
        "take 18.08 days at the expected step time (15.07 to 21.1; 19.89 at the prudent one), 27,778 "
        in next(run_in_words(run))
    )
    failures = AskedRun(tokens=1e12, mtbf_hours=64.0, checkpoint_s=60.0, restart_s=600.0)
    with_failures = training_run(plan, 64, failures)
    lost = goodput(failures, 64, 6.6)
    assert lost is not None
    assert with_failures.days_prudent == pytest.approx(run.days_prudent / lost.share)
