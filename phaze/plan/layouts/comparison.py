"""What a run would gain from a plan, one change at a time in the order of their worth.

Fields of the layout in which the run differs from the plan are changed one by one: always the one that saves
most of the step next, under the price of `plan`. One that the runtime cannot run alone, or that does not fit
alone, is made together with the fewest others that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import chain, combinations, pairwise

from phaze.base.errors import PhazeError
from phaze.layout import Layout, pairs_passes
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.layouts.answer import question_of
from phaze.plan.layouts.divisions import Division, even_blocks
from phaze.plan.layouts.priced import PricedLayout
from phaze.plan.layouts.question import PlanQuestion
from phaze.plan.layouts.words import table, wrapped
from phaze.plan.runs import Run
from phaze.runtimes.layout_string import layout_string
from phaze.runtimes.recipe import Recipe
from phaze.spec.model import Model
from phaze.spec.system import Stack
from phaze.spec.training_plan import TrainingPlan

STACK, SCHEDULE, STAGES = "stack", "schedule", "stages"
"""Changes beside those of the layout's fields; data parallel follows from the other widths."""
FOLLOWS = ("dp", "precision")
LOSES = 1e-9
"""Share of the run's step by which a step towards a plan must be longer to count as a loss."""
MOST_TRIED = 100
"""Sets of changes from which orders without loss are looked for."""
HEAD = ("", "step", "saved", "fullest GiB", "change")
Taken = frozenset[str]
"""Changes that are made."""


@dataclass(frozen=True)
class Change:
    """A field of a run that a plan has otherwise."""

    field: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.field} {self.before} -> {self.after}"


