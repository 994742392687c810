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


def goodput(asked: AskedRun, devices: int, step_s: float) -> Goodput | None:
    """Goodput under random failures; checkpoints are at least one step apart.

    None if the question has no failures; PhazeError if they leave no time to train.
    """
    if asked.mtbf_hours is None or asked.checkpoint_s is None or asked.restart_s is None:
        return None
    failure_s = asked.mtbf_hours * SECONDS_PER_HOUR / devices
    interval_s = max(checkpoint_interval_s(failure_s, asked.checkpoint_s), step_s)
    share = goodput_share(interval_s, failure_s, asked.checkpoint_s, asked.restart_s)
    if share < LEAST_GOODPUT:
        raise PhazeError(
            f"plan: --mtbf: must be large enough to train: {devices} devices fail every {failure_s:.3g} s, "
            f"with {asked.checkpoint_s:g} s for a checkpoint, {asked.restart_s:g} s for a restart and steps "
            f"of {step_s:.3g} s, got {asked.mtbf_hours:g}"
        )
    return Goodput(share=share, interval_s=interval_s, failure_s=failure_s)


def training_run(plan: RankedPlan, devices: int, asked: AskedRun) -> TrainingRun:
    """Days and cost of a complete training run at the expected step time, and days at the prudent one."""
    steps = asked.tokens / (plan.tokens_per_s_per_device * devices * plan.time_s)
    lost = goodput(asked, devices, plan.time_s)

    def days_at(step_s: float) -> float:
        trained = goodput(asked, devices, step_s)
        return steps * step_s / SECONDS_PER_DAY / (1.0 if trained is None else trained.share)

    days = days_at(plan.time_s)
    hours = days * HOURS_PER_DAY * devices
    ends = (None if end is None else days * end / plan.time_s for end in (plan.time_s_low, plan.time_s_high))
    days_low, days_high = ends
    return TrainingRun(
        asked=asked,
        days=days,
        days_low=days_low,
        days_high=days_high,
        days_prudent=None if plan.prudent_s is None else days_at(plan.prudent_s),
        device_hours=hours,
        cost=None if asked.price is None else hours * asked.price,
        goodput=lost,
        in_time=None if asked.days is None else days <= asked.days,
    )


def ranked_runs(plans: Sequence[TrainingPlan | UnfitPlan]) -> list[TrainingPlan | UnfitPlan]:
    """Plans for several device counts, marked if they are the cheapest or fastest to meet the target.

    If none meets it, the closest is marked.
    """
    runs = [(place, one.run) for place, one in enumerate(plans) if isinstance(one, TrainingPlan) and one.run]
    in_time = [item for item in runs if item[1].in_time is not False]
    best: dict[int, TrainingRun] = {}
    for word, found in (
        ("cheapest", min(in_time, key=lambda item: item[1].device_hours, default=None)),
        ("fastest", min(in_time, key=lambda item: item[1].days, default=None)),
        ("closest", None if in_time else min(runs, key=lambda item: item[1].days, default=None)),
    ):
        if found is not None:
            run = best.get(found[0], found[1])
            best[found[0]] = run.model_copy(update={"is_the": (*run.is_the, word)})
    return [one.model_copy(update={"run": best[i]}) if i in best else one for i, one in enumerate(plans)]
