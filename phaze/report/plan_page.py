"""Page for an answer of `phaze plan`: the ranked layouts, the reasons for the best one, and its flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd

from phaze.base.units import GIB, percent, signed
from phaze.layout import MODEL_WIDTHS
from phaze.pages.document import FirstScreen, Items, Listing, Prose, Section, Sheet
from phaze.pages.page import Report, page_of
from phaze.pages.page_words import words_of
from phaze.pages.pipeline_picture import PipelinePicture, left_out, timeline_picture
from phaze.plan.answer import ranked_table, words
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.ranked_table import row_status
from phaze.plan.answer.replay import ReplayedPlan
from phaze.plan.answer.what_if import CHANGES, MORE, changed_resources, raised, replanned
from phaze.plan.terms.memory import OK
from phaze.report import plan_figures
from phaze.report.near_best import SAME, Settings, as_plan, near_best, parts_and_flags
from phaze.runtimes.recipe import Recipe
from phaze.spec.system import Device
from phaze.spec.training_plan import RankedPlan, TrainingPlan, UnfitPlan, WhatIf

WORDS = words_of("plan")
REPLANNED_PASSES = 100_000_000
"""Number of simulated passes after which no change of a resource is re-planned: about a minute."""
LAYOUTS = 8
"""Maximum number of ranked layouts that are priced with more and less of each resource."""
ROWS, PASSES = 16, 96
"""Maximum number of stages, and of passes per stage, that a page draws."""
Answer = TrainingPlan | UnfitPlan


@dataclass(frozen=True, eq=False)
class PlanPage:
    """Page about one plan, with the answers for other numbers of devices and the runtime's settings."""

    plan: TrainingPlan
    answers: Sequence[Answer]
    """Answers for all numbers of devices, including the plan."""
    settings: Settings
    settings_of: Callable[[TrainingPlan], Settings] | None = None
    """Settings of any of the ranked layouts; None: only those of the plan are shown."""

    @cached_property
    def device(self) -> Device:
        """Device of the plan's system."""
        return self.plan.question.stored_machine().device

    @cached_property
    def replayed(self) -> ReplayedPlan:
        """The plan, replayed to get its price."""
        return ReplayedPlan.of(self.plan)

    @cached_property
    def drawn(self) -> PipelinePicture:
        """Simulated pipeline of the plan, prepared for drawing."""
        picture = timeline_picture("", self.replayed.now.price.timeline)
        return replace(picture, most_rows=ROWS, most_passes=PASSES)

    @cached_property
    def what_ifs(self) -> tuple[WhatIf, ...]:
        """Step times with 10 % more of each resource."""
        question = self.plan.question
        priced = self.replayed.now
        ranked = priced.priced_for(priced.question.ranked(question.rank))
        return tuple(replanned(ranked, question.fixed, REPLANNED_PASSES))

    @cached_property
    def ranked_layouts(self) -> list[PricedLayout]:
        """First rows of the ranked table whose stages are known, priced as they are ranked."""
        first = self.replayed.now
        question = first.question.ranked(self.plan.question.rank)
        others = (as_plan(self.plan, row) for row in self.plan.alternatives[1:LAYOUTS])
        # `None` ends the plans: places of later layouts would be wrong
        recipes = [Recipe.of(plan) for plan in iter(lambda: next(others, None), None)]
        return [first.priced_for(question), *(PricedLayout.of_recipe(question, recipe) for recipe in recipes)]

    @cached_property
    def changed(self) -> pd.DataFrame:
        """Step time by resource and percent of change, including none; sliders select its rows."""
        rows = pd.DataFrame([*changed_resources(self.ranked_layouts)])
        rows["plan"] = "plan " + rows["place"].astype(str)
        step_s = self.plan.by(self.plan.question.rank)
        same = rows[rows["change"] == CHANGES[0]].assign(change=0.0, time_s=step_s, plan="plan 1")
        rows = pd.concat([rows, same])
        rows["percent"] = (100 * rows["change"]).round().astype(int)
        replannable = rows["resource"].map(raised).where(rows["percent"] == round(100 * (MORE - 1)))
        for what_if in self.what_ifs:
            faster = (replannable == what_if.change) & (rows["time_s"] > what_if.time_s * (1 + SAME))
            rows["time_s"] = rows["time_s"].mask(faster, what_if.time_s)
            rows["plan"] = rows["plan"].mask(faster, "re-planned")
        return rows.drop(columns=["change", "place"])

    def report(self) -> Report:
        """Build the page."""
        parts = (
            self.near_best, self.time, self.memory, self.timeline, self.ranges, self.evidence, self.rivals,
            self.chips, self.sizes, self.resources, self.flags, self.assumed,
        )  # fmt: skip
        sections = [section for part in parts for section in part()]
        return page_of("plan.html", "plan of a training run", self.answer(), sections, {})

    def answer(self) -> FirstScreen:
        """First screen: the recommendation, its caveats, and the ranked layouts."""
        plan = self.plan
        question, *sentences = words.recommendation(plan, self.device.hbm_gib)
        details = [
            *words.why_first(plan),
            *([] if plan.prudence is None else [f"{words.PRUDENT} {plan.prudence}"]),
            *words.proof_in_words(plan.certificate, plan.question.rank, len(plan.chips or ())),
            *words.rows_in_words(plan.certificate, len(plan.alternatives)),
            *([] if plan.fewest is None else [words.fewest_in_words(plan.fewest)]),
        ]
        caveats = [] if plan.may_fit is None else [plan.may_fit]
        if any(other is not plan and _is_best(other) for other in self.answers):
            caveats.append(WORDS.sentence("other-sizes", devices=plan.question.devices))
        return FirstScreen(
            question, " ".join([*sentences, *caveats]), tuple(self._facts()), self._layouts(),
            details=" ".join(details), figures=("near-best", "time", "timeline"), unfolded=True,
            listings=tuple(Listing(name, text) for name, text in self.settings[0].items())[:1],
        )  # fmt: skip

    def _facts(self) -> Iterator[tuple[str, str]]:
        plan = self.plan
        interval = ""
        if plan.time_s_low is not None and plan.time_s_high is not None:
            interval = f"; 80 % interval {plan.time_s_low:.4g} to {plan.time_s_high:.4g} s"
        yield f"{plan.time_s:.4g} s", f"expected step{interval}"
        if plan.prudent_s is not None:
            yield f"{plan.prudent_s:.4g} s", "prudent step: only measured overlap"
        yield percent(plan.mfu), f"MFU; {plan.tokens_per_s_per_device:,.0f} tokens/s/device"
        hbm = f"{self.device.hbm_gib:g} GiB"
        yield f"{plan.used_gib:.1f} GiB", f"expected in use of {hbm} on the device with peak memory"
        yield (
            percent(plan.certificate.gap, 2),
            "largest possible gain of any other layout, at this price",
        )
        if plan.run is not None:
            yield f"{plan.run.days:.4g} days", " ".join(words.run_in_words(plan.run))

    def _layouts(self) -> Sheet:
        plans = self.plan.alternatives
        axes = [name for name in MODEL_WIDTHS if any(getattr(plan.layout, name) > 1 for plan in plans)]
        head = ("layout", "rank", "prudent", "expected", "interval", "MFU", "GiB", "bubble", "comm")
        rows = [self._row(rank, plan, axes) for rank, plan in enumerate(plans, start=1)]
        return Sheet(
            "Ranked layouts. A heading sorts the table.", (*head, *axes, "dp", "mbs", "ZeRO"), tuple(rows),
            marked=frozenset({0}), filtered=True,
        )  # fmt: skip

    def _row(self, rank: int, plan: RankedPlan, axes: Sequence[str]) -> tuple[str, ...]:
        layout = plan.layout
        no_interval = None in (plan.time_s_low, plan.time_s_high)
        fit = row_status(plan, self.device).partition(":")[0]
        return (
            ranked_table.shape(layout, plan.recomputed_layers) + (f" ({fit})" if fit != OK else ""),
            str(rank),
            "–" if plan.prudent_s is None else f"{plan.prudent_s:.4g} s",
            f"{plan.time_s:.4g} s",
            "–" if no_interval else f"{plan.time_s_low:.4g} to {plan.time_s_high:.4g} s",
            percent(plan.mfu),
            f"{plan.used_gib:.1f}",
            percent(plan.bubble_share),
            percent(plan.exposed_communication_share),
            *(str(getattr(layout, name)) for name in (*axes, "dp", "microbatch", "zero")),
        )

    def near_best(self) -> Iterator[Section]:
        """Yield the section on the ranked layouts: time against memory, and parts and flags of each."""
        chart = near_best(self.plan, self.device, WORDS)
        listings = [] if self.settings_of is None else parts_and_flags(self.plan, self.settings_of)
        yield WORDS.section("near-best", (chart, *listings))

    def time(self) -> Iterator[Section]:
        """Yield the section on the step time by part."""
        # the terminal leaves out the same negligible parts
        least_s = ranked_table.NEGLIGIBLE * self.plan.time_s
        ranked = sorted(self.plan.times_s.items(), key=lambda item: -item[1])
        parts = {name: part_s for name, part_s in ranked if part_s >= least_s}
        draw = partial(plan_figures.by_part, parts, "seconds of a step", ".3g")
        yield WORDS.section("time-by-part", [WORDS.chart("time", draw, bound_by=self.plan.bound_by)])

    def memory(self) -> Iterator[Section]:
        """Yield the section on memory by pipeline rank and over time, against the HBM capacity."""
        plan, hbm_gib = self.plan, self.device.hbm_gib
        # the framework and the allocator's gaps take the rest of the HBM
        limit_gib = self.replayed.now.question.limit_bytes(self.replayed.now.staged.layout) / GIB
        used = "" if plan.in_use_gib is None else f" In use: {words.used(plan)}."
        by_rank = partial(plan_figures.memory_by_rank, plan.memory, hbm_gib)
        over_time = partial(self.drawn.memory, {"HBM": hbm_gib, "for tensors": limit_gib})
        ranks = WORDS.chart("memory", by_rank, hbm_gib=hbm_gib, used=used)
        chart = WORDS.chart("memory-over-time", over_time, limit_gib=limit_gib)
        yield WORDS.section("memory-by-rank", (ranks, chart))

    def timeline(self) -> Iterator[Section]:
        """Yield the section on the pipeline over time."""
        omitted = "".join(f" {sentence}" for sentence in left_out(self.drawn))
        yield WORDS.section("pipeline", [WORDS.chart("timeline", self.drawn.timeline, left_out=omitted)])

    def ranges(self) -> Iterator[Section]:
        """Yield the section on the expected and prudent times of the ranked layouts."""
        chart = WORDS.chart("ranges", partial(plan_figures.ranges, self.plan.alternatives))
        sentences = [words.PRUDENT] if self.plan.prudence is None else [words.PRUDENT, self.plan.prudence]
        yield WORDS.section("expected-prudent", (chart, Items(tuple(sentences))))

    def evidence(self) -> Iterator[Section]:
        """Yield the section on the most similar measured runs, with their prediction errors."""
        runs = self.plan.evidence
        if not runs:
            nothing = next(words.evidence_in_words(self.plan))
            yield WORDS.section("evidence", [Prose(f"{nothing.capitalize()}.")])
            return
        table = pd.DataFrame([dict(run) | {"differs": ", ".join(run.differs) or "–"} for run in runs])
        sheet = WORDS.sheet("evidence", table)
        yield WORDS.section("evidence", (sheet, WORDS.chart("errors", partial(plan_figures.errors, runs))))

    def rivals(self) -> Iterator[Section]:
        """Yield the section on why other layouts are slower."""
        plan, rank = self.plan, self.plan.question.rank
        rows = tuple(
            (
                f"plan {place}", words.plan_differences(plan, rival), f"{rival.by(rank):.4g} s",
                signed(rival.by(rank) / plan.by(rank) - 1, 2),
            )
            for place, rival in enumerate(plan.alternatives[1:], start=2)
        )  # fmt: skip
        caption, head = "Next best layouts, by what they change.", ("plan", "changes", rank, "time")
        sheet = Sheet(caption, head, rows, words=2)
        sentences = (
            *words.why_first(plan),
            *words.recipes_in_words(plan, self.device),
            *([] if plan.explained is None else words.explained(plan.explained, plan)),
            *plan.rests_on,
            *words.counts_in_words(plan.certificate),
            *words.undecided_in_words(plan.certificate),
        )
        draw = partial(plan_figures.by_part, plan.next_longer_s, "seconds longer", "+.3g")
        figures = [WORDS.chart("rival", draw)] if plan.next_longer_s else []
        yield WORDS.section("rivals", (*((sheet,) if rows else ()), *figures, Items(sentences)))

    def chips(self) -> Iterator[Section]:
        """Yield the section on the candidate chips, if there were several."""
        if self.plan.chips is not None:
            # The outcome, last in the terminal, is a text like the name of the chip.
            head, *rows = ((row[0], row[-1], *row[1:-1]) for row in words.chips_table(self.plan.chips))
            about = "Chips by increasing lower bound of their step time."
            sheet = Sheet(about, head, tuple(rows), words=2, marked=frozenset({0}), filtered=True)
            yield WORDS.section("chips", (sheet,))

    def sizes(self) -> Iterator[Section]:
        """Yield the section on devices, days and cost, if several numbers of devices were requested."""
        if len(self.answers) < 2:
            return
        table = front_of(self.answers)
        fits = table.dropna(subset="time_s")
        cells = words.sizes_table(self.answers)
        # the layout, last in the terminal, comes first; dashes fill a row that has a reason instead of a plan
        head, *rows = ((row[-1], *row[:-1], *["–"] * (len(cells[0]) - len(row))) for row in cells)
        marked = frozenset({self.answers.index(self.plan)})
        sheet = Sheet("Numbers of devices.", head, tuple(rows), marked=marked, filtered=True)
        value = "days" if fits["days"].notna().any() else "time_s"
        named = {"time_s": "seconds a step", "days": "days", "cost": "cost"}
        charts = []
        for name in [name for name in (value, "cost") if fits[name].notna().any()]:
            draw = partial(plan_figures.front, fits, name, named[name])
            charts.append(WORDS.chart("front", draw, f"front-{name}", what=named[name].capitalize()))
        best = tuple(words.best_runs(words.runs_by_devices(self.answers)))
        yield WORDS.section("sizes", (sheet, *charts, *((Items(best),) if best else ())))

    def resources(self) -> Iterator[Section]:
        """Yield the section on the effect of more or less of each resource."""
        step_s = self.plan.by(self.plan.question.rank)
        rows = pd.DataFrame(map(dict, self.what_ifs), columns=[*WhatIf.model_fields])
        rows["plan"] = rows["replanned"].map({True: "re-planned", False: "same plan"})
        sheet = WORDS.sheet("resources", rows.assign(saved=1 - rows["time_s"] / step_s))
        draw = partial(plan_figures.changed, self.changed, step_s)
        chart = WORDS.chart("resources", draw, layouts=len(self.ranked_layouts))
        yield WORDS.section("resources", (chart, sheet))

    def flags(self) -> Iterator[Section]:
        """Yield the section with the runtime's settings, to copy."""
        files, notes = self.settings
        listings = [Listing(name, text) for name, text in files.items()]
        section = WORDS.section("flags" if files else "no-flags", (*listings, *map(Prose, notes)))
        yield replace(section, anchor="flags")

    def assumed(self) -> Iterator[Section]:
        """Yield the section on the assumptions of the answer."""
        versions = ", ".join(f"{name} {version}" for name, version in self.plan.versions.items())
        yield WORDS.section("assumptions", (Items(self.plan.assumptions), Prose(versions)))


