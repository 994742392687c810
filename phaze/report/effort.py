"""The part of the report on the effort: how long the stages took, and how well schedules are proven."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from phaze.report import charts
from phaze.report.document import Block, Chart, Prose, Section, Sheet
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.words import percent, seconds, size

STAGES = ("extract", "estimate", "screen", "schedule", "place")
MOST_ROWS = 60
"""Gaps shown; the table holds all."""


def proofs(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on how well the schedules are known and how long everything took."""
    blocks: list[Block] = []
    if len(findings.times):
        blocks += [
            Chart(
                "stages",
                "Processor time of the stages, by workload",
                "Summed over jobs; where a job reports no processor time it counts none.",
                partial(charts.stage_times, findings.times, STAGES),
            ),
            Chart(
                "solving",
                "Of that, scheduling (the integer program) and placing (the dynamic program)",
                "As Figure 7 of the paper splits the solving time.",
                partial(charts.stage_times, findings.times, ("schedule", "place")),
            ),
            _times_sheet(findings.times),
            *_time_shares(inputs, findings.times),
        ]
    if len(findings.proofs):
        blocks.append(_proofs_sheet(findings.proofs))
        blocks += _gaps(inputs.solves)
    if blocks:
        about = "How long each stage took, which schedules are proven, and which needed core assignment."
        yield Section("proofs", "Time and proof", about, tuple(blocks))


def _times_sheet(table: pd.DataFrame) -> Sheet:
    wide = table.pivot_table(
        index="model", columns="stage", values="wall_s", aggfunc="sum", fill_value=0.0, sort=False
    )
    stages = [s for s in STAGES if s in wide]
    jobs = table.groupby("model")["jobs"].sum()
    peak = table.groupby("model")["peak_bytes"].max()
    rows = [
        (
            model, f"{jobs[model]:,}", *(seconds(float(spent[s])) for s in stages),
            seconds(float(spent[stages].sum())), size(peak[model]),
        )
        for model, (_, spent) in zip(map(str, wide.index), wide.iterrows(), strict=True)
    ]  # fmt: skip
    header = ("workload", "jobs", *stages, "together", "peak memory")
    return Sheet("Wall time of the jobs, summed", header, tuple(rows), source="times")


def _time_shares(inputs: Inputs, table: pd.DataFrame) -> Iterator[Prose]:
    """Yield the parts of the time beside the printed ones."""
    total = float(table["wall_s"].sum())
    if inputs.published is None or total == 0:
        return
    source = inputs.published.sources.get("times", "its text")
    for stage, printed in inputs.published.time_shares.items():
        share = table.loc[table["stage"] == stage, "wall_s"].sum() / total
        yield Prose(
            f"The stage {stage} took {percent(share)} of the time here; the paper's program spends about "
            f"{percent(printed, 0)} on it ({source})."
        )


def _proofs_sheet(table: pd.DataFrame) -> Sheet:
    rows = [
        (
            row["model"], f"{row['solves']:,}", f"{row['optimal']:,}", f"{row['feasible']:,}",
            f"{row['timed_out']:,}",
            f"{row['programs']:,}", _share(row, "z_needed"), _share(row, "branching"),
            percent(row["largest_gap"], 2),
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    header = (
        "workload", "layers scheduled", "optimal", "with a gap", "timed out", "needed a program",
        "needed core assignment (z)", "branching beats all cores", "largest gap",
    )  # fmt: skip
    return Sheet("Schedules of layers on the kept architectures", header, tuple(rows), source="proofs")


def _share(row: pd.Series, count: str) -> str:
    return f"{row[count]:,} ({percent(row[count] / row['solves'])})"


def _gaps(solves: pd.DataFrame) -> Iterator[Block]:
    open_ = solves[solves["status"] != "optimal"].sort_values("gap", ascending=False)
    if open_.empty:
        yield Prose("Every schedule is proven optimal: no solve has a gap.")
        return
    rows = [
        (
            row["model"], f"t {row['tensor']}, b {row['microbatch']}", row["architecture"],
            f"{row['layer']}, {row['direction']}", row["status"], row["solver"], seconds(row["objective_s"]),
            seconds(row["bound_s"]), percent(row["gap"], 2),
        )
        for _, row in open_.head(MOST_ROWS).iterrows()
    ]  # fmt: skip
    header = ("workload", "point", "accelerator", "layer", "status", "solver", "schedule", "bound", "gap")
    yield Sheet(
        f"Schedules with a gap: {len(open_):,}, the largest {len(rows)} shown",
        header,
        tuple(rows),
        6,
        folded=True,
    )
