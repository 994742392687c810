"""Page of an answer of `phaze plan`: the ranked layouts, what the best one rests on, and its flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd

from phaze.base.units import GIB
from phaze.layout import MODEL_WIDTHS
from phaze.plan.layouts import words
from phaze.plan.layouts.replay import ReplayedPlan
from phaze.plan.layouts.what_if import replanned
from phaze.report import plan_figures
from phaze.report.document import Chart, FirstScreen, Items, Listing, Prose, Section, Sheet
from phaze.report.pipeline_picture import Shown, left_out, shown
from phaze.report.report import Report, page_of
from phaze.spec.systems import load_cluster
from phaze.spec.training_plan import RankedPlan, TrainingPlan, UnfitPlan, WhatIf

REPLANNED_CPU_S = 60.0
"""Processor seconds of all searches with 10 % more of a resource."""
ROWS, PASSES = 16, 96
"""Maximum number of stages, and of passes of each, that a page draws."""
Answer = TrainingPlan | UnfitPlan
Settings = tuple[Mapping[str, str], Sequence[str]]
"""Files of a runtime's settings by name, and sentences on what they cannot express."""


@dataclass(frozen=True, eq=False)
class PlanPage:
    """Plan to show, the answers for other numbers of devices, and the settings of its runtime."""

    plan: TrainingPlan
    every: Sequence[Answer]
    """Answers for all numbers of devices, including the plan."""
    settings: Settings

    @property
    def hbm_gib(self) -> float:
        """HBM of a device."""
        return load_cluster(self.plan.question.system)[1].hbm_gib

    @cached_property
    def replayed(self) -> ReplayedPlan:
        """The plan with its price."""
        return ReplayedPlan.of(self.plan)

    @cached_property
    def shown(self) -> Shown:
        """Pipeline of the plan over time."""
        found = shown("", self.replayed.now.price.timeline)
        return replace(found, most_rows=ROWS, most_passes=PASSES)

    @cached_property
    def more(self) -> tuple[WhatIf, ...]:
        """Step times with 10 % more of each resource."""
        asked = self.plan.question
        priced = self.replayed.now
        ranked = priced.asked(priced.question.ranked(asked.rank))
        return tuple(replanned(asked.system, ranked, asked.fixed, REPLANNED_CPU_S))

    def report(self) -> Report:
        """The page."""
        parts = (
            self.time, self.memory, self.timeline, self.ranges, self.evidence, self.rivals, self.sizes,
            self.resources, self.flags, self.assumed,
        )  # fmt: skip
        sections = [section for part in parts for section in part()]
        return page_of("plan.html", "plan of a training run", self.answer(), sections, {})

    def answer(self) -> FirstScreen:
        """Caveat if nothing like the plan was measured, recommendation, and the ranked layouts."""
        plan = self.plan
        question, *said = words.recommendation(plan, self.hbm_gib)
        also = [
            *words.why_first(plan),
            *([] if plan.prudence is None else [f"{words.PRUDENT} {plan.prudence}"]),
            *words.proof_in_words(plan.certificate, plan.question.rank, len(plan.alternatives)),
            *([] if plan.fewest is None else [words.fewest_in_words(plan.fewest)]),
        ]
        caveats = [] if plan.may_fit is None else [plan.may_fit]
        if any(one is not plan and _is_best(one) for one in self.every):
            caveats.append(
                f"This page is about {plan.question.devices:,} devices; the other best plans are under "
                "Devices, days and cost."
            )
        return FirstScreen(
            question, " ".join([*caveats, *said]), tuple(self._facts()), self._layouts(), " ".join(also),
            figures=("time", "timeline"), unfolded=True,
        )  # fmt: skip

    def _facts(self) -> Iterator[tuple[str, str]]:
        plan = self.plan
        interval = (
            f"expected step; 80 % interval {plan.time_s_low:.4g} to {plan.time_s_high:.4g} s"
            if plan.time_s_low is not None and plan.time_s_high is not None
            else "expected step, an upper limit of speed"
        )
        yield f"{plan.time_s:.4g} s", interval
        if plan.prudent_s is not None:
            yield f"{plan.prudent_s:.4g} s", "prudent step: proven overlap only"
        yield f"{plan.mfu:.1%}", f"MFU; {plan.tokens_per_s_per_device:,.0f} tokens/s/device"
        yield (
            f"{plan.used_gib:.1f} GiB",
            f"expected in use of {self.hbm_gib:g} GiB on the device with peak memory",
        )
        yield f"{plan.certificate.gap:.2%}", "largest possible gain of any other layout, at this price"
        if plan.run is not None:
            yield f"{plan.run.days:.4g} days", " ".join(words.run_in_words(plan.run))

    def _layouts(self) -> Sheet:
        plans = self.plan.alternatives
        axes = [name for name in MODEL_WIDTHS if any(getattr(one.layout, name) > 1 for one in plans)]
        head = ("layout", "rank", "prudent", "expected", "interval", "MFU", "GiB", "bubble", "comm")
        rows = [self._row(rank, one, axes) for rank, one in enumerate(plans, start=1)]
        return Sheet(
            "Ranked layouts. A heading sorts the table.", (*head, *axes, "dp", "mbs", "ZeRO"), tuple(rows),
            marked=frozenset({0}), filtered=True,
        )  # fmt: skip

    def _row(self, rank: int, one: RankedPlan, axes: Sequence[str]) -> tuple[str, ...]:
        layout = one.layout
        own = None in (one.time_s_low, one.time_s_high)
        return (
            words.shape(layout, one.recomputed_layers),
            str(rank),
            "–" if one.prudent_s is None else f"{one.prudent_s:.4g} s",
            f"{one.time_s:.4g} s",
            "–" if own else f"{one.time_s_low:.4g} to {one.time_s_high:.4g} s",
            f"{one.mfu:.1%}",
            f"{one.used_gib:.1f}",
            f"{one.bubble_share:.1%}",
            f"{one.exposed_communication_share:.1%}",
            *(str(getattr(layout, name)) for name in (*axes, "dp", "microbatch", "zero")),
        )

    def time(self) -> Iterator[Section]:
        """Step time by part."""
        least_s = words.NEGLIGIBLE * self.plan.time_s
        ranked = sorted(self.plan.times_s.items(), key=lambda item: -item[1])
        parts = {name: part_s for name, part_s in ranked if part_s >= least_s}
        chart = Chart(
            "time",
            "Time of a step by part",
            f"Mean over all devices. The step is bound by {self.plan.bound_by}.",
            partial(plan_figures.by_part, parts, "seconds of a step", ".3g"),
        )
        yield Section("time-by-part", "Time by part", "Where the time of a step goes.", (chart,))

    def memory(self) -> Iterator[Section]:
        """Memory by rank, and over time, against HBM."""
        plan, hbm_gib = self.plan, self.hbm_gib
        limit_gib = self.replayed.now.question.limit_bytes(self.replayed.now.divided.layout) / GIB
        used = "" if plan.in_use_gib is None else f" In use: {words.used(plan)}."
        by_rank = Chart(
            "memory",
            "Memory of a device by pipeline rank",
            f"At its peak, by part; the dashed line is the HBM of {hbm_gib:g} GiB.{used}",
            partial(plan_figures.memory_by_rank, plan.memory, hbm_gib),
        )
        over_time = Chart(
            "memory-over-time",
            "Memory of a device of each stage over a step",
            f"Tensors only; the dashed lines are the HBM and its part for tensors, {limit_gib:.1f} GiB.",
            partial(self.shown.memory, {"HBM": hbm_gib, "for tensors": limit_gib}),
        )
        about = "Memory of the pipeline ranks, by part and over time, against the HBM of a device."
        yield Section("memory-by-rank", "Memory", about, (by_rank, over_time))

    def timeline(self) -> Iterator[Section]:
        """Pipeline over time."""
        about = "A cell is a pass of a microbatch; thin cells are concurrent with passes."
        zoom = "The sliders choose the zoom and its place; so does the wheel with Ctrl."
        chart = Chart(
            "timeline",
            "Pipeline of a step over time",
            " ".join([about, zoom, *left_out(self.shown)]),
            self.shown.timeline,
        )
        yield Section("pipeline", "Pipeline over time", "What every stage does when.", (chart,))

    def ranges(self) -> Iterator[Section]:
        """Expected and prudent time of the ranked layouts."""
        chart = Chart(
            "ranges",
            "Expected and prudent time of the ranked layouts",
            "Lines, if any, are the 80 % intervals of the expected time, from similar measured runs.",
            partial(plan_figures.ranges, self.plan.alternatives),
        )
        said = [words.PRUDENT] if self.plan.prudence is None else [words.PRUDENT, self.plan.prudence]
        about = "How much the ranking depends on overlap and memory that are not proven."
        yield Section("expected-prudent", "Expected and prudent", about, (chart, Items(tuple(said))))

    def evidence(self) -> Iterator[Section]:
        """Nearest measured runs with the errors of their predictions."""
        runs, about = (
            self.plan.evidence,
            "Measured runs most like the plan, with the errors of their predictions.",
        )
        if not runs:
            nothing = next(words.evidence_in_words(self.plan))
            yield Section("evidence", "Nearest measured runs", about, (Prose(f"{nothing.capitalize()}."),))
            return
        rows = tuple((one.source, one.label, f"{one.distance:.2f}", f"{one.error:+.1%}") for one in runs)
        sheet = Sheet(about, ("source", "row", "distance", "error"), rows, words=2)
        chart = Chart(
            "errors",
            "Error of the prediction of measured runs, by their distance from the plan",
            "Distance 0 is the same stack, device, precision, kinds of parallelism and utilisation.",
            partial(plan_figures.errors, runs),
        )
        yield Section("evidence", "Nearest measured runs", about, (sheet, chart))

    def rivals(self) -> Iterator[Section]:
        """Why the other layouts are behind."""
        plan, rank = self.plan, self.plan.question.rank
        rows = tuple(
            (
                f"plan {place}",
                words.plan_differences(plan, one),
                f"{one.by(rank):.4g} s",
                f"{one.by(rank) / plan.by(rank) - 1:+.2%}",
            )
            for place, one in enumerate(plan.alternatives[1:], start=2)
        )  # fmt: skip
        sheet = Sheet(
            "Next best layouts, by what they change.", ("plan", "changes", rank, "time"), rows, words=2
        )
        said = (
            *words.why_first(plan),
            *words.recipes_in_words(plan),
            *([] if plan.explained is None else words.explained(plan.explained, plan)),
            *plan.rests_on,
            *words.counts_in_words(plan.certificate),
            *words.undecided_in_words(plan.certificate),
        )
        chart = Chart(
            "rival",
            "Time by part that plan 2 takes longer",
            "Parts below zero are shorter in plan 2.",
            partial(plan_figures.by_part, plan.next_longer_s, "seconds longer", "+.3g"),
        )
        figures = (chart,) if plan.next_longer_s else ()
        about = "Why the neighbours of the plan are behind, and what was excluded."
        yield Section(
            "rivals", "Why not another layout", about, (*((sheet,) if rows else ()), *figures, Items(said))
        )

    def sizes(self) -> Iterator[Section]:
        """Devices, days and cost, if several numbers of devices were asked for."""
        if len(self.every) < 2:
            return
        table = front_of(self.every)
        fits = table.dropna(subset="time_s")
        given = words.sizes_table(self.every)
        head, *rows = ((row[-1], *row[:-1], *["–"] * (len(given[0]) - len(row))) for row in given)
        sheet = Sheet(
            "Numbers of devices.", head, tuple(rows),
            marked=frozenset({self.every.index(self.plan)}), filtered=True,
        )  # fmt: skip
        value = "days" if fits["days"].notna().any() else "time_s"
        named = {"time_s": "seconds a step", "days": "days", "cost": "cost"}
        charts = [
            Chart(
                f"front-{name}",
                f"{named[name].capitalize()} by number of devices",
                "The front: no other number has fewer devices, fewer days and less cost.",
                partial(plan_figures.front, fits, name, named[name]),
            )
            for name in (value, "cost")
            if fits[name].notna().any()
        ]
        best = tuple(words.best_runs(words.runs_by_devices(self.every)))
        about = "Devices, time and cost of the best plan of every number of devices."
        yield Section(
            "sizes", "Devices, days and cost", about, (sheet, *charts, *((Items(best),) if best else ()))
        )

    def resources(self) -> Iterator[Section]:
        """Effect of 10 % more of each resource."""
        own_s = self.plan.by(self.plan.question.rank)
        rows = tuple(
            (
                one.change,
                "re-planned" if one.replanned else "same plan",
                f"{one.time_s:.4g} s",
                f"{1 - one.time_s / own_s:.1%}",
            )
            for one in self.more
        )  # fmt: skip
        sheet = Sheet(
            "Step with more of one resource.", ("change", "plan", "step", "time saved"), rows, words=2
        )
        chart = Chart(
            "resources",
            "Time saved by 10 % more of one resource",
            "The best plan of the same widths, where there was time for the search.",
            partial(plan_figures.saved, self.more, own_s),
        )
        about = "What 10 % more of each resource gives."
        yield Section("resources", "10 % more", about, (chart, sheet))

    def flags(self) -> Iterator[Section]:
        """Settings of the runtime, to copy."""
        files, notes = self.settings
        title, about = "Flags to copy", "Settings of the runtime for this plan, as `phaze emit` writes them."
        if not files:
            title, about = "Flags", "Why this plan has no flags to copy."
        listings = [Listing(name, text) for name, text in files.items()]
        yield Section("flags", title, about, (*listings, *map(Prose, notes)))

    def assumed(self) -> Iterator[Section]:
        """Assumptions of the answer."""
        about = "What the answer assumes."
        versions = ", ".join(f"{name} {version}" for name, version in self.plan.versions.items())
        yield Section("assumptions", "Assumptions", about, (Items(self.plan.assumptions), Prose(versions)))


