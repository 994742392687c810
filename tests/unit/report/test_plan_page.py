"""The page of a plan has every part of the answer, in the terminal's words, in one small file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from phaze.__main__ import app
from phaze.commands.plan import settings_for
from phaze.pages.document import Chart, Items, Listing, Prose, Sheet
from phaze.pages.page import Report
from phaze.pages.vega import spec_of
from phaze.plan.answer.what_if import changed_machines, changed_resources
from phaze.plan.answer.words import predicted
from phaze.plan.machines import device_of
from phaze.report import plan_figures
from phaze.report import plan_page as subject
from phaze.report.near_best import as_plan
from phaze.report.plan_figures import ranges
from phaze.report.plan_page import front_of, plan_page
from phaze.spec.documents import read_as
from phaze.spec.training_plan import ChipOutcome, TrainingPlan
from tests.commands import invoke

FLAGS = ({"flags.txt": "--tensor-model-parallel-size 1\n"}, ["set these yourself: pp 2"])


@pytest.fixture(scope="module")
def plans(model: str, tmp_path_factory: pytest.TempPathFactory) -> list[TrainingPlan]:
    """Plans of a small model on 8 and 16 devices, with a training run."""
    folder = tmp_path_factory.mktemp("plans")
    found = []
    for devices in (8, 16):
        out = folder / f"{devices}.json"
        given = ("--gpus", f"{devices}xH100", "--global-batch", "16", "--fix", "pp=2", "--tokens", "1e9")
        result = invoke("plan", model, *given, "-o", out)
        assert result.exit_code == 0, result.output
        found.append(read_as(TrainingPlan, out))
    return found


@pytest.fixture(scope="module")
def report(plans: list[TrainingPlan]) -> Report:
    return plan_page(plans, lambda _: FLAGS)


def blocks(report: Report, anchor: str) -> Iterator[object]:
    yield from next(section.blocks for section in report.sections if section.anchor == anchor)


@pytest.mark.slow
def test_the_page_has_every_part_of_the_answer_in_order(report: Report) -> None:
    assert [section.anchor for section in report.sections] == [
        "near-best", "time-by-part", "memory-by-rank", "pipeline", "expected-prudent", "evidence", "rivals",
        "sizes", "resources", "flags", "assumptions",
    ]  # fmt: skip
    assert report.answer.sheet.filtered
    assert report.answer.unfolded


def test_the_page_opens_with_the_flags_and_the_near_best_layouts(report: Report) -> None:
    assert [listing.text for listing in report.answer.listings] == [FLAGS[0]["flags.txt"]]
    chart, *listings = blocks(report, "near-best")
    assert isinstance(chart, Chart)
    assert report.answer.figures[0] == chart.name
    (rows,) = chart.draw().to_dict()["datasets"].values()
    anchors = [listing.anchor for listing in listings if isinstance(listing, Listing)]
    assert [row["at"] for row in rows] == [f"#{anchor}" for anchor in anchors]
    assert all(f'id="{anchor}"' in report.page for anchor in anchors)
    assert len(anchors) == len(report.answer.sheet.rows)


def test_rows_of_the_ranked_table_are_plans_of_their_own(plans: list[TrainingPlan]) -> None:
    """Stages and parts of a row have the time that the row says."""
    for plan in plans:
        for row in plan.alternatives:
            planned = as_plan(plan, row)
            assert planned is not None
            assert planned.layout == row.layout
            assert sum(stage.layers for stage in planned.stages) == plan.question.model.layers
            assert sum(planned.times_s.values()) == pytest.approx(row.time_s, rel=1e-6)


def test_the_page_begins_with_the_caveat_and_the_recommendation(
    report: Report, plans: list[TrainingPlan]
) -> None:
    plan = min(plans, key=lambda one: one.run.days if one.run else 0.0)
    assert plan.uncalibrated is not None
    assert report.answer.sentence.startswith(plan.uncalibrated)
    assert predicted(plan, plan.question.calibrated) in report.answer.sentence
    assert len(report.answer.sheet.rows) == len(plan.alternatives)


def test_the_page_is_one_small_file_that_asks_for_nothing(report: Report) -> None:
    assert len(report.page.encode()) < 1.5e6
    assert report.page.count("<script>") == 2
    assert "unsafe-eval" not in report.page
    specs = re.findall(r'<script type="application/json">(.*?)</script>', report.page, re.S)
    assert len(specs) == len([one for one in report.drawn.values() if not one.only]) > 5
    assert all(json.loads(spec)["width"] == "container" for spec in specs)
    without = re.sub(r"<script>.*?</script>", "", report.page, flags=re.S)
    assert not re.search(r"https?://", without)


def test_plans_without_measured_runs_have_no_interval(plans: list[TrainingPlan]) -> None:
    (points,) = ranges(plans[0].alternatives).to_dict()["layer"]
    assert points["encoding"]["x"]["field"] == "s"
    measured = plans[0].model_copy(update={"time_s_low": 1.0, "time_s_high": 2.0})
    assert len(ranges([measured]).to_dict()["layer"]) == 2


def test_the_flags_can_be_copied_with_what_they_cannot_express(report: Report) -> None:
    listing, note = blocks(report, "flags")
    assert isinstance(listing, Listing)
    assert (listing.caption, listing.text) == ("flags.txt", FLAGS[0]["flags.txt"])
    assert "set these yourself: pp 2" in str(note)
    assert "```\n--tensor-model-parallel-size 1" in report.markdown


def test_ten_percent_more_is_replanned_within_its_budget(
    plans: list[TrainingPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = subject.PlanPage(plans[0], plans[:1], FLAGS)
    assert all(one.replanned for one in page.what_ifs)
    own_s = plans[0].by("prudent")
    assert all(one.time_s <= own_s * (1 + 1e-9) for one in page.what_ifs)
    for passes, number in ((0, 0), (1, 1)):  # whatever the speed of the machine
        monkeypatch.setattr(subject, "REPLANNED_PASSES", passes)
        kept = subject.PlanPage(plans[0], plans[:1], FLAGS).what_ifs
        assert [one.change for one in kept] == [one.change for one in page.what_ifs]
        assert sum(one.replanned for one in kept) == number


def test_changes_of_a_resource_are_answered_by_the_fastest_ranked_layout(plans: list[TrainingPlan]) -> None:
    page = subject.PlanPage(plans[0], plans[:1], FLAGS)
    table = page.changed
    step_s, resources = plans[0].by("prudent"), table["resource"].nunique()
    assert {*table["percent"]} == {-20, -10, 0, 10, 20}
    assert len(table) == 5 * resources
    for _, rows in table.sort_values("percent").groupby("resource"):
        times_s = rows["time_s"].tolist()
        assert times_s[2] == step_s
        assert (np.diff(times_s) <= 1e-9 * step_s).all()  # more of a resource is never slower
    clock = table[(table["resource"] == "clock") & (table["percent"] == 20)]["time_s"].item()
    assert step_s / 1.2 <= clock <= step_s * (1 + 1e-12)  # the host may limit the step
    assert table["time_s"].nunique() > 1
    # a brute-force count over the same layouts
    first, *_ = page.ranked_layouts
    (name, machine), *_ = ((n, m) for n, m in changed_machines(first.question, 0.9) if n == "clock")
    changed = replace(first.question, machine=machine)
    times = [layout.priced_for(changed) for layout in page.ranked_layouts]
    least_s = min(layout.price.time_s for layout in times if layout.lacking_gib <= 0)
    slower = table[(table["resource"] == name) & (table["percent"] == -10)]["time_s"].item()
    assert slower == least_s


def test_a_change_without_a_fitting_layout_has_a_label_and_no_time(plans: list[TrainingPlan]) -> None:
    first, *_ = subject.PlanPage(plans[0], plans[:1], FLAGS).ranked_layouts
    small = replace(first.question, machine=first.question.machine.with_device(
        device_of(first.question.machine).model_copy(update={"hbm_gib": 1.0})
    ))  # fmt: skip
    rows = pd.DataFrame([*changed_resources([first.priced_for(small)])])
    assert np.isinf(rows["time_s"]).all()
    assert (rows["place"] == 0).all()
    table = rows.assign(percent=(100 * rows["change"]).round().astype(int), plan="plan 0")
    drawn = spec_of(plan_figures.changed(table, 1.0))
    (data,) = (data for data in drawn["datasets"].values() if "label" in data[0])
    assert {row["label"] for row in data} == {"none of these layouts fits"}
    assert {row["saved"] for row in data} == {0.0}


def test_a_number_of_devices_that_is_worse_in_all_is_not_on_the_front(plans: list[TrainingPlan]) -> None:
    few, many = plans
    assert few.run is not None
    for times, fronts in ((2.0, [True, False]), (0.6, [True, True])):
        run = few.run.model_copy(update={"days": times * few.run.days})
        other = many.model_copy(update={"run": run, "time_s": times * few.time_s})
        assert front_of([few, other])["front"].tolist() == fronts


def test_a_page_names_the_number_of_devices_where_several_are_best(plans: list[TrainingPlan]) -> None:
    marked = {"is_the": ("cheapest",)}
    best = [one.model_copy(update={"run": one.run and one.run.model_copy(update=marked)}) for one in plans]
    said = "This page is about 8 devices"
    assert said in subject.PlanPage(best[0], best, FLAGS).answer().sentence
    assert said not in subject.PlanPage(best[0], [best[0], plans[1]], FLAGS).answer().sentence


def test_a_runtime_without_settings_says_so_instead_of_showing_flags(plans: list[TrainingPlan]) -> None:
    asked = plans[0].question.model_copy(update={"runtime": "maxtext"})
    plan = plans[0].model_copy(update={"question": asked})
    (section,) = subject.PlanPage(plan, [plan], settings_for(plan, None)).flags()
    assert section.title == "Flags"
    (only,) = section.blocks
    assert isinstance(only, Prose)
    assert only.text.startswith("settings: plans for maxtext cannot be written; its configuration needs ")


def test_chips_to_choose_from_have_a_table_with_the_best_one_marked(plans: list[TrainingPlan]) -> None:
    chips = (
        ChipOutcome(chip="wide", area_mm2=230.5, bound_s=1.0, time_s=1.01, outcome="best"),
        ChipOutcome(chip="narrow", bound_s=2.0, outcome="excluded"),
    )
    page = plan_page([plans[0].model_copy(update={"chips": chips})], lambda _: FLAGS)
    (sheet,) = blocks(page, "chips")
    assert isinstance(sheet, Sheet)
    assert sheet.header == ("chip", "outcome", "area", "step", "bound")
    assert sheet.rows[0] == ("wide", "the best", "230.5 mm²", "1.01 s", "1 s")
    assert sheet.rows[1] == ("narrow", "excluded by its bound", "", "", "2 s")
    assert sheet.marked == {0}
    assert "chips" not in [section.anchor for section in plan_page(plans, lambda _: FLAGS).sections]


def test_one_number_of_devices_has_no_front(plans: list[TrainingPlan]) -> None:
    page = plan_page(plans[:1], lambda _: FLAGS)
    assert "sizes" not in {section.anchor for section in page.sections}
    (sheet,) = (one for one in blocks(page, "resources") if isinstance(one, Sheet))
    assert len(sheet.rows) >= 4
    assert any(isinstance(one, Items) for one in blocks(page, "rivals"))


@cache
def refused(*options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", "llama-3.1-8b", "--gpus", "8xH100", *options])
    return result.exit_code, result.stderr if result.stderr else str(result.exception)


def test_a_page_that_cannot_be_written_is_refused_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    names = {"folder.html": "folder", "missing/page.html": "missing", "page.pdf": "must end in .html"}
    for name, said in names.items():
        path = tmp_path / name
        _, text = refused("--page", str(path))
        assert said in text
        assert "first plan" not in text
        assert not path.is_file()
