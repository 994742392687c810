"""The first part of the report: throughput against the baselines and the paper, memory, rankings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from phaze.report import charts, style
from phaze.report.differences import differences
from phaze.report.document import Chart, Prose, Section, Sheet
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs
from phaze.report.paper import Printed, beside_paper, printed_of, printed_speedups
from phaze.report.winners import COMMON, PER_MODEL, baseline_design, candidates, in_order
from phaze.report.words import area, percent, seconds, storing, times, widths

MOST_DOTS = 160
"""Architectures drawn for a model: the fastest."""


def throughput(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on Figure 4, for a study with a baseline."""
    expert = baseline_design(inputs.study)
    results = findings.results
    if expert is None or not (results["speedup"] > 0).any():
        return
    printed = printed_of(inputs, findings)
    designs = [d for d in _design_order(inputs, results) if not d.endswith("expert-even")]
    wide = results.pivot_table(index="model", columns="design", values="speedup").reindex(inputs.study.models)
    means = findings.means.set_index("design")["speedup"]
    wide.loc[charts.GEOMETRIC_MEAN] = means.reindex(wide.columns)
    marks = _marks(printed) if printed else {}
    figure = Chart(
        "speedups",
        f"Throughput of every design over {expert}, by workload and in the geometric mean",
        "Bars are ours. Diamonds are the speed-ups that the printed utilisations imply, and the "
        "printed means.",
        partial(charts.speedups, wide[designs].fillna(0.0), _colours(designs, inputs), marks),
    )
    yield Section(
        "throughput",
        "Throughput against the baselines",
        "What a better accelerator brings, and what a better placement on the same accelerator brings.",
        (figure, _speedup_sheet(findings, inputs), *_expert_note(inputs)),
    )


def _colours(designs: list[str], inputs: Inputs) -> dict[str, str]:
    """Return the colour of every design: one hue for one accelerator, lighter under an expert placement."""
    baseline = inputs.study.architectures.baseline
    fixed = {
        f"{baseline} expert": style.SILVER,
        str(baseline): style.GREY,
        COMMON: style.SKY,
        PER_MODEL: style.BLUE,
    }
    others = [design for design in designs if design not in fixed]
    hues = iter([style.AMBER, style.TEAL, style.PURPLE, style.RED] * len(others))
    hue = {design: next(hues) for design in others if not design.endswith(" expert")}
    light = {design: style.SAND for design in others if design.endswith(" expert")}
    return {design: (fixed | hue | light)[design] for design in designs}


def _expert_note(inputs: Inputs) -> Iterator[Prose]:
    if inputs.study.architectures.baseline:
        yield Prose(
            "The experts' {p, d, t} is evaluated under the same model as everything else, with the "
            "stage boundaries that suit it best (expert) and with even ones (expert-even); microbatch "
            "and recomputation are the best for it."
        )


def _design_order(inputs: Inputs, results: pd.DataFrame) -> list[str]:
    """Return the designs as in Figure 4: baseline, families and single ones both ways, common, per model."""
    present = list(dict.fromkeys(results["design"]))
    baseline = inputs.study.architectures.baseline or ""
    ends = [name for name in (COMMON, PER_MODEL) if name in present]
    first = [name for name in (f"{baseline} expert-even", f"{baseline} expert", baseline) if name in present]
    rest = [name for name in present if name not in (*ends, *first)]
    return [*first, *sorted(rest, key=lambda name: (name.split()[0], not name.endswith("expert"))), *ends]


def _marks(printed: Printed) -> dict[tuple[str, str], float]:
    headline = printed.published.headline
    means = {PER_MODEL: headline.per_model, COMMON: headline.common} if headline else {}
    return printed_speedups(printed) | {(charts.GEOMETRIC_MEAN, d): value for d, value in means.items()}


