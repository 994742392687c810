"""Phaze's and Piper's plans for a question have the usual price, and none beats the certificate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phaze.formulas.dynamic_programs import NONE, UNEVEN, DynamicPrograms
from phaze.layout import Layout
from phaze.plan.pricing.price import price
from phaze.plan.search.search import LayoutPlanner
from tests.unit.plan.search.exhaustive import SmallCase

CASE = SmallCase("llama2-7b", 6, 2048, devices=16, hbm_gib=24.0, global_batch=16)


def test_their_plans_hold_the_model_on_the_devices_at_the_price_of_their_stages() -> None:
    question = CASE.question("megatron")
    phaze, piper = DynamicPrograms(question).rows()
    assert (phaze.planner, piper.planner, piper.schedule, piper.reason) == ("phaze", "piper", "2bw", UNEVEN)
    for row in (phaze, piper):
        assert sum(stage.layers for stage in row.stages) == CASE.layers + 2
        firsts = [sum(stage.layers for stage in row.stages[:s]) for s in range(len(row.stages))]
        assert [stage.first_layer for stage in row.stages] == firsts
        assert sum(stage.tp * stage.dp for stage in row.stages) <= CASE.devices
        assert row.microbatch is not None
        layouts = [
            Layout(
                tp=stage.tp,
                dp=stage.dp,
                microbatch=row.microbatch,
                pp=len(row.stages),
                sequence_parallel="sequence" in (stage.configurations or ""),
            )
            for stage in row.stages
        ]
        lowering = question.lowering(layouts[0])
        stages = [
            lowering.stage(range(stage.first_layer, stage.first_layer + stage.layers), layout)
            for stage, layout in zip(row.stages, layouts, strict=True)
        ]
        assert not any(stage.recompute for stage in row.stages)
        found = price(lowering.plan(stages, str(row.schedule)), question.machine)
        assert row.time_s == pytest.approx(found.time_s)


@pytest.mark.slow
def test_a_plan_that_runs_and_fits_is_no_faster_than_the_certificate() -> None:
    runs = 0
    for devices, gib in ((4, 48.0), (8, 24.0), (8, 48.0), (16, 24.0)):
        question = replace(CASE, devices=devices, hbm_gib=gib).question("megatron")
        phaze = next(DynamicPrograms(question).rows())
        assert phaze.time_s is not None
        if phaze.reason is None and phaze.fits:
            assert phaze.time_s >= LayoutPlanner(number=1)(question).certificate.bound_s
            runs += 1
    assert runs


def test_without_room_for_states_on_every_replica_there_is_no_plan() -> None:
    question = replace(CASE, hbm_gib=1.0).question("megatron")
    assert [row.reason for row in DynamicPrograms(question).rows()] == [NONE, NONE]
