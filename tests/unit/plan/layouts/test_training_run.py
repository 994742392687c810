"""Checkpoints are as frequent as is optimal, goodput is the remaining share, and the cheapest in time is
named.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from phaze.plan.layouts.training_run import checkpoint_interval_s, goodput, goodput_share
from phaze.spec.training_plan import AskedRun

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
