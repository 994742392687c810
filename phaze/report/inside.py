"""Second part of the report: details of the best placements, and their sensitivity to bandwidths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.units import GIB, UM2_PER_MM2, digits
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline, StageCost
from phaze.pipeline.trace import job_rows
from phaze.report import charts, over_time, style, words
from phaze.report.anatomy import layer_counts, microbatches_of, operators_of, stages_of
from phaze.report.document import Block, Cell, Chart, Gallery, Heading, Prose, Section, sheet_of
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs, table_of
from phaze.report.style import AMBER, BLUE, PURPLE, RED, SAND, SKY
from phaze.report.vega import WIDTH, coloured
from phaze.report.winners import COMMON, PER_MODEL, baseline_design, row_of
from phaze.search.winners import chip_of, in_order
from phaze.tables import Variations

LETTER = 6.2
"""Width of a letter of the names in bars, in pixels."""
CORES = {"tensor": BLUE, "vector": SKY, "fused": PURPLE, "network": RED}
_MEMORY_PARTS = {"weight": BLUE, "gradient": SKY, "optimizer": PURPLE, "activation": AMBER, "stashed": SAND}
MOST_SLOTS = 900
"""Limit on the drawn passes of a pipeline; a figure with more is not legible."""


def gantt(operators: pd.DataFrame, title: str) -> alt.TopLevelMixin:
    """Draw the schedule of one layer, forward above backward; a lane is all cores of a type, or one core."""
    busy = operators[operators["core"] != "none"]
    busy = busy.assign(place=busy["core"].map([*CORES].index), backward=busy["direction"] == "backward")
    busy = busy.sort_values(["backward", "place", "core_index"], kind="stable")
    lanes = [_lane(row) for _, row in busy.iterrows()]
    span_s = float(busy["end_s"].max())
    scale, unit = (1e3, "ms") if span_s >= 1e-3 else (1e6, "µs")
    table = pd.DataFrame(
        {
            "lane": lanes,
            "core": busy["core"],
            "operator": busy["name"].map(words.operator),
            "start": busy["start_s"] * scale,
            "end": (busy["start_s"] + busy["latency_s"]) * scale,
        }
    )
    names = [*dict.fromkeys(lanes)]
    fits = f"(datum.end - datum.start) / {span_s * scale:.9g} * width > {LETTER} * length(datum.operator)"
    base = alt.Chart(table).encode(
        alt.Y("lane:N", title=None, scale=alt.Scale(domain=names, padding=0.08)),
        tooltip=["operator:N", "lane:N", *(alt.Tooltip(f"{at}:Q", format=".4~g") for at in ("start", "end"))],
    )
    what = f"{title}, {unit}"
    seconds = alt.Scale(domain=[float(table["start"].min()), float(table["end"].max())])  # also without texts
    said = base.transform_filter(fits).transform_calculate(middle="(datum.start + datum.end) / 2")
    return alt.layer(
        base.mark_bar(stroke="white", strokeWidth=0.6).encode(
            alt.X("start:Q", title=what, scale=seconds), alt.X2("end"), coloured("core", CORES)
        ),
        said.mark_text(color="white", fontSize=10).encode(
            alt.X("middle:Q", title=what, scale=seconds), text="operator:N"
        ),
    ).properties(width=WIDTH, height=charts.ROW * len(names))


def _lane(row: pd.Series) -> str:
    """Lane of an operator: the cores on which it runs, and its pass."""
    core, index = row["core"], row["core_index"]
    where = "link" if core == "network" else f"all {core}" if index < 0 else f"{core} {index}"
    return f"{where}, {row['direction']}"


def pipeline(stages: pd.DataFrame, microbatches: int) -> alt.TopLevelMixin:
    """Draw the 1F1B pipeline with the times of its stages, for a legible number of microbatches."""
    depth = len(stages)
    shown = min(microbatches, max(4, MOST_SLOTS // (2 * depth)), depth + 8)
    half_s = stages["transfer_s"] / 2
    costs = tuple(map(StageCost, stages["forward_s"] + half_s, stages["backward_s"] + half_s))
    jobs = pd.DataFrame(job_rows(simulate(Pipeline(costs, shown))))
    passes = over_time.cells(jobs[jobs["kind"].isin(["forward", "backward"])].assign(stage=jobs["stage"] + 1))
    what = f"seconds, {shown} of {microbatches} microbatches"
    return over_time.pipeline(passes, [(0.0, float(passes["end_s"].max()))], what)


def stage_memory(stages: pd.DataFrame, hbm_gib: float) -> alt.TopLevelMixin:
    """Draw the memory breakdown of each stage, and the HBM capacity."""
    held = stages.set_axis(range(1, len(stages) + 1))[[f"{part}_bytes" for part in _MEMORY_PARTS]] / GIB
    looks = {f"{part}_bytes": (part, colour) for part, colour in _MEMORY_PARTS.items()}
    what = f"GiB; dashed: HBM of {digits(hbm_gib, 2)} GiB"
    return charts.stacked(held, looks, what, "stage", limit=hbm_gib)


MOST_OPERATORS = 12
"""Number of operators per model in the table of bottlenecks: the slowest ones."""


def time_spent(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the time breakdown of a batch and the bottlenecks of operators."""
    del inputs
    mine = findings.breakdowns[findings.breakdowns["design"] == PER_MODEL].set_index("model")
    if mine.empty:
        return
    spent = mine[list(charts.TIME_PARTS)]
    total = spent.sum(axis=1) / 100
    what, peak = "part of the time per batch, %", mine["useful_s"] / total
    figure = Chart(
        "breakdown",
        "Where the time of a batch goes on the best accelerators",
        "Passes and transfers are those of the slowest stage. The mark is what the model's FLOPs take "
        "at the peak of all tensor cores.",
        partial(charts.stacked, spent.div(total, axis=0), charts.TIME_PARTS, what, peak=peak),
    )
    about = "Where the time of a batch goes on the best accelerators, and what would have to be faster."
    yield Section("time", "What limits the throughput", about, (figure, *_limits(findings.bindings)))


