"""Checks of the cases on tiles; one that fails is a defect of ours, not a finding."""

from __future__ import annotations

from phaze.report.tiled.inputs import RUN, TiledInputs
from phaze.report.verdicts import ROUNDING, Checklist, Verdicts, each

CHECKS: Checklist[TiledInputs] = Checklist()
SLACK = 1 + ROUNDING


@CHECKS.hold("every combination of a case is simulated")
def _every_combination_has_a_row(inputs: TiledInputs) -> Verdicts:
    counts = inputs.runs.groupby(["case", "system", "model"]).size().to_dict()
    for name, case in inputs.tiled.cases.items():
        wanted = len(case.layouts) * len(case.placed) * len(case.tensor) * len(case.microbatches)
        for point in case.points().values():
            found = counts.get((name, point.system, point.model), 0)
            yield found == wanted, f"{name}, {point.system}, {point.model}: {found} runs of {wanted}"


@CHECKS.hold("neither traffic nor contention makes a batch faster")
def _contention_never_helps(inputs: TiledInputs) -> Verdicts:
    alone_s, uncontended_s, time_s = (inputs.runs[key] for key in ("alone_s", "uncontended_s", "time_s"))
    both = (alone_s <= uncontended_s * SLACK) & (alone_s <= time_s * SLACK)
    yield from each(both & (uncontended_s <= time_s * SLACK), inputs.runs, RUN)


@CHECKS.hold("nothing is busy for longer than a batch takes")
def _nothing_is_busy_for_longer(inputs: TiledInputs) -> Verdicts:
    shares = ["compute_share", "most_link_share", "most_dram_share", "model_share"]
    yield from each((inputs.runs[shares] <= SLACK).all(axis=1), inputs.runs, RUN)


@CHECKS.hold("every byte that is sent is received")
def _every_byte_arrives(inputs: TiledInputs) -> Verdicts:
    sent = inputs.runs["sent_bytes"]
    yield from each((sent - inputs.runs["received_bytes"]).abs() <= ROUNDING * sent, inputs.runs, RUN)


@CHECKS.hold("jobs of a stage follow each other")
def _jobs_of_a_stage_follow_each_other(inputs: TiledInputs) -> Verdicts:
    for key, rows in inputs.jobs.groupby([*RUN, "resource"]):
        ordered = rows.sort_values("number")
        gaps = ordered["start_s"].to_numpy()[1:] - ordered["end_s"].to_numpy()[:-1]
        yield bool((gaps >= -ROUNDING * ordered["end_s"].max()).all()), str(key)
