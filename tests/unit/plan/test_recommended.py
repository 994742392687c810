"""A study's recommended plan is that of `phaze plan --architecture`, and no placement of it is faster."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from phaze.api import plan
from phaze.base.errors import PhazeError
from phaze.cost.space import describe_named
from phaze.formulas.priced import PlacementPricing
from phaze.layout import Layout
from phaze.plan.answer.recommended import recommendation_row, recommended, study_request
from phaze.plan.chips import Chips, chips_of
from phaze.spec.architecture import load_technology
from phaze.spec.config import load_architecture, load_settings
from phaze.spec.models import load_transformer
from phaze.spec.settings import Training
from phaze.spec.system import Scenario
from phaze.spec.systems import load_stack, one_level
from phaze.spec.training_plan import TrainingPlan, UnfitPlan

MODEL, LENGTH, STACK = load_transformer("bert-large", "test"), 512, load_stack("chip")
SCENARIO = Scenario(devices=4, global_batch=8, network_bandwidth_bytes_per_s=1e11)
NAMED = [load_architecture(name) for name in ("tpu-v4", "phaze-common")]
LAYERS = MODEL.layers + 2


def answer_on(chips: Chips, scenario: Scenario = SCENARIO) -> TrainingPlan | UnfitPlan:
    return recommended(study_request(MODEL, LENGTH, scenario, "small", chips, STACK))


def test_an_architecture_without_hbm_is_a_chip_of_every_size() -> None:
    without = NAMED[0].model_copy(update={"hbm_gib": None, "clock_hz": 2e9})
    chips = chips_of([without, NAMED[1]], SCENARIO, [16, 48])
    assert [(chip.name, chip.hbm_gib) for chip in chips] == [
        ("tpu-v4", 16), ("tpu-v4", 48), ("phaze-common", NAMED[1].hbm_gib)
    ]  # fmt: skip
    assert [chip.clock_hz for chip in chips] == [2e9, 2e9, SCENARIO.clock_hz]
    assert {chip.hbm_bandwidth_bytes_per_s for chip in chips} == {SCENARIO.hbm_bandwidth_bytes_per_s}


@pytest.mark.slow
def test_it_is_the_answer_of_the_command_and_no_placement_beats_it(tmp_path: Path) -> None:
    answer = answer_on(chips_of(NAMED, SCENARIO))
    assert isinstance(answer, TrainingPlan)
    level = {"devices": 4, "bandwidth_bytes_per_s": 1e11}
    speeds = {"clock_hz": SCENARIO.clock_hz, "hbm_bandwidth_bytes_per_s": SCENARIO.hbm_bandwidth_bytes_per_s}
    device = NAMED[0].model_dump(exclude_none=True) | speeds | {"hbm_gib": 32}
    (tmp_path / "chip.yaml").write_text(yaml.safe_dump(device))
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump({"device": "./chip.yaml", "levels": [level]}))
    command = plan(
        "bert-large",
        system=str(tmp_path / "pod.yaml"),
        architecture=[chip.name for chip in NAMED],
        global_batch=SCENARIO.global_batch,
        sequence=LENGTH,
        rank="expected",
        top=1,
    ).best
    assert answer.time_s == pytest.approx(command.time_s, rel=1e-6)
    assert answer.prudent_s == pytest.approx(command.prudent_s, rel=1e-6)
    assert answer.certificate.bound_s == pytest.approx(command.certificate.bound_s, rel=1e-6)
    assert answer.layout == command.layout
    row = recommendation_row("bert", "small", answer).iloc[0]
    assert (row["architecture"], row["chips"]) == (answer.question.stored_machine().device.name, 2)
    assert (row["expected_s"], row["dp"]) == (answer.time_s, answer.layout.dp)
    assert min(placement_times_s()) >= answer.time_s


def placement_times_s() -> list[float]:
    """Return the study's prices of all even placements that fit, on both architectures."""
    technology, times_s = load_technology("22nm"), []
    training = Training(optimizer="adam", precision="mixed")
    pricing = PlacementPricing.of(MODEL, LENGTH, SCENARIO, training, STACK, technology)
    rows = describe_named(NAMED, technology.area_um2, "named")
    chips = [chip for _, chip in rows.iterrows()]
    for chip, tp, pp, microbatch, recompute in product(chips, (1, 2, 4), (1, 2, 4), (1, 2), (False, True)):
        if tp * pp > SCENARIO.devices:
            continue
        placement = {
            "layout": Layout(tp=tp, microbatch=microbatch).key, "hbm_gib": chip["hbm_gib"],
            "recompute": recompute, "data": SCENARIO.devices // (tp * pp),
        }  # fmt: skip
        cuts = np.array_split(np.arange(LAYERS), pp)
        stages = pd.DataFrame(
            [
                {"stage": s, "first_layer": cut[0], "last_layer": cut[-1], "devices": tp}
                for s, cut in enumerate(cuts)
            ]
        )
        price = pricing.price(chip, pd.Series(placement), stages)
        if price.peak_bytes.max() <= chip["hbm_gib"] * 2**30:
            times_s.append(price.time_s)
    assert len(times_s) > 20
    return times_s


@pytest.mark.slow
def test_a_model_that_fits_no_chip_has_a_row_with_the_reason() -> None:
    small = chips_of([chip.model_copy(update={"hbm_gib": 0.25}) for chip in NAMED], SCENARIO)
    row = recommendation_row("bert", "small", answer_on(small)).iloc[0]
    assert (row["status"], row["architecture"], row["dp"]) == ("unfit", "", 0)
    assert "GiB" in row["reason"]
    assert row["expected_s"] == np.inf


def test_a_network_that_shares_its_links_is_refused() -> None:
    shared = SCENARIO.model_copy(update={"all_reduce_factor": 4.0})
    with pytest.raises(PhazeError, match=r"scenarios.pod: all_reduce_factor: must be 2 .* got 4"):
        one_level(shared, "scenarios.pod")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"training": {"optimizer": "sgd"}}, "recommend: training.optimizer: must be adam, .* got sgd"),
        ({"training": {"optimizer": "adam"}}, "recommend: training.precision: must be mixed, .* got half"),
        (
            {"scenarios": {"paper": {"system": "paper"}}},
            "recommend: scenarios.paper: all_reduce_factor: must be 2 .* got 4",
        ),
        (
            {"workloads": {"bert": {"model": "resnet-50", "sequence": 1}}},
            "recommend: models: must be transformers, and bert is none",
        ),
    ],
)
def test_a_study_whose_settings_a_plan_cannot_have_is_refused(changes: dict, reason: str) -> None:
    study = {
        "models": ["bert"], "workloads": {"bert": {"model": "bert-large", "sequence": LENGTH}},
        "architectures": {"grid": None}, "scenarios": {"pod": {"system": "tpu-v4-pod"}},
        "training": {"optimizer": "adam", "precision": "mixed"}, "recommend": True,
    }  # fmt: skip
    load_settings(study, source="study.yaml")
    with pytest.raises(PhazeError, match=f"study.yaml: {reason}"):
        load_settings(study | changes, source="study.yaml")
