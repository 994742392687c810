"""Answer to a planning request in phases: the plan, the next best ones, bottlenecks, other planners."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Literal

from phaze.base.printed import PIPED, wrapped
from phaze.base.progress import busy
from phaze.commands.output import stop_gently, telling
from phaze.commands.terminal import tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from phaze.commands.plan_options import PlanOptions
    from phaze.formulas.piper.requests import PiperRequest
    from phaze.plan.answer.answer import TrainingPlanner
    from phaze.plan.question import PlanQuestion
    from phaze.plan.search.chips import ChipSearch
    from phaze.plan.search.planned import LayoutPlans
    from phaze.plan.time_limit import TimeLimit
    from phaze.spec.planner_rows import PlannerRow
    from phaze.spec.training_plan import AskedPlan, AskedRun, FewestNodes, TrainingPlan, UnfitPlan

MIN_GAIN = 0.05
"""Minimum relative gain over the last reported plan at which a faster plan is reported."""

MOST_CHIPS = 1000
"""Number of chips above which only the answer is written, since a file with all of them takes seconds."""


@dataclass(eq=False)
class PlanPhases:
    """One planning request, whose answer is written to its file as soon as its parts are known."""

    question: AskedPlan
    options: PlanOptions
    run: AskedRun | None
    unlike: Mapping[str, int | str]
    """Layout fields to explain."""
    fewest: FewestNodes | None
    label: str = "plan"
    """Start of messages, which tells a request from the others."""
    _limit: TimeLimit = field(init=False)
    _planner: TrainingPlanner = field(init=False)
    _piper: PiperRequest | None = None
    """Input of Piper's planner, if requested."""
    _reported_s: float = inf
    """Step time of the last plan reported."""
    _has_gap: bool = False
    """True if a gap was reported."""

    def __post_init__(self) -> None:
        from phaze.plan.answer.answer import TrainingPlanner
        from phaze.plan.time_limit import TimeLimit
        from phaze.validate.intervals import interval

        self._limit = TimeLimit(self.options.seconds or inf)
        self._planner = TrainingPlanner(self.question, interval, self.options.gap, limit=self._limit)
        if self.options.planners:
            # Measured layers are checked before the search.
            with telling("plan"):
                self._piper = piper_request(self._planner.expected, self.options)

    @property
    def interrupted(self) -> bool:
        """True if the user ended the search."""
        return self._limit.interrupted

    @property
    def _complete(self) -> bool:
        """True if the options ask for all parts of the answer."""
        return self.options.why or self.options.as_json or self.options.page is not None

    def answer(self) -> TrainingPlan | UnfitPlan:
        """Search in phases, each named by the progress line; the file has the best answer so far."""
        from phaze.plan.answer.answer import plan_count

        planner, top = self._planner, self.options.top
        # All requests are prepared before the first one is answered, and each has its own seconds.
        self._limit.begin()
        for option, fields in (("--fix", self.question.fixed), ("--explain", self.unlike)):
            planner.check(fields, f"plan: {option}")
        with busy("bounding chips and layouts"):
            search, number = planner.search_chips(self._report), plan_count(top)
            search.run(number)
        self._planner = planner = self._planner.on_chip(search.place)
        with busy("pricing the plan"):
            first = planner.answer(search.plans(number), alone=True)
        self._write(first)
        if first.format == "phaze-plan" and sys.stderr.isatty():
            self._tell_plan("best", search)
        with busy("searching the next best plans"):
            planner.try_fastest_expected(search, with_all=self._complete)
            search.extend(top)
        with busy("comparing with recipes, measured runs and other assumptions"):
            plans = planner.safest_first(search.plans(number, top))
            answer = planner.answer(plans, top)
        if answer.format == "phaze-no-plan":
            return answer
        answer = self._with_run(answer)
        self._write(answer)
        with busy("searching what may change the choice: memory, batch, assumptions"):
            answer = self._completed(answer, plans)
        self._write(answer)
        return answer

    def in_words(self, answer: TrainingPlan | UnfitPlan) -> str:
        """Text of the answer, with the parts that the options ask for."""
        from phaze.plan.answer.words import evidence_in_words, in_words, unfit_in_words

        if answer.format == "phaze-no-plan":
            return unfit_in_words(answer)
        device = self._planner.stored.stored_machine().device
        near = evidence_in_words(answer) if self.options.evidence else ()
        return "\n".join([in_words(answer, device, why=self.options.why), *near])

    def _report(self, search: ChipSearch) -> None:
        """Report the first plan, each clearly faster one, and the first gap; write every plan to the file."""
        from phaze.plan.answer.words import gap_line

        # From now on there is a plan to answer with, so Ctrl-C need not end the process.
        stop_gently(self._limit)
        if search.best_s < self._reported_s * (1 - MIN_GAIN):
            self._tell_plan("first" if self._reported_s == inf else "better", search)
            self._reported_s = search.best_s
        if not self._has_gap and search.bound_s > 0:
            tell(f"{self.label}: {gap_line(1 - search.bound_s / search.best_s, self._limit.elapsed_s)}")
            self._has_gap = True
        few = len(search.chips) <= MOST_CHIPS
        if self.options.out is not None and not self.options.table and few:
            # If the process is killed, the file has the best plan so far.
            self._write(self._planner.on_chip(search.place).answer(search.plans(1), alone=True))

    def _tell_plan(self, which: Literal["first", "better", "best"], search: ChipSearch) -> None:
        """Report the fastest plan so far on standard error."""
        from phaze.plan.answer.priced import PricedLayout
        from phaze.plan.answer.words import better_line

        shape = PricedLayout.of(search.question, search.fastest).shape
        line = better_line(search.best_s, shape, self._limit.elapsed_s, self.question.rank, which)
        tell(wrapped(f"{self.label}: {line}", PIPED))

    def _with_run(self, answer: TrainingPlan) -> TrainingPlan:
        """The answer with its training run and fewest nodes."""
        from phaze.plan.answer.training_run import training_run

        run = None if self.run is None else training_run(answer, self.question.devices, self.run)
        return answer.model_copy(update={"run": run, "fewest": self.fewest})

    def _completed(self, answer: TrainingPlan, plans: LayoutPlans) -> TrainingPlan:
        """The answer, completed by the further searches that were requested."""
        options = self.options
        answer = self._planner.further(answer, plans, with_all=self._complete, with_why=options.why)
        if options.measure_first:
            sentences = self._planner.measure_first(plans, len(answer.alternatives))
            answer = answer.model_copy(update={"measure_first": tuple(sentences)})
        if self.unlike:
            explained = self._planner.explained(plans.plans[0], self.unlike)
            answer = answer.model_copy(update={"explained": explained})
        if self._piper is not None:
            answer = answer.model_copy(update={"planners": planner_rows(self._piper, options)})
        return answer

    def _write(self, answer: TrainingPlan | UnfitPlan) -> None:
        from phaze.spec.documents import write_document

        if self.options.out is not None and answer.format == "phaze-plan" and not self.options.table:
            write_document(answer, self.options.out)