@dataclass(frozen=True)
class ChangedRun:
    """A run after one more step towards a plan."""

    changes: tuple[Change, ...]
    """What is changed together, with what follows from it; none for the run as it is."""
    time_s: float
    """Seconds of a step after it."""
    saved: float
    """Share of the run's step that it saves; negative where the step gets longer."""
    fullest_gib: float
    """Memory of the fullest device after it."""
    because: str = ""
    """Why the first change is not made alone, where others are made with it."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """A run beside a plan for the same model, batch and devices."""

    run: Recipe
    planned: TrainingPlan
    stack: Stack | None = None
    """Software of the run; the plan's unless given."""
    flash: bool = True
    """Whether the run's attention keeps its scores on the chip, as the plan's does."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What the fields of a run are called in its file, where that has other names."""
    _known: dict[Taken, PricedLayout | str] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Recipe:
        """The plan as a run."""
        return Recipe.of(self.planned)

    @cached_property
    def question(self) -> PlanQuestion:
        """Question that the plan answers."""
        return question_of(self.planned.question)

    @cached_property
    def run_question(self) -> PlanQuestion:
        """The same question for the software of the run."""
        asked, stack = self.question, self.stack or self.question.machine.stack
        if self.flash and self._same_software(stack, asked.machine.stack):
            return asked
        return replace(asked, machine=replace(asked.machine, stack=stack), flash=self.flash)

    def _same_software(self, one: Stack, other: Stack) -> bool:
        """Whether two stacks differ at most in exchanges of experts that neither run nor plan can hide."""
        paired = any(pairs_passes(each.layout, each.model.mtp) for each in (self.run, self.plan))
        kinds = [{*stack.overlap} - ({"ep"} if not paired else set()) for stack in (one, other)]
        return kinds[0] == kinds[1] and one == other.model_copy(update={"overlap": one.overlap})

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences on what the run has otherwise than the plan, and no step changes."""
        return tuple(dict.fromkeys(self.run.unlike(self.plan, self.names)))

    def check(self, where: str = "compare") -> None:
        """Raise PhazeError where run and plan are not of the same model, batch and devices, or where the
        plan's runtime cannot run one of them; `where` is the file of the run.
        """
        self.run.check_same_task(self.plan, where, self.names)
        for name, recipe in (("run", self.run), ("plan", self.plan)):
            try:
                recipe.check(self.question.runtime)
            except PhazeError as error:
                raise PhazeError(f"compare: {name}: {error}") from error

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Changes from the run to the plan."""
        names = [one.name for one in fields(Layout) if one.name not in FOLLOWS]
        found = [name for name in names if getattr(self.run.layout, name) != getattr(self.plan.layout, name)]
        found += [SCHEDULE] * (self.run.schedule != self.plan.schedule)
        found += [STACK] * (self.run_question is not self.question)
        without = self._recipe(frozenset(found))
        same = (without.blocks, without.recomputed) == (self.plan.blocks, self.plan.recomputed)
        return tuple(found if same else [*found, STAGES])

    @cached_property
    def steps(self) -> tuple[ChangedRun, ...]:
        """The run, and what it becomes by one change after the other, the last one the plan."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[ChangedRun]:
        taken: Taken = frozenset()
        now = first = self._priced(taken)
        yield ChangedRun((), first.price.time_s, 0.0, first.fullest_gib)
        for made in self._order():
            reason = "; ".join(self._reasons(made, taken, now))
            after = taken.union(made)
            found = self._priced(after)
            saved = (now.price.time_s - found.price.time_s) / first.price.time_s
            changes = tuple(self._changes(taken, after, made))
            yield ChangedRun(changes, found.price.time_s, saved, found.fullest_gib, reason)
            taken, now = after, found

    def _order(self) -> tuple[tuple[str, ...], ...]:
        """Changes in the order of their worth, or, where one of them loses, in an order that loses less.

        Of all orders the one with the smallest loss of a step is looked for from the sets of changes that
        lose least, the largest ones first.
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
        """Of the changes that are left always the one that saves most, with what it needs."""
        taken: Taken = frozenset()
        while len(taken) < len(self.fields):
            made = next(iter(self._ways(taken)))
            yield made
            taken = taken.union(made)

    def _loss(self, order: Sequence[tuple[str, ...]]) -> float:
        """Largest loss of a step of an order, a share of the run's step."""
        sets = [frozenset(chain.from_iterable(order[:number])) for number in range(len(order) + 1)]
        return max((self._lost(one, other) for one, other in pairwise(sets)), default=0.0)

    def _lost(self, before: Taken, after: Taken) -> float:
        """Share of the run's step by which one set of changes takes longer than another; 0 where it saves."""
        longer_s = self._priced(after).price.time_s - self._priced(before).price.time_s
        return max(longer_s / self._priced(frozenset()).price.time_s, 0.0)

    def _ways(self, taken: Taken) -> list[tuple[str, ...]]:
        """The changes that are left, each with the fewest others that it needs, the fastest first."""
        left = [name for name in self.fields if name not in taken]
        ways = [self._with_needed(name, left, taken, self._priced(taken)) for name in left]
        return sorted(ways, key=lambda made: self._priced(taken.union(made)).price.time_s)

    def _with_needed(
        self, name: str, left: Sequence[str], taken: Taken, now: PricedLayout
    ) -> tuple[str, ...]:
        """A change with the fewest others that make it possible, the fastest of several; all if need be."""
        others = [one for one in left if one != name]
        for number in range(len(others)):
            ways = [(name, *more) for more in combinations(others, number)]
            possible = [made for made in ways if not self._refused(taken.union(made), now)]
            if possible:
                return min(possible, key=lambda made: self._priced(taken.union(made)).price.time_s)
        return (name, *others)

    def _reasons(self, made: Sequence[str], taken: Taken, now: PricedLayout) -> Iterator[str]:
        """Why a change needs each of those that are made with it."""
        for number in range(1, len(made)):
            with_others = f"with {' and '.join(made[1:number])} " if number > 1 else ""
            yield with_others + self._refused(taken.union(made[:number]), now)

    def _refused(self, taken: Taken, now: PricedLayout) -> str:
        """Why a run with these changes cannot be; empty where it can."""
        found = self._found(taken)
        if isinstance(found, str):
            return found
        if found.lacking_gib <= max(0.0, now.lacking_gib):
            return ""
        return f"needs {found.fullest_gib:.4g} of {found.fullest_gib - found.lacking_gib:.4g} GiB"

    def _priced(self, taken: Taken) -> PricedLayout:
        found = self._found(taken)
        if isinstance(found, str):
            raise PhazeError(f"compare: {found}")
        return found

    def _found(self, taken: Taken) -> PricedLayout | str:
        """Price with some changes, or why there is none."""
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
        """The run with some changes; PhazeError for widths that are not those of the devices."""
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
        """The plan's stages, those of the run as long as it has as many, else equal ones; where blocks run
        forward again and neither says how many, all do.
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
        """What changes, those fields that are changed ahead of what follows from them."""
        one, other = self._words(before), self._words(after)
        names = dict.fromkeys((*made, *other))
        yield from (Change(name, one[name], other[name]) for name in names if one[name] != other[name])

    def _words(self, taken: Taken) -> dict[str, str]:
        """A run with some changes in words, by field."""
        recipe = self._recipe(taken)
        words = {one.name: str(getattr(recipe.layout, one.name)).lower() for one in fields(Layout)}
        words[STAGES] = layout_string(recipe.blocks, recipe.model.mtp)
        words["recomputed blocks"] = str(sum(recipe.recomputed))
        return {SCHEDULE: recipe.schedule, **words, STACK: _stack_in_words(self._question(taken))}

    def _named(self, change: Change) -> str:
        """A change by the name that its field has in the file of the run."""
        return str(replace(change, field=self.names.get(change.field, change.field)))

    def _cells(self, step: ChangedRun) -> list[str]:
        saved = f"{step.saved:.1%}" if step.changes else ""
        said = ", ".join(map(self._named, step.changes))
        return [f"{step.time_s:.4g} s", saved, f"{step.fullest_gib:.1f}", said]

    def as_row(self) -> dict[str, object]:
        """Seconds of the run and of the plan, and the steps between them."""
        run, *steps = self.steps
        return {
            "run_s": run.time_s,
            "plan_s": self.steps[-1].time_s,
            "saved": 1 - self.steps[-1].time_s / run.time_s,
            "run_fullest_gib": run.fullest_gib,
            "steps": [asdict(step) for step in steps],
        }

    def in_words(self) -> str:
        """Answer for a reader."""
        asked, run, last = self.planned.question, self.steps[0], self.steps[-1]
        rows = [[str(i) if i else "run", *self._cells(step)] for i, step in enumerate(self.steps)]
        share = run.time_s / last.time_s - 1
        found = (
            f"{asked.model.name} on {asked.devices:,} devices of {asked.system}: the run takes "
            f"{run.time_s:.4g} s a step, the plan {last.time_s:.4g} s, {share:+.1%} samples a second"
        )
        return "\n".join([found, *table([HEAD, *rows]), *self._notes()])

    def _notes(self) -> Iterator[str]:
        """Why changes are made together, whether fewer of them are better, and whether the run fits."""
        for number, step in enumerate(self.steps):
            if step.because:
                yield wrapped(
                    f"{number}: {self._named(step.changes[0])} cannot be made alone: {step.because}"
                )
        best = min(range(len(self.steps)), key=lambda number: self.steps[number].time_s)
        if self.steps[best].time_s < self.steps[-1].time_s:
            yield f"fewer changes are better: after {best} the run takes {self.steps[best].time_s:.4g} s"
        run = self._priced(frozenset())
        if run.lacking_gib > 0:
            limit_gib = run.fullest_gib - run.lacking_gib
            yield f"the run needs {run.fullest_gib:.4g} GiB; a plan of its layout may have {limit_gib:.4g}"


def _stack_in_words(question: PlanQuestion) -> str:
    stack = question.machine.stack
    overlap = "+".join(stack.overlap) or "none"
    scores = "" if question.flash else ", attention scores in memory"
    return f"{stack.name} (overlap {overlap}, gradients of {stack.gradient_bytes} bytes{scores})"


def recipe_of_run(run: Run, model: Model) -> Recipe:
    """Row of a table of runs as a run of a plan's model; PhazeError for what plans are never priced with, and
    for a row of another model.
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
        again = tuple(min(run.recomputed, most) for most in again)
    return Recipe(_model_of(run, model), run.seq, run.global_batch, run.layout, run.schedule, blocks, again)


def _model_of(run: Run, model: Model) -> Model:
    """Model of a row: its own, or where it only has sizes that of a plan; PhazeError for others."""
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
