"""Days, cost and goodput of a complete training run, and the device counts that meet a target.

Goodput is the share of time spent on training. With random failures every M seconds, checkpoints of C seconds
after every τ seconds of training, and R seconds to resume after a failure,

    goodput = τ / (M e^(R/M) (e^((τ+C)/M) - 1))     (Daly 2006, the complete cost function)
    τ = √(2CM) (1 + ⅓ √(C/2M) + ⅑ C/2M) - C         (Daly 2006, the higher-order optimum; M where C ≥ 2M)

which approaches Young's √(2CM) (1974) for rare failures. M is the device-hours between failures divided by
the device count: a failure of any device stops all. Sources: J. T. Daly, A higher order estimate of the
optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22 (3), 2006; J. W. Young, A
first order approximation to the optimum checkpoint interval, Communications of the ACM 17 (9), 1974.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, sqrt

from phaze.base.errors import PhazeError
from phaze.spec.training_plan import AskedRun, Goodput, RankedPlan, TrainingPlan, TrainingRun, UnfitPlan

SECONDS_PER_DAY, SECONDS_PER_HOUR, HOURS_PER_DAY = 86400.0, 3600.0, 24
LEAST_GOODPUT = 1e-6
"""Minimum goodput: below it, a minute of training takes almost two years."""


def checkpoint_interval_s(failure_s: float, checkpoint_s: float) -> float:
    """Cost-optimal checkpoint interval, in seconds of training (Daly 2006)."""
    if checkpoint_s >= 2 * failure_s:
        return failure_s
    ratio = checkpoint_s / (2 * failure_s)
    return sqrt(2 * checkpoint_s * failure_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def goodput_share(interval_s: float, failure_s: float, checkpoint_s: float, restart_s: float) -> float:
    """Share of time spent on training, with regular checkpoints and random failures (Daly 2006)."""
    spent = (interval_s + checkpoint_s) / failure_s
    return interval_s / failure_s * exp(-restart_s / failure_s - spent) / -expm1(-spent)


def goodput(run: AskedRun, devices: int, step_s: float) -> Goodput | None:
    """Goodput under random failures; checkpoints are at least one step apart.

    None if the question has no failures; PhazeError if they leave no time to train.
    """
    if run.mtbf_hours is None or run.checkpoint_s is None or run.restart_s is None:
        return None
    failure_s = run.mtbf_hours * SECONDS_PER_HOUR / devices
    # A checkpoint is saved between steps.
    interval_s = max(checkpoint_interval_s(failure_s, run.checkpoint_s), step_s)
    share = goodput_share(interval_s, failure_s, run.checkpoint_s, run.restart_s)
    if share < LEAST_GOODPUT:
        raise PhazeError(
            f"plan: --mtbf: must be large enough to train: {devices} devices fail every {failure_s:.3g} s, "
            f"with {run.checkpoint_s:g} s for a checkpoint, {run.restart_s:g} s for a restart and steps "
            f"of {step_s:.3g} s, got {run.mtbf_hours:g}"
        )
    return Goodput(share=share, interval_s=interval_s, failure_s=failure_s)


def training_run(plan: RankedPlan, devices: int, run: AskedRun) -> TrainingRun:
    """Days and cost of a complete training run at the expected step time, and days at the prudent one."""
    steps = run.tokens / (plan.tokens_per_s_per_device * devices * plan.time_s)
    lost = goodput(run, devices, plan.time_s)

    def days_at(step_s: float) -> float:
        trained = goodput(run, devices, step_s)
        return steps * step_s / SECONDS_PER_DAY / (1.0 if trained is None else trained.share)

    days = days_at(plan.time_s)
    hours = days * HOURS_PER_DAY * devices
    low_s, high_s = plan.time_s_low, plan.time_s_high
    return TrainingRun(
        asked=run,
        days=days,
        days_low=None if low_s is None else days * low_s / plan.time_s,
        days_high=None if high_s is None else days * high_s / plan.time_s,
        days_prudent=None if plan.prudent_s is None else days_at(plan.prudent_s),
        device_hours=hours,
        cost=None if run.price is None else hours * run.price,
        goodput=lost,
        in_time=None if run.days is None else days <= run.days,
    )


def ranked_runs(plans: Sequence[TrainingPlan | UnfitPlan]) -> list[TrainingPlan | UnfitPlan]:
    """Plans for several device counts, marked if they are the cheapest or fastest to meet the target.

    If none meets it, the closest is marked.
    """
    runs = {i: plan.run for i, plan in enumerate(plans) if isinstance(plan, TrainingPlan) and plan.run}
    in_time = [i for i, run in runs.items() if run.in_time is not False]
    marked = dict[int, TrainingRun]()
    for label, best in (
        ("cheapest", min(in_time, key=lambda i: runs[i].device_hours, default=None)),
        ("fastest", min(in_time, key=lambda i: runs[i].days, default=None)),
        ("closest", None if in_time else min(runs, key=lambda i: runs[i].days, default=None)),
    ):
        if best is not None:
            run = marked.get(best, runs[best])
            marked[best] = run.model_copy(update={"is_the": (*run.is_the, label)})
    return [
        plan.model_copy(update={"run": marked[i]}) if i in marked else plan for i, plan in enumerate(plans)
    ]
