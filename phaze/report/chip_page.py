"""Page for an answer of `phaze chip`: the chip to build, all designs by area and by sizes, and the proof."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd

from phaze.base.units import digits, percent
from phaze.pages.document import FirstScreen, Items, Prose, Section, Sheet
from phaze.pages.page import Report, page_of
from phaze.pages.page_words import words_of
from phaze.pages.words import join
from phaze.plan.answer import chip_words
from phaze.plan.answer.ranked_table import shape
from phaze.report import chip_figures
from phaze.spec.chip_choice import ChipChoice, ChipRegret

WORDS = words_of("chip")
FIRST = 20
"""Number of designs in the table of the fastest ones."""


@dataclass(frozen=True, eq=False)
class ChipPage:
    """Page about one choice of a chip, with all designs of its space."""

    choice: ChipChoice
    designs: pd.DataFrame
    """Sizes, area, bounds and scores of every design (`chip_designs`)."""

    @cached_property
    def fitting(self) -> pd.DataFrame:
        """Designs on which every model may fit, with a label that names the HBM too."""
        fits: pd.DataFrame = self.designs[np.isfinite(self.designs["time_bound"])]
        chips = zip(fits["name"], fits["hbm_gib"], strict=True)
        return fits.assign(label=[_label(name, hbm_gib) for name, hbm_gib in chips])

    def report(self) -> Report:
        """Build the page."""
        parts = (self.front, self.sizes, self.robust, self.proof, self.assumed)
        sections = [section for part in parts for section in part()]
        return page_of("chip.html", "chip to build", self.answer(), sections, {})

    def answer(self) -> FirstScreen:
        """First screen: the chip, its proof, and all chips with their plans."""
        question, recommendation, *details = chip_words.sentences(self.choice)
        figures = ("front", "sizes")
        return FirstScreen(
            question, recommendation, tuple(self._facts()), self._chips(), details=" ".join(details),
            figures=figures, unfolded=True,
        )  # fmt: skip

    def _facts(self) -> Iterator[tuple[str, str]]:
        choice, chosen = self.choice, self.choice.chosen
        yield f"{digits(chosen.chip.area_mm2 or 0.0)} mm²", f"area ({choice.question.space.technology})"
        if chosen.price is not None and choice.question.prices is not None:
            yield digits(chosen.price), f"{choice.question.prices.currency or 'price'} of a chip with its HBM"
        for on_chip in chosen.plans:
            if on_chip.plan is not None:
                step_s = on_chip.plan.by(choice.question.rank)
                yield f"{step_s:.4g} s", f"{choice.question.rank} step of {on_chip.model}"
        yield percent(choice.gap), "largest possible gain of any other design with any layout"

    def _chips(self) -> Sheet:
        """Chosen chip, best chips of single models, and references, with the plan of each model."""
        question = self.choice.question
        rows = [self.choice.chosen, *self.choice.others]
        head, cells = chip_words.head_of(question), list[tuple[str, ...]]()
        for row in rows:
            for on_chip in row.plans:
                first, *figures, bound_by = chip_words.cells_of(on_chip, question)
                plan = on_chip.plan
                layout = "" if plan is None else shape(plan.layout, plan.recomputed_layers)
                area, hbm = f"{digits(row.chip.area_mm2 or 0.0)} mm²", f"{row.chip.hbm_gib:g} GiB"
                texts = (chip_words.title_of(row), row.chip.name, first, layout, bound_by)
                cells.append((*texts, area, hbm, *figures))
        header = ("role", "chip", head[0], "layout", head[-1], "area", "HBM", *head[1:-1])
        marked = frozenset(range(len(self.choice.chosen.plans)))
        return Sheet("Chips and their plans.", header, tuple(cells), words=5, marked=marked, filtered=True)

    def front(self) -> Iterator[Section]:
        """Yield the section on step time against area of all designs."""
        chosen, names = self.choice.chosen.chip, [model.model for model in self.choice.question.models]
        draw = partial(chip_figures.front, self.fitting, _label(chosen.name, chosen.hbm_gib))
        unfit = len(self.designs) - len(self.fitting)
        chart = WORDS.chart(
            "front",
            draw,
            models=join(names),
            mean=WORDS.sentence("mean") if len(names) > 1 else "",
            unfit=WORDS.sentence("unfit", count=f"{unfit:,}") if unfit else "",
        )
        first = self.fitting.sort_values(["time", "time_bound"], kind="stable")[:FIRST]
        texts = first["time"].map("{:.3f}".format).where(first["time"].notna(), "–")
        marked = first["label"] == _label(chosen.name, chosen.hbm_gib)
        sheet = WORDS.sheet("front", first.assign(time_text=texts), marked, count=len(first))
        yield WORDS.section("front", (chart, sheet))

    def sizes(self) -> Iterator[Section]:
        """Yield the section with the map of array shapes against buffers."""
        cells, what = self._cells(), self.choice.question.objective
        chart = WORDS.chart("sizes", partial(chip_figures.by_sizes, cells), what=what)
        buffers = {f"{mib:g}": f"{mib:g} MiB" for mib in sorted({*map(float, cells["glb_mib"])})}
        sheet = WORDS.sheet("sizes", cells, heads=buffers, what=what)
        yield WORDS.section("sizes", (chart, sheet))

    def _cells(self) -> pd.DataFrame:
        """Best design by array shape and buffer: its score or, without a plan, its lower bound."""
        rows = self.fitting.assign(least=self.fitting["score"].fillna(self.fitting["score_bound"]))
        rows = rows.sort_values(["pe_x", "pe_y", "glb_mib", "least"], kind="stable")
        rows = rows.drop_duplicates(["pe_x", "pe_y", "glb_mib"])
        searched = rows["score"].notna()
        digits_of = rows["least"].map("{:.3g}".format)
        return pd.DataFrame(
            {
                "array": [f"{x} x {y}" for x, y in zip(rows["pe_x"], rows["pe_y"], strict=True)],
                "glb_mib": rows["glb_mib"].map("{:g}".format),
                "least": rows["least"],
                "what": np.where(searched, "plan", "lower bound"),
                "name": rows["label"],
                "least_text": np.where(searched, digits_of, "≥ " + digits_of),
            }
        )

    def robust(self) -> Iterator[Section]:
        """Yield the section on other assumptions, if the choice considers them."""
        robust = self.choice.robust
        if robust is not None:
            sentences = Items(tuple(chip_words.robust_in_words(self.choice)))
            cases, compared = _table(robust.cases), _table(robust.compared)
            marked = [place == 0 for place in range(len(compared))]
            sheets = WORDS.sheet("cases", cases), WORDS.sheet("compared", compared, marked)
            yield WORDS.section("robust", (sentences, *sheets))

    def proof(self) -> Iterator[Section]:
        """Yield the section on the bounds of every model."""
        table = pd.DataFrame(map(dict, self.choice.bounds))
        table["gap"] = 1 - table["bound"] / table["score"]
        sheet = WORDS.sheet("proof", table, unit=chip_words.UNITS[self.choice.question.objective])
        yield WORDS.section("proof", (sheet, Prose(chip_words.proof_in_words(self.choice))))

    def assumed(self) -> Iterator[Section]:
        """Yield the section on the assumptions of the answer."""
        choice = self.choice
        levels = choice.question.cluster.levels
        rates = (f"{level.devices:,} at {digits(level.bandwidth_bytes_per_s / 1e9)} GB/s" for level in levels)
        sentences = [choice.trust, f"Network: {join(rates)} in each direction of a device."]
        sentences += [
            f"{model.model}: {model.global_batch:,} samples of {model.sequence:,} tokens a step."
            for model in choice.question.models
        ]
        yield WORDS.section("assumptions", [Items(tuple(sentences))])


def _label(name: str, hbm_gib: float | None) -> str:
    return f"{name}, {hbm_gib:g} GiB"


def _table(rows: Sequence[ChipRegret]) -> pd.DataFrame:
    """Cases or compared chips as rows, with their regret as text."""
    regrets = ["unfit" if row.regret is None else percent(row.regret) for row in rows]
    return pd.DataFrame(map(dict, rows)).assign(regret_text=regrets)


def chip_page(choice: ChipChoice, designs: pd.DataFrame) -> Report:
    """Build the page about a choice of a chip among all designs."""
    return ChipPage(choice, designs).report()