def front_of(answers: Sequence[Answer]) -> pd.DataFrame:
    """Devices, step time, days and cost of every answer, and a flag for those on the Pareto front."""
    plans = [answer if isinstance(answer, TrainingPlan) else None for answer in answers]
    runs = [plan and plan.run for plan in plans]
    columns = {
        "devices": [answer.question.devices for answer in answers],
        "time_s": [plan and plan.time_s for plan in plans],
        "days": [run and run.days for run in runs],
        "cost": [run and run.cost for run in runs],
    }
    table = pd.DataFrame(columns, dtype=float)
    # Comparisons with NaN are false: an answer without a plan neither dominates nor is dominated, and a
    # figure that no answer has would leave none dominated.
    figures = table.dropna(axis="columns", how="all").to_numpy()
    worse = [((figures <= row).all(axis=1) & (figures < row).any(axis=1)).any() for row in figures]
    return table.assign(front=~np.array(worse) & table["time_s"].notna())


def _is_best(answer: Answer) -> bool:
    """True if an answer's run is marked as the cheapest, the fastest, or the closest to the deadline."""
    return isinstance(answer, TrainingPlan) and answer.run is not None and bool(answer.run.is_the)


def plan_page(answers: Sequence[Answer], settings: Callable[[TrainingPlan], Settings]) -> Report:
    """Build the page about the best plan among the answers for one or several numbers of devices.

    `settings` returns the runtime's settings for a plan.
    """
    plans = [plan for plan in answers if isinstance(plan, TrainingPlan)]
    marked = [plan for plan in plans if _is_best(plan)]
    chosen = (marked or sorted(plans, key=lambda plan: plan.time_s))[0]
    return PlanPage(chosen, answers, settings(chosen), settings).report()
