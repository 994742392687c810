"""The first part of the report: throughput against the baselines and the paper, memory, rankings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from phaze.report import charts, style
from phaze.report.differences import differences
from phaze.report.document import Cell, Chart, Prose, Section, Sheet, sheet_of
from phaze.report.findings import Findings, Part
from phaze.report.inputs import Inputs
from phaze.report.paper import beside_paper, printed_of, printed_speedups
from phaze.report.winners import COMMON, PER_MODEL, baseline_design, candidates, in_order
from phaze.report.words import percent, times, widths

MOST_DOTS = 160
"""Architectures drawn for a model: the fastest."""
_EXPERTS = (
    "The experts' {p, d, t} is evaluated under the same model as everything else, with the stage boundaries "
    "that suit it best (expert) and with even ones (expert-even); microbatch and recomputation are the best "
    "for it."
)


def throughput(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on Figure 4, for a study with a baseline."""
    expert = baseline_design(inputs.study)
    results = findings.results
    if expert is None or not (results["speedup"] > 0).any():
        return
    printed, marks = printed_of(inputs, findings), dict[tuple[str, str], float]()
    if printed is not None:
        headline = printed.published.headline
        means = {PER_MODEL: headline.per_model, COMMON: headline.common} if headline else {}
        marks = printed_speedups(printed) | {(charts.GEOMETRIC_MEAN, d): mean for d, mean in means.items()}
    designs = _design_order(inputs, results)
    wide = results.pivot_table(index="model", columns="design", values="speedup").reindex(inputs.study.models)
    wide.loc[charts.GEOMETRIC_MEAN] = findings.means.set_index("design")["speedup"].reindex(wide.columns)
    drawn = [d for d in designs if not d.endswith("expert-even")]
    figure = Chart(
        "speedups",
        f"Throughput of every design over {expert}, by workload and in the geometric mean",
        "Bars are ours. Diamonds are the speed-ups that the printed utilisations imply, and the "
        "printed means.",
        partial(charts.speedups, wide[drawn].fillna(0.0), _colours(drawn, inputs), marks),
    )
    about = "What a better accelerator brings, and what a better placement on the same accelerator brings."
    blocks = (figure, _speedup_sheet(findings, inputs, designs), Prose(_EXPERTS))
    yield Section("throughput", "Throughput against the baselines", about, blocks)


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


def _design_order(inputs: Inputs, results: pd.DataFrame) -> list[str]:
    """Return the designs as in Figure 4: baseline, families and single ones both ways, common, per model."""
    present = list(dict.fromkeys(results["design"]))
    baseline = inputs.study.architectures.baseline or ""
    ends = [name for name in (COMMON, PER_MODEL) if name in present]
    first = [name for name in (f"{baseline} expert-even", f"{baseline} expert", baseline) if name in present]
    rest = [name for name in present if name not in (*ends, *first)]
    return [*first, *sorted(rest, key=lambda name: (name.split()[0], not name.endswith("expert"))), *ends]


def _speedup_sheet(findings: Findings, inputs: Inputs, designs: list[str]) -> Sheet:
    wide = findings.results.pivot_table(index="model", columns="design", values="speedup")
    wide = wide.loc[[model for model in inputs.study.models if model in wide.index]]
    wide.loc[charts.GEOMETRIC_MEAN] = findings.means.set_index("design")["speedup"]
    if len(findings.simulated_means):
        wide.loc[f"{charts.GEOMETRIC_MEAN} of recommended plans, simulated"] = findings.simulated_means
    columns: dict[str, Cell] = {
        "workload": "{model}", **{design: partial(_factor, design) for design in designs},
    }  # fmt: skip
    rows = wide.rename_axis("model").reset_index().fillna(0.0)
    marked = rows["model"] == charts.GEOMETRIC_MEAN
    caption = "Throughput over the baseline with the experts' placement, as planned"
    return sheet_of(caption, rows, columns, 1, marked, "results")


def _factor(design: str, row: pd.Series) -> str:
    return times(row[design])


def memory(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on HBM capacities."""
    table = findings.memories
    if table.empty:
        return
    columns: dict[str, Cell] = {
        "workload": "{model}", "HBM": "{hbm_gib:g} GiB", "best accelerator": "{architecture}",
        "{p, d, t}": widths, "microbatch": "{layout:samples}", "activations": "{recompute:storing}",
        "planned time per batch": "{time_per_batch_s:seconds}", "of best": "{relative:percent}",
    }  # fmt: skip
    tolerance = percent(inputs.study.screen.tolerance, 0)
    about = f"The smallest capacity within {tolerance} of the best throughput is chosen; all are shown."
    sheet = sheet_of(about, table, columns, 6, table["chosen"], "memories", folded=True)
    figure = Chart("memory", "Throughput with every HBM capacity", about, partial(charts.memories, table))
    yield Section("memory", "How much HBM", about, (figure, sheet))


def ranking(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on the best architectures and the smallest one near the best."""
    table = findings.rankings
    if table.empty:
        return
    clouds = {model: _cloud(inputs, findings, model) for model in dict.fromkeys(table["model"])}
    figure = Chart(
        "frontier",
        "Area and throughput of the accelerators that were placed",
        f"Dotted: area limit. The fastest {MOST_DOTS} of each workload, with its chosen HBM.",
        partial(charts.frontiers, clouds, inputs.cluster.area_limit_um2),
    )
    columns: dict[str, Cell] = {
        "workload": lambda row: row["model"] if row["rank"] == 1 else "", "accelerator": "{architecture}",
        "rank": "{rank}", "planned time per batch": "{time_per_batch_s:seconds}",
        "of best": "{relative:percent2}", "area": "{area_um2:area}", "{p, d, t}": widths,
    }  # fmt: skip
    caption = "The best accelerators of every workload"
    sheet = sheet_of(caption, table, columns, 2, table["smallest_area"], "rankings", folded=True)
    about = (
        "Ordered by time per batch, then area, then name; marked is the smallest area within the tolerance "
        "of the best."
    )
    yield Section("ranking", "The best accelerators", about, (figure, sheet))


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


PARTS: tuple[Part, ...] = (throughput, beside_paper, differences, memory, ranking)
"""The sections in order."""
