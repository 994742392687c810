"""Simulated plans as pictures: timelines of the simulate stage in the form in which the report draws them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from phaze.pipeline.rows import job_rows, stage_memory, transfer_rows
from phaze.pipeline.timeline import Timeline
from phaze.plan.single import replay_one
from phaze.report.pipeline_picture import Shown

WIDE_IN, ROWS, PASSES = 9.0, 8, 40
"""What is drawn in a report, which must be small and legible: stages, and passes of a stage side by side."""


def shown(title: str, timeline: Timeline) -> Shown:
    """Return what is drawn of a timeline."""
    jobs = pd.DataFrame([*job_rows(timeline), *transfer_rows(timeline)])
    held = {stage: (of.time_s, of.bytes_) for stage, of in stage_memory(timeline).items()}
    pipeline = timeline.pipeline
    return Shown(title, jobs, held, pipeline.lanes, pipeline.batches)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of the plans of a study, simulated when they are asked for."""

    plan_stages: pd.DataFrame
    """Table plan_stages, all models."""

    def __call__(self, plan: pd.Series) -> Shown:
        """Return what is drawn of a row of table plans."""
        answer = replay_one(plan, self.plan_stages)
        what = shown(answer.which(), answer.found.timeline)
        return replace(what, wide_in=WIDE_IN, most_rows=ROWS, most_passes=PASSES)
