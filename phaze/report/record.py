"""The last part of the report: scenarios, time and proof, models, what did not fit, checks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from phaze.report import charts
from phaze.report.document import Block, Chart, Items, Prose, Section, Sheet
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs
from phaze.report.verdicts import checks_section
from phaze.report.winners import PER_MODEL
from phaze.report.words import decimal, digits, percent, seconds, size, storing
from phaze.spec.published import PublishedComplexity
from phaze.tables import Proofs

MOST_ROWS = 60
"""Infeasible placements and gaps shown; the tables hold all."""


def scenarios(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the comparison of scenarios, for a study with several."""
    table = findings.comparisons[findings.comparisons["design"] == PER_MODEL]
    if table.empty:
        return
    names = list(inputs.clusters)
    wide = table.pivot_table(index="model", columns="scenario", values="samples_per_s").reindex(columns=names)
    wide = wide.reindex([m for m in inputs.study.models if m in wide.index]).div(wide[names[0]], axis=0)
    figure = Chart(
        "scenarios",
        f"Throughput of the best accelerators in every scenario over {names[0]}",
        "Accelerator, HBM and placement are chosen for each scenario.",
        partial(charts.scenarios, wide.fillna(0.0)),
    )
    sheet = _scenarios_sheet(_in_scenario_order(table, names))
    about = "The same workloads on other clusters."
    yield Section("scenarios", "Scenarios", about, (figure, sheet))


def _in_scenario_order(table: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return rows by model as they are, and within a model by scenario."""
    models = list(dict.fromkeys(table["model"]))
    place = table["model"].map(models.index) * len(names) + table["scenario"].map(names.index)
    return table.iloc[place.argsort(kind="stable")]


def _scenarios_sheet(table: pd.DataFrame) -> Sheet:
    rows = [
        (
            row["model"], row["scenario"], row["architecture"], f"{row['hbm_gib']:g} GiB",
            f"{{{row['stages']}, {row['data']}, {row['tensor']}}}", str(row["microbatch"]),
            storing(row["recompute"]),
            seconds(row["time_per_batch_s"]), digits(row["samples_per_s"]), percent(row["mfu"]),
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    header = (
        "workload", "scenario", "accelerator", "HBM", "{p, d, t}", "microbatch", "activations",
        "time per batch", "samples/s", "MFU",
    )  # fmt: skip
    return Sheet("Best accelerators by scenario", header, tuple(rows), 7, source="comparisons")


def models(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section beside Table 4."""
    if findings.complexities.empty:
        return
    blocks: list[Block] = [_complexities_sheet(inputs, findings.complexities)]
    if inputs.published and any(w.complexity for w in inputs.published.workloads.values()):
        blocks.append(Prose(_PRINTED_SIZES))
    about = "Size of every model by its operators, for the smallest TMP width and microbatch of the study."
    yield Section("models", "The models", about, tuple(blocks))


_PRINTED_SIZES = (
    "The printed sizes are put where they fit best: parameter size beside a block, activations and FLOPs "
    "beside the model, since the paper does not say which is meant. Table 4 of the paper does not agree with "
    "itself (see the notes under the differences), so that it is shown and not fitted to."
)


def _complexities_sheet(inputs: Inputs, table: pd.DataFrame) -> Sheet:
    rows: list[tuple[str, ...]] = []
    marked = set()
    for _, row in table.iterrows():
        marked.add(len(rows))
        rows.append(_complexity(row))
        workload = inputs.published.workloads.get(row["model"]) if inputs.published else None
        if workload and workload.complexity:
            rows.append(_printed_complexity(workload.complexity))
    header = (
        "workload", "whose", "layers", "operators of a block", "parameters", "held",
        "weights of a block",
        "activations of a block", "of the model", "tensor FLOPs of a block", "of the model",
        "vector FLOPs of a block", "of the model",
    )  # fmt: skip
    caption = (
        "Forward pass of one microbatch; what one slice holds, a tied head's copy and training heads included"
    )
    return Sheet(caption, header, tuple(rows), 2, frozenset(marked), "complexities")


def _complexity(row: pd.Series) -> tuple[str, ...]:
    return (
        row["model"], f"ours, t {row['tensor']}, b {row['microbatch']}", str(row["layers"]),
        str(row["operators"]), f"{row['parameters']:,}", f"{row['held_parameters']:,}",
        decimal(row["block_parameter_bytes"], "B"),
        decimal(row["block_activation_bytes"], "B"), decimal(row["activation_bytes"], "B"),
        decimal(row["block_tensor_flops"], "FLOP"), decimal(row["tensor_flops"], "FLOP"),
        decimal(row["block_vector_flops"], "FLOP"), decimal(row["vector_flops"], "FLOP"),
    )  # fmt: skip


def _printed_complexity(printed: PublishedComplexity) -> tuple[str, ...]:
    return (
        "", "paper", str(printed.layers), str(printed.operators), "–", "–",
        decimal(printed.parameter_bytes, "B"), "–", decimal(printed.activation_bytes, "B"), "–",
        decimal(printed.tensor_flops, "FLOP"), "–", decimal(printed.vector_flops, "FLOP"),
    )  # fmt: skip


def misfits(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on what fits nowhere."""
    del findings
    rows = inputs.cluster.placements[inputs.cluster.placements["status"] == "infeasible"]
    if rows.empty:
        return
    keys = ["model", "hbm_gib", "recompute", "planner"]
    counts = rows.groupby([*keys, "tensor", "microbatch"]).agg(
        architectures=("architecture", "nunique"), reason=("reason", "first")
    )
    shown = counts.reset_index().sort_values(["architectures", *keys], ascending=[False, *[True] * 4])
    cells = [
        (
            row["model"], f"{row['hbm_gib']:g} GiB", storing(row["recompute"]), row["planner"],
            f"t {row['tensor']}, b {row['microbatch']}", row["reason"], f"{row['architectures']:,}",
        )
        for _, row in shown.head(MOST_ROWS).iterrows()
    ]  # fmt: skip
    header = ("workload", "HBM", "activations", "planner", "point", "the first reason", "architectures")
    about = f"{len(rows):,} of {len(inputs.cluster.placements):,} placements do not exist, and why."
    sheet = Sheet(
        f"Infeasible placements, {len(cells)} of {len(shown)} kinds", header, tuple(cells), 6, folded=True
    )
    yield Section("misfits", "What does not fit", about, (sheet,))


def checks(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the checks of the results and what the model assumes."""
    about = "What must hold of any study, checked on this one; a study that fails a check ends with an error."
    yield checks_section(findings.checks, "checks", about)
    yield Section("method", "How these numbers are made", _METHOD, (Items(_assumptions(inputs)),))


_METHOD = "What is modelled, in short; the README says more."


def _assumptions(inputs: Inputs) -> tuple[str, ...]:
    s, t = inputs.cluster.scenario, inputs.study.training
    return (
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


STAGES = ("extract", "estimate", "screen", "schedule", "place")


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


def count_proofs(solves: pd.DataFrame) -> pd.DataFrame:
    """Return table proofs."""
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
"""The sections in order."""