def _limits(table: pd.DataFrame) -> Iterator[Block]:
    if table.empty:
        return
    share = 100 * table.pivot_table(
        index="model", columns="limit", values="share", aggfunc="sum", fill_value=0.0, sort=False
    )
    parts = {name: (words.LIMITS[name], colour) for name, colour in style.LIMITS.items()}
    what = "part of the time in operators, %"
    yield Chart(
        "limits",
        "What binds the operators on the best accelerators",
        "Part of the time in operators, all layers and both passes, as scheduled.",
        partial(charts.stacked, share.loc[:, share.sum() > 0], parts, what),
    )
    longest = table.sort_values("share", ascending=False).groupby("model", sort=False).head(MOST_OPERATORS)
    shown = longest.sort_values(["model", "share"], ascending=[True, False])
    caption = (
        f"The {MOST_OPERATORS} operators that take the most time on the best accelerator of every workload"
    )
    columns: dict[str, Cell] = {
        "workload": "{model}", "operator": lambda row: words.operator(row["name"]),
        "layer, pass": "{layer}, {direction}", "core": "{core}",
        "cores": lambda row: "all" if row["all_cores"] else "one",
        "binds": lambda row: words.LIMITS[row["limit"]], "latency": "{latency_s:seconds}",
        "of busy time": "{share:percent}",
    }  # fmt: skip
    yield sheet_of(caption, shown, columns, 6, source="bindings", folded=True)


