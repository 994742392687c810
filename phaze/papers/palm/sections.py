"""The sections of the page of tiled accelerators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from phaze.base.units import digits
from phaze.papers.palm.inputs import CLOSE, TiledInputs
from phaze.papers.palm.readings import microbatch_bounds
from phaze.report import tile_charts as figures
from phaze.report.document import Block, Cell, Chart, Items, Section, Sheet, sheet_of
from phaze.report.tile_charts import LAYOUTS
from phaze.report.words import change, file_name, percent, seconds, times
from phaze.spec.tiled_study import TiledCase

_RUN: dict[str, Cell] = {
    "model": "{model}", "system": "{system}",
    "mapping": lambda row: f"{LAYOUTS[row['layout']]}, {row['placed']}",
    "bound by": "{bound_by}",
}  # fmt: skip


def table(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """Throughputs beside printed ones (Table VII)."""
    rows = _beside(inputs, inputs.rows(name))
    explained = *_explanations(rows), *microbatch_bounds(inputs)
    blocks: tuple[Block, ...] = (_printed_sheet(rows),)
    blocks += (Items(explained),) if explained else ()
    return Section(
        name, case.title, "Samples per second beside the paper's and beside measured ones.", blocks
    )


def _beside(inputs: TiledInputs, rows: pd.DataFrame) -> pd.DataFrame:
    """Runs with what is printed of their models, NaN where nothing is, and other throughputs."""
    wafer = inputs.published.wafer if inputs.published else {}
    printed = {model: (row.palm, row.printed, inputs.measured(row)) for model, row in wafer.items()}
    beside = np.array([printed.get(model, (np.nan,) * 3) for model in rows["model"]]).reshape(-1, 3)
    return rows.assign(
        palm=beside[:, 0],
        printed=beside[:, 1],
        measured=beside[:, 2],
        over_palm=rows["samples_per_s"] / beside[:, 0],
        over_measured=rows["samples_per_s"] / beside[:, 2],
        quiet=rows["batch"] / rows["uncontended_s"],
        alone=rows["batch"] / rows["alone_s"],
        link_share=rows["link_busy_s"] / rows["time_s"],
    )


def _printed_sheet(rows: pd.DataFrame) -> Sheet:
    columns = _RUN | {
        "microbatches": "{microbatches}", "ours": "{samples_per_s:digits4}", "PALM": "{palm:digits5}",
        "ours over PALM": "{over_palm:change}", "printed beside it": "{printed:digits5}",
        "measured, scaled by peak": "{measured:digits4}", "ours over measured": "{over_measured:change}",
        "without contention": "{quiet:digits4}", "work alone": "{alone:digits4}",
        "compute": "{compute_share:percent}", "busiest port": "{most_dram_share:percent}",
        "busiest link": "{most_link_share:percent}",
    }  # fmt: skip
    best = rows["samples_per_s"] == rows.groupby(["model", "system"])["samples_per_s"].transform("max")
    caption = "Samples per second; the best of every model and system stands out"
    return sheet_of(caption, rows, columns, 4, best, "tiled_runs")


def _explanations(rows: pd.DataFrame) -> Iterator[str]:
    """Shortfall of the best run of every model and system, in the words of its parts."""
    fewest = rows[(rows["microbatches"] == rows["microbatches"].min()) & rows["palm"].notna()]
    for (model, system), some in fewest.groupby(["model", "system"], sort=False):
        row = some.loc[some["samples_per_s"].idxmax()]
        yield (
            f"{model} on {system}: work and bubbles alone allow {digits(row['alone'], 4)} samples/s "
            f"({change(row['alone'] / row['palm'])} of PALM's), traffic without contention "
            f"{digits(row['quiet'], 4)}, with it {digits(row['samples_per_s'], 4)}; {row['strategy']}: "
            "operands that do not stay in SRAM are fetched from DRAM."
        )


def splits(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """Figures 9 and 10 with their table and Equation (6)."""
    rows = _beside(inputs, inputs.rows(name))
    charts = [
        chart
        for system in case.systems
        for chart in _split_charts(inputs, name, system, rows[rows["system"] == system])
    ]
    columns = _RUN | {
        "TP × DP": "{tensor} × {data}", "samples/s": "{samples_per_s:digits4}",
        "without contention": "{quiet:digits4}", "mean link held": "{link_busy_s:seconds}",
        "of the batch": "{link_share:percent}", "busiest port": "{most_dram_share:percent}",
        "Equation (6), GB a layer": lambda row: digits(row["layer_bytes"] / 1e9, 4),
    }  # fmt: skip
    sheet = sheet_of("Every split and mapping", rows, columns, 4, source="tiled_runs", folded=True)
    about = "What the division of a stage's tiles into replicas and slices, and where they lie, changes."
    return Section(name, case.title, about, (*charts, sheet, Items(tuple(_optimum(inputs, rows)))))


def _split_charts(inputs: TiledInputs, name: str, system: str, rows: pd.DataFrame) -> Iterator[Chart]:
    published = inputs.published
    yield Chart(
        f"{name}-{system}",
        f"Throughput by split of a stage's tiles, system {system} (Figure 10)",
        "Mappings of stages: line and S; near: slices of a replica next to each other, far: replicas "
        "of a slice. A triangle marks the paper's fastest split.",
        partial(figures.splits, rows, published.best_tensor if published else {}),
    )
    told = [
        model for model in (published.least_occupancy if published else {}) if model in set(rows["model"])
    ]
    model = told[0] if told else rows["model"].iloc[-1]
    yield Chart(
        f"{name}-{system}-links",
        f"How long links are held, {model} on {system} (Figure 9)",
        "Mean over all links, in seconds of a batch and as a share of it.",
        partial(figures.occupancy, rows[rows["model"] == model]),
    )


def _optimum(inputs: TiledInputs, rows: pd.DataFrame) -> Iterator[str]:
    """Where Equation (6) has its least, as a formula and of the splits."""
    least = "Equation (6), 8 B S H N_m/N + 24 H²/N_m, is least at N_m = √(3 H N/(B S))"
    yield f"{least}: fewer for larger batches."
    for model, mine in rows.groupby("model", sort=False):
        one = mine.drop_duplicates("tensor").set_index("tensor")["layer_bytes"]
        yield (
            f"{model}, a batch of {int(mine['batch'].iloc[0]):,}: of the splits TP {one.idxmin()} passes on "
            f"least ({digits(one.min() / 1e9, 4)} GB a layer), TP {one.idxmax()} most "
            f"({times(one.max() / one.min())})."
        )
    if inputs.published:
        optimum = inputs.published.optimum
        yield (
            f"The paper's optimum of {optimum:g} for N = 16 needs B S/H = {48 / optimum**2:.4g}, for T-145B "
            f"and sequences of 2,048 tokens a batch of about {48 / optimum**2 * 12288 / 2048:.0f}, which it "
            "does not print. Gradients count once a batch, activations for every sample."
        )


def pipeline(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """A simulated pipeline over time, what its tiles hold, and its links."""
    blocks: list[Block] = []
    jobs, links = (frame[frame["case"] == name] for frame in (inputs.tiled_jobs, inputs.tiled_links))
    for (system, model, layout), mine in jobs.groupby(["system", "model", "layout"], sort=False):
        here = links[(links["system"] == system) & (links["model"] == model) & (links["layout"] == layout)]
        anchor = file_name(f"{name}-{model}-{system}-{layout}")
        title = f"{model} on {system}, {layout}"
        blocks += [
            Chart(
                f"{anchor}-time",
                f"Stages over time: {title}",
                "A row is a stage, a cell a pass of a microbatch, the thin line below what goes on beside; "
                "white is time in which the stage waits.",
                partial(figures.pipeline, mine),
            ),
            Chart(
                f"{anchor}-memory",
                f"What a tile holds over time: {title}",
                "Weights, gradients, optimizer states and the inputs kept of microbatches in flight.",
                partial(figures.memory, mine),
            ),
            Chart(
                f"{anchor}-links",
                f"Links between tiles: {title}",
                "Every link in the colour of the share of the batch for which it is held; both directions "
                "lie beside each other.",
                partial(figures.heat, here),
            ),
        ]
    return Section(name, case.title, "One batch, event by event.", tuple(blocks))


def networks(inputs: TiledInputs) -> Iterator[Section]:
    """The figures on the network alone."""
    rows = inputs.tiled_networks
    if rows.empty:
        return
    seven = rows[rows["figure"] == 7]
    chart = Chart(
        "congestion",
        "By how much formulas without contention are short (Figure 7)",
        "Tasks of all 4 × 4 tiles that start together, beside the longest of their formulas (left) "
        "and beside the sum of them (right). In turns: one of each kind, all-to-alls around a ring, "
        "an access by every tile, as the authors' program.",
        partial(figures.congestion, seven),
    )
    columns: dict[str, Cell] = {
        "figure": "{figure}", "reading": "{reading}", "setting": "{setting}",
        "simulated, or strategy 1": lambda row: _measured(row, "seconds"),
        "formula, or strategy 2": lambda row: _measured(row, "other_s"),
        "short, or gain": lambda row: (times if row["figure"] == 12 else percent)(row["value"]),
    }  # fmt: skip
    caption = "Cases of the network alone"
    sheet = sheet_of(caption, rows, columns, 3, source="tiled_networks", folded=True)
    about = "Rings (Figure 6), tasks that overlap (Figure 7), groups that talk (Figure 12)."
    yield Section("networks", "The network alone", about, (*([chart] if len(seven) else []), sheet))


def _measured(row: pd.Series, column: str) -> str:
    return seconds(row[column]) if row["figure"] == 12 or row["seconds"] > 0 else "–"


_TABLES = {
    "I": "Ratios of accelerators (Table I)",
    "IV": "Training runs on GPUs (Table IV)",
    "V": "Inference on Grayskull (Table V)",
}


def printed_tables(inputs: TiledInputs) -> Iterator[Section]:
    """The printed tables beside ours."""
    by_table = dict(iter(inputs.tiled_besides.groupby("table")))
    sheets = [_beside_sheet(title, by_table[name]) for name, title in _TABLES.items() if name in by_table]
    if sheets:
        about = "What the paper prints of accelerators, beside what follows from their files."
        yield Section("tables", "Tables I, IV and V", about, tuple(sheets))


def _beside_sheet(title: str, rows: pd.DataFrame) -> Sheet:
    """A printed table; 0 stands for what PALM does not simulate or nobody has measured."""
    known = rows.assign(**{key: rows[key].where(rows[key] > 0) for key in ("palm", "measured")})
    over = {f"over_{key}": known["ours"] / known[key] for key in ("palm", "measured", "published")}
    columns: dict[str, Cell] = {
        "case": "{case}", "reading": "{reading}", "unit": "{unit}", "published": "{published:digits4}",
        "PALM": "{palm:digits4}", "ours over PALM": "{over_palm:change}",
        "measured": "{measured:digits4}", "ours over measured": "{over_measured:change}",
        "ours": "{ours:digits4}", "ours over published": "{over_published:change}",
        "how, and why": "{explanation}",
    }  # fmt: skip
    far = (known["ours"] / known["measured"].fillna(known["published"]) - 1).abs() > CLOSE
    caption = f"{title}; more than 20 % apart stands out"
    return sheet_of(caption, known.assign(**over), columns, 3, far, "tiled_besides")


PARTS: dict[str, Callable[[TiledInputs, str, TiledCase], Section]] = {
    "table": table,
    "splits": splits,
    "pipeline": pipeline,
}
"""How cases are shown, in the order of the page."""


def sections_of(inputs: TiledInputs) -> Iterator[Section]:
    """The sections of all cases, then the network alone."""
    for show, part in PARTS.items():
        yield from (part(inputs, name, case) for name, case in inputs.of(show))
    yield from networks(inputs)
    yield from printed_tables(inputs)