def _speedup_sheet(findings: Findings, inputs: Inputs) -> Sheet:
    designs = _design_order(inputs, findings.results)
    wide = findings.results.pivot_table(index="model", columns="design", values="speedup")
    means = findings.means.set_index("design")["speedup"]
    rows = [
        (model, *(times(wide[d].get(model, 0.0)) for d in designs))
        for model in inputs.study.models
        if model in wide.index
    ]
    rows.append((charts.GEOMETRIC_MEAN, *(times(float(means.get(d, 0.0))) for d in designs)))
    marked, simulated = frozenset({len(rows) - 1}), findings.simulated_means
    if len(simulated):
        words = f"{charts.GEOMETRIC_MEAN} of recommended plans, simulated"
        rows.append((words, *(times(float(simulated.get(d, 0.0))) for d in designs)))
    caption = "Throughput over the baseline with the experts' placement, as planned"
    return Sheet(caption, ("workload", *designs), tuple(rows), 1, marked, "results")


def memory(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on HBM capacities."""
    table = findings.memories
    if table.empty:
        return
    rows = [
        (
            row["model"], f"{row['hbm_gib']:g} GiB", row["architecture"], widths(row), str(row["microbatch"]),
            storing(row["recompute"]), seconds(row["time_per_batch_s"]), percent(row["relative"]),
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    header = (
        "workload",
        "HBM",
        "best accelerator",
        "{p, d, t}",
        "microbatch",
        "activations",
        "planned time per batch",
        "of best",
    )
    tolerance = percent(inputs.study.screen.tolerance, 0)
    about = f"The smallest capacity within {tolerance} of the best throughput is chosen; all are shown."
    sheet = Sheet(about, header, tuple(rows), 6, frozenset(table.index[table["chosen"]]), "memories", True)
    figure = Chart("memory", "Throughput with every HBM capacity", about, partial(charts.memories, table))
    yield Section("memory", "How much HBM", about, (figure, sheet))


def ranking(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the best architectures and the smallest one near the best."""
    if findings.rankings.empty:
        return
    clouds = {model: _cloud(inputs, findings, model) for model in dict.fromkeys(findings.rankings["model"])}
    figure = Chart(
        "frontier",
        "Area and throughput of the accelerators that were placed",
        f"Dotted: area limit. The fastest {MOST_DOTS} of each workload, with its chosen HBM.",
        partial(charts.frontiers, clouds, inputs.cluster.area_limit_um2),
    )
    yield Section(
        "ranking",
        "The best accelerators",
        "Ordered by time per batch, then area, then name; marked is the smallest area within the "
        "tolerance of the best.",
        (figure, _ranking_sheet(findings.rankings)),
    )


def _cloud(inputs: Inputs, findings: Findings, model: str) -> pd.DataFrame:
    ranked = findings.rankings[findings.rankings["model"] == model]
    rows = candidates(inputs.cluster)
    rows = rows[
        (rows["model"] == model)
        & (rows["hbm_gib"] == ranked["hbm_gib"].iloc[0])
        & (rows["status"] == "placed")
    ]
    shown = in_order(rows).drop_duplicates("architecture").head(MOST_DOTS)
    kinds = {inputs.study.architectures.baseline: "baseline"}
    kinds |= dict.fromkeys(ranked.loc[ranked["smallest_area"], "architecture"], "smallest")
    kinds |= {ranked["architecture"].iloc[0]: "best"}
    relative = shown["samples_per_s"] / shown["samples_per_s"].max()
    return shown.assign(relative=relative, kind=shown["architecture"].map(kinds).fillna(""))


def _ranking_sheet(table: pd.DataFrame) -> Sheet:
    rows = [
        (
            row["model"] if row["rank"] == 1 else "", row["architecture"], str(row["rank"]),
            seconds(row["time_per_batch_s"]), percent(row["relative"], 2), area(row["area_um2"]), widths(row),
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    header = ("workload", "accelerator", "rank", "planned time per batch", "of best", "area", "{p, d, t}")
    marked = frozenset(table.index[table["smallest_area"]])
    return Sheet(
        "The best accelerators of every workload", header, tuple(rows), 2, marked, "rankings", folded=True
    )


PARTS: tuple[Part, ...] = (throughput, beside_paper, differences, memory, ranking)
"""The sections in order."""
