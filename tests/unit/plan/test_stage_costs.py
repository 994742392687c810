"""Times of the passes of a stage in closed form."""

from __future__ import annotations

import pytest

from phaze.layout import ZeroStage
from phaze.pipeline.stages import StageCost
from phaze.plan.machines import device_of
from phaze.plan.plan import Machine
from phaze.plan.pricing.lowering import Lowering
from phaze.plan.pricing.runs import plan_of_run
from phaze.plan.pricing.stage_costs import pipeline_of, stage_cost
from phaze.spec.speeds.products import ProductSpeed, ProductTile
from tests.unit.validate.examples import SMALL, changed, ideal_network, machine

APART = changed(SMALL, tp=1, pp=1, dp=8, gpus=8, overlap=(), microbatch=8, global_batch=64)
"""Run whose exchanges overlap with nothing."""


def cost_of(zero: ZeroStage, cluster: Machine) -> StageCost:
    return stage_cost(plan_of_run(changed(APART, zero=zero), cluster), cluster, 0)


def test_zero_2_scatters_the_gradients_of_a_pass_and_only_zero_3_gathers_its_weights() -> None:
    """ZeRO 3 gathers before both passes."""
    cluster, group = machine(), APART.layout.group("dp")
    stage = plan_of_run(APART, cluster).stages[0]
    alone = cost_of(3, ideal_network(cluster))
    zero_2, zero_3 = cost_of(2, cluster), cost_of(3, cluster)
    reduce_s = cluster.network.seconds("reduce_scatter", stage.exchanged_bytes, group)
    gather_s = cluster.network.seconds("all_gather", stage.weight_bytes, group)
    assert min(reduce_s, gather_s) > 0.01 * alone.forward_s
    for cost, gathers in ((zero_2, 0), (zero_3, 1)):
        assert cost.forward_s == pytest.approx(alone.forward_s + gathers * gather_s)
        assert cost.backward_s == pytest.approx(alone.backward_s + reduce_s + gathers * gather_s)
    assert zero_2.gather_s == pytest.approx(gather_s)  # once per batch, after the update
    assert zero_3.gather_s == 0


def test_equal_stages_of_a_pipeline_have_the_layers_and_costs_that_they_have_alone() -> None:
    cluster = machine()
    base = changed(SMALL, tp=1, pp=4, dp=2, gpus=8, layers=8, global_batch=16, microbatch=1)
    for changes in (
        {},
        {"zero": 1},
        {"zero": 2},
        {"vp": 2, "schedule": "interleaved"},
        {"recompute": "full"},
    ):
        run = changed(base, **changes)
        plan = plan_of_run(run, cluster)
        lowering = Lowering(run.training_on(cluster), cluster)
        for q, (cut, stage) in enumerate(zip(run.cuts, plan.stages, strict=True)):
            assert stage == lowering.stage(
                cut, run.layout, run.recomputed_blocks and run.recomputed_blocks[q]
            )
            assert pipeline_of(plan, cluster).stages[q] == stage_cost(plan, cluster, q)


@pytest.mark.parametrize("seq", [512, 4096])
def test_weight_gradients_of_a_stage_take_one_product_of_each_matrix_for_any_attention(seq: int) -> None:
    """On a device that only multiplies, 2 FLOPs per token and weight: four blocks of 12 h² weights."""
    device = device_of(machine())
    tiles = (ProductTile(rows=64, columns=64),)
    speed = ProductSpeed(reached=1.0, fill=0.0, split=0.0, added=0.0, start_s=0.0, tiles=tiles)
    changes = {"products": {"bf16": speed}, "hbm_bandwidth_bytes_per_s": 1e30, "spread": 0.0}
    cluster = machine().with_device(device.model_copy(update=changes))
    run = changed(SMALL, seq=seq, tp=1, schedule="zb-h1", dp=4, gpus=8, microbatch=2)
    cost, plain = (
        stage_cost(plan_of_run(changed(run, schedule=name), cluster), cluster, 0)
        for name in ("zb-h1", "1f1b")
    )
    peak = 2 * device.num_tc * device.pe_x * device.pe_y * device.clock_hz * device.sustained_clock
    assert cost.weight_s == pytest.approx(2 * 2 * seq * 4 * 12 * run.hidden**2 / peak)
    assert cost.weight_s < 0.5 * cost.backward_s == 0.5 * plain.backward_s
    assert plain.weight_s == 0
