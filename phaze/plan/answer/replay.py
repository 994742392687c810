"""Plan read from a file, priced again from its planning request, layout and stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phaze.base.errors import PhazeError
from phaze.base.printed import short
from phaze.base.units import percent
from phaze.plan.answer.answer import question_of
from phaze.plan.answer.assumptions import versions
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.ranked_table import shape
from phaze.plan.answer.words import cluster_in_words
from phaze.runtimes.layout_string import blocks_of, layout_string
from phaze.runtimes.recipe import Recipe
from phaze.spec.plain import Plain
from phaze.spec.training_plan import RankedPlan, TrainingPlan

CLOSE = 1e-9
"""Relative tolerance within which two figures count as equal."""
SEARCHED = ("time_s_low", "time_s_high", "layout", "twins")
"""Fields of a row that do not follow from its layout: they are published runs, or the search's choice."""


@dataclass(frozen=True, eq=False)
class ReplayedPlan:
    """Plan read from a file, with its price under the current phaze and system."""

    planned: TrainingPlan
    now: PricedLayout

    @classmethod
    def of(cls, planned: TrainingPlan, where: str = "plan") -> ReplayedPlan:
        """Check and re-price a plan read from file `where`; PhazeError, naming the file, if it is invalid.

        A plan is invalid if its runtime cannot run it, its stages do not add up to the model, or it differs
        from what `plan` wrote.
        """
        try:
            recipe, question = Recipe.of(planned), question_of(planned.question)
            recipe.check(question.runtime)
            _check_agreement(planned)
            for index, row in enumerate(planned.alternatives):
                refused = question.runtime.why_not(question.task, row.layout.spread, row.layout.schedule)
                if refused is not None:
                    raise PhazeError(f"alternatives.{index}.layout: {refused}")
            replayed = cls(planned, PricedLayout.of_recipe(question, recipe))
            # Other versions of the prices may differ: then the difference is reported, and is no error.
            if replayed.of_this_version:
                replayed.check_prices()
            _check_bound(planned)
        except PhazeError as error:
            lines = [line.removeprefix(f"{where}: ") for line in str(error).splitlines()]
            raise PhazeError("\n".join(f"{where}: {line}" for line in lines)) from error
        return replayed

    @property
    def of_this_version(self) -> bool:
        """True if the file was written with the current pricing code and machine."""
        prices = versions(self.now.question)["prices"]
        return self.planned.versions.get("prices") == prices

    @property
    def same(self) -> bool:
        """True if step time and memory are the same as in the file."""
        now = self.now.price.time_s, *(rank.peak_gib for rank in self.now.memory)
        then = self.planned.time_s, *self.planned.memory_gib
        return all(_is_close(*pair) for pair in zip(now, then, strict=True))

    @property
    def figures(self) -> str:
        """Sentence that compares time and memory in the file with the current values."""
        then, now = self.planned, self.now
        fullest_gib = max(rank.peak_gib for rank in now.memory)
        return (
            f"the file says {then.time_s:.5g} s and {then.fullest_gib:.4g} GiB of tensors, now it takes "
            f"{now.price.time_s:.5g} s and {fullest_gib:.4g} GiB: phaze, the system or its stack has changed"
        )

    def check_prices(self) -> None:
        """Raise PhazeError, naming field and values, if anything that follows from the layout differs."""
        prudent = self.now.priced_for(self.now.question.prudent)
        recomputed = self.now.row(prudent_s=prudent.price.time_s).model_dump(mode="json", exclude={*SEARCHED})
        for name, parts in (("stages", self.now.stages), ("memory", self.now.memory)):
            recomputed[name] = [part.model_dump(mode="json") for part in parts]
        recomputed["times_s"] = self.now.parts_s
        stored = self.planned.model_dump(mode="json", exclude_none=True)  # older files lack some fields
        for field in (name for name in recomputed if name in stored):
            for name, value, stored_value in _differences(recomputed[field], stored[field], field):
                raise PhazeError(
                    f"{name}: must be that of its layout, {_shown(value)}, got {_shown(stored_value)}: it "
                    "was changed since `plan` wrote it"
                )

    def which(self) -> str:
        """One-line description of the plan."""
        plan = self.planned
        request = plan.question
        return (
            f"{request.model.name} on {request.devices:,} devices of {cluster_in_words(request)}, "
            f"{shape(plan.layout, plan.recomputed_layers)}"
        )

    def as_row(self) -> dict[str, float | bool | dict[str, float] | list[float]]:
        """Step time now and in the file, seconds by part of a step, and GiB per pipeline rank."""
        return {
            "time_s": self.now.price.time_s,
            "planned_s": self.planned.time_s,
            "same": self.same,
            "times_s": self.now.parts_s,
            "memory_gib": [rank.peak_gib for rank in self.now.memory],
        }

    def in_words(self) -> str:
        """Text summary of the plan: step time, its parts, and memory per pipeline rank."""
        time_s = self.now.price.time_s
        times = f"{time_s:.5g} s a step, as the file states" if self.same else self.figures
        ranked = sorted(self.now.parts_s.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {percent(part_s / time_s)}" for name, part_s in ranked if part_s > 0)
        memory = ", ".join(f"{rank.peak_gib:.3g}" for rank in self.now.memory)
        return "\n".join([self.which(), times, parts, f"GiB of tensors by pipeline rank: {memory}"])


def _check_agreement(planned: TrainingPlan) -> None:
    """Raise PhazeError, naming a field, if parts of a file contradict each other."""
    blocks = tuple(stage.layers for stage in planned.stages)
    if blocks_of(planned.layout.pipeline_layout) != blocks:
        text = layout_string(blocks, planned.question.model.mtp)
        raise PhazeError(
            f"layout.pipeline_layout: must be that of the stages, {text}, got "
            f"{short(planned.layout.pipeline_layout)}"
        )
    first, certificate = planned.alternatives[0] if planned.alternatives else planned, planned.certificate
    excluded = sum(certificate.illegal.values()) + sum(certificate.bounded.values())
    layouts = excluded + certificate.same + certificate.unfit + certificate.simulated
    pairs: dict[str, tuple[object, object]] = {
        "memory_gib": (planned.memory_gib, tuple(rank.peak_gib for rank in planned.memory)),
        "recomputed_layers": (planned.recomputed_layers, sum(stage.recomputed for stage in planned.stages)),
        "memory": (len(planned.memory), planned.layout.pp),
        "question.devices": (planned.question.devices, planned.layout.spread.devices),
        "certificate.layouts": (certificate.layouts, layouts),
    }
    pairs |= {f"layout.{name}": (value, getattr(first.layout, name)) for name, value in planned.layout}
    pairs |= {name: (getattr(planned, name), getattr(first, name)) for name in RankedPlan.model_fields}
    for name, (stored, expected) in pairs.items():
        if stored != expected:
            raise PhazeError(
                f"{name}: must agree with the rest of the file, {short(expected)}, got {short(stored)}"
            )


def _check_bound(planned: TrainingPlan) -> None:
    """Raise PhazeError if the certificate's lower bound is not the one of its gap."""
    certificate = planned.certificate
    bound_s = (1 - certificate.gap) * planned.by(planned.question.rank)
    if certificate.bound_s is not None and not _is_close(certificate.bound_s, bound_s):
        raise PhazeError(
            f"certificate.bound_s: must agree with the rest of the file, {bound_s:.9g} by gap and step time, "
            f"got {certificate.bound_s:.9g}"
        )


def _differences(value: Plain, other: Plain, name: str) -> Iterator[tuple[str, Plain, Plain]]:
    """Yield the differences of two values of JSON, by dotted name; an absent value is None."""
    if isinstance(value, list) and isinstance(other, list):
        value, other = ({f"{place}": item for place, item in enumerate(items)} for items in (value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        for key in {**value, **other}:
            yield from _differences(value.get(key), other.get(key), f"{name}.{key}")
    elif isinstance(value, float) and isinstance(other, float):
        if not _is_close(value, other):
            yield name, value, other
    elif value != other:
        yield name, value, other


def _shown(value: Plain) -> str:
    return f"{value:.9g}" if isinstance(value, float) else short(value)


def _is_close(value: float, other: float) -> bool:
    return abs(value - other) <= CLOSE * abs(other)
