"""Changes that turn a run into a plan, made one at a time, with the time that each saves.

Layout fields that differ from the plan are changed one by one, always the one that saves the most time next,
at the price of `plan`. A change that the runtime cannot run alone, or that does not fit alone, is made
together with the fewest others that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, combinations, pairwise

from phaze.base.errors import PhazeError
from phaze.layout import Layout
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.in_use import OK, status_of
from phaze.plan.layouts.answer import question_of
from phaze.plan.layouts.divisions import Division, even_blocks
from phaze.plan.layouts.priced import PricedLayout, used_gib
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.ranked_table import wrapped
from phaze.plan.layouts.words import table
from phaze.plan.machines import device_of
from phaze.plan.runs import Run
from phaze.runtimes.layout_string import equal_counts, layout_string
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import pairs_passes
from phaze.spec.memory import UsedGib
from phaze.spec.model import Model
from phaze.spec.system import Stack
from phaze.spec.training_plan import TrainingPlan

STACK, SCHEDULE, STAGES = "stack", "schedule", "stages"
"""Names of the changes that are not layout fields; data parallelism follows from the other widths."""
FOLLOWS = ("dp", "precision")
LOSES = 1e-9
"""Slowdown by a change, relative to the run's step time, above which it counts as a loss."""
MOST_TRIED = 100
"""Maximum number of sets of changes expanded in the search for an order without loss."""
HEAD = ("", "expected", "saved", "GiB", "change")
Taken = frozenset[str]
"""Names of the changes made so far."""


