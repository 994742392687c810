"""The page of chosen chips, from searches that are stored and read again as jobs do."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.plan.answer.chip_choice import ChipChooser
from phaze.plan.answer.chip_study import (
    ChipSpace,
    Searched,
    choice_of,
    goal_of,
    on_other_chip,
    searched,
)
from phaze.plan.time_limit import TimeLimit
from phaze.report.chips import CHECKS, ChipInputs, LadderStep, build_chip_report
from phaze.spec.chip_choice import ChipChoice, ChipForModels
from phaze.spec.chip_study import ChipPoint, ChipStudy
from phaze.spec.config import load_architecture
from phaze.spec.documents import read_as, write_document
from phaze.spec.models import load_transformer
from phaze.spec.training_plan import TrainingPlan
from phaze.tables.chips import ChipBounds

BUILT = "tpu-v4-as-built"
SIZES = {"num_tc": [4, 16], "num_vc": [32], "pe_x": [64, 128], "pe_y": [128], "glb_mib": [8]}
NETWORK = {
    "levels": [{"devices": 4, "bandwidth_bytes_per_s": 1e11}],
    "hbm_gib": [8, 32],
    "designs": {"grid": {**SIZES, "minimum_area_share": None}, "area_limit_mm2": 400},
}
TRAINING = {
    "model": "gpt2",
    "devices": 4,
    "global_batch": 8,
    "sequence": 256,
    "fix": {"cp": 1, "vp": 1, "zero": 1},
}
SLOW = [{"devices": 4, "bandwidth_bytes_per_s": 1e9}]
STUDY = ChipStudy.parse(
    {
        "models": ["short", "long"],
        "workloads": {"short": TRAINING, "long": {**TRAINING, "sequence": 512}},
        "scenarios": {"near": NETWORK},
        "compared": [BUILT],
        "templates": [],
        "ladder": [
            {"name": "slow", "note": "a slow network", "changes": {**TRAINING, **NETWORK, "levels": SLOW}},
            {"name": "near", "note": "the network of the study", "changes": {"levels": NETWORK["levels"]}},
        ],
    },
    "chips",
)


def model(name: str) -> dict[str, object]:
    """Return the spec of a GPT-2 of three layers."""
    spec = load_transformer("gpt2", "test").model_copy(update={"layers": 3, "name": name})
    return spec.model_dump(mode="json")


def point(name: str) -> ChipPoint:
    return STUDY.points[name]


@pytest.fixture(scope="module", name="folder")
def folder_of_searches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of all searches, and of the plans on the chip as built."""
    folder = tmp_path_factory.mktemp("searches")
    for name in STUDY.points:
        plan, bounds = searched(point(name), name, model(STUDY.model_of(name)))
        write_document(plan, folder / f"{name}.json")
        ChipBounds.save(bounds, folder / f"{name}.parquet")
        built = on_other_chip(Searched(name, point(name), plan, bounds), BUILT, nearest=False)
        write_document(built, folder / f"{name}.built.json")
    return folder


def stored(folder: Path, name: str) -> Searched:
    """Return a search as the joining job reads it."""
    return Searched(
        search=name,
        point=point(name),
        plan=read_as(TrainingPlan, folder / f"{name}.json"),
        bounds=ChipBounds.load(folder / f"{name}.parquet"),
        others=(read_as(ChipForModels, folder / f"{name}.built.json"),),
    )


@pytest.fixture(scope="module", name="choice")
def choice_from_files(folder: Path) -> ChipChoice:
    return choice_of([stored(folder, f"near.{name}") for name in STUDY.models])


@pytest.fixture(scope="module", name="inputs")
def inputs_of_the_page(folder: Path, choice: ChipChoice) -> ChipInputs:
    steps = [
        LadderStep(stored(folder, name).plan, stored(folder, name).others[0]) for name in STUDY.steps.values()
    ]
    bounds = {f"near.{name}": stored(folder, f"near.{name}").bounds for name in STUDY.models}
    return ChipInputs(STUDY, {"near": choice}, bounds, steps)


def test_a_step_with_the_settings_of_another_search_is_not_searched_again() -> None:
    assert STUDY.steps == {"slow": "ladder.slow", "near": "near.short"}
    assert set(STUDY.points) == {"near.short", "near.long", "ladder.slow"}


