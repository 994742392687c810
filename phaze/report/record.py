"""Last part of the report: scenarios, time and proof, models, infeasible placements, checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from phaze.report import charts
from phaze.report.document import Block, Cell, Chart, Items, Prose, Section, Sheet, sheet_of
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs
from phaze.report.verdicts import checks_section
from phaze.report.winners import PER_MODEL
from phaze.report.words import decimal, percent, size, times, widths
from phaze.tables import Proofs
from phaze.tables.columns import by_numbers

MOST_ROWS = 60
"""Maximum number of infeasible placements and of gaps shown; the tables have all of them."""


def scenarios(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the comparison of scenarios, for a study with several."""
    table = findings.comparisons[findings.comparisons["design"] == PER_MODEL]
    if table.empty:
        return
    names, shown = list(inputs.clusters), list(dict.fromkeys(table["model"]))
    wide = table.pivot_table(index="model", columns="scenario", values="samples_per_s").reindex(columns=names)
    wide = wide.reindex([m for m in inputs.study.models if m in wide.index]).div(wide[names[0]], axis=0)
    figure = Chart(
        "scenarios",
        f"Throughput of the best accelerators in every scenario over {names[0]}",
        "Accelerator, HBM and placement are chosen for each scenario.",
        partial(charts.bars, wide, f"throughput over {names[0]}", said=times),
    )
    place = table["model"].map(shown.index) * len(names) + table["scenario"].map(names.index)
    columns: dict[str, Cell] = {
        "workload": "{model}", "scenario": "{scenario}", "accelerator": "{architecture}",
        "HBM": "{hbm_gib:g} GiB", "{p, d, t}": widths, "microbatch": "{layout:samples}",
        "activations": "{recompute:storing}", "time per batch": "{time_per_batch_s:seconds}",
        "samples/s": "{samples_per_s:digits}", "MFU": "{mfu:percent}",
    }  # fmt: skip
    ordered = table.iloc[place.argsort(kind="stable")]
    sheet = sheet_of("Best accelerators by scenario", ordered, columns, 7, source="comparisons")
    yield Section("scenarios", "Scenarios", "The same workloads on other clusters.", (figure, sheet))


