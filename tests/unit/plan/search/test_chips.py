"""The search over chips finds the brute-force optimum of chips and plans, with a valid certificate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import inf
from pathlib import Path

import numpy as np
import pytest

from phaze.api import plan
from phaze.base.errors import PhazeError
from phaze.certify.plans import certify_plan
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.study import request
from phaze.plan.answer.words import chips_in_words, in_words, sizes_in_words
from phaze.plan.bounds.chips import GROWING, ShardBounds, groups_of
from phaze.plan.chips import load_chips
from phaze.plan.machines import device_of
from phaze.plan.question import PlanQuestion
from phaze.plan.search.search import LayoutPlanner
from phaze.runtimes.space import legal_space
from phaze.spec.architecture import Architecture
from phaze.spec.documents import read_as, write_document
from phaze.spec.layout_study import LayoutStudy
from phaze.spec.models import load_transformer
from phaze.spec.training_plan import TrainingPlan
from tests.effort import DRAWS
from tests.plans import plan_of, planner_of
from tests.unit.plan.search.exhaustive import QuickPrice, divisions, fastest_s, planned, priced_layouts


def drawn_chips(rng: np.random.Generator, number: int) -> tuple[Architecture, ...]:
    """Return chips of random sizes, clocks and memories."""
    chips = []
    for place in range(number):
        sizes = {name: int(2 ** rng.integers(0, 4)) for name in ("num_tc", "num_vc")}
        arrays = {name: int(2 ** rng.integers(4, 9)) for name in ("pe_x", "pe_y")}
        rates = {
            "clock_hz": 1e9 * rng.uniform(0.5, 2),
            "hbm_bandwidth_bytes_per_s": 1e12 * rng.uniform(0.2, 3),
        }
        memory = {"glb_mib": float(2 ** rng.integers(3, 8)), "hbm_gib": float(rng.choice([2.0, 4.0, 16.0]))}
        chips.append(
            Architecture.parse({"name": f"chip-{place}", **sizes, **arrays, **rates, **memory}, "test")
        )
    return tuple(chips)


def alike_chips(rng: np.random.Generator, number: int) -> tuple[Architecture, ...]:
    """Return chips that differ only in fields of which more is never slower."""
    first = drawn_chips(rng, 1)[0]
    names = [*GROWING, "name"]
    return tuple(
        first.model_copy(update={name: getattr(chip, name) for name in names})
        for chip in drawn_chips(rng, number)
    )


def planner_on(
    chips: tuple[Architecture, ...], gap: float = 0.0, layers: int = 2, **fields: object
) -> TrainingPlanner:
    """Return the planner of a small model on four of any of these chips; `fields` are of the question."""
    machine, _ = load_chips("tpu-v4", "tpu-v4")
    fields |= {"system": "tpu-v4", "stack": "chip", "runtime": "chip", "machine": machine, "rank": "expected"}
    fields |= {"devices": 4, "global_batch": 4, "sequence": 512, "chips": chips}
    return planner_of(layers=layers, gap=gap, **fields)


def questions_on(planner: TrainingPlanner) -> Iterator[PlanQuestion]:
    """Yield the question on each chip."""
    for place in range(len(planner.request.chips or ())):
        yield planner.on_chip(place).question


@pytest.mark.slow
def test_the_best_chip_and_plan_are_those_of_brute_force() -> None:
    """Every pipeline split of every layout on every chip is priced; some chips and layouts do not fit."""
    fixed = {"cp": 1, "zero": 1}
    for seed in range(DRAWS // 10):
        drawn = alike_chips if seed % 2 else drawn_chips
        planner = planner_on(drawn(np.random.default_rng(seed), 4))
        times_s = [
            min(fastest_s(splits) for splits in priced_layouts(question, fixed).values())
            for question in questions_on(planner)
        ]
        search = planner.search_chips()
        search = replace(search, planner=replace(search.planner, fixed=fixed))
        search.run(1)
        assert search.best_s == pytest.approx(min(times_s), rel=1e-9)
        assert times_s[search.place] == min(times_s)
        assert search.bound_s == pytest.approx(min(times_s), rel=1e-9)
        for row in search.outcomes:
            time_s = times_s[int(row.chip.removeprefix("chip-"))]
            # Of a chip that its group excludes, nobody knows whether a layout fits.
            assert (row.bound_s is None) == (time_s == inf) or row.outcome == "excluded"
            assert row.bound_s is None or row.bound_s <= time_s * (1 + 1e-9)


@pytest.mark.parametrize("model", ["llama2-7b", "mixtral-8x7b"])
def test_the_bound_of_a_layout_on_a_chip_is_below_every_price_of_it(model: str) -> None:
    """For chips, layouts and splits by lot; the bound counts no pipeline, gradients or recomputation."""
    rng = np.random.default_rng(0)
    trained = load_transformer(model, "test").model_copy(update={"layers": 2})
    questions = [*questions_on(planner_on(drawn_chips(rng, 8), model=trained))]
    families = legal_space(questions[0].runtime, questions[0].task, {}).families
    bounds = ShardBounds(questions[0], families)
    devices = [device_of(question.machine) for question in questions]
    chips_s = bounds.of(devices)
    assert len(set(chips_s.tolist())) > 1
    for question, device, chip_s in zip(questions, devices, chips_s.tolist(), strict=True):
        families_s = bounds.families_s(device)
        assert families_s.min() == pytest.approx(chip_s, rel=1e-12)
        for place in rng.choice(len(families), min(20, len(families)), replace=False).tolist():
            layout, schedule = families.layout(place), families.schedule_of(place)
            splits = [*divisions(layout, question.task.model.layers, question.runtime.recomputed_counts)]
            split = splits[int(rng.integers(len(splits)))]
            price = QuickPrice(planned(question, layout, schedule, *split), question.machine)
            assert price.time_s >= families_s[place] * (1 - 1e-9)


def test_more_cores_buffer_or_memory_is_never_slower() -> None:
    """For layouts and splits by lot: the price on a chip is at least that on the envelope of its group."""
    rng = np.random.default_rng(0)
    for _ in range(DRAWS // 2):
        questions = [*questions_on(planner_on(alike_chips(rng, 4)))]
        (group,) = groups_of([device_of(question.machine) for question in questions])
        envelope = replace(questions[0], machine=group.envelope_machine(questions[0].machine))
        grid = legal_space(envelope.runtime, envelope.task, {}).grid
        for place in rng.choice(len(grid), 5, replace=False).tolist():
            layout, schedule = grid.layout(place), grid.schedule_of(place)
            splits = [*divisions(layout, envelope.task.model.layers, envelope.runtime.recomputed_counts)]
            split = splits[int(rng.integers(len(splits)))]
            least_s, *times_s = (
                QuickPrice(planned(question, layout, schedule, *split), question.machine).time_s
                for question in (envelope, *questions)
            )
            assert min(times_s) >= least_s * (1 - 1e-9)


def test_a_group_of_chips_is_split_down_to_single_ones() -> None:
    chips = alike_chips(np.random.default_rng(3), 16)
    devices = [device_of(question.machine) for question in questions_on(planner_on(chips))]
    (group,) = groups_of(devices)
    levels = [[group]]
    while any(len(part.places) > 1 for part in levels[-1]):
        levels.append([part for whole in levels[-1] for part in whole.parts(devices)])
    for level in levels:
        assert sorted(place for part in level for place in part.places) == [*range(16)]
        for part in level:
            for name in GROWING:
                assert getattr(part.envelope, name) == max(
                    getattr(devices[place], name) for place in part.places
                )


@pytest.mark.slow
def test_a_space_of_alike_chips_is_proven_by_its_groups() -> None:
    """Chips are excluded together: most are never searched, and the plan is that of a search on each."""
    chips = alike_chips(np.random.default_rng(5), 12)
    planner = planner_on(chips)
    search = planner.search_chips()
    search.run(1)
    singles = [LayoutPlanner(number=1, gap=0.0)(question).plans for question in questions_on(planner)]
    best_s = min(plans[0].time_s for plans in singles if plans)
    assert search.best_s == pytest.approx(best_s, rel=1e-9)
    assert len(search.searches) < len(chips) / 2
    assert all(
        row.bound_s is not None and row.bound_s <= plans[0].time_s * (1 + 1e-9)
        for row in search.outcomes
        if (plans := singles[int(row.chip.removeprefix("chip-"))])
    )


@cache
def chosen() -> TrainingPlan:
    """Return the plan on the best of twelve chips."""
    return plan_of(planner_on(drawn_chips(np.random.default_rng(1), 12), gap=0.01), 3)


@pytest.mark.slow
def test_no_drawn_chip_and_layout_contradicts_the_certificate() -> None:
    audit = certify_plan(chosen(), 5 * DRAWS, 0)
    assert audit.counterexamples == []
    assert len(audit.drawn) == 5 * DRAWS
    assert len({drawn.chip for drawn in audit.drawn}) == 12
    best_s = audit.fitting[0].time_s
    contradicted = replace(audit, bound_s=best_s * (1 + 1e-6))
    assert contradicted.counterexamples[0].time_s == best_s


def test_a_certificate_counts_the_layouts_of_all_chips(tmp_path: Path) -> None:
    answer = chosen()
    proof, chips = answer.certificate, answer.chips
    assert chips is not None
    assert answer.question.chips is not None
    assert len(chips) == len(answer.question.chips) == 12
    counted = sum(proof.illegal.values()) + proof.same + proof.unfit + sum(proof.bounded.values())
    assert counted + proof.simulated == proof.layouts
    assert proof.layouts % 12 == 0
    assert proof.bounded["chip"] > 0
    best = chips[0]
    assert best.outcome == "best"
    assert best.chip == answer.question.stored_machine().device.name
    assert best.time_s == pytest.approx(answer.time_s)
    assert {chip.outcome for chip in chips[1:]} <= {"slower", "excluded", "unfit"}
    bounds_s = [chip.bound_s for chip in chips if chip.bound_s is not None]
    assert proof.bound_s == pytest.approx(min(best.time_s, *bounds_s))
    assert proof.gap <= 0.01
    write_document(answer, tmp_path / "plan.json")
    assert read_as(TrainingPlan, tmp_path / "plan.json").chips == chips


def test_a_space_of_one_chip_is_planned_like_a_list_with_a_slower_one() -> None:
    options = {"global_batch": 8, "sequence": 512, "fix": "cp=1,zero=1,vp=1,recompute=none"}
    alone = plan("gpt2", "8xtpu-v4", architecture="tpu-v4", **options).best  # type: ignore[arg-type]
    chips = ["tpu-v4", "spotlight-gpt2-xl"]
    several = plan("gpt2", "8xtpu-v4", architecture=chips, **options).best  # type: ignore[arg-type]
    assert (several.layout, several.time_s) == (alone.layout, alone.time_s)
    assert several.chips is not None
    assert [row.chip for row in several.chips] == chips
    assert several.certificate.schedule_gap == alone.certificate.schedule_gap


@pytest.mark.slow
def test_of_equally_fast_chips_the_first_is_planned() -> None:
    """More memory that no plan needs is no reason to choose a chip."""
    chip = drawn_chips(np.random.default_rng(0), 1)[0].model_copy(update={"hbm_gib": 64.0})
    larger = chip.model_copy(update={"hbm_gib": 128.0})
    for chips in ((chip, larger), (larger, chip)):
        plans = planner_on(chips).best(1)
        assert plans.place == 0


def test_an_answer_over_chips_lists_them_and_the_gap_of_schedules() -> None:
    answer = chosen()
    text = in_words(answer, answer.question.stored_machine().device)
    proof = answer.certificate
    assert "layout on any of the 12 chips" in " ".join(text.split())
    assert f"({proof.legal:,} checked, proven)" in " ".join(text.split())
    assert "The schedules that give the time of layers are" in " ".join(text.split())
    rows = {line.split()[0]: line for line in text.splitlines() if line.lstrip().startswith("chip-")}
    assert answer.chips is not None
    assert [*rows] == [chip.chip for chip in answer.chips]
    assert "the best" in rows[answer.chips[0].chip]
    assert " on chip-" in sizes_in_words([answer])
    assert answer.in_use_gib is not None
    tight = answer.in_use_gib.model_copy(update={"high": 1e6})
    assert " may fit on chip-" in sizes_in_words([answer.model_copy(update={"in_use_gib": tight})])
    many = [*chips_in_words(answer.chips * 3)]
    assert " ".join(many[-1].split()).startswith("16 further chips take at least")


GRID = """
grid:
  num_tc: [1, 2]
  num_vc: [2]
  pe_x: [64, 128]
  pe_y: [128]
  glb_mib: [32, 64]
  minimum_area_share: null
