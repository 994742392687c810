"""The chip for several models is the best one by brute force, with bounds on every other."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from phaze.plan.answer.chip_choice import ChipChooser, nearest_chip
from phaze.plan.answer.chip_energy import step_joules
from phaze.plan.answer.chip_objectives import ChipGoal
from phaze.plan.answer.chip_words import choice_in_words
from phaze.plan.answer.model_chips import SPARE
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.chips import load_chips
from phaze.plan.search.search import LayoutPlanner
from phaze.plan.time_limit import TimeLimit
from phaze.spec.architecture import Architecture, ArchitectureSpace, load_technology
from phaze.spec.chip_choice import ChipChoice, ChipQuestion, ModelOnChips, PlanOnChip
from phaze.spec.training_plan import AskedPlan
from tests.plans import planner_of

GAP = 0.002
FIXED = {"cp": 1, "vp": 1, "zero": 1}
SIZES = {
    "num_tc": (1, 4),
    "num_vc": (1, 16),
    "pe_x": (64, 128),
    "glb_mib": (16.0,),
    "hbm_gib": (4.0, 32.0),
}


def chips() -> tuple[Architecture, ...]:
    """Return all combinations of a few sizes."""
    rows = (dict(zip(SIZES, values, strict=True)) for values in product(*SIZES.values()))
    rates = {"pe_y": 128, "clock_hz": 1e9, "hbm_bandwidth_bytes_per_s": 1e12}
    return tuple(
        Architecture.parse({**row, **rates, "name": f"chip-{place}", "area_mm2": _area(row)}, "test")
        for place, row in enumerate(rows)
    )


def _area(row: dict[str, float]) -> float:
    return row["num_tc"] * row["pe_x"] / 4 + row["num_vc"] + row["glb_mib"]


def request(layers: int, sequence: int) -> AskedPlan:
    """Return the question of a small model on four of any of the chips."""
    machine, _ = load_chips("tpu-v4", "tpu-v4")
    fields = {"system": "tpu-v4", "stack": "chip", "runtime": "chip", "machine": machine, "rank": "expected"}
    fields |= {"devices": 4, "global_batch": 8, "sequence": sequence, "chips": chips()}
    fields |= {"fixed": FIXED}
    return planner_of(layers=layers, **fields).request


@cache
def chooser() -> ChipChooser:
    """Return the choice of a chip for two models."""
    requests = request(2, 512), request(4, 2048)
    return ChipChooser(requests, GAP, TimeLimit(), ChipGoal("time", load_technology("22nm")))


@cache
def times_s() -> np.ndarray:
    """Return the fastest step of both models on every chip, found by one search on each, (M, D)."""
    planner = LayoutPlanner(number=1, gap=0.0, fixed=FIXED)
    rows = []
    for model in chooser().models:
        plans = [planner(model.planner.on_chip(place).question).plans for place in range(len(chips()))]
        rows.append([found[0].time_s if found else np.inf for found in plans])
    return np.array(rows)


@pytest.mark.slow
def test_the_chosen_chip_is_the_best_by_a_search_on_every_chip() -> None:
    best_s = times_s().min(axis=1)
    for model, least_s in zip(chooser().models, best_s.tolist(), strict=True):
        assert least_s * (1 - 1e-9) <= model.best_score <= least_s / (1 - GAP)
        assert model.search.bound_s <= least_s * (1 + 1e-9)
    means = np.exp(np.log(times_s() / best_s[:, None]).mean(axis=0))
    chosen = chooser().chosen
    assert means[chosen] * (1 - chooser().largest_gain) <= means.min() * (1 + 1e-9)
    # Gaps of both models and of the mean, and the time that a smaller chip may cost.
    assert chooser().largest_gain < 3 * GAP + SPARE
    assert chooser().least_mean <= means.min() * (1 + 1e-9)


@pytest.mark.slow
def test_a_smaller_chip_is_taken_if_it_is_nearly_as_fast() -> None:
    for model, row_s in zip(chooser().models, times_s(), strict=True):
        place = model.smallest
        assert row_s[place] <= model.best_score * (1 + SPARE)
        assert chips()[place].area_mm2 <= chips()[model.search.place].area_mm2  # type: ignore[operator]
        assert chips()[place].hbm_gib <= chips()[model.search.place].hbm_gib  # type: ignore[operator]


@pytest.mark.slow
def test_the_answer_names_the_chip_its_plans_and_what_others_could_gain() -> None:
    chosen = chooser().row(chooser().chosen, "all")
    same = chooser().changed("num_tc", chosen.chip.num_tc)
    for plan, other in zip(chosen.plans, same.plans, strict=True):
        assert plan.plan is not None
        assert other.plan is not None
        assert other.plan.time_s == pytest.approx(plan.plan.time_s, rel=SPARE)
        assert plan.bound_s is not None
        assert plan.bound_s <= plan.plan.time_s
    requests = chooser().requests
    machine = requests[0].stored_machine()
    choice = ChipChoice(
        question=ChipQuestion(
            models=tuple(
                ModelOnChips(model=asked.model.name, sequence=asked.sequence, global_batch=asked.global_batch)
                for asked in requests
            ),
            devices=4,
            cluster=machine.cluster,
            space=ArchitectureSpace.parse({"named": ["tpu-v4"]}, "test"),
            hbm_gib=SIZES["hbm_gib"],
            rank="expected",
            gap=GAP,
        ),
        designs=len(chips()) // 2,
        chosen=chosen,
        others=(*chooser().others(), same),
        bounds=chooser().bounds,
        gap=chooser().largest_gain,
        trust="Trust.",
    )
    text = choice_in_words(choice)
    assert all(len(line) <= 80 for line in text.splitlines())
    assert f"Build {chosen.chip.name}:" in " ".join(text.split())
    assert "(proven)" in text
    for stopped, word in (("its time limit of 5 s was reached", "no time"), (None, "unfit")):
        missing = PlanOnChip(model="gpt2", stopped=stopped)
        row = chosen.model_copy(update={"plans": (missing,), "role": "built"})
        assert f"gpt2   {word}" in choice_in_words(choice.model_copy(update={"others": (row,)}))
    assert ChipChoice.model_validate_json(choice.model_dump_json()) == choice


def test_the_nearest_chip_is_that_with_the_most_similar_sizes() -> None:
    for chip in chips()[::5]:
        nearest = nearest_chip(chips(), chip.model_copy(update={"name": "other", "hbm_gib": 1.0}))
        assert all(getattr(nearest, name) == getattr(chip, name) for name in ("num_tc", "num_vc", "pe_x"))


@pytest.mark.parametrize(
    "fixed", [{"dp": 4}, {"tp": 2}, {"cp": 4}, {"pp": 2}, {"dp": 4, "recompute": "full"}], ids=str
)
def test_the_energy_of_a_step_is_that_of_its_work(fixed: dict[str, int | str]) -> None:
    """Multiply-accumulates are those of the model's FLOPs, however the step is laid out."""
    asked = request(4, 512)
    question = planner_of(layers=4, **dict(asked) | {"chips": None, "fixed": {}}).question
    plans = LayoutPlanner(number=1, gap=0.1, fixed=fixed)(question).plans
    priced = PricedLayout.of(question, plans[0])
    figures, area_mm2 = load_technology("22nm").energy, 300.0
    joules = step_joules(priced, figures, area_mm2)
    tokens = asked.global_batch * asked.sequence
    macs = tokens * asked.model.flops_per_token(asked.sequence).needed / 2
    recomputed = 1 + priced.recomputed_layers / 4 / 3
    assert 0.97 < joules["mac"] / (macs * figures.mac_j) < 1.03 * recomputed
    assert joules["leakage"] == pytest.approx(figures.leakage_w_per_mm2 * area_mm2 * 4 * priced.price.time_s)
    assert min(joules.values()) > 0