def chips(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on area and energy of the baseline, common and per-model accelerators, each shown once."""
    limit, baseline = inputs.cluster.area_limit_um2, inputs.study.architectures.baseline
    order = [name for name in (baseline, COMMON, PER_MODEL) if name is not None]
    table = findings.areas[findings.areas["design"].isin(order)]
    if table.empty:
        return
    label = table["design"].where(table["design"] != PER_MODEL, table["model"])
    ranked = table.assign(label=label, place=table["design"].map(order.index))
    ranked = ranked.sort_values("place", kind="stable").drop_duplicates(["label", "part"])
    wide = ranked.pivot_table(index="label", columns="part", values="area_um2", sort=False)
    what, limit_mm2 = "area, mm²; dashed: area limit", limit / UM2_PER_MM2
    figure = Chart(
        "areas",
        "Area of the accelerators by part",
        f"Area limit {words.area(limit)}.",
        partial(charts.stacked, wide / UM2_PER_MM2, charts.AREA_PARTS, what, limit=limit_mm2),
    )
    whole = wide.sum(axis=1)
    rows = wide.assign(whole=whole).join(wide.div(whole, axis=0).add_prefix("share_")).reset_index()
    columns: dict[str, Cell] = {"accelerator": "{label}", "area": "{whole:area}"}
    for part, (title, _) in charts.AREA_PARTS.items():
        columns[title] = f"{{{part}:area}} ({{share_{part}:percent0}})"
    caption = "Area by part; a workload's name stands for its best accelerator"
    about = "What the area is spent on, and the energy that a trained sample takes."
    sheet = sheet_of(caption, rows, columns, source="areas")
    yield Section("chips", "Area and energy", about, (figure, sheet, *_energies(findings.energies, baseline)))


def _energies(energies: pd.DataFrame, baseline: str | None) -> Iterator[Block]:
    """Chart and table of the energy per sample by part, relative to the baseline's for the same model."""
    if energies.empty:
        return
    keys = ["model", "design"]
    wide = energies.pivot_table(index=keys, columns="part", values="joules_per_sample", sort=False)
    whole = wide.sum(axis=1)
    if baseline in wide.index.get_level_values("design"):
        base = whole.xs(baseline, level="design").reindex(wide.index.get_level_values("model")).to_numpy()
        shown = wide[wide.index.get_level_values("design").isin([PER_MODEL, baseline])]
        relative = (100 * wide.div(base, axis=0)).loc[shown.index].fillna(0.0)
        relative.index = [f"{model}, {design}" for model, design in relative.index]
        what = f"energy per sample, % of {baseline}"
        yield Chart(
            "energies",
            f"Energy per sample by part, relative to {baseline}",
            "Operators as scheduled on all slices, and the leakage of the devices in use over the "
            "time per batch.",
            partial(charts.stacked, relative, charts.ENERGY_PARTS, what),
        )
    columns: dict[str, Cell] = {
        "workload": "{model}", "design": "{design}", "per sample": "{whole:J}",
        **{title: f"{{{part}:percent}}" for part, (title, _) in charts.ENERGY_PARTS.items()},
    }  # fmt: skip
    caption = "Energy per trained sample by part; the link carries collectives, transfers and gradients"
    rows = wide.div(whole, axis=0).assign(whole=whole).reset_index()
    yield sheet_of(caption, rows, columns, 2, source="energies", folded=True)


def sensitivity(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the best accelerators under other bandwidths."""
    table = findings.variations
    if table.empty:
        return
    wide = table.pivot_table(index="model", columns="variation", values="relative", sort=False)
    figure = Chart(
        "sensitivity",
        "Throughput of the best accelerators under other bandwidths",
        "The accelerator stays, the placement is searched again.",
        partial(charts.bars, wide, "throughput over the study's", origin=1),
    )
    columns: dict[str, Cell] = {
        "workload": "{model}", "variation": "{variation}", "placement": _placed_as,
        "time per batch": "{time_per_batch_s:seconds}", "over the study's": "{relative:times}",
        "over baseline expert": "{speedup:times}",
    }  # fmt: skip
    caption = "Best accelerators under other bandwidths"
    sheet = sheet_of(caption, table, columns, 3, source="variations", folded=True)
    s = inputs.cluster.scenario
    hbm, network = words.decimal(s.hbm_bandwidth_bytes_per_s, "B/s"), s.network_bandwidth_bytes_per_s
    about = (
        "Throughput of the best accelerators with more or less bandwidth than the study assumes: "
        f"{hbm} of HBM and {words.size(network)}/s between devices."
    )
    changes = [
        f"{name} ({words.join(_bandwidths(what.values(s.model_dump())))})"
        for name, what in inputs.study.report.sensitivity.items()
    ]
    blocks = (Prose(f"Variations: {words.join(changes)}."), figure, sheet)
    yield Section("sensitivity", "How firm is the choice", about, blocks)


def _placed_as(row: pd.Series) -> str:
    return (
        f"{words.widths(row)}, microbatch {words.samples(row['layout'])}, {words.storing(row['recompute'])}"
    )


def _bandwidths(values: Mapping[str, float]) -> Iterator[str]:
    for key, value in values.items():
        yield f"{words.LIMITS[key.split('_')[0]]} {words.decimal(value, 'B/s')}"


def closeup(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Section on the pipeline, the memory and the schedule of each best placement."""
    blocks: list[Block] = []
    for model in inputs.study.models:
        row = row_of(findings.results, model, PER_MODEL)
        if row is not None:
            blocks += _closeups(inputs, row)
    if blocks:
        about = "Pipeline, memory of the stages and schedule of a block for every best placement."
        yield Section("closeups", "The placements in detail", about, tuple(blocks))


def _closeups(inputs: Inputs, row: pd.Series) -> Iterator[Block]:
    """Blocks of one placement; none if both its stages and its schedules are missing."""
    stages = stages_of(inputs, row)
    layer = str(layer_counts(inputs, row["model"]).idxmax())
    operators = operators_of(inputs, row)
    operators = operators[operators["layer"] == layer]
    if stages.empty and operators.empty:
        return
    model, name = str(row["model"]), words.file_name(row["model"])
    chip, limited = chip_of(inputs.cluster, row), f"; limited by {row['binding']}" if row["binding"] else ""
    taken = f"{words.seconds(row['time_per_batch_s'])} per batch{limited}."
    yield Heading(model)
    yield Prose(f"{words.compute(chip)}, {_placed_as(row)}, {taken}")
    if len(stages):
        passes = Chart(
            f"pipeline-{name}",
            f"The pipeline of {model}",
            "Each box is one microbatch in one stage.",
            partial(pipeline, stages, microbatches_of(inputs, row)),
        )
        held = Chart(
            f"memory-{name}",
            f"Memory of the stages of {model}",
            "In steady state, beside the capacity.",
            partial(stage_memory, stages, float(row["hbm_gib"])),
        )
        yield Gallery((passes, held))
    if len(operators):
        yield Chart(
            f"gantt-{name}",
            f"Schedule of a {layer} of {model}",
            "One lane for all cores of a type together, and one for every single core in use.",
            partial(gantt, operators, layer),
        )
    if len(stages) > 1:
        yield sheet_of(f"Stages of {model}, for one microbatch", stages, _STAGE, 0, folded=True)


_STAGE: dict[str, Cell] = {
    "stage": lambda row: str(row["stage"] + 1), "layers": "{first_layer} to {last_layer}",
    "devices": "{devices}", "forward": "{forward_s:seconds}", "backward": "{backward_s:seconds}",
    "transfer": "{transfer_s:seconds}", "load": "{load_s:seconds}", "memory": "{memory_bytes:size}",
    "headroom": "{headroom_bytes:size}",
}  # fmt: skip


PARTS: tuple[Part, ...] = (time_spent, chips, sensitivity, closeup)
"""Sections of this part, in order."""


def vary(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Table `variations`: the best placement of the winner for each variation and model.

    The speed-up is relative to the baseline with the experts' placement, under the same variation.
    """
    rows = []
    placed = inputs.sensitivities[inputs.sensitivities["status"] == "placed"]
    tried = {(str(name), str(model)): mine for (name, model), mine in placed.groupby(["variation", "model"])}
    for model, name in product(inputs.study.models, inputs.study.report.sensitivity):
        winner, mine = row_of(results, model, PER_MODEL), tried.get((name, model))
        best = None if winner is None or mine is None else _same_chip(mine, winner)
        if winner is None or mine is None or best is None:
            continue
        expert = row_of(results, model, baseline_design(inputs.study) or "")
        base = None if expert is None else _same_chip(mine, expert)
        over = {
            "relative": best["samples_per_s"] / winner["samples_per_s"],
            "speedup": 0.0 if base is None else float(best["samples_per_s"] / base["samples_per_s"]),
        }
        rows.append({**best, "variation": name, **over})
    return table_of(Variations, rows)


def _same_chip(placed: pd.DataFrame, row: pd.Series) -> pd.Series | None:
    """Best placement with the accelerator, HBM and planner of a result; None if absent."""
    same = [placed[key] == row[key] for key in ("architecture", "hbm_gib", "planner")]
    found = placed[np.logical_and.reduce(same)].assign(area_um2=row["area_um2"])
    return in_order(found).iloc[0] if len(found) else None
