"""Picture of one simulated plan: its stages over time, and below them the memory of their devices.

If a pipeline is too long to be legible, only its beginning and end are drawn. Likewise, with many stages only
the first and the last ones are drawn. A note lists the omitted parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from textwrap import wrap

import altair as alt
import numpy as np
import pandas as pd

from phaze.pages.over_time import MICROBATCH_JOBS, MOST_LINES, Profile, Window, cells, memory, pipeline
from phaze.pages.style import INK
from phaze.pages.words import seconds
from phaze.pipeline.timeline import Timeline
from phaze.pipeline.trace import job_rows, stage_memory, transfer_rows

WIDE = 1000
"""Width of the picture in pixels."""
LETTERS = 150
"""Maximum number of characters on a line of the notes."""
FONT, DIGIT = 10, 6
"""Font size of the microbatch numbers in passes, and the width of a digit, in pixels."""
MOST_ROWS = 24
MOST_PASSES = 96
AROUND = 1.25
"""Minimum drawn time of each part, relative to the time to fill or drain the pipeline."""
WHOLE = 0.8
"""Share of the time covered by beginning and end above which the whole pipeline is drawn."""
MOMENT = 1e-9
"""Duration that counts as zero, as a share of the whole time, because sums of seconds are rounded."""
GAP = 1
"""Empty rows in place of omitted stages."""


@dataclass(frozen=True)
class PipelinePicture:
    """Simulated plan to draw, with the maximum numbers of rows and passes to show."""

    title: str
    jobs: pd.DataFrame
    """Jobs in the format of `pages.over_time`; times in seconds."""
    profiles: Mapping[int, Profile]
    """Memory over time, by stage, of a device of the stage's first replica."""
    lanes: int = 1
    """Number of identical concurrent pipelines; `jobs` contains the jobs of one."""
    batches: int = 1
    most_rows: int = MOST_ROWS
    most_passes: int = MOST_PASSES
    """Maximum number of passes drawn per stage; of more, the first and the last ones are drawn."""

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Jobs, each with the row of its worker."""
        return cells(self.jobs)

    @cached_property
    def passes(self) -> pd.DataFrame:
        """Picture cells, one per forward or backward pass of a microbatch."""
        return self.cells[self.cells["kind"].isin(MICROBATCH_JOBS)]

    @cached_property
    def workers(self) -> pd.DataFrame:
        """Stage and replica of each row."""
        first = self.cells[self.cells["kind"] == "forward"].groupby("row")["stage"].min()
        return pd.DataFrame({"stage": first, "replica": first.groupby(first).cumcount()})

    @property
    def time_s(self) -> float:
        """End of the last job."""
        return float(self.jobs["end_s"].max())

    @cached_property
    def windows(self) -> tuple[Window, ...]:
        """Time windows to draw: the whole simulated time, or its beginning and its end."""
        time_s, by_row = self.time_s, self.passes.groupby("row")
        # each of two parts has the mean time of half as many passes as a row may show
        part_s = time_s * self.most_passes / 2 / int(by_row.size().max())
        # until the last row begins its first pass, and from the end of the first row's last pass
        fills_s, drains_s = float(by_row["start_s"].min().max()), time_s - float(by_row["end_s"].max().min())
        first, last = max(part_s, AROUND * fills_s), max(part_s, AROUND * drains_s)
        if first + last >= WHOLE * time_s:
            return ((0.0, time_s),)
        return (0.0, first), (time_s - last, time_s)

    @cached_property
    def rows(self) -> dict[int, int]:
        """Position in the picture of each drawn row; omitted rows leave a gap."""
        count = len(self.workers)
        if count <= self.most_rows:
            return {row: row for row in range(count)}
        half = self.most_rows // 2
        last = {count - half + place: half + GAP + place for place in range(half)}
        return {row: row for row in range(half)} | last

    @cached_property
    def drawn(self) -> pd.DataFrame:
        """Cells of the drawn rows, at their positions."""
        return self.cells.assign(row=self.cells["row"].map(self.rows)).dropna(subset="row")

    @cached_property
    def lines(self) -> dict[int, Profile]:
        """Memory over time of the stages to draw: all, or a selection with the first, last and peak stage."""
        stages = list(self.profiles)
        if len(stages) > MOST_LINES:
            fullest = max(stages, key=lambda stage: float(self.profiles[stage][1].max()))
            # one line fewer than there are colours, because the stage with peak memory may be none of these
            even = np.linspace(0, len(stages) - 1, MOST_LINES - 1).round().astype(int)
            stages = sorted({fullest, *(stages[i] for i in even)})
        return {stage: self._to_the_end(stage) for stage in stages}

    def _to_the_end(self, stage: int) -> Profile:
        """Memory of a stage over time until all stages are done, without values of zero duration."""
        time_s, used_bytes = self.profiles[stage]
        # the last value lasts to the end of the picture
        lasts = np.append(np.diff(time_s) > MOMENT * self.time_s, True)
        return np.append(time_s[lasts], self.time_s), np.append(used_bytes[lasts], used_bytes[-1])

    def timeline(self) -> alt.Chart:
        """Draw the passes of every stage over time, with sliders for the zoom and its position."""
        return pipeline(self.drawn, self.windows, "seconds of a step", end_s=self.time_s)

    def memory(self, limits_gib: Mapping[str, float] | None = None) -> alt.LayerChart:
        """Draw the memory of tensors on a device of each stage over time, against limits."""
        return memory(self.lines, self.time_s, ("seconds of a step", "GiB a device"), limits=limits_gib)


def picture(plan: PipelinePicture) -> alt.TopLevelMixin:
    """Draw the stages over time, with their memory below, for a picture file."""
    wide = WIDE / len(plan.windows)
    notes = [line for note in _notes(plan) for line in wrap(note, LETTERS)]
    above = [_numbered(plan, window, wide).properties(width=wide) for window in plan.windows]
    title = alt.TitleParams(plan.title, subtitle=notes, anchor="start")
    chart = alt.vconcat(alt.hconcat(*above), plan.memory().properties(width=WIDE))
    chart = chart.resolve_scale(color="independent").properties(title=title)
    figure: alt.TopLevelMixin = chart.configure_legend(orient="top")
    return figure


def _numbered(plan: PipelinePicture, window: Window, wide: float) -> alt.LayerChart | alt.FacetChart:
    """Draw the cells of a window, with microbatch numbers in the passes that have room for them."""
    chart = pipeline(plan.drawn, [window], "seconds of a step")
    # a file has a fixed width, unlike a page, so that the room for a number is known
    room = f"(datum.end - datum.start) / {window[1] - window[0]:.9g} * {wide:.9g}"
    passes = f"indexof({list(MICROBATCH_JOBS)}, datum.kind) >= 0"
    colour = alt.condition("datum.kind == 'recompute'", alt.value(INK), alt.value("white"))
    fits = f"{room} > {DIGIT} * length(toString(datum.microbatch)) && {passes}"
    numbers = alt.Chart(chart.data).mark_text(fontSize=FONT).transform_filter(fits)
    middles = {"at": "(datum.start + datum.end) / 2", "middle": "(datum.top + datum.low) / 2"}
    across, up = alt.X("at:Q", title="seconds of a step"), alt.Y("middle:Q", title="stage")
    numbers = numbers.transform_calculate(**middles).encode(across, up, text="microbatch:Q", color=colour)
    return alt.layer(chart, numbers)


def _notes(plan: PipelinePicture) -> Iterator[str]:
    yield (
        "Above: a cell is a pass with the number of its microbatch, from 1, where it fits; thin lines below "
        "cells: tensors on their way to the stage, gradients exchanged meanwhile; white: the stage waits."
    )
    lines, stages = len(plan.lines), len(plan.profiles)
    selection = f", of {lines} of {stages} stages, the fullest among them" if lines < stages else ""
    yield f"Below: memory of a device of each stage (its first replica){selection}."
    if plan.lanes > 1:
        yield f"{plan.lanes} equal pipelines run beside each other; one is drawn, with its own microbatches."
    if plan.batches > 1:
        yield f"{plan.batches} batches follow each other without a flush."
    longest = (plan.jobs["end_s"] - plan.jobs["start_s"]).groupby(plan.jobs["kind"]).max()
    if instant := longest.index[longest <= 0].tolist():
        yield f"Takes no time: {', '.join(instant)}."
    yield from left_out(plan)


def left_out(plan: PipelinePicture) -> Iterator[str]:
    """Yield sentences on the parts of the plan that the picture omits."""
    hidden = [row for row in range(len(plan.workers)) if row not in plan.rows]
    if hidden:
        stages = plan.workers.loc[[hidden[0], hidden[-1]], "stage"].tolist()
        yield (
            f"Left out above: {len(hidden)} of {len(plan.workers)} rows in the middle, of stages "
            f"{stages[0]} to {stages[1]}."
        )
    if len(plan.windows) == 1:
        return
    (_, start), (end, _) = plan.windows
    passes = plan.passes[plan.passes["row"].isin(list(plan.rows))]
    seen = passes[(passes["start_s"] < start) | (passes["end_s"] > end)]["microbatch"].nunique()
    every, time = passes["microbatch"].nunique(), seconds
    yield (
        f"Left out above: from {time(start)} to {time(end)} of {time(plan.time_s)}; {every - seen} of "
        f"{every} microbatches have no pass in what is drawn."
    )


def timeline_picture(title: str, timeline: Timeline) -> PipelinePicture:
    """Prepare a simulated timeline for drawing."""
    jobs = pd.DataFrame([*job_rows(timeline), *transfer_rows(timeline)])
    profiles = {stage: (profile.time_s, profile.bytes_) for stage, profile in stage_memory(timeline).items()}
    pipeline = timeline.pipeline
    return PipelinePicture(title, jobs, profiles, pipeline.lanes, pipeline.batches)