def piper_request(question: PlanQuestion, options: PlanOptions) -> PiperRequest:
    """Input of Piper's planner, with measured layers if there are any; writes its layers if requested."""
    from phaze.base.files import write_text
    from phaze.formulas.piper.requests import PiperRequest
    from phaze.formulas.piper.timings import check_timings, read_timings, timings_text

    request = PiperRequest(question)
    if options.layers is not None:
        timings = read_timings(options.layers)
        check_timings(timings, request, options.layers)
        request = PiperRequest(question, timings)
    if options.write_layers is not None:
        write_text(options.write_layers, timings_text(request.timings))
    return request


def planner_rows(request: PiperRequest, options: PlanOptions) -> tuple[PlannerRow, ...]:
    """Plans of all planners; writes Piper's input and its table of times if requested."""
    from phaze.base.files import write_text
    from phaze.formulas.dynamic_programs import DynamicPrograms
    from phaze.formulas.piper.instance import write_instance
    from phaze.formulas.piper.table import table_text

    if options.table and options.out is not None:
        write_text(options.out, table_text(request))
    if options.write_input is not None:
        if request.best is None:
            tell(f"plan: {options.write_input} was not written: Piper has no plan")
        else:
            write_instance(options.write_input, request.best.layers, request.best.cluster)
    return tuple(DynamicPrograms(request.question, request).rows())
