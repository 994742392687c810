"""Assumptions that decide between plans: overlap of communication, and load of the experts.

Every compared plan is priced under each scenario: overlap as expected or only as measured, times loads of
experts: expected, the software stack's prudent one, balanced, and skewed. A plan's regret in a scenario is
the share of time that it takes longer than the fastest of the compared plans there. The safe plan is the one
whose largest regret is smallest (minimax regret: Savage, JASA 46, 1951).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from phaze.base.arrays import Floats
from phaze.base.units import percent
from phaze.layout import BALANCED, NATURAL, Load
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.machines import proven
from phaze.plan.question import PlanQuestion
from phaze.spec.training_plan import TIE

SKEWED: Load = "power_law_1.2"
"""Load of skewed experts: the steeper of two power laws under which experts' kernels are measured."""
COMPARED = 10
"""Minimum number of plans that are compared under all assumptions."""
NOISE = 0.01
"""Regret below which a choice decides nothing: repeated runs on one cluster differ by more."""
MOST_MEASURED = 3
"""Maximum number of plans to measure: in measured groups, the first three rows hold the fastest layout."""


@dataclass(frozen=True, eq=False)
class Assumptions:
    """One combination of assumptions, and the planning request under it."""

    overlap: str
    load: str
    """Load of the experts in words; empty for a model without experts."""
    question: PlanQuestion

    @property
    def words(self) -> str:
        """The assumptions as a clause after `if`."""
        return " and ".join(filter(None, (self.overlap, self.load)))


def scenarios(expected: PlanQuestion, *, loads_given: bool = False) -> tuple[Assumptions, ...]:
    """All combinations of assumptions for a planning request, the expected one first.

    With `loads_given` the load of the experts is the request's own in all of them.
    """
    stack, task = expected.machine.stack, expected.task
    loads: dict[Load, str] = {task.load: ""}
    if task.experts and not loads_given:
        named = {
            NATURAL: "experts are routed naturally",
            BALANCED: "experts are balanced",
            SKEWED: "experts are skewed",
        }
        compared = (task.load, stack.load.prudent, BALANCED, SKEWED)
        loads = {load: named.get(load, f"experts are loaded as {load}") for load in compared}
    machines = {
        "overlap works as expected": expected.machine,
        "only measured overlap works": proven(expected.machine),
    }
    return tuple(
        Assumptions(overlap, words, replace(expected, task=replace(task, load=load), machine=machine))
        for overlap, machine in machines.items()
        for load, words in loads.items()
    )


def regrets_of(scores: Floats) -> Floats:
    """Share by which a score exceeds the least one of its row, (S, n); infinite scores are no choices.

    Where no choice is finite, none is better than another: all have no regret.
    """
    least = scores.min(axis=1, keepdims=True)
    ratios: Floats = np.divide(scores, least, out=np.ones_like(scores), where=np.isfinite(least))
    return ratios - 1


def safest_first(worst: Floats) -> list[int]:
    """Choices by increasing worst regret; those that tie keep their order."""
    return [int(place) for place in np.argsort(np.round(worst / TIE), kind="stable")]