@dataclass(frozen=True)
class Change:
    """Field whose value differs between the run and the plan."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field} {self.before} -> {self.after}"


@dataclass(frozen=True)
class ChangedRun:
    """State of the run after one more change towards the plan."""

    changes: tuple[Change, ...]
    """Fields changed in this step, then fields that follow from them; empty for the original run."""
    now: PricedLayout
    """Price after the change."""
    saved: float = 0.0
    """Share of the run's step time that the change saves; negative if the step gets longer."""
    because: str = ""
    """Reason why the first change cannot be made alone."""

    @property
    def time_s(self) -> float:
        """Step time after the change."""
        return self.now.price.time_s

    @property
    def used(self) -> UsedGib:
        """Memory in use after the change, on the device with peak memory."""
        return used_gib(self.now.price.memory)

    @property
    def status(self) -> str:
        """Status after the change, as in `simulate --runs`: `ok`, may fit, or does not fit."""
        return status_of(self.used.low, self.used.high, device_of(self.now.question.machine))

    def as_row(self) -> dict[str, object]:
        """Row with the changes, step time and peak memory after them, and the reason for joint changes."""
        return {
            "changes": [asdict(one) for one in self.changes],
            "time_s": self.time_s,
            "saved": self.saved,
            "fullest_gib": self.now.fullest_gib,
            "because": self.because,
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """Comparison of a run with a plan for the same model, batch and devices."""

    run: Recipe
    planned: TrainingPlan
    stack: Stack | None = None
    """Software stack of the run; None if it is the plan's."""
    flash: bool = True
    """True if the run's attention keeps its scores on the chip, like the plan's."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of fields in the run's file, where they differ from phaze's names."""
    _known: dict[Taken, PricedLayout | str] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Recipe:
        """The plan, converted to a recipe."""
        return Recipe.of(self.planned)

    @cached_property
    def question(self) -> PlanQuestion:
        """Planning request that the plan answers."""
        return question_of(self.planned.question)

    @cached_property
    def run_question(self) -> PlanQuestion:
        """Planning request of the plan, but with the software stack of the run."""
        asked, stack = self.question, self.stack or self.question.machine.stack
        if self.flash and self._same_software(stack, asked.machine.stack):
            return asked
        return replace(asked, machine=replace(asked.machine, stack=stack), flash=self.flash)

    def _same_software(self, one: Stack, other: Stack) -> bool:
        """True if two stacks are identical, except for expert overlap that run and plan cannot use."""
        paired = any(pairs_passes(each.layout, each.model) for each in (self.run, self.plan))
        kinds = [{*stack.overlap} - ({"ep"} if not paired else set()) for stack in (one, other)]
        return kinds[0] == kinds[1] and one == other.model_copy(update={"overlap": one.overlap})

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on differences between run and plan that no change covers."""
        return tuple(dict.fromkeys(self.run.unlike(self.plan, self.names)))

    def check(self, where: str = "compare") -> None:
        """Raise PhazeError if run and plan are for different tasks, or the runtime cannot run one of them.

        `where` is the file of the run.
        """
        self.run.check_same_task(self.plan, where, self.names)
        for name, recipe in (("run", self.run), ("plan", self.plan)):
            try:
                recipe.check(self.question.runtime)
            except PhazeError as error:
                raise PhazeError(f"compare: {name}: {error}") from error

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the changes that turn the run into the plan."""
        names = [one.name for one in fields(Layout) if one.name not in FOLLOWS]
        found = [name for name in names if getattr(self.run.layout, name) != getattr(self.plan.layout, name)]
        found += [SCHEDULE] * (self.run.schedule != self.plan.schedule)
        found += [STACK] * (self.run_question is not self.question)
        without = self._recipe(frozenset(found))
        same = (without.blocks, without.recomputed) == (self.plan.blocks, self.plan.recomputed)
        return tuple(found if same else [*found, STAGES])

    @cached_property
    def steps(self) -> tuple[ChangedRun, ...]:
        """The original run and its state after each change; the last state is the plan."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[ChangedRun]:
        taken: Taken = frozenset()
        now = first = self._priced(taken)
        yield ChangedRun((), first)
        for made in self._order():
            reason = "; ".join(self._reasons(made, taken, now))
            after = taken.union(made)
            found = self._priced(after)
            saved = (now.price.time_s - found.price.time_s) / first.price.time_s
            changes = tuple(self._changes(taken, after, made))
            yield ChangedRun(changes, found, saved, reason)
            taken, now = after, found

    def _order(self) -> tuple[tuple[str, ...], ...]:
        """Changes in greedy order, or in an order with a smaller loss if one of them slows the run down.

        The search for the order with the smallest loss of a single change expands the sets of changes with
        the smallest loss first, and the largest of equal ones.
        """
        greedy = tuple(self._greedy())
        worst, everything = self._loss(greedy), frozenset(self.fields)
        if worst <= LOSES:
            return greedy
        none: Taken = frozenset()
        reached: list[tuple[float, int, int, Taken, tuple[tuple[str, ...], ...]]] = [(0.0, 0, 0, none, ())]
        seen, number = set[Taken](), 0
        while reached and len(seen) < MOST_TRIED:
            loss, _, _, taken, order = heappop(reached)
            if taken == everything:
                return order
            if taken in seen:
                continue
            seen.add(taken)
            for made in self._ways(taken):
                number += 1
                more = max(loss, self._lost(taken, taken.union(made)))
                if more < worst:
                    left = len(everything) - len(taken.union(made))
                    heappush(reached, (more, left, number, taken.union(made), (*order, made)))
        return greedy

    def _greedy(self) -> Iterator[tuple[str, ...]]:
        """Yield changes greedily: always the one that saves the most, with the changes that it needs."""
        taken: Taken = frozenset()
        while len(taken) < len(self.fields):
            made = next(iter(self._ways(taken)))
            yield made
            taken = taken.union(made)

    def _loss(self, order: Sequence[tuple[str, ...]]) -> float:
        """Largest slowdown that one change in an order causes, as a share of the run's step time."""
        sets = [frozenset(chain.from_iterable(order[:number])) for number in range(len(order) + 1)]
        return max((self._lost(one, other) for one, other in pairwise(sets)), default=0.0)

    def _lost(self, before: Taken, after: Taken) -> float:
        """Slowdown between two sets of changes, as a share of the run's step time; 0 for a speedup."""
        longer_s = self._priced(after).price.time_s - self._priced(before).price.time_s
        return max(longer_s / self._priced(frozenset()).price.time_s, 0.0)

    def _ways(self, taken: Taken) -> list[tuple[str, ...]]:
        """Remaining changes with the fewest further changes that each requires, fastest result first."""
        left = [name for name in self.fields if name not in taken]
        ways = [self._with_needed(name, left, taken, self._priced(taken)) for name in left]
        return sorted(ways, key=lambda made: self._priced(taken.union(made)).price.time_s)

    def _with_needed(
        self, name: str, left: Sequence[str], taken: Taken, now: PricedLayout
    ) -> tuple[str, ...]:
        """Fastest of the smallest sets of changes that include `name` and can be made together."""
        others = [one for one in left if one != name]
        for number in range(len(others)):
            ways = [(name, *more) for more in combinations(others, number)]
            possible = [made for made in ways if not self._refused(taken.union(made), now)]
            if possible:
                return min(possible, key=lambda made: self._priced(taken.union(made)).price.time_s)
        return (name, *others)

    def _reasons(self, made: Sequence[str], taken: Taken, now: PricedLayout) -> Iterator[str]:
        """Yield the reasons why a change is impossible without the changes made together with it."""
        for number in range(1, len(made)):
            with_others = f"with {' and '.join(made[1:number])} " if number > 1 else ""
            yield with_others + self._refused(taken.union(made[:number]), now)

    def _refused(self, taken: Taken, now: PricedLayout) -> str:
        """Reason why the run with these changes is impossible; empty if it is possible."""
        found = self._found(taken)
        if isinstance(found, str):
            return found
        if found.lacking_gib <= max(0.0, now.lacking_gib):
            return ""
        return f"tensors need {found.fullest_gib:.4g} of {found.fullest_gib - found.lacking_gib:.4g} GiB"

    def _priced(self, taken: Taken) -> PricedLayout:
        found = self._found(taken)
        if isinstance(found, str):
            raise PhazeError(f"compare: {found}")
        return found

    def _found(self, taken: Taken) -> PricedLayout | str:
        """Price of the run with some changes, or the reason why these changes are impossible."""
        if taken not in self._known:
            try:
                self._known[taken] = self._price(taken)
            except PhazeError as error:
                self._known[taken] = str(error)
        return self._known[taken]

    def _price(self, taken: Taken) -> PricedLayout:
        recipe, question = self._recipe(taken), self._question(taken)
        recipe.check(question.runtime)
        if not question.divided(recipe.layout, recipe.schedule).may_be(recipe.blocks):
            raise PhazeError(
                f"{question.runtime.name}: layers of multi-token prediction must be in one stage"
            )
        return PricedLayout.of_recipe(question, recipe)

    def _question(self, taken: Taken) -> PlanQuestion:
        return self.question if STACK in taken else self.run_question

    def _recipe(self, taken: Taken) -> Recipe:
        """Recipe of the run with some changes; PhazeError if its widths do not divide the device count."""
        run, plan = self.run, self.plan
        own = {name: getattr(plan.layout, name) for name in taken - {STACK, SCHEDULE, STAGES}}
        layout = replace(run.layout, **own, dp=1)
        if run.layout.devices % layout.devices:
            raise PhazeError(
                f"tp * cp * pp must divide the {run.layout.devices} devices, got {layout.devices}"
            )
        layout = replace(layout, dp=run.layout.devices // layout.devices)
        schedule = plan.schedule if SCHEDULE in taken else run.schedule
        division = self._division(layout, schedule, taken)
        return replace(
            run, layout=layout, schedule=schedule, blocks=division.blocks, recomputed=division.recomputed
        )

    def _division(self, layout: Layout, schedule: str, taken: Taken) -> Division:
        """Pipeline split of the plan or of the run if its stage count matches, otherwise an even one.

        If the layout recomputes and neither gives counts, all blocks are recomputed.
        """
        own = self.plan if STAGES in taken else self.run
        if layout.stages == own.layout.stages:
            blocks = own.blocks
        elif STAGES in taken:
            raise PhazeError(f"the plan has {own.layout.stages} stages, got {layout.stages}")
        else:
            blocks = even_blocks(self._question(taken).divided(layout, schedule))
        if layout.recompute != "full":
            return Division(blocks, (0,) * len(blocks))
        said = own.layout.recompute == "full" and blocks == own.blocks
        return Division(blocks, own.recomputed if said else blocks)

    def _changes(self, before: Taken, after: Taken, made: Sequence[str]) -> Iterator[Change]:
        """Yield the fields whose values differ, the requested changes first."""
        one, other = self._words(before), self._words(after)
        names = dict.fromkeys((*made, *other))
        yield from (Change(name, one[name], other[name]) for name in names if one[name] != other[name])

    def _words(self, taken: Taken) -> dict[str, str]:
        """Values of all fields of the run with some changes applied, as text by field name."""
        recipe = self._recipe(taken)
        words = {one.name: str(getattr(recipe.layout, one.name)).lower() for one in fields(Layout)}
        words[STAGES] = layout_string(recipe.blocks, recipe.model.mtp)
        words["recomputed blocks"] = str(sum(recipe.recomputed))
        return {SCHEDULE: recipe.schedule, **words, STACK: _stack_in_words(self._question(taken))}

    def _named(self, change: Change) -> str:
        """Format a change, with the field named as in the run's file."""
        return str(replace(change, field=self.names.get(change.field, change.field)))

    def _cells(self, step: ChangedRun) -> list[str]:
        saved = f"{step.saved:.1%}" if step.changes else ""
        said = ", ".join(map(self._named, step.changes))
        return [f"{step.time_s:.4g} s", saved, f"{step.used.expected:.1f}", said]

    def as_row(self) -> dict[str, object]:
        """Step times of the run and of the plan, and the changes between them."""
        run, *steps = self.steps
        return {
            "run_s": run.time_s,
            "plan_s": self.steps[-1].time_s,
            "saved": 1 - self.steps[-1].time_s / run.time_s,
            "run_fullest_gib": run.now.fullest_gib,
            "steps": [step.as_row() for step in steps],
        }

    def in_words(self) -> str:
        """Format the comparison: headline, table of changes, and notes."""
        asked, run, last = self.planned.question, self.steps[0], self.steps[-1]
        rows = [[str(i) if i else "run", *self._cells(step)] for i, step in enumerate(self.steps)]
        share = run.time_s / last.time_s - 1
        found = (
            f"{asked.model.name} on {asked.devices:,} devices of {asked.system}: the run takes "
            f"{run.time_s:.4g} s a step, the plan {last.time_s:.4g} s, {share:+.1%} throughput"
        )
        return "\n".join([found, *table([HEAD, *rows]), *self._notes()])

    def _notes(self) -> Iterator[str]:
        """Yield notes on combined changes, on a better subset of changes, and on memory."""
        for number, step in enumerate(self.steps):
            if step.because:
                yield wrapped(
                    f"{number}: {self._named(step.changes[0])} cannot be made alone: {step.because}"
                )
            if step.status != OK:
                yield wrapped(f"{number or 'run'}: {step.status}")
        best = min(range(len(self.steps)), key=lambda number: self.steps[number].time_s)
        if self.steps[best].time_s < self.steps[-1].time_s:
            step = self.steps[best]
            fits = "" if step.status == OK else f"; it {step.status}"
            yield wrapped(f"fewer changes are better: after {best} the run takes {step.time_s:.4g} s{fits}")


def _stack_in_words(question: PlanQuestion) -> str:
    stack = question.machine.stack
    overlap = "+".join(stack.overlap) or "none"
    scores = "" if question.flash else ", attention scores in memory"
    return f"{stack.name} (overlap {overlap}, gradients of {stack.gradient_bytes} bytes{scores})"


def recipe_of_run(run: Run, model: Model) -> Recipe:
    """Convert a row of a table of runs into a recipe for the plan's model.

    Raises PhazeError for properties that plans never have, and for a row of another model.
    """
    if run.optimizer != "adam":
        raise PhazeError(f"compare: optimizer must be adam, as plans are priced, got {run.optimizer}")
    if run.layout.precision != "mixed" or SCHEDULES[run.schedule].streams != 1:
        raise PhazeError(
            "compare: precision must be mixed and the schedule one of a runtime, got "
            f"{run.layout.precision}, {run.schedule}"
        )
    run.check()
    blocks = tuple(stage.count("t") + stage.count("m") for stage in run.stages)
    again = blocks if run.layout.recompute == "full" else (0,) * len(blocks)
    if run.recomputed is not None:
        again = equal_counts(blocks, run.mtp, run.recomputed)
    return Recipe(_model_of(run, model), run.seq, run.global_batch, run.layout, run.schedule, blocks, again)


def _model_of(run: Run, model: Model) -> Model:
    """Model of a run: its own spec, or the plan's model if all sizes agree; otherwise PhazeError."""
    if run.spec is not None:
        return run.spec.model_copy(update={"mtp": run.mtp, "lora": run.lora or None})
    sizes = {
        "hidden": (run.hidden, model.hidden), "heads": (run.heads, model.heads),
        "layers": (run.layers, model.layers), "vocab": (run.vocab, model.vocabulary),
        "kv_heads": (run.kv_heads or run.heads, model.kv_heads),
        "ffn": (run.ffn or 4 * run.hidden, model.feed_forward),
        "gated": (run.gated, model.gated), "lora": (run.lora, model.lora or 0),
    }  # fmt: skip
    for name, (own, planned) in sizes.items():
        if own != planned:
            raise PhazeError(f"compare: {name} must be {planned}, that of the plan's model, got {own}")
    return model
