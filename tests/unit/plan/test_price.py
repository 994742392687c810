"""Every plan has a price."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from phaze.cost.network.network import Flat, Levels, Tier
from phaze.layout import Layout
from phaze.plan.machines import device_of, load_machine
from phaze.plan.plan import Machine, Plan
from phaze.plan.pricing.lowering import Lowering, ModelTraining
from phaze.plan.pricing.price import KERNELS, price
from phaze.plan.pricing.runs import plan_of_run
from phaze.spec.models import load_model_named
from phaze.spec.system import Stack
from phaze.workload.models import library_workload
from tests.oracles.ideal_pipeline import ideal_time_s
from tests.unit.validate.examples import SMALL as RUN
from tests.unit.validate.examples import changed, machine

CUTS = {
    "one stage": ([range(5)], [Layout(dp=4)]),
    "equal widths": ([range(2), range(2, 5)], [Layout(tp=2, pp=2, dp=2)] * 2),
    "widths by stage": ([range(3), range(3, 5)], [Layout(tp=2, pp=2, dp=2), Layout(pp=2, dp=4)]),
}
"""Layers and layout of every stage, for three blocks between embedding and head."""


def planned(name: str, on: Machine) -> Plan:
    """Return the plan of a GPT with three blocks whose stages are given."""
    return Lowering(changed(RUN, layers=3).training_on(on), on).plan_of(*CUTS[name])


@pytest.mark.parametrize("name", CUTS)
def test_a_faster_network_and_memory_make_no_plan_slower(name: str) -> None:
    plan = planned(name, machine())
    assert price(plan, Machine(Flat(1e15), 1e15)).time_s <= price(plan, machine()).time_s


def test_all_device_time_is_spent_on_something() -> None:
    for plan in (*(planned(name, machine()) for name in CUTS), plan_of_run(RUN, machine())):
        found = price(plan, machine())
        assert sum(found.shares.values()) == pytest.approx(1.0)
        assert min(found.shares.values()) >= 0


@pytest.mark.parametrize("name", CUTS)
def test_a_plan_is_priced_on_levels_as_it_is_on_a_flat_network(name: str) -> None:
    """All ranks of these plans are inside a node, whose links are equal."""
    levels = replace(machine(), hbm_bytes_per_s=1e15, stack=Stack(held_processors=0))
    assert isinstance(levels.network, Levels)
    tier = levels.network.tiers[0]
    equal = Tier(64, tier.bandwidth_bytes_per_s)
    levels = replace(levels, network=Levels((equal,)))
    flat = replace(levels, network=Flat(tier.bandwidth_bytes_per_s))
    plan = planned(name, levels)
    assert price(plan, levels).batch_s == pytest.approx(price(plan, flat).batch_s)


def test_a_batch_takes_no_less_than_what_the_busiest_link_carries() -> None:
    """On a slow flat network: tensors between stages, and gradients with 2 (d − 1)/d of the weights."""
    slow = replace(machine(), network=Flat(1e6))
    plan = planned("equal widths", slow)
    plan = replace(plan, execution=replace(plan.execution, transfers="overlapped"))
    found = price(plan, slow)
    carried_s = [
        (stage.arriving_bytes + stage.departing_bytes) * plan.microbatches / 2 / 1e6
        + stage.weight_bytes / 1e6
        for stage in plan.stages
    ]
    assert found.link_s == pytest.approx(max(carried_s))
    assert found.time_s >= found.link_s > 0
    assert price(planned("equal widths", machine()), machine()).link_s == 0, "a network with levels"


def test_what_binds_a_plan_is_a_resource_of_its_kernels_or_the_network() -> None:
    """With a fast network the kernels bind, with a slow one communication does."""
    fast = replace(machine(), network=Flat(1e15))
    assert price(planned("equal widths", fast), fast).bound_by.resource in KERNELS.values()
    slow = replace(machine(), network=Flat(1e6))
    bound = price(planned("one stage", slow), slow).bound_by
    assert bound.resource not in KERNELS.values()
    assert bound.share > 0.5


@pytest.mark.parametrize("system", ["a100-40gb", "b200", "h100", "h200", "mi300x", "tpu-v5e", "tpu-v5p"])
def test_a_system_prices_a_plan(system: str) -> None:
    """With its usual stack: no faster than the arrays, and with more memory than the states alone."""
    chip = load_machine(system)
    run = changed(RUN, hidden=2048, seq=2048, flash_attention=True)
    found, device = price(plan_of_run(run, chip), chip), device_of(chip)
    arrays = 2.0 * device.num_tc * device.pe_x * device.pe_y * device.clock_hz
    assert 0.05 < run.model_flops / found.time_s / run.gpus / arrays < 0.9
    assert found.memory.peak_bytes > found.memory.weight_bytes + found.memory.optimizer_bytes
    slower = chip.with_device(device.model_copy(update={"clock_hz": device.clock_hz / 2}))
    assert price(plan_of_run(run, slower), slower).time_s > found.time_s


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_given_row_takes_no_less_than_the_ideal_pipeline(recompute: str) -> None:
    """PALM's equation (1), for the passes alone: a lower bound, equal with one stage."""
    for pp, dp in ((1, 8), (2, 4), (4, 2)):
        run = changed(RUN, pp=pp, dp=dp, recompute=recompute)
        found = price(plan_of_run(run, machine()), machine())
        loads = np.array([stage.compute_s for stage in found.plan.stages])
        ideal_s = ideal_time_s(loads, 0.0, run.layout.microbatches(run.global_batch))
        costs = found.pipeline.stages[0]
        if pp == 1:
            assert found.time_s == pytest.approx(ideal_s + costs.sync_s + costs.update_s, rel=1e-9)
        assert found.time_s >= ideal_s


