"""Audit of a plan's certificate against randomly drawn plans, priced one by one.

The audit shares with the search only the definition of a plan, the rules of the runtime and the price. It
uses none of the search's bounds, memory tests, linear programs or lists of pipeline splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import gcd, inf

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.base.progress import counted
from phaze.base.units import GIB, signed
from phaze.certify.stage import EQUAL
from phaze.layout import LEVELS, RECOMPUTES, SHARED_OPTIONS, WIDTHS, CpKind, Layout, Recompute, recompute_of
from phaze.pipeline.schedules import SCHEDULES
from phaze.plan.machines import device_of, planned_machine, prudent
from phaze.plan.plan import Machine
from phaze.plan.pricing.lowering import Lowerings
from phaze.plan.pricing.price import price
from phaze.runtimes.layout_string import equal_counts
from phaze.runtimes.recipe import Recipe
from phaze.runtimes.registry import RUNTIMES
from phaze.runtimes.rules import Runtime, TrainingTask
from phaze.runtimes.space import is_searched
from phaze.spec.names import Rank
from phaze.spec.training_plan import AskedPlan, TrainingPlan

Drawn = tuple[Layout, str, tuple[int, ...], tuple[int, ...]]
"""Layout, schedule, blocks per stage, and recomputed blocks per stage."""
REPEATS = 50
"""Maximum number of attempts to draw a plan that was not drawn before."""
TRIES = 10_000
"""Maximum number of attempts to draw a layout that the runtime can run."""
HALF = 0.5
"""Probability that a module is recomputed in a drawn set of modules."""
DRAW_KINDS = ("layout", "neighbour", "division")
"""Kinds of draw, taken in turn.

