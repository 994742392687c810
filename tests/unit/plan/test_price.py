"""Every plan has a price."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from phaze.cost.network.network import Flat, Levels, Tier
from phaze.formulas.planners import PlansAsked, read_tasks
from phaze.formulas.replay import planned_on, read_plan, replay
from phaze.formulas.side_by_side import plan_model
from phaze.layout import Layout
from phaze.plan.machines import device_of, load_machine
from phaze.plan.plan import Machine, Plan
from phaze.plan.pricing.lowering import ModelTraining, lowered_plan
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import plan_of_run
from phaze.spec.models import load_model_named
from phaze.spec.system import Stack
from phaze.tables import PLANNERS
from phaze.workload.models import library_workload
from tests.oracles.ideal_pipeline import ideal_time_s
from tests.unit.formulas.test_side_by_side import EXPERT, SMALL, model
from tests.unit.validate.examples import SMALL as RUN
from tests.unit.validate.examples import changed, machine


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    """Return the plans of every planner for three blocks between embedding and head."""
    rows, stages = plan_model(read_tasks(*model(), [PlansAsked("a0", 2.0, PLANNERS)], SMALL, EXPERT))
    by_planner = {row["planner"]: row for row in rows.to_dict("records")}
    return {name: read_plan(row, stages[stages["planner"] == name]) for name, row in by_planner.items()}


@pytest.mark.parametrize("planner", PLANNERS)
def test_what_is_reported_is_the_price_on_the_planners_machine(plans: dict[str, Plan], planner: str) -> None:
    plan = plans[planner]
    found, same = price(plan, planned_on(plan)), replay(plan)
    assert found.time_s == same.time_s
    assert found.peak_bytes.tolist() == same.peak_bytes.tolist()
    faster = Machine(Flat(1e15), 1e15)
    assert price(plan, faster).time_s <= found.time_s


@pytest.mark.parametrize("planner", PLANNERS)
def test_all_device_time_is_spent_on_something(plans: dict[str, Plan], planner: str) -> None:
    """For a study's plan operators, HBM and all-reduces; for a row the resource that binds each kernel."""
    plan, given = plans[planner], plan_of_run(RUN, machine())
    for found in (price(plan, planned_on(plan)), price(plan, machine()), price(given, machine())):
        assert sum(found.shares.values()) == pytest.approx(1.0)
        assert min(found.shares.values()) >= 0


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_plan_is_priced_on_levels_as_it_is_on_a_flat_network(plans: dict[str, Plan], planner: str) -> None:
    """All ranks of these plans are inside a node, whose links are equal."""
    levels = replace(machine(), hbm_bytes_per_s=1e15, stack=Stack(held_processors=0))
    assert isinstance(levels.network, Levels)
    tier = levels.network.tiers[0]
    equal = Tier(64, tier.bandwidth_bytes_per_s)
    levels = replace(levels, network=Levels((equal,)))
    flat = Machine.flat(tier.bandwidth_bytes_per_s, 1e15)
    assert price(plans[planner], levels).batch_s == pytest.approx(price(plans[planner], flat).batch_s)


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


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_planners_cuts_are_lowered_with_all_of_a_layout(plans: dict[str, Plan], planner: str) -> None:
    """Three blocks of a GPT, with the planner's cuts: ZeRO and recomputation have the same savings as in a
    row.
    """
    training = changed(RUN, layers=3).training_on(machine())
    cuts = [range(stage.first_layer, stage.last_layer + 1) for stage in plans[planner].stages]

    def found(**changes: object) -> pd.Series:
        plain = (stage.layout for stage in plans[planner].stages)
        layouts = [replace(layout, microbatch=1, **changes) for layout in plain]  # type: ignore[arg-type]
        one = price(lowered_plan(training, cuts, layouts, machine()), machine())
        return pd.Series({"time_s": one.time_s, "peak": one.memory.peak_bytes, **one.shares})

    plain, shared, again = found(), found(zero=1), found(recompute="full")
    split = max(stage.layout.dp for stage in plans[planner].stages) > 1
    assert (shared["peak"] < plain["peak"]) == split
    assert again["peak"] <= plain["peak"]
    assert again["time_s"] > plain["time_s"]


def test_a_row_on_the_whole_machine_is_the_sum_of_its_cuts() -> None:
    """The row's own cuts, given explicitly, are its plan."""
    run = changed(RUN, pp=4, dp=2)
    plan = lowered_plan(run.training_on(machine()), run.cuts, [run.layout] * 4, machine())
    assert plan == plan_of_run(run, machine())
    assert [stage.layout for stage in plan.stages] == [Layout(tp=2, pp=4, dp=2, microbatch=2)] * 4


def test_a_model_of_many_kinds_of_layer_is_priced_as_any_other() -> None:
    """Stages of a Swin transformer have its layers in order, and send the output of each."""
    layout = Layout(pp=4, microbatch=2)
    training = ModelTraining(load_model_named("swin-l"), 1, 16)
    workload = library_workload(training.model, 1, layout)
    cuts = [range(2), range(2, 6), range(6, 10), range(10, len(workload.order))]
    found = price(lowered_plan(training, cuts, [layout] * 4, machine()), machine())
    stages = found.plan.stages
    assert sum(stage.weight_bytes for stage in stages) == 2 * workload.parameters()
    for before, after in pairwise(stages):
        assert before.departing_bytes == after.arriving_bytes > 0
    assert (stages[0].arriving_bytes, stages[-1].departing_bytes) == (0, 0)
    assert stages[0].tied_bytes == stages[-1].tied_bytes == 0
    assert found.time_s > max(8 * stage.compute_s for stage in stages)
