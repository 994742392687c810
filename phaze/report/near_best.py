"""Near-best layouts on the page of a plan: a chart of time against memory, and parts and flags of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import altair as alt
import pandas as pd

from phaze.base.errors import PhazeError
from phaze.pages.document import Chart, Listing
from phaze.pages.page_words import PageWords
from phaze.pages.style import AMBER, BLUE
from phaze.pages.vega import WIDTH
from phaze.plan.answer import words
from phaze.plan.answer.answer import question_of
from phaze.plan.answer.priced import PricedLayout
from phaze.plan.answer.ranked_table import NEGLIGIBLE, row_status, shape
from phaze.plan.terms.memory import OK
from phaze.runtimes.layout_string import blocks_of, equal_counts
from phaze.runtimes.recipe import Recipe
from phaze.spec.system import Device
from phaze.spec.training_plan import RankedPlan, StageShare, TrainingPlan

Settings = tuple[Mapping[str, str], Sequence[str]]
"""Files of a runtime's settings by name, and sentences on what they cannot express."""
ANCHOR = "layout-"
"""Begin of the anchor of a layout's parts and flags; its rank follows."""
SAME = 1e-6
"""Relative difference of step times below which stages are those of a row."""


def near_best(plan: TrainingPlan, device: Device, page_words: PageWords) -> Chart:
    """Chart of the ranked layouts, time against memory; a click shows the layout's parts and flags."""
    rank = plan.question.rank
    rows = [
        {
            "layout": f"{place}: {shape(row.layout, row.recomputed_layers)}",
            "s": row.by(rank),
            "GiB": row.used_gib,
            "fit": "fits" if row_status(row, device) == OK else "may not fit",
            "at": f"#{ANCHOR}{place}",
        }
        for place, row in enumerate(plan.alternatives, start=1)
    ]
    return page_words.chart("near-best", lambda: drawn(pd.DataFrame(rows), rank, device.hbm_gib), rank=rank)


def drawn(table: pd.DataFrame, rank: str, hbm_gib: float) -> alt.TopLevelMixin:
    """Draw layouts by seconds of a step and GiB of a device; each point links to its layout."""
    scale = alt.Scale(zero=False, padding=20)
    colour = alt.Scale(domain=["fits", "may not fit"], range=[BLUE, AMBER])
    base = alt.Chart(table).encode(
        alt.X("s:Q", title=f"{rank} seconds a step", scale=scale),
        alt.Y("GiB:Q", title=f"GiB in use, of {hbm_gib:g}", scale=scale),
    )
    points = base.mark_point(filled=True, size=130, opacity=0.85).encode(
        alt.Color("fit:N", scale=colour),
        alt.Href("at:N"),
        tooltip=["layout:N", alt.Tooltip("s:Q", format=".4~g"), alt.Tooltip("GiB:Q", format=".1f"), "fit:N"],
    )
    ranks = base.mark_text(dx=10, align="left").encode(text=alt.Text("place:N"))
    numbered = ranks.transform_calculate(place="split(datum.layout, ':')[0]")
    return alt.layer(points, numbered).properties(width=WIDTH, height=260)


def parts_and_flags(plan: TrainingPlan, settings: Callable[[TrainingPlan], Settings]) -> Iterator[Listing]:
    """Yield a listing per ranked layout: time and memory by part, and the runtime's settings."""
    for place, row in enumerate(plan.alternatives, start=1):
        caption = f"{place}: {shape(row.layout, row.recomputed_layers)}. "
        caption += (
            f"{words.predicted(row, plan.question.calibrated)}; {words.used(row)}, bound by {row.bound_by}."
        )
        planned = plan if place == 1 else as_plan(plan, row)
        if planned is None:
            yield Listing(caption, f"phaze plan --fix {_fixed(row)}", f"{ANCHOR}{place}")
            continue
        spent = sorted(planned.times_s.items(), key=lambda part: -part[1])
        parts = (f"{name} {part_s:.3g} s" for name, part_s in spent if part_s >= NEGLIGIBLE * row.time_s)
        files, notes = settings(planned)
        text = "\n".join([*files.values(), *(f"# {note}" for note in notes)])
        yield Listing(f"{caption} Time: {', '.join(parts)}.", text, f"{ANCHOR}{place}")


def as_plan(plan: TrainingPlan, row: RankedPlan) -> TrainingPlan | None:
    """Plan of a row of the ranked table, with its stages and parts; None if its stages are not unique.

    A row names the recomputed blocks of all stages together; stages with an equal number each must add up to
    them and have the row's time.
    """
    blocks = blocks_of(row.layout.pipeline_layout)
    mtp = plan.question.model.mtp
    choices = (equal_counts(blocks, mtp, count) for count in range(max(blocks) + 1))
    every = [*choices, tuple(blocks)]
    for recomputed in dict.fromkeys(every):
        if sum(recomputed) != row.recomputed_layers:
            continue
        stages = tuple(
            StageShare(rank=q % row.layout.pp, layers=layers, recomputed=again)
            for q, (layers, again) in enumerate(zip(blocks, recomputed, strict=True))
        )
        fields = {name: getattr(row, name) for name in RankedPlan.model_fields}
        planned = plan.model_copy(update={**fields, "stages": stages})
        try:
            priced = PricedLayout.of_recipe(question_of(plan.question), Recipe.of(planned))
        except PhazeError:
            continue
        if abs(priced.price.time_s - row.time_s) < SAME * row.time_s:
            return planned.model_copy(update={"times_s": priced.parts_s})
    return None


def _fixed(row: RankedPlan) -> str:
    """Widths of a layout in the form that `--fix` takes."""
    names = ("tp", "cp", "ep", "pp", "vp", "microbatch", "zero")
    return ",".join(f"{name}={getattr(row.layout, name)}" for name in names)
