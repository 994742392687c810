"""Example pipelines: from lines of text, with one stage, and with recomputation; the ideal bubble in closed
form.
"""

from __future__ import annotations

from dataclasses import fields, replace

from phaze.pipeline.durations import JobKind
from phaze.pipeline.stages import StageCost
from phaze.pipeline.timeline import Timeline


def picture(timeline: Timeline, unit_s: float) -> list[str]:
    """Return a line for each worker, a cell for each unit of time: the number of the microbatch, from 1.

    Backward passes have a minus sign, recomputation a plus; time that is not a pass is a point.
    """
    signs = {JobKind.FORWARD: "", JobKind.RECOMPUTE: "+", JobKind.BACKWARD: "-"}
    width = len(str(timeline.jobs.microbatch.max() + 1)) + 1
    lines = []
    for worker in range(len(timeline.pipeline.workers)):
        cells = ["."] * round(timeline.time_s / unit_s)
        for job in range(*timeline.jobs.first[worker : worker + 2].tolist()):
            sign = signs.get(JobKind(timeline.jobs.kind[job]))
            ends = round(timeline.start_s[job] / unit_s), round(timeline.end_s[job] / unit_s)
            for cell in range(*ends) if sign is not None else ():
                cells[cell] = f"{sign}{timeline.jobs.microbatch[job] + 1}"
        lines.append(" ".join(cell.rjust(width) for cell in cells).rstrip())
    return lines


def merged(stages: tuple[StageCost, ...]) -> StageCost:
    """Return the stage that executes all of them one after the other: PALM's layer-wise execution.

    What is sent between them stays where it is; memory for work is that of the neediest.
    """
    sums = {f.name: sum(getattr(stage, f.name) for stage in stages) for f in fields(StageCost)}
    last, first = stages[-1], stages[0]
    return replace(
        first,
        **{
            **sums,
            "send_activation_s": last.send_activation_s,
            "send_gradient_s": first.send_gradient_s,
            "work_bytes": max(stage.work_bytes for stage in stages),
        },
    )


def recomputing(stage: StageCost, input_bytes: float) -> StageCost:
    """Return the stage that stashes its inputs only and runs forward again before the backward pass.

    What it no longer stashes it needs while it works on a microbatch (Piper, Section 3.5).
    """
    return replace(
        stage,
        recompute_s=stage.forward_s,
        stash_bytes=input_bytes,
        work_bytes=stage.work_bytes + max(stage.stash_bytes - input_bytes, 0.0),
    )


def interleaved_bubble(depth: int, microbatches: int, chunks: int) -> float:
    """Return a balanced pipeline's bubble over its ideal time, (p - 1)/(v m) (Narayanan et al., SC 2021)."""
    return (depth - 1) / (chunks * microbatches)
