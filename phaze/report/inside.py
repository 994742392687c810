"""The second part of the report: what happens inside the best placements, and how firm they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from phaze.report import charts, closeups
from phaze.report.anatomy import layer_counts, microbatches_of, operators_of, stages_of
from phaze.report.document import Block, Chart, Gallery, Heading, Prose, Section, Sheet
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs
from phaze.report.winners import COMMON, PER_MODEL, baseline_design, chip_of, in_order, row_of
from phaze.report.words import (
    LIMITS,
    area,
    compute,
    decimal,
    join,
    operator,
    percent,
    seconds,
    size,
    storing,
    times,
    widths,
)
from phaze.tables import Variations

MOST_OPERATORS = 12
"""Operators of a model in the table of what binds: those that take longest."""


def time_spent(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on where the time of a batch goes and what binds the operators."""
    del inputs
    mine = findings.breakdowns[findings.breakdowns["design"] == PER_MODEL]
    if mine.empty:
        return
    figure = Chart(
        "breakdown",
        "Where the time of a batch goes on the best accelerators",
        "Passes and transfers are those of the slowest stage. The mark is what the model's FLOPs take "
        "at the peak of all tensor cores.",
        partial(charts.breakdowns, mine),
    )
    blocks: list[Block] = [figure]
    if len(findings.bindings):
        blocks.append(
            Chart(
                "limits",
                "What binds the operators on the best accelerators",
                "Part of the time in operators, all layers and both passes, as scheduled.",
                partial(charts.limits, findings.bindings),
            )
        )
        blocks.append(_bindings_sheet(findings.bindings))
    about = "Where the time of a batch goes on the best accelerators, and what would have to be faster."
    yield Section("time", "What limits the throughput", about, tuple(blocks))


def _bindings_sheet(table: pd.DataFrame) -> Sheet:
    longest = table.sort_values("share", ascending=False).groupby("model", sort=False).head(MOST_OPERATORS)
    shown = longest.sort_values(["model", "share"], ascending=[True, False]).reset_index(drop=True)
    shown["heading"] = shown["model"].where(~shown.duplicated("model"), "")
    rows = [
        (
            row["heading"], operator(row["name"]), f"{row['layer']}, {row['direction']}", row["core"],
            "all" if row["all_cores"] else "one", LIMITS[row["limit"]], seconds(row["latency_s"]),
            percent(row["share"]),
        )
        for _, row in shown.iterrows()
    ]  # fmt: skip
    header = ("workload", "operator", "layer, pass", "core", "cores", "binds", "latency", "of busy time")
    caption = (
        f"The {MOST_OPERATORS} operators that take the most time on the best accelerator of every workload"
    )
    return Sheet(caption, header, tuple(rows), 6, source="bindings", folded=True)