Any layout; a neighbour of the plan's layout; another pipeline split of a layout in the ranked table.
"""


@dataclass(frozen=True)
class DrawnPlan:
    """Randomly drawn plan with its price."""

    layout: Layout
    schedule: str
    blocks: tuple[int, ...]
    """Number of blocks per virtual stage."""
    recomputed: tuple[int, ...]
    """Number of recomputed blocks per virtual stage."""
    time_s: float
    peak_gib: float
    """Memory of the tensors on the rank with peak memory."""
    limit_gib: float
    """Memory limit on the tensors of a rank."""
    searched: bool = True
    """True if the layout is in the searched space; the certificate makes no claim about others."""
    chip: str = ""
    """Name of the chip, if the request has several."""

    def __str__(self) -> str:
        layout = self.layout
        widths = " ".join(f"{name}={getattr(layout, name)}" for name in WIDTHS)
        sequence_parallel = str(layout.sequence_parallel).lower()
        return (
            f"{widths} microbatch={layout.microbatch} {self.schedule} zero={layout.zero} "
            f"recompute={layout.recompute} sequence_parallel={sequence_parallel}"
            f"{f' on {self.chip}' if self.chip else ''}, blocks {self.blocks}, "
            f"recomputed {self.recomputed}: {self.time_s:.6g} s, {self.peak_gib:.4g} GiB of tensors"
        )


@dataclass(frozen=True)
class PlanAudit:
    """Result of checking randomly sampled plans against a certificate."""

    bound_s: float
    """Certified lower bound on the step time of every plan."""
    drawn: tuple[DrawnPlan, ...]

    @property
    def fitting(self) -> list[DrawnPlan]:
        """Drawn plans that fit in memory, fastest first."""
        fitting = (plan for plan in self.drawn if plan.peak_gib <= plan.limit_gib)
        return sorted(fitting, key=lambda plan: plan.time_s)

    @property
    def faster(self) -> list[DrawnPlan]:
        """Plans that fit and are faster than the bound."""
        return [plan for plan in self.fitting if plan.time_s < self.bound_s * (1 - EQUAL)]

    @property
    def counterexamples(self) -> list[DrawnPlan]:
        """Faster plans inside the searched space, which contradict the certificate."""
        return [plan for plan in self.faster if plan.searched]

    @property
    def unsearched(self) -> list[DrawnPlan]:
        """Faster plans outside the searched space."""
        return [plan for plan in self.faster if not plan.searched]

    def as_row(self) -> dict[str, float | int | None]:
        """Table row with the counts and times of the audit."""
        return {
            "drawn": len(self.drawn),
            "layouts": len({(plan.layout, plan.schedule) for plan in self.drawn}),
            "fitting": len(self.fitting),
            "bound_s": self.bound_s,
            "fastest_s": self.fitting[0].time_s if self.fitting else None,
            "counterexamples": len(self.counterexamples),
            "outside": sum(not plan.searched for plan in self.drawn),
            "faster_outside": len(self.unsearched),
        }

    def in_words(self) -> str:
        """Summary of the audit as text."""
        row = self.as_row()
        counts = (
            f"{row['drawn']} plans of {row['layouts']} layouts drawn and priced, {row['outside']} of them "
            f"outside the searched space, {row['fitting']} fit"
        )
        if not self.fitting:
            return f"{counts}; none contradicts the certificate"
        if not self.bound_s:
            return f"{counts}; none contradicts the certificate, whose search ended before it had a bound"
        fastest = self.fitting[0]
        margin = f"{signed(fastest.time_s / self.bound_s - 1, 2)}:\n{fastest}"
        if self.unsearched:
            return (
                f"{counts}; {len(self.unsearched)} outside are faster than the {self.bound_s:.6g} s of the "
                f"certificate, which is not about them, the fastest by {margin}"
            )
        bound = f"the {self.bound_s:.6g} s of the certificate"
        return f"{counts}; none is faster than {bound}, the fastest by {margin}"


@dataclass(frozen=True, eq=False)
class PlanPricer:
    """Pricer for any plan of a planning request."""

    question: AskedPlan
    rank: Rank

    @cached_property
    def _priced(self) -> tuple[TrainingTask, Machine]:
        """Task and machine with expected or with prudent (conservative) estimates."""
        machine = planned_machine(self.question)
        task = TrainingTask.of(self.question)
        return (task, machine) if self.rank == "expected" else prudent(task, machine)

    @property
    def machine(self) -> Machine:
        """Machine of the planning request."""
        return self._priced[1]

    @property
    def runtime(self) -> Runtime:
        """Runtime of the planning request."""
        return RUNTIMES[self.question.runtime]

    @property
    def task(self) -> TrainingTask:
        """Training task to which the runtime's rules apply."""
        return self._priced[0]

    @cached_property
    def _lowerings(self) -> Lowerings:
        return Lowerings(self.task, self.machine)

    def price(
        self, layout: Layout, schedule: str, blocks: tuple[int, ...], recomputed: tuple[int, ...]
    ) -> DrawnPlan:
        """Price a plan; its first stage has the embedding, its last stage the head."""
        layout = replace(layout, load=self.task.load)
        lowering, ends = self._lowerings.of(layout), [0, *np.cumsum(blocks) + 1]
        # Layer 0 is the embedding, and the last layer the head: both in addition to the blocks.
        ends[-1] += 1
        # Only full recomputation has a number of blocks; other options apply to all of them.
        numbers = recomputed if layout.recompute == "full" else [None] * len(blocks)
        stages = [
            lowering.stage(range(int(start), int(end)), layout, number)
            for (start, end), number in zip(pairwise(ends), numbers, strict=True)
        ]
        priced = price(lowering.plan(stages, schedule), self.machine)
        peak_gib = float(priced.peak_bytes.max()) / GIB
        limit_gib = lowering.limit_bytes(layout, room="upper" if self.rank == "prudent" else "expected") / GIB
        searched = is_searched(self.runtime, self.task, layout, self.question.fixed)
        figures = priced.time_s, peak_gib, limit_gib, searched
        chip = device_of(self.machine).name if self.question.chips else ""
        return DrawnPlan(layout, schedule, blocks, recomputed, *figures, chip)