@pytest.mark.slow
def test_the_choice_from_files_is_that_of_one_process(choice: ChipChoice) -> None:
    """Searches that are stored and read again lead to the same chip, plans and bounds."""
    designs = ChipSpace.of(point("near.short"), "near.short")
    names = [f"near.{name}" for name in STUDY.models]
    requests = tuple(designs.request(point(name), model(STUDY.model_of(name))) for name in names)
    chooser = ChipChooser(requests, 0.01, TimeLimit(), goal_of(point(names[0])))
    assert choice.chosen == chooser.row(chooser.chosen, "all")
    assert choice.bounds == chooser.bounds
    assert choice.gap == pytest.approx(chooser.largest_gain)
    (built,) = (row for row in choice.others if row.role == "built")
    assert built == chooser.outside(load_architecture(BUILT), "built")


@pytest.mark.slow
def test_no_chip_of_the_space_is_faster_than_the_stored_bounds(folder: Path) -> None:
    for name in STUDY.points:
        search = stored(folder, name)
        best_s = search.plan.by(search.plan.question.rank)
        assert search.bounds["bound_s"].min() >= best_s * (1 - search.point.gap - 1e-9)
        assert best_s * (1 - search.point.gap) <= search.bounds["step_s"].min() <= best_s * (1 + 1e-9)


@pytest.mark.slow
def test_the_page_names_the_chip_and_the_gain_of_every_step(inputs: ChipInputs) -> None:
    report = build_chip_report(inputs)
    assert not report.failures
    chip = inputs.choices["near"].chosen.chip
    assert f"near: Build {chip.name}: {chip.num_tc} tensor cores" in report.answer.sentence
    gains = inputs.ladder.set_index("name")["gain"]
    for name, step in zip(STUDY.steps, inputs.steps, strict=True):
        (on_built,) = step.built.plans
        assert on_built.plan is not None
        rank = step.plan.question.rank
        assert gains[name] == pytest.approx(on_built.plan.by(rank) / step.plan.by(rank))
    anchors = {"ladder", "searches", "checks", "front-near", "sizes-near", "proof-near"}
    assert {section.anchor for section in report.sections} >= anchors


@pytest.mark.slow
def test_the_chosen_chip_has_the_least_mean_of_the_compared_ones(inputs: ChipInputs) -> None:
    rows = inputs.chosen[inputs.chosen["role"] != "built"]
    means = {role: exp(group["times_best"].map(log).mean()) for role, group in rows.groupby("role")}
    assert means["all"] == min(means.values())


@pytest.mark.slow
def test_a_wrong_choice_fails_its_checks(inputs: ChipInputs) -> None:
    """Each change breaks one law that the checks state."""
    choice = inputs.choices["near"]
    bound = choice.bounds[0].model_copy(update={"bound": choice.bounds[0].bound / 2})
    open_gap = choice.model_copy(update={"bounds": (bound, *choice.bounds[1:])})
    plan = choice.chosen.plans[0].model_copy(update={"bound_s": 2 * choice.bounds[0].score})
    chosen = choice.chosen.model_copy(update={"plans": (plan, *choice.chosen.plans[1:])})
    beaten = choice.model_copy(update={"chosen": chosen})
    missing = choice.model_copy(update={"bounds": choice.bounds[:1]})
    for spoilt, words in ((open_gap, "closed its gap"), (beaten, "than the bound"), (missing, "its search")):
        (check,) = (check for sentence, check in CHECKS.items() if words in sentence)
        assert not all(holds for holds, _ in check(replace(inputs, choices={"near": spoilt}))), words
        assert all(holds for holds, _ in check(inputs)), words


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ["wide"]}, r"chips\.models: 'wide' is not among chips\.workloads"),
        ({"scenarios": {}}, r"chips\.scenarios: at least one is needed"),
        ({"scenarios": {"ladder": NETWORK}}, r"'ladder' is reserved"),
        ({"compared": []}, r"chips\.ladder: needs an architecture in chips\.compared"),
        ({"scenarios": {"near": {"designs": {"named": ["tpu-v4"]}}}}, r"designs: needs a grid"),
        (
            {"ladder": [{"name": "a", "note": "b", "changes": {"model": "gpt2", "devises": 4}}]},
            r"chips\.ladder\.a\.changes: devises: is not a known key",
        ),
        ({"ladder": [{"name": "a", "note": "b"}]}, r"chips\.ladder\.a\.changes: model: "),
    ],
)
def test_a_mistake_is_one_clear_message(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        ChipStudy.parse(STUDY.model_dump(mode="json") | changes, "study.yaml: chips")


def test_an_area_limit_without_designs_is_refused() -> None:
    few = point("near.short").model_copy(
        update={"designs": point("near.short").designs.model_copy(update={"area_limit_mm2": 1.0})}
    )
    with pytest.raises(PhazeError, match=r"chips: near\.short: designs\.area_limit_mm2: 1\.0 leaves 0 "):
        ChipSpace.of(few, "near.short")
