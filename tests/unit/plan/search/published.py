"""Layouts of published runs, priced like the plans of the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from phaze.layout import Layout
from phaze.plan.machines import load_machine
from phaze.plan.pricing.price import price
from phaze.plan.pricing.runs import Run
from phaze.plan.question import PlanQuestion
from phaze.plan.splits.split import Split
from phaze.runtimes.megatron import MEGATRON
from phaze.runtimes.rules import TrainingTask
from phaze.spec.systems import load_stack
from phaze.validate.rows import RunRow, read_rows
from phaze.validate.scoreboard import MEASURED

SOURCES = ("megatron-sc21", "korthikanti-mlsys23", "megatron-lm-h100-2024")


@dataclass(frozen=True)
class PublishedLayout:
    """Row of a published table; open fields take the values predicted as the fastest."""

    source: str
    label: str
    row: RunRow

    @property
    def question(self) -> PlanQuestion:
        """Question for the search with the same model, devices, batch, sequence and stack."""
        run = self.row.runs[0]
        model = run.model.model_copy(update={"vocabulary": run.vocab})
        task = TrainingTask(model, run.seq, run.global_batch, run.gpus)
        machine = load_machine(self.row.system, devices=run.gpus)
        return PlanQuestion(task, replace(machine, stack=load_stack(self.row.stack)), MEGATRON)

    def fastest(self, question: PlanQuestion) -> tuple[Layout, float]:
        """Published layout and its step time; infinite if it does not fit."""
        found = [(run.layout, _time_s(run, question)) for run in self.row.runs if _is_possible(run)]
        return min(found, key=lambda one: one[1])


def _is_possible(run: Run) -> bool:
    layout = run.layout
    whole = run.global_batch % (layout.microbatch * layout.dp) == 0
    return whole and MEGATRON.why_not(_task(run), layout, run.schedule) is None


def _task(run: Run) -> TrainingTask:
    return TrainingTask(run.model, run.seq, run.global_batch, run.gpus)


def _time_s(run: Run, question: PlanQuestion) -> float:
    ends = [0, *(cut.stop - 1 for cut in run.cuts[:-1]), run.layers]
    blocks = tuple(end - start for start, end in pairwise(ends))
    again = blocks if run.layout.recompute == "full" else (0,) * len(blocks)
    plan = question.staged(run.layout, run.schedule).plan(Split(blocks, again))
    found = price(plan, question.machine)
    return found.time_s if (found.peak_bytes <= question.limit_bytes(run.layout)).all() else inf


def published_layouts() -> Iterator[PublishedLayout]:
    """Yield every row of the tables."""
    for source in SOURCES:
        table, rows = read_rows(MEASURED / f"{source}.csv")
        for label, row in zip(table["label"], rows, strict=True):
            yield PublishedLayout(source, str(label), row)
