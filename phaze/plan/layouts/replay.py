"""A plan of a file, priced again from its question, layout and stages."""

from __future__ import annotations

from dataclasses import dataclass

from phaze.plan.layouts.answer import question_of
from phaze.plan.layouts.divisions import Division
from phaze.plan.layouts.priced import PricedLayout
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.words import shape
from phaze.runtimes.recipe import Recipe
from phaze.spec.training_plan import TrainingPlan

CLOSE = 1e-9
"""Relative difference of times that are the same."""


@dataclass(frozen=True, eq=False)
class ReplayedPlan:
    """A plan as its file says it, and as its system and phaze price it now."""

    planned: TrainingPlan
    now: PricedLayout

    @classmethod
    def of(cls, planned: TrainingPlan) -> ReplayedPlan:
        """Plan of a file; PhazeError for one that its runtime cannot run, or that does not hold the model."""
        recipe, question = Recipe.of(planned), question_of(planned.question)
        recipe.check(question.runtime)
        return cls(planned, priced_recipe(recipe, question))

    @property
    def same(self) -> bool:
        """Whether the time is that of the file."""
        return abs(self.now.price.time_s / self.planned.time_s - 1) <= CLOSE

    def which(self) -> str:
        """Plan in a line."""
        plan = self.planned
        asked = plan.question
        return (
            f"{asked.model.name} on {asked.devices:,} devices of {asked.system}, "
            f"{shape(plan.layout, plan.recomputed_layers)}"
        )

    def as_row(self) -> dict[str, float | bool | dict[str, float] | list[float]]:
        """Time now and in the file, parts of a step in seconds, and GiB of pipeline ranks."""
        return {
            "time_s": self.now.price.time_s,
            "planned_s": self.planned.time_s,
            "same": self.same,
            "times_s": self.now.parts_s,
            "memory_gib": [rank.peak_gib for rank in self.now.memory],
        }

    def in_words(self) -> str:
        """Answer for a reader."""
        planned_s, time_s = self.planned.time_s, self.now.price.time_s
        times = f"{time_s:.5g} s a step, as the file says"
        if not self.same:
            times = (
                f"{time_s:.5g} s a step, {time_s / planned_s - 1:+.2%} of the {planned_s:.5g} s of the file: "
                "the system, its stack, or phaze has changed since"
            )
        ranked = sorted(self.now.parts_s.items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {part_s / time_s:.1%}" for name, part_s in ranked if part_s > 0)
        memory = ", ".join(f"{rank.peak_gib:.3g}" for rank in self.now.memory)
        return "\n".join([self.which(), times, parts, f"GiB by pipeline rank: {memory}"])


def priced_recipe(recipe: Recipe, question: PlanQuestion) -> PricedLayout:
    """Price of a run on the machine of a question."""
    divided = question.divided(recipe.layout, recipe.schedule)
    return PricedLayout(question, divided, Division(recipe.blocks, recipe.recomputed))