def chips(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on area and energy."""
    table = _labelled_areas(inputs, findings)
    if table.empty:
        return
    limit = inputs.cluster.area_limit_um2
    figure = Chart(
        "areas",
        "Area of the accelerators by part",
        f"Area limit {area(limit)}.",
        partial(charts.areas, table, limit),
    )
    blocks: list[Block] = [figure, _area_sheet(table)]
    baseline = inputs.study.architectures.baseline
    energies = findings.energies[findings.energies["design"].isin([PER_MODEL, baseline])]
    if baseline is not None and (energies["design"] == baseline).any():
        blocks.append(
            Chart(
                "energies",
                f"Energy per sample by part, relative to {baseline}",
                "Operators as scheduled on all slices, and the leakage of the devices in use over the "
                "time per batch.",
                partial(charts.energies, energies, baseline),
            )
        )
    if len(findings.energies):
        blocks.append(_energy_sheet(findings))
    about = "What the area is spent on, and the energy that a trained sample takes."
    yield Section("chips", "Area and energy", about, tuple(blocks))


def _labelled_areas(inputs: Inputs, findings: Findings) -> pd.DataFrame:
    """Return the areas of the baseline, the common and the per-model accelerators, each accelerator once."""
    baseline = inputs.study.architectures.baseline
    order = [name for name in (baseline, COMMON, PER_MODEL) if name is not None]
    table = findings.areas[findings.areas["design"].isin(order)]
    label = table["design"].where(table["design"] != PER_MODEL, table["model"])
    ranked = table.assign(label=label, place=table["design"].map(order.index)).sort_values(
        "place", kind="stable"
    )
    return ranked.drop_duplicates(["label", "part"])


def _area_sheet(table: pd.DataFrame) -> Sheet:
    wide = table.pivot_table(index="label", columns="part", values="area_um2", sort=False)
    rows = [
        (
            str(label),
            area(parts.sum()),
            *(f"{area(parts[p])} ({percent(parts[p] / parts.sum(), 0)})" for p in _AREA_PARTS),
        )
        for label, parts in wide.iterrows()
    ]
    header = ("accelerator", "area", "tensor cores", "vector cores", "L2 buffers", "global buffer")
    return Sheet(
        "Area by part; a workload's name stands for its best accelerator", header, tuple(rows), source="areas"
    )


_AREA_PARTS = ("tensor", "vector", "l2", "glb")
_ENERGY_PARTS = ("mac", "register", "l2", "glb", "hbm", "link", "leakage")


def _energy_sheet(findings: Findings) -> Sheet:
    keys = ["model", "design"]
    wide = findings.energies.pivot_table(index=keys, columns="part", values="joules_per_sample", sort=False)
    rows = [
        (
            *map(str, name),
            decimal(parts.sum(), "J"),
            *(percent(parts[p] / parts.sum()) for p in _ENERGY_PARTS),
        )
        for name, parts in wide.iterrows()
        if isinstance(name, tuple)
    ]
    header = (
        "workload", "design", "per sample", "MAC", "registers", "L2", "global buffer", "HBM", "link",
        "leakage",
    )  # fmt: skip
    caption = "Energy per trained sample by part; the link carries collectives, transfers and gradients"
    return Sheet(caption, header, tuple(rows), 2, source="energies", folded=True)


def sensitivity(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the winner under other bandwidths."""
    table = findings.variations
    if table.empty:
        return
    wide = table.pivot_table(index="model", columns="variation", values="relative", sort=False)
    figure = Chart(
        "sensitivity",
        "Throughput of the best accelerators under other bandwidths",
        "The accelerator stays, the placement is searched again.",
        partial(charts.sensitivities, wide),
    )
    s = inputs.cluster.scenario
    about = (
        f"The study assumes {decimal(s.hbm_bandwidth_bytes_per_s, 'B/s')} of HBM bandwidth and "
        f"{size(s.network_bandwidth_bytes_per_s)}/s between devices."
    )
    blocks = (Prose(_variations(inputs)), figure, _variations_sheet(table))
    yield Section("sensitivity", "How firm is the choice", about, blocks)


def _variations_sheet(table: pd.DataFrame) -> Sheet:
    rows = [
        (
            row["model"], row["variation"], _placed_as(row), seconds(row["time_per_batch_s"]),
            times(row["relative"]), times(row["speedup"]),
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    header = (
        "workload", "variation", "placement", "time per batch", "over the study's", "over baseline expert",
    )  # fmt: skip
    caption = "Best accelerators under other bandwidths"
    return Sheet(caption, header, tuple(rows), 3, source="variations", folded=True)


def _placed_as(row: pd.Series) -> str:
    return f"{widths(row)}, microbatch {row['microbatch']}, {storing(row['recompute'])}"


def _variations(inputs: Inputs) -> str:
    """Return what the variations change, in a sentence."""
    changes = []
    for name, what in inputs.study.report.sensitivity.items():
        values = what.values(inputs.cluster.scenario.model_dump()).items()
        words = join(f"{LIMITS[key.split('_')[0]]} {decimal(value, 'B/s')}" for key, value in values)
        changes.append(f"{name} ({words})")
    return f"Variations: {join(changes)}."


def closeup(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section that shows the pipeline, the memory and the schedule of every best placement."""
    blocks: list[Block] = []
    for model in inputs.study.models:
        row = row_of(findings.results, model, PER_MODEL)
        if row is not None:
            blocks += _closeups(inputs, row)
    if blocks:
        about = (
            "Every best placement at work: its pipeline, the memory of its stages, the schedule of a block."
        )
        yield Section("closeups", "The placements in detail", about, tuple(blocks))


def _closeups(inputs: Inputs, row: pd.Series) -> Iterator[Block]:
    """Yield what shows one placement; nothing if neither its stages nor its schedules are at hand."""
    stages = stages_of(inputs.cluster, inputs.details, row)
    layer = str(layer_counts(inputs, row["model"]).idxmax())
    operators = operators_of(inputs.cluster, inputs.details, row)
    operators = operators[operators["layer"] == layer]
    if stages.empty and operators.empty:
        return
    yield Heading(str(row["model"]))
    yield Prose(_placement_words(inputs, row))
    if len(stages):
        yield Gallery(tuple(_stage_charts(inputs, row, stages)))
    if len(operators):
        yield Chart(
            f"gantt-{_file_name(row)}",
            f"Schedule of a {layer} of {row['model']}",
            "One lane for all cores of a type together, and one for every single core in use.",
            partial(closeups.gantt, operators, layer),
        )
    if len(stages) > 1:
        yield _stages_sheet(str(row["model"]), stages)


def _placement_words(inputs: Inputs, row: pd.Series) -> str:
    chip = chip_of(inputs.cluster, row)
    head = f"{compute(chip)}, {_placed_as(row)}, {seconds(row['time_per_batch_s'])} per batch"
    return f"{head}; limited by {row['binding']}." if row["binding"] else f"{head}."


def _file_name(row: pd.Series) -> str:
    return str(row["model"]).replace(".", "-")


def _stage_charts(inputs: Inputs, row: pd.Series, stages: pd.DataFrame) -> Iterator[Chart]:
    count = microbatches_of(inputs, row)
    yield Chart(
        f"pipeline-{_file_name(row)}",
        f"The pipeline of {row['model']}",
        "Each box is one microbatch in one stage; shades tell microbatches apart.",
        partial(closeups.pipeline, stages, count),
    )
    yield Chart(
        f"memory-{_file_name(row)}",
        f"Memory of the stages of {row['model']}",
        "In steady state, beside the capacity.",
        partial(closeups.stage_memory, stages, float(row["hbm_gib"])),
    )


def _stages_sheet(model: str, stages: pd.DataFrame) -> Sheet:
    rows = [
        (
            str(row["stage"] + 1), f"{row['first_layer']} to {row['last_layer']}", str(row["devices"]),
            seconds(row["forward_s"]), seconds(row["backward_s"]), seconds(row["transfer_s"]),
            seconds(row["load_s"]),
            size(row["memory_bytes"]), size(row["headroom_bytes"]),
        )
        for _, row in stages.iterrows()
    ]  # fmt: skip
    header = ("stage", "layers", "devices", "forward", "backward", "transfer", "load", "memory", "headroom")
    return Sheet(f"Stages of {model}, for one microbatch", header, tuple(rows), 0, folded=True)


PARTS: tuple[Part, ...] = (time_spent, chips, sensitivity, closeup)
"""The sections in order."""


def vary(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Return table variations: for every variation and model the best placement of the winner."""
    rows = []
    tried = {str(name): _by_model(table) for name, table in inputs.sensitivities.groupby("variation")}
    for model in inputs.study.models:
        winner = row_of(results, model, PER_MODEL)
        baseline = baseline_design(inputs.study)
        expert = row_of(results, model, baseline) if baseline else None
        for name in inputs.study.report.sensitivity:
            table = tried.get(name, {}).get(model)
            if winner is not None and table is not None:
                rows.append(_row(name, table, winner, expert))
    rows = [row for row in rows if row]
    return Variations.check(pd.DataFrame(rows)[list(Variations.fields())]) if rows else Variations.empty()


def _by_model(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {str(model): rows for model, rows in table[table["status"] == "placed"].groupby("model")}


def _row(
    variation: str, table: pd.DataFrame, winner: pd.Series, expert: pd.Series | None
) -> dict[str, object]:
    """Return the row of a variation of a model, from its placements; empty if nothing was placed under it.

    The speed-up is the throughput over the baseline's with the experts' placement under the same variation.
    """
    best = _best(table, winner)
    if best is None:
        return {}
    base = None if expert is None else _best(table, expert)
    return {
        **{str(key): value for key, value in best.items()},
        "variation": variation,
        "relative": best["samples_per_s"] / winner["samples_per_s"],
        "speedup": 0.0 if base is None else float(best["samples_per_s"] / base["samples_per_s"]),
    }


def _best(table: pd.DataFrame, row: pd.Series) -> pd.Series | None:
    """Return the best of the placements with accelerator, HBM and planner of a result."""
    same = [table[key] == row[key] for key in ("architecture", "hbm_gib", "planner")]
    found = table[np.logical_and.reduce(same)].assign(area_um2=row["area_um2"])
    return in_order(found).iloc[0] if len(found) else None