named: [tpu-v4]
area_limit_mm2: {limit}
"""


def test_a_grid_has_the_chips_within_its_area_limit(tmp_path: Path) -> None:
    sizes = []
    for limit in (80, 2000):
        (tmp_path / "space.yaml").write_text(GRID.format(limit=limit))
        chips = load_chips(str(tmp_path / "space.yaml"), "tpu-v4")[1]
        assert chips is not None
        assert all(chip.area_mm2 is not None and chip.area_mm2 <= limit for chip in chips[1:])
        assert all(chip.clock_hz == 1.05e9 and chip.hbm_gib == 32 for chip in chips)
        sizes.append(len(chips))
    assert 1 < sizes[0] < sizes[1] == 9


def test_chips_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(GRID.replace("named: [tpu-v4]\n", "").format(limit=1))
    for architecture, reason in {
        "tpu-v4,tpu-v4": "'tpu-v4' is given twice",
        "tpu-v4,": "must be names separated by commas",
        "tpu-v4,unknown": "there is no architecture 'unknown'",
        str(tmp_path / "space.yaml"): "must have at least 2 chips, got 0",
    }.items():
        with pytest.raises(PhazeError, match=reason):
            plan("gpt2", "8xtpu-v4", architecture=architecture)
    with pytest.raises(PhazeError, match="tpu-v4: devices must be at most 4096"):
        plan("gpt2", "9000xtpu-v4", architecture="tpu-v4,phaze-common")
    for options in ({"fewest": True}, {"rank": "robust"}):
        with pytest.raises(
            PhazeError, match="plans on one chip, and --architecture tpu-v4,phaze-common has 2"
        ):
            plan("gpt2", "8xtpu-v4", architecture="tpu-v4,phaze-common", **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_model_that_fits_no_chip_names_the_least_memory_that_would_do() -> None:
    sizes = {"num_tc": 2, "num_vc": 2, "pe_x": 128, "pe_y": 128, "glb_mib": 32.0}
    small = tuple(
        Architecture.parse(
            {
                "name": f"hbm-{gib}",
                **sizes,
                "hbm_gib": gib,
                "clock_hz": 1e9,
                "hbm_bandwidth_bytes_per_s": 1e12,
            },
            "test",
        )
        for gib in (0.5, 1.0)
    )
    planner = planner_on(small)
    answer = planner.answer(planner.best(1))
    assert answer.format == "phaze-no-plan"
    assert answer.chips is not None
    assert {row.outcome for row in answer.chips} == {"unfit"}
    least = re.search(r"([0-9.]+) GiB of HBM on hbm-1.0 would do", answer.reason)
    assert least is not None
    enough = tuple(chip.model_copy(update={"hbm_gib": float(least[1])}) for chip in small)
    assert planner_on(enough).best(1).plans
    assert float(least[1]) < 8


def test_a_study_of_layouts_chooses_among_several_architectures() -> None:
    study = LayoutStudy.model_validate({
        "models": ["gpt2"], "systems": ["tpu-v4"], "devices": [8], "architecture": "tpu-v4,phaze-common",
    })  # fmt: skip
    (point,) = study.points.values()
    asked = request(study, point, load_transformer("gpt2", "test").model_dump(mode="json"))
    assert asked.chips is not None
    assert [chip.name for chip in asked.chips] == ["tpu-v4", "phaze-common"]
    assert asked.on_chip(1).stored_machine().device.name == "phaze-common"