@pytest.mark.parametrize("name", CUTS)
def test_cuts_are_lowered_with_all_of_a_layout(name: str) -> None:
    """ZeRO and recomputation have the same savings as in a row."""
    training = changed(RUN, layers=3).training_on(machine())
    cuts, plain_layouts = CUTS[name]

    def found(**changes: object) -> pd.Series:
        layouts = [replace(layout, microbatch=1, **changes) for layout in plain_layouts]  # type: ignore[arg-type]
        one = price(Lowering(training, machine()).plan_of(cuts, layouts), machine())
        return pd.Series({"time_s": one.time_s, "peak": one.memory.peak_bytes, **one.shares})

    plain, shared, again = found(), found(zero=1), found(recompute="full")
    assert shared["peak"] < plain["peak"]
    assert again["peak"] <= plain["peak"]
    assert again["time_s"] > plain["time_s"]


def test_a_row_on_the_whole_machine_is_the_sum_of_its_cuts() -> None:
    """The row's own cuts, given explicitly, are its plan."""
    run = changed(RUN, pp=4, dp=2)
    plan = Lowering(run.training_on(machine()), machine()).plan_of(run.cuts, [run.layout] * 4)
    assert plan == plan_of_run(run, machine())
    assert [stage.layout for stage in plan.stages] == [Layout(tp=2, pp=4, dp=2, microbatch=2)] * 4


def test_a_model_of_many_kinds_of_layer_is_priced_as_any_other() -> None:
    """Stages of a Swin transformer have its layers in order, and send the output of each."""
    layout = Layout(pp=4, microbatch=2)
    training = ModelTraining(load_model_named("swin-l"), 1, 16)
    workload = library_workload(training.model, 1, layout)
    cuts = [range(2), range(2, 6), range(6, 10), range(10, len(workload.order))]
    found = price(Lowering(training, machine()).plan_of(cuts, [layout] * 4), machine())
    stages = found.plan.stages
    assert sum(stage.weight_bytes for stage in stages) == 2 * workload.parameters()
    for before, after in pairwise(stages):
        assert before.departing_bytes == after.arriving_bytes > 0
    assert (stages[0].arriving_bytes, stages[-1].departing_bytes) == (0, 0)
    assert stages[0].tied_bytes == stages[-1].tied_bytes == 0
    assert found.time_s > max(8 * stage.compute_s for stage in stages)
