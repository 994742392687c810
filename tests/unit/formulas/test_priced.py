"""Placements of a study are priced like any plan on the same chip."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from phaze.cost.space import as_architectures, describe_named
from phaze.formulas.priced import PlacementPricing, price_placements
from phaze.layout import Layout
from phaze.plan.machines import machine_of
from phaze.plan.pricing.price import Price, price
from phaze.plan.question import PlanQuestion
from phaze.runtimes.chip import CHIP
from phaze.runtimes.rules import TrainingTask
from phaze.spec.architecture import load_technology
from phaze.spec.config import load_architecture
from phaze.spec.models import load_model_named, load_transformer
from phaze.spec.settings import Training
from phaze.spec.system import Cluster, Device, Scenario
from phaze.spec.systems import load_stack
from phaze.workload.models import chip_workload

NETWORK, LENGTH, BATCH, DEVICES, HBM_GIB = 1e11, 512, 16, 8, 32.0
SCENARIO = Scenario(devices=DEVICES, global_batch=BATCH, network_bandwidth_bytes_per_s=NETWORK)
TECHNOLOGY = load_technology("22nm")
NAMED = load_architecture("tpu-v4")
CHIPS = describe_named([NAMED], TECHNOLOGY.area_um2, "named")
CUTS = [range(8), range(8, 26)]
"""Layers of BERT large by stage: embedding, 24 blocks and head."""


def placement(**changes: object) -> tuple[pd.Series, pd.DataFrame]:
    """Return a placement of two stages with four devices each, and its stages."""
    row = {
        "model": "bert-large", "layout": "tp2-b2", "architecture": NAMED.name, "hbm_gib": HBM_GIB,
        "recompute": False, "planner": "phaze", "data": 2, "stages": len(CUTS), "time_per_batch_s": 0.1,
    } | changes  # fmt: skip
    keys = ("model", "layout", "architecture", "hbm_gib", "recompute", "planner")
    stages = [
        {**{key: row[key] for key in keys}, "stage": s, "first_layer": cut[0], "last_layer": cut[-1],
         "devices": 2}
        for s, cut in enumerate(CUTS)
    ]  # fmt: skip
    return pd.Series(row), pd.DataFrame(stages)


def pricing(model: str = "bert-large", length: int = LENGTH) -> PlacementPricing:
    training = Training(optimizer="adam", precision="mixed")
    stack = load_stack("chip")
    return PlacementPricing.of(load_model_named(model), length, SCENARIO, training, stack, TECHNOLOGY)


def priced(**changes: object) -> Price:
    return pricing().price(CHIPS.iloc[0], *placement(**changes))


def question() -> PlanQuestion:
    """Return the request of `phaze plan --architecture` on a cluster of one level with the same links."""
    rates = {"clock_hz": SCENARIO.clock_hz, "hbm_bandwidth_bytes_per_s": SCENARIO.hbm_bandwidth_bytes_per_s}
    clock = {"sustained_clock": load_stack("chip").sustained_clock}
    device = Device.parse({**NAMED.model_dump(), **rates, **clock, "hbm_gib": HBM_GIB}, "test")
    levels = [{"devices": DEVICES, "bandwidth_bytes_per_s": NETWORK}]
    cluster = Cluster.parse({"device": "test", "levels": levels}, "test")
    task = TrainingTask(load_transformer("bert-large", "test"), LENGTH, BATCH, DEVICES)
    return PlanQuestion(task, machine_of(cluster, device, load_stack("chip")), CHIP)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_placement_costs_what_plan_says_of_its_layout(recompute: bool) -> None:
    layout = Layout(tp=2, pp=2, dp=2, microbatch=2, recompute="full" if recompute else "none")
    lowering = question().lowering(layout)
    stages = [
        lowering.stage(CUTS[0], layout, None),
        # The last stage stores all activations.
        lowering.stage(CUTS[1], layout, 0),
    ]
    planned = price(lowering.plan(stages, "1f1b"), question().machine)
    found = priced(recompute=recompute)
    assert found.time_s == pytest.approx(planned.time_s, rel=1e-6)
    assert found.peak_bytes == pytest.approx(planned.peak_bytes, rel=1e-6)


def test_recomputing_takes_longer_and_stores_less() -> None:
    stored, recomputed = priced(), priced(recompute=True)
    assert recomputed.time_s > stored.time_s
    assert recomputed.peak_bytes[0] < stored.peak_bytes[0]


def test_a_chip_is_what_its_row_says() -> None:
    """Sizes survive the table, and what a row leaves open is the system's."""
    (read,) = as_architectures(CHIPS)
    sizes = ("num_tc", "num_vc", "pe_x", "pe_y", "lanes", "glb_mib", "bandwidth", "tensor_l2_kib")
    assert {name: getattr(read, name) for name in sizes} == {name: getattr(NAMED, name) for name in sizes}
    slow = CHIPS.assign(clock_hz=SCENARIO.clock_hz / 2).iloc[0]
    assert pricing().price(slow, *placement()).time_s > priced().time_s


def test_a_stage_without_tensor_parallel_layers_has_one_device() -> None:
    row, stages = placement()
    plan = pricing().price(CHIPS.iloc[0], row, stages.assign(devices=[1, 2])).plan
    assert [stage.layout.tp for stage in plan.stages] == [1, 2]
    assert plan.devices == 2 * (1 + 2)


def test_the_table_has_claim_and_price_of_every_placement() -> None:
    both = [placement(), placement(planner="expert", recompute=True)]
    rows = pd.DataFrame([row for row, _ in both])
    stages = pd.concat([table for _, table in both])
    table = price_placements(pricing(), rows, [stages], CHIPS).set_index("planner")
    parts = table[["passes_share", "communication_share", "update_share", "bubble_share"]]
    assert (table["planned_s"] == 0.1).all()
    assert table["simulated_s"].to_dict() == pytest.approx(
        {"phaze": priced().time_s, "expert": priced(recompute=True).time_s}
    )
    np.testing.assert_allclose(parts.sum(axis=1), 1.0)
    assert (table["fits"] == (table["peak_bytes"] <= HBM_GIB * 2**30)).all()


def test_models_of_images_have_a_price() -> None:
    row, stages = placement(model="resnet-50", layout="tp1-b2")
    images = pricing("resnet-50", 1)
    layers = len(chip_workload(images.training.model, 1, Layout(microbatch=2)).order)
    stages = stages.assign(devices=1, first_layer=[0, 2], last_layer=[1, layers - 1])
    assert images.price(CHIPS.iloc[0], row, stages).time_s > 0


def test_a_memory_that_the_price_does_not_fit_is_marked() -> None:
    row, stages = placement(hbm_gib=1.0)
    table = price_placements(pricing(), pd.DataFrame([row]), [stages], CHIPS)
    assert not table["fits"].any()
