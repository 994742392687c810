"""Changes that turn a run into a plan, made one at a time, with the time that each saves.

Settings of the software that differ from the plan are changed first, then fields of the layout: always the
one that saves the most time next, at the price of `plan`. A change that the runtime cannot run alone, or that
does not fit alone, is made together with the fewest others that it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import combinations

from phaze.base.errors import PhazeError
from phaze.base.printed import wrapped
from phaze.base.units import percent, signed
from phaze.layout import Layout
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.answer.answer import question_of
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.words import cluster_in_words, table
from phaze.plan.pricing.runs import Run
from phaze.plan.question import PlanQuestion
from phaze.plan.splits.split import Split, even_blocks
from phaze.plan.terms.memory import OK
from phaze.runtimes.layout_string import equal_counts, layout_string
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.rules import pairs_passes
from phaze.spec.model import Model
from phaze.spec.system import Stack
from phaze.spec.training_plan import TrainingPlan

STACK, FLASH, SCHEDULE, STAGES = "stack", "flash_attention", "schedule", "stages"
"""Names of the changes that are not layout fields; data parallelism follows from the other widths."""
OVERLAPS = ("dp", "tp", "pp", "ep")
"""Kinds of communication whose overlap is a setting of its own."""
SETTINGS = (
    "gradient_bytes",
    "logit_bytes",
    "attention",
    "fused_gradients",
    "fused_gate",
    "dispatch",
    "experts",
    "cuda_graphs",
)
"""Fields of a software stack that flags of a runtime set; all others are changed with the stack itself."""
FOLLOWS = ("dp", "precision")
SHOWN = 3
"""Maximum number of different fields by which two stacks of one name are told apart."""
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

    def as_row(self) -> dict[str, object]:
        """Row with the changes, step time and peak memory after them, and the reason for joint changes."""
        return {
            "changes": [asdict(change) for change in self.changes],
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
    _prices: dict[Taken, PricedLayout | str] = field(default_factory=dict)
    _questions: dict[Taken, PlanQuestion] = field(default_factory=dict)

    @cached_property
    def plan(self) -> Recipe:
        """The plan, converted to a recipe."""
        return Recipe.of(self.planned)

    @cached_property
    def question(self) -> PlanQuestion:
        """Planning request that the plan answers, with the overlap that the plan's hardware queues allow."""
        question, layout = question_of(self.planned.question), self.plan.layout
        stack = question.lowering(layout).layers(layout).stack
        return replace(question, machine=replace(question.machine, stack=stack))

    @cached_property
    def software(self) -> dict[str, tuple[str, str]]:
        """Settings of the software that differ, each with the run's and the plan's value as text."""
        run, plan = self.stack or self.question.machine.stack, self.question.machine.stack
        values: dict[str, tuple[object, object]] = {}
        for kind in OVERLAPS:
            if any(_may_overlap(kind, recipe) for recipe in (self.run, self.plan)):
                values[f"overlap_{kind}"] = kind in run.overlap, kind in plan.overlap
        values |= {name: (getattr(run, name), getattr(plan, name)) for name in SETTINGS}
        values |= {FLASH: (self.flash, True), STACK: (_others(run, plan), _others(plan, run))}
        texts = {name: (_text(before), _text(after)) for name, (before, after) in values.items()}
        return {name: (before, after) for name, (before, after) in texts.items() if before != after}

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
        run_fields, plan_fields = asdict(self.run.layout), asdict(self.plan.layout)
        differing = [name for name in plan_fields if run_fields[name] != plan_fields[name]]
        names = [name for name in differing if name not in FOLLOWS]
        names += [SCHEDULE] * (self.run.schedule != self.plan.schedule) + [*self.software]
        changed = self._recipe(frozenset(names))
        same = (changed.blocks, changed.recomputed) == (self.plan.blocks, self.plan.recomputed)
        return tuple(names if same else [*names, STAGES])

    @cached_property
    def steps(self) -> tuple[ChangedRun, ...]:
        """The original run and its state after each change; the last state is the plan."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[ChangedRun]:
        taken: Taken = frozenset()
        now = first = self._priced(taken)
        yield ChangedRun((), first)
        while len(taken) < len(self.fields):
            chosen = self._next(taken)
            reason = "; ".join(self._reasons(chosen, taken, now))
            after = taken.union(chosen)
            changed = self._priced(after)
            saved = (now.price.time_s - changed.price.time_s) / first.price.time_s
            yield ChangedRun(tuple(self._changes(taken, after, chosen)), changed, saved, reason)
            taken, now = after, changed

    def _next(self, taken: Taken) -> tuple[str, ...]:
        """Change that saves the most time next, with those that it needs; software precedes the layout."""
        remaining, now = [name for name in self.fields if name not in taken], self._priced(taken)
        software: list[tuple[str, ...]] = [(name,) for name in remaining if name in self.software]
        alone = [changes for changes in software if not self._refusal(taken.union(changes), now)]
        # Software that is possible alone comes first, so that its effect is not mixed with the layout's.
        candidates = alone or [self._with_prerequisites(name, remaining, taken, now) for name in remaining]
        return min(candidates, key=lambda changes: self._priced(taken.union(changes)).price.time_s)

    def _with_prerequisites(
        self, name: str, remaining: Sequence[str], taken: Taken, now: PricedLayout
    ) -> tuple[str, ...]:
        """Fastest of the smallest sets of changes that include `name` and can be made together."""
        others = [other for other in remaining if other != name]
        for number in range(len(others)):
            candidates = [(name, *added) for added in combinations(others, number)]
            possible = [changes for changes in candidates if not self._refusal(taken.union(changes), now)]
            if possible:
                return min(possible, key=lambda changes: self._priced(taken.union(changes)).price.time_s)
        # With all changes made the run is the plan, which is possible.
        return (name, *others)

    def _reasons(self, chosen: Sequence[str], taken: Taken, now: PricedLayout) -> Iterator[str]:
        """Yield the reasons why a change is impossible without the changes made together with it."""
        for number in range(1, len(chosen)):
            with_others = f"with {' and '.join(chosen[1:number])} " if number > 1 else ""
            yield with_others + self._refusal(taken.union(chosen[:number]), now)

    def _refusal(self, taken: Taken, now: PricedLayout) -> str:
        """Reason why the run with these changes is impossible; empty if it is possible."""
        price = self._price_or_reason(taken)
        if isinstance(price, str):
            return price
        # A run that already lacks memory may be changed as long as it does not lack more.
        fits = price.lacking_gib <= max(0.0, now.lacking_gib)
        limit_gib = price.fullest_gib - price.lacking_gib
        return "" if fits else f"tensors need {price.fullest_gib:.4g} of {limit_gib:.4g} GiB"

    def _priced(self, taken: Taken) -> PricedLayout:
        price = self._price_or_reason(taken)
        if isinstance(price, str):
            raise PhazeError(f"compare: {price}")
        return price

    def _price_or_reason(self, taken: Taken) -> PricedLayout | str:
        """Price of the run with some changes, or the reason why these changes are impossible."""
        # The greedy order and its reasons ask for the same sets of changes many times.
        if taken not in self._prices:
            try:
                recipe, question = self._recipe(taken), self._question(taken)
                recipe.check(question.runtime)
                priced = PricedLayout.of_recipe(question, recipe)
            except PhazeError as error:
                self._prices[taken] = str(error)
            else:
                refused = f"{question.runtime.name}: layers of multi-token prediction must be in one stage"
                self._prices[taken] = priced if priced.staged.is_valid(recipe.blocks) else refused
        return self._prices[taken]

    def _question(self, taken: Taken) -> PlanQuestion:
        """Planning request of the plan, with the run's values of the settings that are not changed yet."""
        unchanged = frozenset(self.software) - taken
        # Questions are shared, since each keeps the costs of layers that it has computed.
        if unchanged and unchanged not in self._questions:
            machine = self.question.machine
            run, plan = self.stack or machine.stack, machine.stack

            def stack_of(change: str) -> Stack:
                return run if change in unchanged else plan

            settings: dict[str, object] = {name: getattr(stack_of(name), name) for name in SETTINGS}
            overlap = tuple(kind for kind in OVERLAPS if kind in stack_of(f"overlap_{kind}").overlap)
            stack = stack_of(STACK).model_copy(update=settings | {"overlap": overlap})
            machine, flash = replace(machine, stack=stack), FLASH not in unchanged
            self._questions[unchanged] = replace(self.question, machine=machine, flash=flash)
        return self._questions[unchanged] if unchanged else self.question

    def _recipe(self, taken: Taken) -> Recipe:
        """Recipe of the run with some changes; PhazeError if its widths do not divide the device count."""
        run, plan = self.run, self.plan
        names = taken - {*self.software, SCHEDULE, STAGES}
        layout = replace(run.layout, **{name: getattr(plan.layout, name) for name in names}, dp=1)
        if run.layout.devices % layout.devices:
            devices = f"the {run.layout.devices} devices"
            raise PhazeError(f"tp * cp * pp must divide {devices}, got {layout.devices}")
        layout = replace(layout, dp=run.layout.devices // layout.devices)
        schedule = plan.schedule if SCHEDULE in taken else run.schedule
        split = self._split(layout, schedule, taken)
        return replace(run, layout=layout, schedule=schedule, **asdict(split))

    def _split(self, layout: Layout, schedule: str, taken: Taken) -> Split:
        """Pipeline split of the plan or of the run if its stage count matches, otherwise an even one.

        If the layout recomputes and neither gives counts, all blocks are recomputed.
        """
        recipe = self.plan if STAGES in taken else self.run
        if layout.stages == recipe.layout.stages:
            blocks = recipe.blocks
        elif STAGES in taken:
            raise PhazeError(f"the plan has {recipe.layout.stages} stages, got {layout.stages}")
        else:
            blocks = even_blocks(self._question(taken).staged(layout, schedule))
        if layout.recompute != "full":
            return Split(blocks, (0,) * len(blocks))
        has_counts = recipe.layout.recompute == "full" and blocks == recipe.blocks
        return Split(blocks, recipe.recomputed if has_counts else blocks)

    def _changes(self, before: Taken, after: Taken, chosen: Sequence[str]) -> Iterator[Change]:
        """Yield the fields whose values differ, the requested changes first."""
        values, new_values = self._values(before), self._values(after)
        for name in dict.fromkeys((*chosen, *new_values)):
            if values[name] != new_values[name]:
                yield Change(name, values[name], new_values[name])

    def _values(self, taken: Taken) -> dict[str, str]:
        """Values of all fields of the run with some changes applied, as text by field name."""
        recipe = self._recipe(taken)
        values = {name: str(value).lower() for name, value in asdict(recipe.layout).items()}
        values[STAGES] = layout_string(recipe.blocks, recipe.model.mtp)
        values["recomputed blocks"] = str(sum(recipe.recomputed))
        software = {name: run_and_plan[name in taken] for name, run_and_plan in self.software.items()}
        return {SCHEDULE: recipe.schedule, **values, **software}

    def _renamed(self, change: Change) -> str:
        """Format a change, with the field named as in the run's file."""
        return str(replace(change, field=self.names.get(change.field, change.field)))

    def _cells(self, step: ChangedRun) -> list[str]:
        saved = percent(step.saved) if step.changes else ""
        changes = ", ".join(map(self._renamed, step.changes))
        return [f"{step.time_s:.4g} s", saved, f"{step.now.used.expected:.1f}", changes]

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
        request, run, last = self.planned.question, self.steps[0], self.steps[-1]
        rows = [[str(i) if i else "run", *self._cells(step)] for i, step in enumerate(self.steps)]
        share = run.time_s / last.time_s - 1
        headline = (
            f"{request.model.name} on {request.devices:,} devices of {cluster_in_words(request)}: the run "
            f"takes {run.time_s:.4g} s a step, the plan {last.time_s:.4g} s, {signed(share)} throughput"
        )
        return "\n".join([headline, *table([HEAD, *rows]), *self._notes()])

    def _notes(self) -> Iterator[str]:
        """Yield notes on combined changes, on a better subset of changes, and on memory."""
        for number, step in enumerate(self.steps):
            if step.because:
                change = self._renamed(step.changes[0])
                yield wrapped(f"{number}: {change} needs the other changes of its row: {step.because}")
            if step.now.status != OK:
                yield wrapped(f"{number or 'run'}: {step.now.status}")
        best = min(range(len(self.steps)), key=lambda number: self.steps[number].time_s)
        if self.steps[best].time_s < self.steps[-1].time_s:
            step = self.steps[best]
            fits = "" if step.now.status == OK else f"; it {step.now.status}"
            yield wrapped(f"fewer changes are better: after {best} the run takes {step.time_s:.4g} s{fits}")


def _may_overlap(kind: str, recipe: Recipe) -> bool:
    """True if a recipe has a kind of communication that could overlap with compute."""
    if kind == "ep":
        return pairs_passes(recipe.layout, recipe.model)
    layout = recipe.layout
    widths = {"dp": layout.dp * layout.cp, "tp": layout.tp, "pp": layout.pp}
    return widths[kind] > 1


def _text(value: object) -> str:
    """Value of a setting as text."""
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _others(stack: Stack, other: Stack) -> str:
    """Name of a stack, with the fields that are no settings and differ although the name is the same."""
    # Stacks of one name differ if a file changes some fields of it: those tell the two apart.
    names = sorted({*Stack.model_fields} - {"overlap", *SETTINGS})
    unlike = [name for name in names if getattr(stack, name) != getattr(other, name)]
    if not unlike or stack.name != other.name:
        return stack.name
    return f"{stack.name} ({', '.join(f'{name} {getattr(stack, name)}' for name in unlike[:SHOWN])})"


def recipe_of_run(run: Run, model: Model) -> Recipe:
    """Convert a row of a table of runs into a recipe for the plan's model.

    Raises PhazeError for properties that plans never have, and for a row of another model.
    """
    if run.layout.precision != "mixed" or SCHEDULES[run.schedule].streams != 1:
        raise PhazeError(
            "compare: precision must be mixed and the schedule one of a runtime, got "
            f"{run.layout.precision}, {run.schedule}"
        )
    run.check()
    blocks = tuple(stage.count("t") + stage.count("m") for stage in run.stages)
    recomputed = blocks if run.layout.recompute == "full" else (0,) * len(blocks)
    if run.recomputed is not None:
        recomputed = equal_counts(blocks, run.mtp, run.recomputed)
    task = _model_of(run, model), run.seq, run.global_batch
    return Recipe(*task, run.layout, run.schedule, blocks, recomputed)


def _model_of(run: Run, model: Model) -> Model:
    """Model of a run: its own spec, or the plan's model if all sizes agree; otherwise PhazeError."""
    if run.spec is not None:
        return run.spec.model_copy(update={"mtp": run.mtp, "lora": run.lora or None})
    sizes = {
        "hidden": (run.hidden, model.hidden),
        "heads": (run.heads, model.heads),
        "layers": (run.layers, model.layers),
        "vocab": (run.vocab, model.vocabulary),
        "kv_heads": (run.kv_heads or run.heads, model.kv_heads),
        "ffn": (run.ffn or 4 * run.hidden, model.feed_forward),
        "gated": (run.gated, model.gated),
        "lora": (run.lora, model.lora or 0),
    }
    for name, (run_size, planned) in sizes.items():
        if run_size != planned:
            raise PhazeError(f"compare: {name} must be {planned}, that of the plan's model, got {run_size}")
    return model