@dataclass(frozen=True, eq=False)
class RandomPlans:
    """Random plans over all chips, and all layouts that the runtime can run and the request allows."""

    plan: TrainingPlan
    pricer: PlanPricer
    rng: np.random.Generator
    chips: tuple[PlanPricer, ...] = ()
    """Pricers on all chips of the request; empty if it has none to choose from."""
    _seen: set[tuple[Drawn, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if not self.chips:
            self._seen.add((as_drawn(self.plan), 0))

    def draw(self, number: int) -> DrawnPlan | None:
        """Draw a plan that was not drawn before, or None if no attempt finds one.

        `number` selects the kind of draw (`DRAW_KINDS`). Any layout is drawn if that kind yields nothing new.
        """
        for kind in (DRAW_KINDS[number % len(DRAW_KINDS)],) * REPEATS + (DRAW_KINDS[0],) * REPEATS:
            layout, schedule = self._layout(kind)
            blocks = self._blocks(layout)
            drawn = layout, schedule, blocks, self._recomputed(layout, blocks)
            chip = int(self.rng.integers(len(self.chips))) if self.chips else 0
            if (drawn, chip) not in self._seen:
                self._seen.add((drawn, chip))
                return (self.chips[chip] if self.chips else self.pricer).price(*drawn)
        return None

    def _layout(self, kind: str) -> tuple[Layout, str]:
        """Draw a layout that the runtime can run, with its schedule."""
        if kind == "division":
            rows = self.plan.alternatives
            chosen = rows[int(self.rng.integers(len(rows)))].layout
            return chosen.spread, chosen.schedule
        planned = self.plan.layout
        for _ in range(TRIES):
            if kind == "layout":
                candidate = self._random_layout()
            else:
                candidate = self._neighbour(planned.spread, planned.schedule)
            if self._is_allowed(*candidate):
                return candidate
        raise PhazeError(f"certify: of {TRIES} layouts drawn none can be run with what the question fixes")

    def _is_allowed(self, layout: Layout, schedule: str) -> bool:
        """True if the request allows a layout, the runtime can run it, and no other layout is the same."""
        values = {"schedule": schedule, **vars(layout)}
        # ZeRO shards state over replicas; with one replica it is the same as without ZeRO.
        duplicate = layout.zero > 0 and layout.dp * layout.cp == 1
        if duplicate or any(values[name] != value for name, value in self.plan.question.fixed.items()):
            return False
        return self.pricer.runtime.why_not(self.pricer.task, layout, schedule) is None

    def _random_layout(self) -> tuple[Layout, str]:
        """Random layout that uses all devices; widths are drawn first, then the other options."""
        task, remaining, widths = self.pricer.task, self.pricer.task.devices, dict[str, int]()
        # In random order, since the first width has the most divisors to choose from.
        for name in self.rng.permutation(["tp", "cp", "pp"]).tolist():
            widths[name] = self._one_of(divisors(remaining), name)
            # A width that the request fixes need not divide what remains.
            remaining //= gcd(remaining, widths[name])
        tp, cp, pp = (widths[name] for name in ("tp", "cp", "pp"))
        size = self._one_of(divisors(max(task.global_batch // remaining, 1)), "microbatch")
        layout = Layout(
            tp=tp, cp=cp, pp=pp, dp=remaining, microbatch=size, compute=task.compute, load=task.load
        )
        options = {name: value for name, value in self.plan.question.fixed.items() if name in SHARED_OPTIONS}
        return self._with_options(self._with_experts(replace(layout, **options)))  # type: ignore[arg-type]

    def _with_experts(self, layout: Layout) -> Layout:
        """Copy of a layout with random expert-parallel and expert-tensor-parallel widths."""
        experts = self.pricer.task.model.experts
        if experts is None:
            return layout
        ranks = layout.tp * layout.cp * layout.dp
        etp = self._one_of(divisors(gcd(ranks, experts.width)), "etp")
        ep = self._one_of(divisors(gcd(max(ranks // etp, 1), experts.count)), "ep")
        return replace(layout, ep=ep, etp=etp)

    def _with_options(self, layout: Layout) -> tuple[Layout, str]:
        """Layout with random values for all fields but its widths and its microbatch size."""
        runtime, model = self.pricer.runtime, self.pricer.task.model
        # Blocks, and the embedding and the head.
        entries = model.layers + model.mtp + 2
        schedule = str(self.rng.choice(runtime.schedules)) if layout.pp > 1 else "1f1b"
        least, most = SCHEDULES[schedule].chunks
        most = min(most, max(entries // layout.pp, 2))
        cut = self.rng.choice(runtime.sequence_parallel)
        drawn = replace(
            layout,
            vp=int(self.rng.integers(least, most + 1)) if most > 1 else 1,
            zero=self.rng.choice(runtime.zeros).item() if layout.dp * layout.cp > 1 else 0,
            sequence_parallel=bool(cut) and layout.tp > 1,
            recompute=self._recompute_option(),
            cp_kind=self._cp_kind(layout.cp),
        )
        return drawn, schedule

    def _recompute_option(self) -> Recompute:
        """Random recompute option: none, full, selective, or any set of modules."""
        if "recompute" in self.plan.question.fixed:
            return str(self.plan.question.fixed["recompute"])
        modules = sorted(self.pricer.runtime.recomputable(self.pricer.task.model))
        chosen = [module for module in modules if self.rng.random() < HALF]
        sets = [recompute_of("+".join(chosen))] * 2 if chosen else []
        return str(self.rng.choice([*RECOMPUTES, *sets]))

    def _cp_kind(self, cp: int) -> CpKind:
        """Random exchange method of context-parallel ranks, two-level methods included."""
        runtime, fixed = self.pricer.runtime, self.plan.question.fixed
        if "cp_kind" in fixed:
            return str(fixed["cp_kind"])
        inner = divisors(cp)[1:-1] if runtime.two_levels else []
        levels = [f"{LEVELS}:{int(self.rng.choice(inner))}"] if inner else []
        return str(self.rng.choice([*runtime.cp_kinds, *levels])) if cp > 1 else runtime.cp_kinds[0]

    def _neighbour(self, layout: Layout, schedule: str) -> tuple[Layout, str]:
        """Random neighbour of a layout: one factor moved between two widths, or other options redrawn."""
        if self.rng.random() < 0.5:
            other, schedule = self._with_options(layout)
            # The options of the layout apart from its widths are drawn anew, ZeRO excepted.
            return replace(other, zero=layout.zero), schedule
        if self.rng.random() < 0.5:
            return self._with_experts(layout), schedule
        names = ("tp", "cp", "pp", "dp", "microbatch")
        grown, shrunk = self.rng.choice(names, 2, replace=False).tolist()
        factor = self._one_of(divisors(getattr(layout, shrunk)), "")
        moved = {grown: getattr(layout, grown) * factor, shrunk: getattr(layout, shrunk) // factor}
        return replace(layout, **moved), schedule

    def _one_of(self, values: Sequence[int], name: str) -> int:
        """Random choice among the values, or the value that the planning request fixes."""
        fixed = self.plan.question.fixed.get(name)
        return fixed if isinstance(fixed, int) else int(self.rng.choice(values))

    def _blocks(self, layout: Layout) -> tuple[int, ...]:
        """Random number of blocks per stage: balanced, then some blocks moved to another stage.

        No stage in the middle is empty.
        """
        model = self.pricer.task.model
        count, layers = layout.stages, model.layers + model.mtp
        if count == 1:
            return (layers,)
        # The first stage has the embedding and the last the head, so these may have no blocks;
        # multi-token prediction is on the last stage.
        least = np.ones(count, int)
        least[[0, -1]] = 0
        least[-1] = model.mtp
        blocks = least.copy()
        for _ in range(layers - int(least.sum())):
            blocks[int(np.argmin(blocks))] += 1
        for _ in range(int(self.rng.integers(0, count + 1))):
            source, target = self.rng.choice(count, 2, replace=False)
            if blocks[source] > least[source]:
                blocks[source] -= 1
                blocks[target] += 1
        return tuple(blocks.tolist())

    def _recomputed(self, layout: Layout, blocks: tuple[int, ...]) -> tuple[int, ...]:
        """Random number of recomputed blocks per stage: a common share of all blocks, plus or minus one.

        Of runtimes with one number for all stages it is that number.
        """
        if layout.recompute != "full":
            return (0,) * len(blocks)
        counts, mtp = self.pricer.runtime.recomputed_counts, self.pricer.task.model.mtp
        if counts == "all" or (counts == "equal" and self.rng.random() < HALF / max(blocks)):
            return blocks
        if counts == "equal":
            return equal_counts(blocks, mtp, int(self.rng.integers(1, max(blocks) + 1)))
        share, near = self.rng.random(), self.rng.integers(-1, 2, len(blocks))
        recomputed: Ints = np.clip(np.rint(share * np.array(blocks)).astype(int) + near, 0, blocks)
        if not recomputed.any():
            recomputed[int(np.argmax(blocks))] = 1
        return tuple(recomputed.tolist())


def as_drawn(plan: TrainingPlan) -> Drawn:
    """Layout, schedule and pipeline split of a training plan."""
    recipe = Recipe.of(plan)
    return recipe.layout, recipe.schedule, recipe.blocks, recipe.recomputed


def divisors(number: int) -> list[int]:
    """Positive divisors of a number, ascending."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def certify_plan(plan: TrainingPlan, draws: int, seed: int) -> PlanAudit:
    """Audit a plan's certificate with `draws` random plans.

    Raises PhazeError if the plan contradicts its file: its runtime cannot run it, it does not fit in memory,
    or its price differs.
    """
    pricer = PlanPricer(plan.question, plan.question.rank)
    _check_plan(plan, PlanPricer(plan.question, "expected"), plan.time_s)
    _check_plan(plan, pricer, plan.by(plan.question.rank))
    chips = tuple(
        PlanPricer(plan.question.on_chip(place), plan.question.rank)
        for place in range(len(plan.question.chips or ()))
    )
    plans = RandomPlans(plan, pricer, np.random.default_rng(seed), chips)
    drawn = [plans.draw(number) for number in counted(range(draws), "plan")]
    bound_s = plan.certificate.bound_s
    return PlanAudit(inf if bound_s is None else bound_s, tuple(filter(None, drawn)))


def _check_plan(plan: TrainingPlan, pricer: PlanPricer, time_s: float) -> None:
    """Raise PhazeError if the plan cannot be run, its price differs from its file, or it does not fit."""
    Recipe.of(plan).check(pricer.runtime)
    priced = pricer.price(*as_drawn(plan))
    if abs(priced.time_s / time_s - 1) > EQUAL:
        raise PhazeError(
            f"certify: {pricer.rank} time must be the plan's price {priced.time_s:.9g}, got {time_s:.9g}"
        )
    if priced.peak_gib > priced.limit_gib:
        raise PhazeError(
            f"certify: the plan's tensors need {priced.peak_gib:.4g} GiB of {priced.limit_gib:.4g}"
        )
