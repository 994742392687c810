"""`plan` answers in phases: time or Ctrl-C ends the search, and every better plan is in the file at once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from phaze.base import progress
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.search.planned import LayoutPlans
from phaze.spec import documents
from phaze.spec.documents import read_as
from phaze.spec.training_plan import TrainingPlan
from tests.commands import invoke

LONG = ("llama-3.1-70b", "--lora", "16", "--gpus", "8xH100")
"""Planning request that has a plan after seconds, and whose proof takes a minute."""
SHORT = ("gpt2", "--gpus", "8xH100", "--sequence", "1024", "--global-batch", "16")


def stopped(path: Path) -> str | None:
    return read_as(TrainingPlan, path).certificate.stopped


@pytest.mark.slow
def test_a_time_limit_ends_the_search_with_its_answer_and_a_sound_bound(tmp_path: Path) -> None:
    result = invoke("plan", *LONG, "--seconds", "0.001", "-o", path := tmp_path / "plan.json")
    assert result.exit_code == 0, result.output
    words = " ".join(result.stdout.split())
    assert re.search(r"Train with .* The search ended early: its time limit of 0.001 s was reached\.", words)
    plan = read_as(TrainingPlan, path)
    assert plan.certificate.stopped == "its time limit of 0.001 s was reached"
    assert (plan.certificate.bound_s or 0.0) <= plan.prudent_s
    checked = invoke("certify", path)
    assert checked.exit_code == 0, checked.output


@pytest.mark.slow
def test_an_interruption_prints_the_answer_so_far(tmp_path: Path) -> None:
    """Ctrl-C after the first plan; the exit status is that of an interruption."""
    path = tmp_path / "plan.json"
    command = [sys.executable, "-m", "phaze", "plan", *LONG, "-o", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            if line.startswith("plan: better plan") or "of optimal" in line:
                break
        assert stopped(path) == "it had not ended when this plan was found"
        process.send_signal(signal.SIGINT)
        answer = process.stdout.read()
    assert process.returncode == 130
    assert "The search ended early: it was interrupted." in " ".join(answer.split())
    assert stopped(path) == "it was interrupted"


@pytest.mark.slow
def test_every_better_plan_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = list[TrainingPlan]()
    monkeypatch.setattr(documents, "write_document", lambda plan, _path: written.append(plan))
    result = invoke("plan", *SHORT, "-o", tmp_path / "plan.json")
    assert result.exit_code == 0
    times_s = [plan.prudent_s for plan in written]
    assert times_s == sorted(times_s, reverse=True)
    assert len(set(times_s)) > 1
    assert {plan.certificate.stopped for plan in written[:2]} == {"it had not ended when this plan was found"}
    assert written[-1].certificate.stopped is None


def test_standard_output_has_one_answer_if_a_later_phase_changes_the_plan(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """The plan of the first phase, which the last one replaces, is a message of the progress only."""

    def without_first(_planner: TrainingPlanner, plans: LayoutPlans) -> LayoutPlans:
        return replace(plans, plans=plans.plans[1:])

    monkeypatch.setattr(TrainingPlanner, "safest_first", without_first)
    result = invoke(f"plan {model} --system h100 --devices 8 --global-batch 16 --fix pp=1")
    assert result.exit_code == 0
    assert result.stdout.count("Train with") == 1
    assert "plan was found" not in result.stdout


def test_progress_of_all_sizes_is_one_line_that_names_the_size(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    begun, lines = list[str](), list[str]()

    @contextmanager
    def heard(name: str, _say: Callable[[str], None], **_waits: float) -> Iterator[None]:
        begun.append(name)
        yield

    def searched(self: TrainingPlanner, *arguments: object, **options: object) -> object:
        lines.append(progress.doing())
        return search_chips(self, *arguments, **options)  # type: ignore[arg-type]

    search_chips = TrainingPlanner.search_chips
    monkeypatch.setattr(progress, "heard", heard)
    monkeypatch.setattr(TrainingPlanner, "search_chips", searched)
    options = ("--system", "h100", "--devices", "8,16", "--global-batch", "16", "--fix", "pp=1,cp=1,tp=1")
    result = invoke("plan", model, *options)
    assert begun == ["plan"]
    assert [line.partition(", about")[0] for line in lines] == [
        "size 1 of 2, 8 devices, bounding chips and layouts",
        "size 2 of 2, 16 devices",
    ]
    for devices in (8, 16):
        assert f"plan: {devices} devices: first plan after" in result.stderr
