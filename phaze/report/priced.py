"""Placements of a study with their price: a batch simulated event by event, next to the formula's time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from phaze.formulas.priced import PlacementPricing
from phaze.pages import charts
from phaze.pages.document import Block, Chart, Items, Prose, Section
from phaze.pages.page_words import words_of
from phaze.pages.pipeline_picture import PipelinePicture, left_out, timeline_picture
from phaze.pages.verdicts import Checklist, Verdicts, check_rows, close
from phaze.pages.words import times, widths
from phaze.report.anatomy import stages_of
from phaze.report.checks import Evidence
from phaze.report.findings import COMMON, PER_MODEL, Findings, baseline_design, priced_designs
from phaze.report.inputs import Inputs
from phaze.search.winners import PRICED

WORDS = words_of("study")
ROWS, PASSES = 8, 40
"""Limits of a small, legible picture in a report: stages, and passes per stage."""
PRICE_CHECKS = Checklist[Evidence]()


def price_of(findings: Findings, result: pd.Series) -> pd.Series | None:
    """Row of table `simulations` for a placed result; None without one."""
    rows = findings.simulations
    same = np.logical_and.reduce([rows[name] == result[name] for name in PRICED])
    return rows[same].iloc[0] if same.any() else None


def priced_section(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on prices; nothing for a study without them."""
    rows = priced_designs(inputs.study, findings)
    if rows.empty:
        return
    ratio = rows["simulated_s"] / rows["planned_s"]
    rows = rows.assign(
        ratio=ratio, difference=ratio - 1, fitting=rows["fits"].map({True: "yes", False: "no"})
    )
    best, marked = rows[rows["design"] == PER_MODEL], rows["design"] == PER_MODEL
    formulas, bound = (Prose(WORDS.sentences[name]) for name in ("formulas", "bound"))
    blocks: tuple[Block, ...] = (
        *_chart(rows, inputs), WORDS.sheet("simulated", rows, marked), *_range(best),
        formulas, *_picture(inputs, findings), WORDS.sheet("spent", rows), bound,
    )  # fmt: skip
    yield WORDS.section("simulated", blocks)


def _chart(rows: pd.DataFrame, inputs: Inputs) -> Iterator[Chart]:
    """Yield the chart of simulated over planned times; nothing without plans on the best accelerators."""
    wide = rows.pivot(index="model", columns="design", values="ratio").reindex(inputs.study.models)
    designs = (PER_MODEL, inputs.study.architectures.baseline, baseline_design(inputs.study))
    shown = wide[[design for design in designs if design in wide]].dropna(how="all")
    if PER_MODEL in shown:
        draw = partial(charts.bars, shown, "simulated over planned", origin=1, format_value=times)
        yield WORDS.chart("simulated", draw)


def _range(best: pd.DataFrame) -> Iterator[Items]:
    """Yield a sentence on the range of the differences on the best accelerators."""
    if len(best):
        farthest = best.iloc[int(np.argmax(best["difference"].abs()))]["model"]
        placeholders = {"model": farthest, "least": best["ratio"].min(), "most": best["ratio"].max()}
        yield Items((WORDS.sentence("differs", **placeholders),))


def _picture(inputs: Inputs, findings: Findings) -> Iterator[Chart]:
    """Yield charts over time of the first best placement with several stages, else of the first one."""
    placed = findings.results
    placed = placed[(placed["design"] == PER_MODEL) & (placed["status"] == "placed")]
    if placed.empty or inputs.pictures is None:
        return
    result = placed.iloc[int((placed["stages"] > 1).argmax())]
    drawn = inputs.pictures(result, stages_of(inputs, result))
    omitted = "".join(f" {sentence}" for sentence in left_out(drawn))
    placeholders = {"model": result["model"], "title": drawn.title, "left_out": omitted}
    yield WORDS.chart("timeline", drawn.timeline, **placeholders)
    yield WORDS.chart("timeline-memory", drawn.memory, **placeholders)


def placement_picture(
    pricings: Mapping[str, PlacementPricing],
    architectures: pd.DataFrame,
    placement: pd.Series,
    stages: pd.DataFrame,
) -> PipelinePicture:
    """Simulate a placement with the pricing of its model, and prepare it for a small picture."""
    chips = architectures[architectures["architecture"] == placement["architecture"]]
    priced = pricings[str(placement["model"])].price(chips.iloc[0], placement, stages)
    title = (
        f"{placement['model']} on {placement['architecture']}, {placement['hbm_gib']:g} GiB: "
        f"{{p, d, t}} = {widths(placement)}, {priced.plan.schedule}"
    )
    return replace(timeline_picture(title, priced.timeline), most_rows=ROWS, most_passes=PASSES)


@PRICE_CHECKS.hold("every compared placement has a price")
def _all_are_priced(e: Evidence) -> Verdicts:
    """Check that the formula's time next to each price equals the time in table `results`."""
    designs = (PER_MODEL, COMMON, baseline_design(e.inputs.study), e.inputs.study.architectures.baseline)
    placed = e.results[e.results["design"].isin(designs) & (e.results["status"] == "placed")]
    priced = placed.merge(e.inputs.simulations[[*PRICED, "planned_s"]], on=PRICED, how="left")
    yield from check_rows(close(priced["planned_s"], priced["time_per_batch_s"]), priced, ("model", "design"))


@PRICE_CHECKS.hold("passes, communication, update and waits make up a priced batch")
def _time_is_conserved(e: Evidence) -> Verdicts:
    rows = e.inputs.simulations
    parts = rows[["passes_share", "communication_share", "update_share", "bubble_share"]]
    yield from check_rows(close(parts.sum(axis=1), 1), rows, tuple(PRICED))
