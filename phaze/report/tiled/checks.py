"""Checks of the cases on tiles; one that fails is a defect of ours, not a finding."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from phaze.report.tiled.inputs import RUN, TiledInputs
from phaze.report.verdicts import ROUNDING, Verdicts, describe, run_checks

Check = Callable[[TiledInputs], Verdicts]


def check_tiled(inputs: TiledInputs) -> pd.DataFrame:
    """Return table checks of the simulations."""
    return run_checks(CHECKS, inputs)


def every_combination_has_a_row(inputs: TiledInputs) -> Verdicts:
    """Yield for every case and point whether there are as many runs as it lists."""
    counts = inputs.runs.groupby(["case", "system", "model"]).size().to_dict()
    for name, case in inputs.tiled.cases.items():
        wanted = len(case.layouts) * len(case.placed) * len(case.tensor) * len(case.microbatches)
        for point in case.points().values():
            found = counts.get((name, point.system, point.model), 0)
            yield found == wanted, f"{name}, {point.system}, {point.model}: {found} runs of {wanted}"


def contention_never_helps(inputs: TiledInputs) -> Verdicts:
    """Yield for every run whether work alone takes least, traffic without contention no more than with."""
    for _, row in inputs.runs.iterrows():
        slack = 1 + ROUNDING
        fine = row["alone_s"] <= row["uncontended_s"] * slack and row["alone_s"] <= row["time_s"] * slack
        yield bool(fine and row["uncontended_s"] <= row["time_s"] * slack), describe(row, RUN)


def nothing_is_busy_for_longer(inputs: TiledInputs) -> Verdicts:
    """Yield for every run whether no link, port or stage is busy for longer than the batch takes."""
    shares = ["compute_share", "most_link_share", "most_dram_share", "model_share"]
    for _, row in inputs.runs.iterrows():
        yield bool((row[shares] <= 1 + ROUNDING).all()), describe(row, RUN)


def every_byte_arrives(inputs: TiledInputs) -> Verdicts:
    """Yield for every run whether nodes receive what nodes send."""
    for _, row in inputs.runs.iterrows():
        lost = abs(row["sent_bytes"] - row["received_bytes"])
        yield lost <= ROUNDING * row["sent_bytes"], describe(row, RUN)


def jobs_of_a_stage_follow_each_other(inputs: TiledInputs) -> Verdicts:
    """Yield for every stage of the pipelines shown whether no job begins before the one before is over."""
    for key, rows in inputs.jobs.groupby([*RUN, "resource"]):
        ordered = rows.sort_values("number")
        gaps = ordered["start_s"].to_numpy()[1:] - ordered["end_s"].to_numpy()[:-1]
        yield bool((gaps >= -ROUNDING * ordered["end_s"].max()).all()), str(key)


CHECKS: dict[str, Check] = {
    "every combination of a case is simulated": every_combination_has_a_row,
    "neither traffic nor contention makes a batch faster": contention_never_helps,
    "nothing is busy for longer than a batch takes": nothing_is_busy_for_longer,
    "every byte that is sent is received": every_byte_arrives,
    "jobs of a stage follow each other": jobs_of_a_stage_follow_each_other,
}