def front_of(answers: Sequence[Answer]) -> pd.DataFrame:
    """Devices, step time, days and cost of every answer, and whether no other has less of all of them."""
    table = pd.DataFrame(
        [
            {
                "devices": one.question.devices,
                "time_s": one.time_s if isinstance(one, TrainingPlan) else None,
                "days": one.run.days if isinstance(one, TrainingPlan) and one.run else None,
                "cost": one.run.cost if isinstance(one, TrainingPlan) and one.run else None,
            }
            for one in answers
        ],
        dtype=float,
    )
    figures = table.dropna(axis="columns", how="all").to_numpy()
    worse = [((figures <= own).all(axis=1) & (figures < own).any(axis=1)).any() for own in figures]
    return table.assign(front=~np.array(worse) & table["time_s"].notna())


def _is_best(answer: Answer) -> bool:
    """True if an answer is the cheapest or fastest training run of those compared, or the closest to it."""
    return isinstance(answer, TrainingPlan) and answer.run is not None and bool(answer.run.is_the)


def plan_page(every: Sequence[Answer], settings: Callable[[TrainingPlan], Settings]) -> Report:
    """Page of the answers for one or several numbers of devices, about the cheapest or the fastest plan.

    `settings` returns the runtime's settings for a plan.
    """
    plans = [one for one in every if isinstance(one, TrainingPlan)]
    marked = [one for one in plans if _is_best(one)]
    chosen = (marked or sorted(plans, key=lambda one: one.time_s))[0]
    return PlanPage(chosen, every, settings(chosen)).report()
