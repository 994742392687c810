"""Second part of the report: details of the best placements, and their sensitivity to bandwidths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.units import GIB, UM2_PER_MM2, digits
from phaze.pages import charts, over_time, style, words
from phaze.pages.document import Block, Gallery, Heading, Prose, Section
from phaze.pages.page_words import words_of
from phaze.pages.style import AMBER, BLUE, PURPLE, RED, SAND, SKY
from phaze.pages.vega import WIDTH, coloured
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.pipeline.trace import job_rows
from phaze.report.anatomy import layer_counts, microbatches_of, operators_of, stages_of
from phaze.report.findings import COMMON, PER_MODEL, Findings, Part, baseline_design, row_of
from phaze.report.inputs import Inputs, table_of
from phaze.search.winners import chip_of, in_order
from phaze.tables import Variations

WORDS = words_of("study")
LETTER = 6.2
"""Width of a character of the operator names in bars, in pixels."""
CORES = {"tensor": BLUE, "vector": SKY, "fused": PURPLE, "network": RED}
_MEMORY_PARTS = {"weight": BLUE, "gradient": SKY, "optimizer": PURPLE, "activation": AMBER, "stashed": SAND}
MOST_SLOTS = 900
"""Maximum number of passes drawn of a pipeline; a figure with more is not legible."""
MOST_OPERATORS = 12
"""Number of operators per model in the table of bottlenecks: the slowest ones."""


def gantt(operators: pd.DataFrame, title: str) -> alt.TopLevelMixin:
    """Draw the schedule of one layer, forward above backward; a lane is one core, or all cores of a type."""
    busy = operators[operators["core"] != "none"]
    busy = busy.assign(place=busy["core"].map([*CORES].index), backward=busy["direction"] == "backward")
    busy = busy.sort_values(["backward", "place", "core_index"], kind="stable")
    lanes = [_lane(row) for _, row in busy.iterrows()]
    span_s = float(busy["end_s"].max())
    scale, unit = (1e3, "ms") if span_s >= 1e-3 else (1e6, "µs")
    start, end = busy["start_s"] * scale, (busy["start_s"] + busy["latency_s"]) * scale
    table = busy.assign(lane=lanes, operator=busy["name"].map(words.operator), start=start, end=end)
    table = table[["lane", "core", "operator", "start", "end"]]
    names = [*dict.fromkeys(lanes)]
    # the browser knows the width of a bar, and leaves out a name that would not fit into it
    fits = f"(datum.end - datum.start) / {span_s * scale:.9g} * width > {LETTER} * length(datum.operator)"
    base = alt.Chart(table).encode(
        alt.Y("lane:N", title=None, scale=alt.Scale(domain=names, padding=0.08)),
        tooltip=["operator:N", "lane:N", *(alt.Tooltip(f"{at}:Q", format=".4~g") for at in ("start", "end"))],
    )
    what = f"{title}, {unit}"
    seconds = alt.Scale(domain=[float(table["start"].min()), float(table["end"].max())])  # also without texts
    labels = base.transform_filter(fits).transform_calculate(middle="(datum.start + datum.end) / 2")
    return alt.layer(
        base.mark_bar(stroke="white", strokeWidth=0.6).encode(
            alt.X("start:Q", title=what, scale=seconds), alt.X2("end"), coloured("core", CORES)
        ),
        labels.mark_text(color="white", fontSize=10).encode(
            alt.X("middle:Q", title=what, scale=seconds), text="operator:N"
        ),
    ).properties(width=WIDTH, height=charts.ROW * len(names))


def _lane(row: pd.Series) -> str:
    """Label of an operator's lane: the cores on which it runs, and its pass."""
    core, index = row["core"], row["core_index"]
    where = "link" if core == "network" else f"all {core}" if index < 0 else f"{core} {index}"
    return f"{where}, {row['direction']}"