def test_gradients_of_replicas_are_sent_twice() -> None:
    """Without model parallelism only gradients and weights cross the network: 2 (n - 1)/n of their bytes."""
    question = planner_of(layers=4, **dict(request(4, 512)) | {"chips": None, "fixed": {}}).question
    plans = LayoutPlanner(number=1, gap=0.1, fixed={"dp": 4, "cp": 1})(question).plans
    figures = load_technology("22nm").energy
    joules = step_joules(PricedLayout.of(question, plans[0]), figures, 300.0)
    nbytes = 2.0 * question.task.model.parameters * 2 * 3 / 4 * 4
    assert joules["link"] == pytest.approx(nbytes * figures.link_j_per_byte, rel=0.02)


@pytest.mark.slow
def test_a_chip_has_a_plan_although_the_time_is_over() -> None:
    """The layout of the best plan is priced on other chips, so that candidates can be compared."""
    asked = request(2, 512)
    chooser = ChipChooser((asked,), GAP, TimeLimit(), ChipGoal("time", load_technology("22nm")))
    (model,) = chooser.models
    best = model.search.place
    chooser.limit.interrupted = True
    evaluated = [model.on_chip(place) for place, chip in enumerate(chips()) if chip.hbm_gib == 32.0]
    assert all(plan.priced is not None for plan in evaluated)
    assert all(plan.stopped for plan in evaluated if plan.bound_s < model.search.bound_s)
    assert model.on_chip(best).score >= model.search.bound_s
