"""Rules that a runtime has for layouts, each with the reason that it gives, and those that all share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from phaze.base.arrays import Bools, Ints
from phaze.layout import Layout, Recompute, Zero
from phaze.runtimes.grid import LayoutGrid
from phaze.spec.model import Model
from phaze.spec.training_plan import AskedPlan

ENDS = 2
"""Entries of a pipeline beside the layers: the embedding, and the head with its loss."""
PIPELINED = ("interleaved", "gpipe", "zb-h1")
"""Schedules that need a pipeline; without one all of them are 1f1b."""


@dataclass(frozen=True)
class TrainingTask:
    """A model to be trained, with the samples of a batch, on so many devices."""

    model: Model
    sequence: int
    """Tokens of a sample."""
    global_batch: int
    """Samples of a batch, on all devices."""
    devices: int

    @classmethod
    def of(cls, asked: AskedPlan) -> Self:
        """Training that a question is about."""
        return cls(asked.model, asked.sequence, asked.global_batch, asked.devices)


@dataclass(frozen=True)
class Rule:
    """A condition that every layout must meet, by name."""

    name: str
    reason: str
    """What is allowed and what was given, with fields of `values_of` in braces."""
    columns: tuple[str, ...]
    """Columns of the grid that it looks at."""
    broken: Callable[[TrainingTask, LayoutGrid], Bools]
    """Layouts that do not meet it, (N,)."""


@dataclass(frozen=True)
class Runtime:
    """Software that trains models: what its layouts may say, and its rules for them."""

    name: str
    version: str
    """Version whose rules these are."""
    schedules: tuple[str, ...]
    zeros: tuple[Zero, ...]
    recomputes: tuple[Recompute, ...]
    sequence_parallel: tuple[bool, ...]
    rules: tuple[Rule, ...]

    def illegal(self, task: TrainingTask, grid: LayoutGrid) -> dict[str, Bools]:
        """Layouts that break each rule, (N,) by the rule's name; a layout may break several."""
        return {rule.name: rule.broken(task, grid) for rule in self.rules}

    def why_not(self, task: TrainingTask, layout: Layout, schedule: str) -> str | None:
        """The first reason why the runtime cannot run a layout, with its values; None where it can."""
        found = self._unknown(task, layout, schedule)
        if found is not None:
            return f"{self.name}: {found}"
        grid = LayoutGrid.of([(layout, schedule)], self.schedules, self.recomputes)
        broken = next((rule for rule in self.rules if rule.broken(task, grid)[0]), None)
        if broken is None:
            return None
        return f"{self.name}: {broken.reason.format(**values_of(task, layout, schedule))}"

    def _unknown(self, task: TrainingTask, layout: Layout, schedule: str) -> str | None:
        """What a layout says that the runtime has no word for, or that is no layout of so many devices."""
        allowed: dict[str, tuple[object, tuple[object, ...]]] = {
            "schedule": (schedule, self.schedules),
            "zero": (layout.zero, self.zeros),
            "recompute": (layout.recompute, self.recomputes),
            "ep": (layout.ep, (1,)),
            "etp": (layout.etp, (1,)),
        }
        for name, (value, words) in allowed.items():
            if value not in words:
                return f"{name} must be one of {', '.join(map(str, words))}, got {value}"
        if layout.devices != task.devices:
            return f"tp * cp * pp * dp must be the {task.devices} devices, got {layout.devices}"
        return None


def values_of(task: TrainingTask, layout: Layout, schedule: str) -> dict[str, int | str]:
    """Values that a reason may name: fields of the layout, sizes of the model, and what follows from both."""
    model = task.model
    return {
        **{name: getattr(layout, name) for name in ("tp", "cp", "pp", "vp", "dp", "microbatch", "zero")},
        "sequence_parallel": str(layout.sequence_parallel).lower(),
        "schedule": schedule,
        "recompute": layout.recompute,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "kv_width": model.kv_width,
        "feed_forward": model.feed_forward,
        "layers": model.layers,
        "most_stages": model.layers + ENDS,
        "stages": layout.stages,
        "sequence": task.sequence,
        "global_batch": task.global_batch,
        "samples": layout.microbatch * layout.dp,
        "microbatches": layout.microbatches(task.global_batch),
    }


def leaves_rest(number: int | Ints, by: Ints) -> Bools:
    """Places where a number is no multiple of another, (N,)."""
    rest: Bools = np.mod(number, by) != 0
    return rest


def _virtual_stages(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return (grid.vp > 1) ^ grid.under("interleaved")


def _pipeline(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return grid.under(*PIPELINED) & (grid.pp < 2)


def _heads(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(task.model.heads, grid.tp)


def _feed_forward(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(task.model.feed_forward, grid.tp)


def _batch(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return leaves_rest(task.global_batch, grid.microbatch * grid.dp)


def _stages(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return grid.stages > task.model.layers + ENDS


def _sequence_parallel(_: TrainingTask, grid: LayoutGrid) -> Bools:
    return grid.sequence_parallel & (grid.tp < 2)


def _whole_groups(task: TrainingTask, grid: LayoutGrid) -> Bools:
    return grid.under("interleaved") & leaves_rest(grid.microbatches(task.global_batch), grid.pp)


VIRTUAL_STAGES = Rule(
    "virtual stages",
    "vp must be >= 2 under interleaved and 1 otherwise, got {vp} under {schedule}",
    ("schedule", "vp"),
    _virtual_stages,
)
PIPELINE = Rule(
    "pipeline", "{schedule} needs a pipeline, pp must be >= 2, got {pp}", ("schedule", "pp"), _pipeline
)
HEADS = Rule("heads", "heads {heads} must be a multiple of tp, got {tp}", ("tp",), _heads)
FEED_FORWARD = Rule(
    "feed-forward",
    "the feed-forward width {feed_forward} must be a multiple of tp, got {tp}",
    ("tp",),
    _feed_forward,
)
BATCH = Rule(
    "batch",
    "microbatch * dp must divide the global batch {global_batch}, got {samples}",
    ("microbatch", "dp"),
    _batch,
)
STAGES = Rule(
    "stages",
    "pp * vp must be at most {most_stages}, the {layers} layers, embedding and head, as no stage may be "
    "empty, got {stages}",
    ("pp", "vp"),
    _stages,
)
SEQUENCE_PARALLEL = Rule(
    "sequence parallel",
    "sequence_parallel cuts what tp leaves whole, tp must be >= 2, got {tp}",
    ("sequence_parallel", "tp"),
    _sequence_parallel,
)
WHOLE_GROUPS = Rule(
    "whole groups",
    "microbatches of a replica must be a multiple of pp {pp} under interleaved, got {microbatches}",
    ("schedule", "pp", "dp", "microbatch"),
    _whole_groups,
)
