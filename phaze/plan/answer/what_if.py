"""Effect of single changes on a plan: HBM size and bandwidth, clock, network bandwidth and batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd, inf
from typing import NamedTuple

from phaze.base.units import GIB, digits, percent, signed
from phaze.cost.network.fabric import network_of
from phaze.layout import DEVICE_AXES
from phaze.plan import effort
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.plan.question import PlanQuestion
from phaze.plan.search.search import LayoutPlanner
from phaze.plan.terms.memory import OK, capacity_bytes
from phaze.plan.time_limit import TimeLimit
from phaze.spec.system import Cluster
from phaze.spec.training_plan import WhatIf, nearest_batch

MORE = 1.1
"""Factor by which memory, bandwidths or clock are raised."""
MEMORY = "size of HBM"
"""Name of the only change after which `what_if` searches for a new plan."""
CHANGES = (-0.2, -0.1, 0.1, 0.2)
"""Relative changes of a resource at which ranked layouts are priced again."""
BATCHES = 2
WORTH = 0.005
"""Minimum gain in throughput for which another batch is named."""
EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""Setting of PyTorch's allocator that avoids lasting fragmentation."""


def what_if(plan: PricedLayout, fixed: Mapping[str, int | str]) -> Iterator[WhatIf]:
    """Yield a plan's step time with 10 % more of each resource, and with a larger batch.

    Only the HBM size is re-planned; after other changes another plan may gain more. Fields that the question
    fixes stay fixed.
    """
    for name, machine in changed_machines(plan.question):
        yield _changed(plan, fixed, name, machine, replan=name == MEMORY)[0]
    task = plan.question.task
    batch = replace(task, global_batch=BATCHES * task.global_batch)
    time_s = plan.priced_for(replace(plan.question, task=batch)).price.time_s
    yield WhatIf(change=f"batch x{BATCHES}", time_s=time_s / BATCHES, replanned=False)


def replanned(plan: PricedLayout, fixed: Mapping[str, int | str], most_passes: int) -> Iterator[WhatIf]:
    """Yield the best step time at the same widths with 10 % more of each resource.

    Once the searches have simulated `most_passes` passes, by the number that the plan has, later changes keep
    the plan.
    """
    layout, passes = plan.staged.layout, 0
    passes_per_split = 2 * layout.stages * layout.microbatches(plan.question.task.global_batch)
    for name, machine in changed_machines(plan.question):
        changed, splits = _changed(plan, fixed, name, machine, replan=passes < most_passes)
        passes += splits * passes_per_split
        yield changed


class ChangedResource(NamedTuple):
    """Fastest of some ranked layouts on a machine with one changed resource."""

    resource: str
    change: float
    """Relative change of the resource."""
    time_s: float
    """Step time in seconds, of the kind that ranks plans; infinite if none of the layouts fits."""
    place: int
    """Place of the layout in the ranking, from 1; 0 if none fits."""


def changed_resources(layouts: Sequence[PricedLayout]) -> Iterator[ChangedResource]:
    """Yield the fastest of ranked layouts for each resource and relative change.

    Layouts that are not ranked may gain more: the times are upper bounds of re-planned ones.
    """
    question = layouts[0].question
    for change in CHANGES:
        for name, machine in changed_machines(question, 1 + change):
            changed = replace(question, machine=machine)
            priced = enumerate((layout.priced_for(changed) for layout in layouts), start=1)
            times = [(layout.price.time_s, place) for place, layout in priced if layout.lacking_gib <= 0]
            yield ChangedResource(name, change, *min(times, default=(inf, 0)))


def raised(resource: str) -> str:
    """Name of the change that raises a resource, as in `WhatIf.change`."""
    return f"{resource} +{100 * (MORE - 1):.0f} %"


def _changed(
    plan: PricedLayout, fixed: Mapping[str, int | str], name: str, machine: Machine, *, replan: bool
) -> tuple[WhatIf, int]:
    """Step time with more of one resource, re-planned if `replan`, and the number of splits simulated for it.

    A new plan has the same widths.
    """
    question, splits = replace(plan.question, machine=machine), 0
    times_s = [plan.priced_for(question).price.time_s]
    if replan:
        widths = {name: getattr(plan.staged.layout, name) for name in DEVICE_AXES}
        label, work = f"with more {name.removeprefix('size of ')}: ", effort.REPLAN_WORK
        plans = LayoutPlanner(fixed={**fixed, **widths}, number=1, most_work=work, label=label)(question)
        times_s += [faster.time_s for faster in plans.plans]
        splits = plans.certificate.divisions
    return WhatIf(change=raised(name), time_s=min(times_s), replanned=replan), splits


