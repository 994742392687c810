"""Speed of the search over layouts; measured with `pytest tests/benchmarks --benchmark-enable`.

Without measuring, cases have fewer devices, and only the first layout of the newest published table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import process_time
from typing import Any

import pytest

from phaze.plan.bounds.layouts import bound_layouts
from phaze.plan.machines import load_machine
from phaze.plan.question import PlanQuestion
from phaze.plan.search.search import LayoutPlanner, LayoutSearch
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.runtimes.space import legal_space
from phaze.spec.models import load_transformer
from tests.unit.plan.search.published import published_layouts

Benchmark = Callable[..., Any]
SIZES = {"llama-3.1-8b": (64, 128), "llama-3.1-70b": (1024, 1024), "llama-3.1-405b": (16384, 2048)}
"""Devices and global batch in samples."""
FEW = 8
SEQUENCE = 8192


def question_of(model: str, devices: int, batch: int) -> PlanQuestion:
    """Return the question for a Llama on H100."""
    task = TrainingTask(load_transformer(model, "benchmark"), SEQUENCE, batch, devices)
    return PlanQuestion(task, load_machine("h100", stack="megatron-core-2024", devices=devices), MEGATRON)


@dataclass
class Clock:
    """Processor seconds until the first plan was found."""

    started_s: float = field(default_factory=process_time)
    first_s: float = 0.0

    def __call__(self, _: LayoutSearch) -> None:
        self.first_s = self.first_s or process_time() - self.started_s


def sized(benchmark: Any, model: str) -> PlanQuestion:
    """Return the planning question of a model: few layers on few devices unless measured."""
    if benchmark.enabled:
        return question_of(model, *SIZES[model])
    small = question_of("llama-3.1-8b", FEW, FEW)
    model_ = small.task.model.model_copy(update={"layers": 4})
    return PlanQuestion(TrainingTask(model_, SEQUENCE, FEW, FEW), small.machine, MEGATRON)


@pytest.mark.slow
@pytest.mark.parametrize("model", SIZES)
def test_bounds_of_all_layouts(model: str, benchmark: Benchmark) -> None:
    question = sized(benchmark, model)
    grid = legal_space(question.runtime, question.task).grid
    bounds = bound_layouts(question, grid)  # compiled, and kernels known
    found = benchmark(bound_layouts, question, grid)
    assert (found.time_s == bounds.time_s).all()
    if benchmark.enabled:  # type: ignore[attr-defined]
        seconds = benchmark.stats.stats.min  # type: ignore[attr-defined]
        benchmark.extra_info.update(layouts=len(grid), layouts_per_s=len(grid) / seconds)  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("model", SIZES)
def test_plan_with_certificate(model: str, benchmark: Benchmark) -> None:
    """Time from the question on, without cached kernel times; with compiled code."""
    LayoutPlanner(fixed={"tp": 1, "cp": 1})(sized(benchmark, "llama-3.1-8b"))
    clocks: list[Clock] = []

    def plan() -> float:
        clocks.append(Clock())
        return LayoutPlanner(on_better=clocks[-1])(sized(benchmark, model)).certificate.gap

    gap = benchmark.pedantic(plan, rounds=1)  # type: ignore[attr-defined]
    benchmark.extra_info.update(first_plan_s=clocks[-1].first_s, gap=gap)  # type: ignore[attr-defined]
    assert 0 <= gap < 1
    assert clocks[-1].first_s > 0


@pytest.mark.slow
def test_published_layouts_beside_plans(benchmark: Benchmark) -> None:
    """Plan 1 is at most as slow as the published layout; ratios are in `extra_info`."""
    every = list(published_layouts())
    rows = every if benchmark.enabled else [one for one in every if one.row.runs[0].gpus == 48]  # type: ignore[attr-defined]

    def ratios() -> dict[str, float]:
        found = {}
        for one in rows:
            question = one.question
            best_s = LayoutPlanner(number=1)(question).plans[0].time_s
            found[f"{one.source} {one.label}"] = one.fastest(question)[1] / best_s
        return found

    found = benchmark.pedantic(ratios, rounds=1)  # type: ignore[attr-defined]
    benchmark.extra_info.update(published_over_planned=found)  # type: ignore[attr-defined]
    assert min(found.values()) >= 1
