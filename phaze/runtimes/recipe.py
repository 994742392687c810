"""Recipe of a training run: model, batch, layout, schedule and pipeline split."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Self

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.layout import Layout
from phaze.pipeline.schedules.interleaved import least_group
from phaze.runtimes.layout_string import equal_counts
from phaze.runtimes.rules import RecomputedCounts, Runtime, TrainingTask
from phaze.spec.model import Model
from phaze.spec.pattern import pattern_of, words_of
from phaze.spec.training_plan import TrainingPlan

NAMELESS = ("name", "hyper_operators", "untimed", "key_value_heads", "head_size", "embedding_width")
"""Model fields that do not distinguish runs; derived fields replace the last three in comparisons."""

REMARKED = (
    *(f"model.{where}_dropout" for where in ("residual", "attention", "embedding")),
    "model.position_count",
    "model.scaled_rotary",
)
"""Fields that may differ between run and plan; both are then priced with the plan's value."""


@dataclass(frozen=True)
class Recipe:
    """Training run: model, batch, layout, and blocks per virtual stage in data-flow order.

    The embedding is on the first stage; the head and the loss are on the last stage.
    """

    model: Model
    sequence: int
    """Tokens per sample."""
    global_batch: int
    layout: Layout
    schedule: str
    blocks: tuple[int, ...]
    """Blocks per virtual stage, (pp · vp,), ending with the layers of multi-token prediction."""
    recomputed: tuple[int, ...]
    """Fully recomputed blocks per virtual stage, (pp · vp,); zeros unless the layout recomputes in full."""

    @classmethod
    def of(cls, plan: TrainingPlan) -> Self:
        """Build the recipe of a training plan."""
        question, layout = plan.question, plan.layout
        blocks = tuple(stage.layers for stage in plan.stages)
        recomputed = tuple(stage.recomputed for stage in plan.stages)
        sizes = question.sequence, question.global_batch
        return cls(question.model, *sizes, layout.spread, layout.schedule, blocks, recomputed)

    @property
    def task(self) -> TrainingTask:
        """Training task to which the runtime's rules apply."""
        sizes = self.sequence, self.global_batch, self.layout.devices
        return TrainingTask(self.model, *sizes, compute=self.layout.compute, load=self.layout.load)

    @property
    def microbatch_group(self) -> int:
        """Number of consecutive microbatches that a rank runs in one virtual stage; pp if possible."""
        count, pp = self.layout.microbatches(self.global_batch), self.layout.pp
        return least_group(count, pp) if self.schedule == "interleaved" else pp

    def check(self, runtime: Runtime) -> None:
        """Raise PhazeError if the runtime cannot run the recipe, or its blocks do not match the model."""
        self.model.check_sequence(self.sequence, "recipe")
        refused = runtime.why_not(self.task, self.layout, self.schedule)
        if refused is not None:
            raise PhazeError(refused)
        stages, layers = self.layout.stages, self.model.layers + self.model.mtp
        if len(self.blocks) != stages or sum(self.blocks) != layers or min(self.blocks) < 0:
            raise PhazeError(f"blocks: must be {stages} numbers with sum {layers}, got {shown(self.blocks)}")
        # The ends still have embedding and head; training with an empty stage between them does not end.
        if stages > 1 and 0 in self.blocks[1:-1]:
            raise PhazeError(
                f"blocks: only the first and the last stage may have none, got {shown(self.blocks)}"
            )
        most = self.blocks if self.layout.recompute == "full" else (0,) * stages
        too_many = any(not 0 <= k <= n for k, n in zip(self.recomputed, most, strict=False))
        if len(self.recomputed) != stages or too_many:
            raise PhazeError(f"recomputed: must be at most {shown(most)}, got {shown(self.recomputed)}")
        # A count that the runtime cannot set would be replaced silently when the plan is emitted.
        counts = recomputed_on(runtime.recomputed_counts, self.blocks, self.model.mtp, self.recomputed)
        if self.layout.recompute == "full" and counts != self.recomputed:
            raise PhazeError(
                f"{runtime.name}: recomputed must be the same number on all virtual stages, or all blocks, "
                f"such as {shown(counts)}, got {shown(self.recomputed)}"
            )

    def differences(self, other: Recipe) -> tuple[str, ...]:
        """Fields in which `other`, read back from a runtime's files, differs from this recipe, as text."""
        planned, actual = self._values(), other._values()
        return tuple(
            f"{name}: {shown(actual.get(name))} instead of {shown(planned.get(name))}"
            for name in {**planned, **actual}
            if planned.get(name) != actual.get(name)
        )

    def check_same_task(self, other: Recipe, where: str, names: Mapping[str, str]) -> None:
        """Raise PhazeError if another recipe has a different model, batch or device count.

        `where` names the caller, and `names` maps fields to the caller's names.
        """
        values, planned_values = self._task_values(), other._task_values()
        for name in {**values, **planned_values}:
            # A part that only one of both models has is None in the other.
            value, planned = values.get(name), planned_values.get(name)
            if name not in REMARKED and value != planned:
                raise PhazeError(
                    f"{where}: {names.get(name, name)} must be the plan's, {shown(planned)}, got "
                    f"{shown(value)}"
                )

    def unlike(self, other: Recipe, names: Mapping[str, str]) -> Iterator[str]:
        """Yield remarks on differences in the fields that may differ between two runs of one task."""
        values, planned_values = self._task_values(), other._task_values()
        for name in REMARKED:
            if values[name] != planned_values[name]:
                yield (
                    f"{names.get(name, name)} {values[name]} is compared as if it were the plan's, "
                    f"{planned_values[name]}"
                )

    def _task_values(self) -> dict[str, object]:
        sizes = {"sequence": self.sequence, "global_batch": self.global_batch}
        return {**self._model_values(), **sizes, "devices": self.layout.devices}

    def _model_values(self) -> dict[str, object]:
        """Values of the model fields that distinguish runs; names of nested fields are dotted."""
        model = self.model
        # Models written with and without a pattern are equal if their blocks are.
        usual = f"attention-{'experts' if model.experts else 'dense'}"
        kinds = [kind if model.pattern else usual for kind, count in model.runs for _ in range(count)]
        values = {key: value for key, value in model.model_dump().items() if key not in NAMELESS}
        # Optional fields are compared by the sizes that follow from them.
        values |= {key: getattr(model, key) for key in ("kv_heads", "head_width", "word_width")}
        values["pattern"] = pattern_of(kinds)
        values["position_count"] = model.position_count if model.counts_positions else 0
        values["output_bias"] = model.attention_bias if model.output_bias is None else model.output_bias
        has_dense = any("dense" in words_of(kind) for kind in kinds)
        values["feed_forward_bias"] = model.feed_forward_bias and has_dense
        return dict(flattened(values, "model."))

    def _values(self) -> dict[str, object]:
        layout = {field.name: getattr(self.layout, field.name) for field in fields(Layout)}
        names = ("sequence", "global_batch", "schedule", "blocks", "recomputed")
        return self._model_values() | layout | {name: getattr(self, name) for name in names}