def made_to_fit(
    ranked: Sequence[PricedLayout],
    expected: Sequence[PricedLayout],
    fixed: Mapping[str, int | str],
    early: TimeLimit | None = None,
) -> str | None:
    """Sentence on plan 1 if it may not fit: what may help, and the cost of the first plan that surely fits.

    `ranked` are the plans at the price that ranks them, `expected` the same plans with expected memory. If
    none of them surely fits, a short search looks for one. With `early` their search ended early, so that
    faster plans than theirs may fit: the search then takes at most that long. None if plan 1 surely fits.
    """
    first, memory = ranked[0], expected[0].price.memory.in_use
    if expected[0].status == OK:
        return None
    sentences = [f"The plan {expected[0].status}."]
    # Gaps of the allocator are the only part that a setting can avoid.
    if memory.of("device").high - memory.fragments.high <= capacity_bytes(device_of(first.question.machine)):
        gaps_gib = digits(memory.fragments.high / GIB)
        sentences.append(f"{EXPANDABLE} may do: gaps of the allocator are up to {gaps_gib} GiB of them.")
    sure = [plan for plan, with_range in zip(ranked, expected, strict=True) if with_range.status == OK]
    if early is not None or not sure:
        sure = [*_surely_fitting(first.question, fixed, early or TimeLimit()), *sure[:1]]
    if not sure:
        return " ".join([*sentences, "A short search finds none that surely fits."])
    plan = min(sure, key=lambda plan: plan.price.time_s)
    longer = plan.price.time_s / first.price.time_s - 1
    figures = f"{first.question.rank} {plan.price.time_s:.4g} s, {signed(longer)}"
    return " ".join([*sentences, f"The first that surely fits: {plan.shape} ({figures})."])


def _surely_fitting(
    question: PlanQuestion, fixed: Mapping[str, int | str], limit: TimeLimit
) -> list[PricedLayout]:
    """Best plan of a short search whose tensors leave room for the largest gaps of the allocator, if any."""
    roomy, label = question.roomy(), "layouts that surely fit: "
    plans = LayoutPlanner(fixed=fixed, number=1, prove=False, label=label, limit=limit)(roomy).plans
    priced = (PricedLayout.of(roomy, plan) for plan in plans)
    return [plan for plan in priced if plan.status == OK]


def other_batch(plan: PricedLayout, fixed: Mapping[str, int | str]) -> str | None:
    """Sentence on the nearest batch that more devices share equally, if a short search finds it faster.

    Replicas process equal numbers of samples: of 48 devices, only 16 can be replicas with 512 samples.
    """
    task = plan.question.task
    batch = nearest_batch(task.global_batch, task.devices)
    question = replace(plan.question, task=replace(task, global_batch=batch))
    label = f"batch of {batch} for comparison: "
    if batch == task.global_batch:
        return None
    for faster in LayoutPlanner(fixed=fixed, number=1, prove=False, label=label)(question).plans:
        other, replicas = PricedLayout.of(question, faster), gcd(task.global_batch, task.devices)
        gain = other.tokens_per_s_per_device / plan.tokens_per_s_per_device - 1
        if gain >= WORTH:
            return (
                f"{task.global_batch:,} samples allow at most {replicas:,} replicas. With --global-batch "
                f"{batch} a short search finds {percent(gain)} more tokens/s ({question.rank}): "
                f"{other.shape}."
            )
    return None


def changed_machines(question: PlanQuestion, factor: float = MORE) -> Iterator[tuple[str, Machine]]:
    """Yield variants of a machine with one resource times a factor, by name."""
    machine, device = question.machine, device_of(question.machine)
    keys = {MEMORY: "hbm_gib", "bandwidth of HBM": "hbm_bandwidth_bytes_per_s", "clock": "clock_hz"}
    for name, key in keys.items():
        faster = device.model_copy(update={key: factor * getattr(device, key)})
        yield name, machine.with_device(faster)
    if machine.system is None:
        return
    for number, level in enumerate(machine.system.levels):
        name = f"bandwidth among {level.devices:,} devices"
        yield name, replace(machine, network=network_of(_with_level(machine.system, number, factor)))


def _with_level(cluster: Cluster, number: int, factor: float) -> Cluster:
    """Cluster with the bandwidth of one network level times a factor."""
    levels = list(cluster.levels)
    bandwidth = factor * levels[number].bandwidth_bytes_per_s
    levels[number] = levels[number].model_copy(update={"bandwidth_bytes_per_s": bandwidth})
    return cluster.model_copy(update={"levels": tuple(levels)})