def pipeline(stages: pd.DataFrame, microbatches: int) -> alt.TopLevelMixin:
    """Draw the 1F1B pipeline with the times of its stages, for a legible number of microbatches."""
    depth = len(stages)
    # two passes per stage and microbatch; depth + 8 microbatches fill the pipeline and show its steady state
    shown = min(microbatches, max(4, MOST_SLOTS // (2 * depth)), depth + 8)
    # activations and gradients have the same size, and take half of the transfer time each
    half_s = stages["transfer_s"] / 2
    costs = tuple(map(StageCost, stages["forward_s"] + half_s, stages["backward_s"] + half_s))
    jobs = pd.DataFrame(job_rows(simulate(Pipeline(costs, shown))))
    passes = over_time.cells(jobs[jobs["kind"].isin(["forward", "backward"])].assign(stage=jobs["stage"] + 1))
    what = f"seconds, {shown} of {microbatches} microbatches"
    return over_time.pipeline(passes, [(0.0, float(passes["end_s"].max()))], what)


def stage_memory(stages: pd.DataFrame, hbm_gib: float) -> alt.TopLevelMixin:
    """Draw the memory breakdown of each stage, and the HBM capacity."""
    memory_gib = stages.set_axis(range(1, len(stages) + 1))[[f"{part}_bytes" for part in _MEMORY_PARTS]] / GIB
    looks = {f"{part}_bytes": (part, colour) for part, colour in _MEMORY_PARTS.items()}
    what = f"GiB; dashed: HBM of {digits(hbm_gib, 2)} GiB"
    return charts.stacked(memory_gib, looks, what, "stage", limit=hbm_gib)


def time_spent(_: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the time breakdown of a batch and the bottlenecks of operators."""
    breakdowns = findings.breakdowns[findings.breakdowns["design"] == PER_MODEL].set_index("model")
    if breakdowns.empty:
        return
    spent = breakdowns[list(charts.TIME_PARTS)]
    total = spent.sum(axis=1) / 100
    what, peak = "part of the time per batch, %", breakdowns["useful_s"] / total
    draw = partial(charts.stacked, spent.div(total, axis=0), charts.TIME_PARTS, what, peak=peak)
    yield WORDS.section("time", (WORDS.chart("breakdown", draw), *_limits(findings.bindings)))


def _limits(table: pd.DataFrame) -> Iterator[Block]:
    if table.empty:
        return
    share = table.pivot_table("share", "model", "limit", aggfunc="sum", fill_value=0.0, sort=False) * 100
    what = "part of the time in operators, %"
    yield WORDS.chart("limits", partial(charts.stacked, share.loc[:, share.sum() > 0], style.LIMITS, what))
    longest = table.sort_values("share", ascending=False).groupby("model", sort=False).head(MOST_OPERATORS)
    shown = longest.sort_values(["model", "share"], ascending=[True, False])
    shown["cores"] = shown["all_cores"].map({True: "all", False: "one"})
    yield WORDS.sheet("limits", shown, count=MOST_OPERATORS)


def chips(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on area and energy of the baseline, common and per-model accelerators."""
    limit, baseline = inputs.cluster.area_limit_um2, inputs.study.architectures.baseline
    order = [name for name in (baseline, COMMON, PER_MODEL) if name is not None]
    table = findings.areas[findings.areas["design"].isin(order)]
    if table.empty:
        return
    label = table["design"].where(table["design"] != PER_MODEL, table["model"])
    ranked = table.assign(label=label, place=table["design"].map(order.index))
    # a row per model: those of the baseline and of the common accelerator are all the same
    ranked = ranked.sort_values("place", kind="stable").drop_duplicates(["label", "part"])
    wide = ranked.pivot_table(index="label", columns="part", values="area_um2", sort=False)
    what, limit_mm2 = "area, mm²; dashed: area limit", limit / UM2_PER_MM2
    draw = partial(charts.stacked, wide / UM2_PER_MM2, charts.AREA_PARTS, what, limit=limit_mm2)
    totals_um2 = wide.sum(axis=1)
    rows = wide.assign(whole=totals_um2).join(wide.div(totals_um2, axis=0).add_prefix("share_")).reset_index()
    blocks = (WORDS.chart("areas", draw, limit_um2=limit), WORDS.sheet("areas", rows))
    yield WORDS.section("chips", (*blocks, *_energies(findings.energies, baseline)))


def _energies(energies: pd.DataFrame, baseline: str | None) -> Iterator[Block]:
    """Yield a chart and a table of the energy per sample by part, relative to the baseline's."""
    if energies.empty:
        return
    keys = ["model", "design"]
    wide = energies.pivot_table(index=keys, columns="part", values="joules_per_sample", sort=False)
    totals_j = wide.sum(axis=1)
    if baseline in wide.index.get_level_values("design"):
        # the baseline's energy for the same model, in each row
        base = totals_j.xs(baseline, level="design").reindex(wide.index.get_level_values("model")).to_numpy()
        shown = wide[wide.index.get_level_values("design").isin([PER_MODEL, baseline])]
        relative = (100 * wide.div(base, axis=0)).loc[shown.index].fillna(0.0)
        relative.index = [f"{model}, {design}" for model, design in relative.index]
        draw = partial(charts.stacked, relative, charts.ENERGY_PARTS, f"energy per sample, % of {baseline}")
        yield WORDS.chart("energies", draw, baseline=baseline)
    yield WORDS.sheet("energies", wide.div(totals_j, axis=0).assign(whole=totals_j).reset_index())


def sensitivity(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the best accelerators under other bandwidths."""
    table = findings.variations
    if table.empty:
        return
    wide = table.pivot_table(index="model", columns="variation", values="relative", sort=False)
    draw = partial(charts.bars, wide, "throughput over the study's", origin=1)
    of_study = inputs.cluster.scenario.model_dump()
    changes = [
        f"{name} ({words.join(_bandwidths(what.values(of_study)))})"
        for name, what in inputs.study.report.sensitivity.items()
    ]
    intro = Prose(WORDS.sentence("variations", changes=words.join(changes)))
    blocks = (intro, WORDS.chart("sensitivity", draw), WORDS.sheet("sensitivity", table))
    yield WORDS.section("sensitivity", blocks, **of_study)


def _bandwidths(values: Mapping[str, float]) -> Iterator[str]:
    for key, value in values.items():
        yield f"{words.LIMITS[key.split('_')[0]]} {words.decimal(value, 'B/s')}"


def closeup(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the pipeline, the memory and the schedule of each best placement."""
    rows = (row_of(findings.results, model, PER_MODEL) for model in inputs.study.models)
    blocks = [block for row in rows if row is not None for block in _closeups(inputs, row)]
    if blocks:
        yield WORDS.section("closeups", blocks)


def _closeups(inputs: Inputs, row: pd.Series) -> Iterator[Block]:
    """Yield the blocks on one placement; nothing if both its stages and its schedules are missing."""
    stages = stages_of(inputs, row)
    layer = str(layer_counts(inputs, row["model"]).idxmax())
    operators = operators_of(inputs, row)
    operators = operators[operators["layer"] == layer]
    if stages.empty and operators.empty:
        return
    model, name = str(row["model"]), words.file_name(row["model"])
    chip, limited = chip_of(inputs.cluster, row), f"; limited by {row['binding']}" if row["binding"] else ""
    yield Heading(model)
    yield Prose(WORDS.sentence("placed", **{**row, "cores": words.compute(chip), "limited": limited}))
    if len(stages):
        passes = partial(pipeline, stages, microbatches_of(inputs, row))
        memory = partial(stage_memory, stages, float(row["hbm_gib"]))
        both = {"pipeline": (passes, f"pipeline-{name}"), "stage-memory": (memory, f"memory-{name}")}
        yield Gallery(tuple(WORDS.chart(which, *draw, model=model) for which, draw in both.items()))
    if len(operators):
        draw = partial(gantt, operators, layer)
        yield WORDS.chart("gantt", draw, f"gantt-{name}", layer=layer, model=model)
    if len(stages) > 1:
        yield WORDS.sheet("stages", stages.assign(number=stages["stage"] + 1), model=model)


PARTS: tuple[Part, ...] = (time_spent, chips, sensitivity, closeup)
"""Functions that yield the sections of this part, in order."""


def vary(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Table `variations`: placement of each model's best accelerator under every variation of the cluster.

    The speed-up is relative to the baseline with the hand-designed placement, under the same variation.
    """
    rows = []
    placed = inputs.sensitivities[inputs.sensitivities["status"] == "placed"]
    for model, name in product(inputs.study.models, inputs.study.report.sensitivity):
        varied = placed[(placed["variation"] == name) & (placed["model"] == model)]
        winner = row_of(results, model, PER_MODEL)
        best = _best_on_chip(varied, winner)
        if winner is None or best is None:
            continue
        base = _best_on_chip(varied, row_of(results, model, baseline_design(inputs.study) or ""))
        ratios = {
            "relative": best["samples_per_s"] / winner["samples_per_s"],
            "speedup": 0.0 if base is None else float(best["samples_per_s"] / base["samples_per_s"]),
        }
        rows.append({**best, "variation": name, **ratios})
    return table_of(Variations, rows)


def _best_on_chip(placed: pd.DataFrame, row: pd.Series | None) -> pd.Series | None:
    """Best placement with the accelerator, HBM and planner of a result; None if one is absent."""
    if row is None:
        return None
    same = [placed[key] == row[key] for key in ("architecture", "hbm_gib", "planner")]
    rows = placed[np.logical_and.reduce(same)].assign(area_um2=row["area_um2"])
    return in_order(rows).iloc[0] if len(rows) else None