@dataclass(frozen=True, eq=False)
class Regrets:
    """Times of plans in all scenarios, with the regret of choosing each plan."""

    plans: tuple[PricedLayout, ...]
    """Compared plans, in the order in which they are ranked."""
    scenarios: tuple[Assumptions, ...]

    @cached_property
    def times_s(self) -> Floats:
        """Step time of every plan in every scenario, (S, n); infinite where the plan does not fit."""
        rows = ([plan.priced_for(scenario.question) for plan in self.plans] for scenario in self.scenarios)
        # Uneven experts need more memory: a plan that lacks it is no plan there.
        return np.array(
            [[plan.price.time_s if plan.lacking_gib <= 0 else np.inf for plan in row] for row in rows]
        )

    @property
    def regrets(self) -> Floats:
        """Share of time by which a plan is slower than the fastest one of a scenario, (S, n)."""
        return regrets_of(self.times_s)

    @property
    def worst(self) -> Floats:
        """Largest regret of every plan, (n,)."""
        worst: Floats = self.regrets.max(axis=0)
        return worst

    @property
    def order(self) -> list[int]:
        """Plans by increasing worst regret; the ranking decides between plans that tie."""
        return safest_first(self.worst)

    @property
    def decisive(self) -> str:
        """Assumptions on which the fastest plan depends."""
        fastest = self.times_s.argmin(axis=1).tolist()
        by_overlap = {
            (scenario.overlap, place) for scenario, place in zip(self.scenarios, fastest, strict=True)
        }
        by_load = {(scenario.load, place) for scenario, place in zip(self.scenarios, fastest, strict=True)}
        # The other assumption changes nothing if each value of this one always has the same fastest plan.
        if len(by_overlap) == len({overlap for overlap, _ in by_overlap}):
            return "overlap"
        if len(by_load) == len({load for load, _ in by_load}):
            return "the load of the experts"
        return "overlap and the load of the experts"

    def in_words(self, shown: int) -> str:
        """Sentence on the assumption that decides the choice, and on the plan that is safe under all of them.

        The first `shown` plans are named by their number, the others with their layout.
        """
        number, worst, compared = len(self.scenarios), self.worst.tolist(), len(self.plans)
        if compared == 1:
            return "No other plan is there to choose."
        count = "both" if number == 2 else f"all {number}"
        of_load = " and the load of experts" * bool(self.scenarios[0].load)
        assumed = f"{count} assumptions on overlap{of_load}"
        if worst[0] < NOISE:
            lead = f"within {percent(worst[0])} of " * (worst[0] >= TIE)
            return f"Under {assumed}, plan 1 is {lead}the fastest of the first {compared}."
        place = int(self.regrets[:, 0].argmax())
        fastest, safest = int(self.times_s[place].argmin()), self.order[0]
        takes = f"plan 1 takes {percent(worst[0])} longer than {self.name(fastest, shown)}"
        if not np.isfinite(worst[0]):
            takes = f"plan 1 does not fit, unlike {self.name(fastest, shown)}"
        sentence = f"The choice rests on {self.decisive}: if {self.scenarios[place].words}, {takes}."
        if not np.isfinite(worst[safest]):
            return f"{sentence} None of the first {compared} fits under {assumed}."
        if safest == 0:
            return (
                f"{sentence} Plan 1 is still the safe one: every other of the first {compared} may lose more."
            )
        return (
            f"{sentence} Safe is {self.name(safest, shown)}: at most {percent(worst[safest])} longer than "
            f"the fastest of the first {compared} under {assumed}."
        )

    def measure_first(self, shown: int) -> Iterator[str]:
        """Yield sentences on the plans worth measuring first, and on the conclusion from each outcome."""
        fastest = self.times_s.argmin(axis=1).tolist()
        chosen = list(dict.fromkeys([0, *fastest, *range(len(self.plans))]))[:MOST_MEASURED]
        yield f"Measure first: {', '.join(self.name(place, shown) for place in chosen)}."
        for place in chosen[1:]:
            both = np.isfinite(self.times_s[:, [0, place]]).all(axis=1)
            name = self.name(place, shown, start=True)
            if not both.any():
                continue
            # Where one of the two does not fit, their times say nothing.
            shares = np.where(
                both, self.times_s[:, place] / np.where(both, self.times_s[:, 0], 1.0) - 1, np.nan
            )
            gain, loss = -float(np.nanmin(shares)), float(np.nanmax(shares))
            if gain < TIE:
                slower = f"{percent(max(-gain, 0))} to {percent(loss)} slower"
                yield f"{name} is predicted {slower}: run it if it is not."
                continue
            where = self.scenarios[int(np.nanargmin(shares))].words
            then = f"otherwise it may lose {percent(loss)}" if loss >= TIE else "it never loses"
            yield f"{name} is faster, by up to {percent(gain)}, if {where}; {then}."

    def name(self, place: int, shown: int, *, start: bool = False) -> str:
        """Name of a plan in a sentence, with its layout if it has no row."""
        if place < shown:
            return f"{'Plan' if start else 'plan'} {place + 1}"
        return f"{'Layout' if start else 'layout'} {self.plans[place].shape}"
