"""Page of a study that chooses chips: the chip for all models of each scenario, and the ladder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from math import inf

import numpy as np
import pandas as pd

from phaze.base.units import percent
from phaze.pages import charts
from phaze.pages.document import Chart, FirstScreen, Section
from phaze.pages.page import Report, case_page
from phaze.pages.page_words import words_of
from phaze.pages.verdicts import ROUNDING, Checklist, Verdicts, check_rows, close
from phaze.pages.words import times
from phaze.plan.answer import chip_words
from phaze.plan.answer.ranked_table import shape
from phaze.report.chip_page import ChipPage
from phaze.spec.architecture import GRID_SIZES
from phaze.spec.chip_choice import ChipChoice, ChipForModels, PlanOnChip
from phaze.spec.chip_study import ChipStudy, search_name
from phaze.spec.training_plan import TrainingPlan
from phaze.tables.chips import BestChips, ChosenChips, LadderSteps

WORDS = words_of("chips")
KEYS = tuple(ChosenChips.keys)
CHECKS: Checklist[ChipInputs] = Checklist()


@dataclass(frozen=True)
class LadderStep:
    """Best plan of a step of the ladder on any chip, and the plan on the compared architecture."""

    plan: TrainingPlan
    built: ChipForModels


@dataclass(frozen=True)
class ChipInputs:
    """Chosen chips of a study by scenario, and the steps of its ladder."""

    study: ChipStudy
    choices: Mapping[str, ChipChoice]
    bounds: Mapping[str, pd.DataFrame]
    """Table `chip_bounds` of every search of a scenario, by search."""
    steps: Sequence[LadderStep]

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """Table `chosen_chips`."""
        rows = [
            _chosen_row(scenario, choice, chip, plan)
            for scenario, choice in self.choices.items()
            for chip in (choice.chosen, *choice.others)
            for plan in chip.plans
        ]
        return ChosenChips.check(pd.DataFrame(rows).drop_duplicates([*KEYS]))

    def designs(self, scenario: str) -> pd.DataFrame:
        """Designs of a scenario with their times and bounds relative to the best, as in `chip_designs`."""
        tables = [self.bounds[search_name(scenario, model)] for model in self.study.models]
        # All tables have the same designs, sorted by their names.
        least_s = [table["step_s"].min() for table in tables]
        columns = {
            name: np.exp(np.mean([np.log(t[of] / s) for t, s in zip(tables, least_s, strict=True)], axis=0))
            for name, of in (("time", "step_s"), ("time_bound", "bound_s"))
        }
        time = np.where(np.isfinite(columns["time"]), columns["time"], np.nan)
        designs = tables[0].rename(columns={"architecture": "name"})
        bound = columns["time_bound"]
        return designs.assign(time=time, time_bound=bound, score=time, score_bound=bound)

    @cached_property
    def best(self) -> pd.DataFrame:
        """Table `best_chips`."""
        rows = [
            {
                "scenario": scenario,
                "model": bound.model,
                "step_s": bound.score,
                "bound_s": bound.bound,
                "gap": 1 - bound.bound / bound.score,
                "stopped": bound.stopped or "",
            }
            for scenario, choice in self.choices.items()
            for bound in choice.bounds
        ]
        return BestChips.check(pd.DataFrame(rows))

    @cached_property
    def ladder(self) -> pd.DataFrame:
        """Table `ladder_steps`."""
        pairs = zip(self.study.ladder, self.steps, strict=True)
        rows = [_step_row(number, rung.name, rung.note, step) for number, (rung, step) in enumerate(pairs, 1)]
        return LadderSteps.check(pd.DataFrame(rows)) if rows else LadderSteps.empty()


def _chosen_row(
    scenario: str, choice: ChipChoice, row: ChipForModels, on_chip: PlanOnChip
) -> dict[str, object]:
    chip, plan, rank = row.chip, on_chip.plan, choice.question.rank
    return {
        "scenario": scenario,
        "role": row.role,
        "architecture": chip.name,
        "hbm_gib": chip.hbm_gib,
        "model": on_chip.model,
        **{name: getattr(chip, name) for name in (*GRID_SIZES, "area_mm2")},
        "area_low_mm2": row.area_low_mm2,
        "area_high_mm2": row.area_high_mm2,
        "step_s": inf if plan is None else plan.by(rank),
        "bound_s": inf if on_chip.bound_s is None else on_chip.bound_s,
        "times_best": on_chip.times_best or inf,
        "mfu": 0.0 if plan is None else plan.mfu,
        "tokens_per_s_mm2": on_chip.tokens_per_s_mm2 or 0.0,
        "tokens_per_j": on_chip.tokens_per_j or 0.0,
        "bound_by": "" if plan is None else plan.bound_by,
        "layout": "" if plan is None else shape(plan.layout, plan.recomputed_layers),
        "stopped": on_chip.stopped or "",
    }


def _step_row(number: int, name: str, note: str, step: LadderStep) -> dict[str, object]:
    plan, (on_built,) = step.plan, step.built.plans
    rank, chip = plan.question.rank, plan.question.stored_machine().device
    bound_s, step_s = plan.certificate.bound_s or 0.0, plan.by(rank)
    built_s = inf if on_built.plan is None else on_built.plan.by(rank)
    return {
        "step": number,
        "name": name,
        "note": note,
        "model": plan.question.model.name,
        "architecture": chip.name,
        "hbm_gib": chip.hbm_gib,
        "area_mm2": chip.area_mm2 or 0.0,
        "step_s": step_s,
        "bound_s": bound_s,
        "built": step.built.chip.name,
        "built_s": built_s,
        "gain": built_s / step_s,
        "most_gain": built_s / bound_s if bound_s else inf,
        "stopped": plan.certificate.stopped or "",
    }


def build_chip_report(inputs: ChipInputs) -> Report:
    """Build the page of the chosen chips of a study."""
    return case_page(
        "chips.html",
        "chips to build",
        inputs,
        ("chip-checks", CHECKS, WORDS.sentences["checked"]),
        {
            "chosen_chips": (ChosenChips, inputs.chosen),
            "best_chips": (BestChips, inputs.best),
            "ladder_steps": (LadderSteps, inputs.ladder),
        },
        _answer(inputs),
        _sections(inputs),
        (WORDS.sentences[name] for name in ("priced", "bounded", "smaller", "ended")),
    )


def _answer(inputs: ChipInputs) -> FirstScreen:
    """First screen: the chip of every scenario, for which models, and what another chip could gain."""
    rows = [
        {
            "scenario": scenario,
            "architecture": choice.chosen.chip.name,
            **choice.chosen.chip.model_dump(include={*GRID_SIZES, "hbm_gib"}),
            "area_mm2": choice.chosen.chip.area_mm2,
            "gap": choice.gap,
            "models": len(choice.question.models),
            "loss": max(0.0, max(plan.times_best or 1.0 for plan in choice.chosen.plans) - 1),
        }
        for scenario, choice in inputs.choices.items()
    ]
    sheet = WORDS.sheet("chosen", pd.DataFrame(rows))
    advice = ((scenario, chip_words.sentences(choice)) for scenario, choice in inputs.choices.items())
    sentences = [f"{scenario}: {recommendation}" for scenario, (_, recommendation, *_) in advice]
    sentences.append(next(iter(inputs.choices.values())).trust)
    stopped = inputs.best[inputs.best["stopped"] != ""]
    if len(stopped):
        names = ", ".join(f"{row.model} ({row.scenario})" for row in stopped.itertuples())
        sentences.append(WORDS.sentence("stopped", names=names))
    facts = (
        (f"{sum(choice.designs for choice in inputs.choices.values()):,}", "designs, none left out"),
        (str(len(inputs.best)), "searches over all layouts"),
        (percent(max(choice.gap for choice in inputs.choices.values())), "largest gap of a common chip"),
    )
    first = next(iter(inputs.choices))
    figures = (f"front-{first}", "ladder", f"sizes-{first}")
    question, answer = "Which chip should be built?", " ".join(sentences)
    return FirstScreen(question, answer, facts, sheet, unfolded=True, figures=figures)


def _sections(inputs: ChipInputs) -> Iterator[Section]:
    for scenario, choice in inputs.choices.items():
        rows = inputs.chosen[inputs.chosen["scenario"] == scenario]
        sheet = WORDS.sheet("compared", rows, rows["role"] == "all")
        yield _in_scenario(WORDS.section("compared", [sheet]), scenario)
        page = ChipPage(choice, inputs.designs(scenario))
        for section in chain(page.front(), page.sizes(), page.proof(), page.assumed()):
            yield _in_scenario(section, scenario)
    yield WORDS.section("searches", [WORDS.sheet("searches", inputs.best)])
    ladder = inputs.ladder
    if len(ladder):
        gains = ladder.set_index("name")[["gain"]]
        draw = partial(charts.bars, gains, "gain", origin=1, format_value=times)
        # The factor by which a step changes the gain; the first one changes none.
        rows = ladder.assign(factor=ladder["gain"] / ladder["gain"].shift())
        blocks = WORDS.chart("ladder", draw), WORDS.sheet("ladder", rows)
        yield WORDS.section("ladder", blocks, built=ladder["built"].iloc[0])


def _in_scenario(section: Section, scenario: str) -> Section:
    """Section of a page about one choice, among those of other scenarios."""
    blocks = (
        replace(block, name=f"{block.name}-{scenario}") if isinstance(block, Chart) else block
        for block in section.blocks
    )
    title = f"{section.title}, {scenario}"
    return replace(section, anchor=f"{section.anchor}-{scenario}", title=title, blocks=tuple(blocks))


@CHECKS.hold("every model has a plan on the chosen chip of every scenario")
def _chosen_chips_have_plans(inputs: ChipInputs) -> Verdicts:
    rows = inputs.chosen[inputs.chosen["role"] == "all"].set_index(["scenario", "model"])
    for scenario in inputs.study.scenarios:
        for model in {bound.model for bound in inputs.choices[scenario].bounds}:
            yield bool(np.isfinite(rows["step_s"].get((scenario, model), inf))), f"{scenario}, {model}"


@CHECKS.hold("every scenario has a chosen chip, and every model its search")
def _every_search_ended(inputs: ChipInputs) -> Verdicts:
    for scenario in inputs.study.scenarios:
        models = len(inputs.choices[scenario].bounds)
        yield models == len(inputs.study.models), f"{scenario}: {models} models"


@CHECKS.hold("a search that did not end early has closed its gap")
def _gaps_are_closed(inputs: ChipInputs) -> Verdicts:
    rows = inputs.best
    gaps = {scenario: choice.question.gap for scenario, choice in inputs.choices.items()}
    closed = rows["gap"] <= rows["scenario"].map(gaps) * (1 + ROUNDING)
    yield from check_rows(closed | (rows["stopped"] != ""), rows, ("scenario", "model"))


@CHECKS.hold("no plan is faster than the bound of its chip, nor than that of all chips")
def _bounds_are_below_times(inputs: ChipInputs) -> Verdicts:
    rows = inputs.chosen.merge(inputs.best[["scenario", "model", "bound_s"]], on=["scenario", "model"])
    in_space = ~rows["role"].isin(["built", "template"])
    least = rows["bound_s_x"].where(~in_space, np.maximum(rows["bound_s_x"], rows["bound_s_y"]))
    yield from check_rows(least <= rows["step_s"] * (1 + ROUNDING), rows, KEYS)


@CHECKS.hold("the chosen chip has the least mean of all chips that are compared for all models")
def _chosen_chip_is_best(inputs: ChipInputs) -> Verdicts:
    rows = inputs.chosen[~inputs.chosen["role"].isin(["built", "template"])]
    means = np.log(rows["times_best"]).groupby([rows["scenario"], rows["role"]]).mean()
    for scenario in inputs.choices:
        least = means[scenario].min()
        yield bool(means[scenario, "all"] <= least + ROUNDING), scenario


@CHECKS.hold("gains of the ladder are those of its step times")
def _gains_follow_times(inputs: ChipInputs) -> Verdicts:
    rows = inputs.ladder
    yield from check_rows(close(rows["gain"] * rows["step_s"], rows["built_s"]), rows, ("step",))