def recomputed_on(
    counts: RecomputedCounts, blocks: tuple[int, ...], mtp: int, recomputed: tuple[int, ...]
) -> tuple[int, ...]:
    """Numbers of recomputed blocks that a runtime allows, on every virtual stage at least those given."""
    if counts == "any" or recomputed == blocks:
        return recomputed
    equal = equal_counts(blocks, mtp, max(1, *recomputed))
    enough = all(needed <= count for needed, count in zip(recomputed, equal, strict=True))
    return equal if counts == "equal" and enough else blocks


def flattened(sections: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of mappings inside mappings, with dotted names."""
    for name, value in sections.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def counts_of(name: str, text: str) -> tuple[int, ...]:
    """Parse numbers as `shown` writes them, such as `2 1*2`; PhazeError if malformed."""
    runs = [re.fullmatch(r"(\d{1,4})(?:\*(\d{1,4}))?", part) for part in text.split()]
    if not runs or None in runs:
        raise PhazeError(
            f"{name}: must be numbers with spaces between them, such as 2 1*2, got {short(text)}"
        )
    return tuple(int(run[1]) for run in runs if run for _ in range(int(run[2] or 1)))


def shown(value: object) -> str:
    """Format a value as text; runs of equal numbers are abbreviated as `number*count`."""
    if not isinstance(value, tuple):
        return str(value)
    runs = [(number, len(list(run))) for number, run in groupby(value)]
    return " ".join(f"{number}*{count}" if count > 1 else str(number) for number, count in runs)