def models(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the models."""
    del inputs
    if findings.complexities.empty:
        return
    about = "Size of every model by its operators, for the smallest TMP width and microbatch of the study."
    yield Section("models", "The models", about, (_complexities_sheet(findings.complexities),))


def _complexities_sheet(table: pd.DataFrame) -> Sheet:
    """Table of the sizes of the models."""
    columns: dict[str, Cell] = {
        "workload": "{model}", "point": "{layout:sliced}", "layers": "{layers}",
        "operators of a block": "{operators}", "parameters": "{parameters:,}", "held": "{held_parameters:,}",
        "weights of a block": "{block_parameter_bytes:B}",
        "activations of a block": "{block_activation_bytes:B}", "of the model": "{activation_bytes:B}",
        "tensor FLOPs of a block": "{block_tensor_flops:FLOP}", "tensor FLOPs": "{tensor_flops:FLOP}",
        "vector FLOPs of a block": "{block_vector_flops:FLOP}", "vector FLOPs": "{vector_flops:FLOP}",
    }  # fmt: skip
    caption = (
        "Forward pass of one microbatch; what one slice holds, a tied head's copy and training heads included"
    )
    return sheet_of(caption, table, columns, 2, source="complexities")


def misfits(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on infeasible placements."""
    del findings
    rows = inputs.cluster.placements[inputs.cluster.placements["status"] == "infeasible"]
    if rows.empty:
        return
    keys = ["model", "hbm_gib", "recompute", "planner"]
    counts = rows.groupby([*keys, "layout"]).agg(
        architectures=("architecture", "nunique"), reason=("reason", "first")
    )
    order = ["architectures", *keys, "layout"]
    kinds = counts.reset_index().sort_values(order, ascending=[False, *[True] * 5], key=by_numbers)
    shown = kinds.head(MOST_ROWS)
    columns: dict[str, Cell] = {
        "workload": "{model}", "HBM": "{hbm_gib:g} GiB", "activations": "{recompute:storing}",
        "planner": "{planner}", "point": "{layout:sliced}", "the first reason": "{reason}",
        "architectures": "{architectures:,}",
    }  # fmt: skip
    about = f"{len(rows):,} of {len(inputs.cluster.placements):,} placements do not exist, and why."
    caption = f"Infeasible placements, {len(shown)} of {len(kinds)} kinds"
    sheet = sheet_of(caption, shown, columns, 6, folded=True)
    yield Section("misfits", "What does not fit", about, (sheet,))


def checks(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Sections on the checks of the results, and on the assumptions of the model."""
    about = "What must hold of any study, checked on this one; a study that fails a check ends with an error."
    yield checks_section(findings.checks, "checks", about)
    about = "What is modelled, in short; the README says more."
    s, t = inputs.cluster.scenario, inputs.study.training
    assumptions = (
        (
            f"{s.devices:,} accelerators on a flat network of {size(s.network_bandwidth_bytes_per_s)}/s "
            f"between any two, HBM at {decimal(s.hbm_bandwidth_bytes_per_s, 'B/s')}, clock "
            f"{decimal(s.clock_hz, 'Hz')}, batches of {s.global_batch:,}."
        ),
        (
            f"Training with {t.optimizer}, precision {t.precision}, pipeline schedule {t.schedule}; "
            f"microbatches {', '.join(map(str, t.microbatches))}; HBM of "
            f"{', '.join(f'{h:g}' for h in t.hbm_gib)} GiB."
        ),
        (
            "Operators: an analytical mapper for systolic arrays that counts compute, buffer and HBM "
            "traffic; vector operators by cycles per element; collectives by the ring formula. Operators "
            "do not overlap communication unless asked to."
        ),
        (
            "Schedules: an integer program for every distinct layer, verified by an independent check. "
            "Placements: an exact dynamic program over stages with the memory of every stage."
        ),
        (
            "Energy: that of the latency-optimal mapping at the technology of the study, with collectives, "
            "transfers between stages, gradient synchronisation, and the leakage of the devices in use."
        ),
        (
            "Best means: time per batch, then area, then name. Throughput within "
            f"{percent(inputs.study.screen.tolerance, 0)} counts as equal when the smallest HBM and the "
            "smallest area are looked for."
        ),
    )
    yield Section("method", "How these numbers are made", about, (Items(assumptions),))


def proofs(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the run time of the stages, and on the proofs of the schedules."""
    blocks: list[Block] = []
    if len(findings.times):
        spent = findings.times.pivot_table(
            index="model", columns="stage", values="cpu_s", sort=False, fill_value=0.0
        )
        what = "processor time of all jobs, s"
        blocks += [
            Chart(
                "stages",
                "Processor time of the stages, by workload",
                "Summed over jobs; where a job reports no processor time it counts none.",
                partial(charts.stacked, spent, charts.STAGES, what),
            ),
            Chart(
                "solving",
                "Of that, scheduling (the integer program) and placing (the dynamic program)",
                "As Figure 7 of the paper splits the solving time.",
                partial(charts.stacked, spent.filter(["schedule", "place"]), charts.STAGES, what),
            ),
            *_times(findings.times),
        ]
    if len(findings.proofs):
        counts = findings.proofs[["z_needed", "branching"]]
        rows = findings.proofs.join(counts.div(findings.proofs["solves"], axis=0).add_prefix("share_"))
        caption = "Schedules of layers on the kept architectures"
        blocks += [sheet_of(caption, rows, _PROOFS, source="proofs"), *_gaps(inputs.solves)]
    if blocks:
        about = "How long each stage took, which schedules are proven, and which needed core assignment."
        yield Section("proofs", "Time and proof", about, tuple(blocks))


def _times(table: pd.DataFrame) -> Iterator[Block]:
    """Table of the wall time of jobs, by model and stage."""
    wide = table.pivot_table(
        index="model", columns="stage", values="wall_s", aggfunc="sum", fill_value=0.0, sort=False
    )
    stages = [s for s in charts.STAGES if s in wide]
    by_model = table.groupby("model").agg(jobs=("jobs", "sum"), peak_bytes=("peak_bytes", "max"))
    rows = wide[stages].assign(together=wide[stages].sum(axis=1)).join(by_model).reset_index()
    columns: dict[str, Cell] = {
        "workload": "{model}", "jobs": "{jobs:,}", **{s: f"{{{s}:seconds}}" for s in (*stages, "together")},
        "peak memory": "{peak_bytes:size}",
    }  # fmt: skip
    yield sheet_of("Wall time of the jobs, summed", rows, columns, source="times")


def _gaps(solves: pd.DataFrame) -> Iterator[Block]:
    open_ = solves[solves["status"] != "optimal"].sort_values("gap", ascending=False)
    if open_.empty:
        yield Prose("Every schedule is proven optimal: no solve has a gap.")
        return
    shown = open_.head(MOST_ROWS)
    columns: dict[str, Cell] = {
        "workload": "{model}", "point": "{layout:sliced}", "accelerator": "{architecture}",
        "layer": "{layer}, {direction}", "status": "{status}", "solver": "{solver}",
        "schedule": "{objective_s:seconds}", "bound": "{bound_s:seconds}", "gap": "{gap:percent2}",
    }  # fmt: skip
    caption = f"Schedules with a gap: {len(open_):,}, the largest {len(shown)} shown"
    yield sheet_of(caption, shown, columns, 6, folded=True)


_PROOFS: dict[str, Cell] = {
    "workload": "{model}", "layers scheduled": "{solves:,}", "optimal": "{optimal:,}",
    "with a gap": "{feasible:,}", "timed out": "{timed_out:,}", "needed a program": "{programs:,}",
    "needed core assignment (z)": "{z_needed:,} ({share_z_needed:percent})",
    "branching beats all cores": "{branching:,} ({share_branching:percent})",
    "largest gap": "{largest_gap:percent2}",
}  # fmt: skip


def count_proofs(solves: pd.DataFrame) -> pd.DataFrame:
    """Table `proofs`: counts of schedules by model and status of their proof."""
    if solves.empty:
        return Proofs.empty()
    by_model = solves.assign(
        **{status: solves["status"] == status for status in ("optimal", "feasible", "timed_out")},
        programs=solves["method"] == "program",
        branching=solves["objective_s"] < solves["all_cores_s"] * (1 - 1e-9),
    ).groupby("model")
    counts = ["optimal", "feasible", "timed_out", "programs", "z_needed", "branching"]
    found = by_model[counts].sum().assign(solves=by_model.size(), largest_gap=by_model["gap"].max())
    return Proofs.check(found.reset_index())


PARTS: tuple[Part, ...] = (scenarios, proofs, models, misfits, checks)
"""Sections of this part, in order."""
