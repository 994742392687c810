"""The sections of the page of tiled accelerators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pandas as pd

from phaze.report.document import Block, Chart, Items, Prose, Section, Sheet
from phaze.report.tiled import figures
from phaze.report.tiled.claims import CLOSE
from phaze.report.tiled.inputs import TiledInputs, mapped
from phaze.report.words import change, digits, percent, seconds, times
from phaze.spec.tiled_study import TiledCase

FACTOR = (
    "An all-reduce among d tiles passes on 2 (d − 1)/d of the tensor in each direction; the planners "
    "keep the factor 4 (d − 1)/d of the Phaze paper, both directions against one bandwidth."
)
_LEVELS = (
    "Inside a stage every product is work of the arrays beside reads and writes of DRAM, then all- "
    "reduces; stages, tensors between them, accesses and all-reduces share the links and the ports of "
    "one mesh, each of which carries one message at a time. Without contention every link carries all "
    "that comes at once; work alone leaves out everything that is sent, fetched or stored, and keeps "
    "the bubbles of the pipeline."
)


def table(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """Return throughputs beside printed ones (Table VII)."""
    rows = inputs.rows(name)
    blocks: list[Block] = [_printed_sheet(inputs, rows), Prose(_LEVELS)]
    explained = tuple(_explanations(inputs, rows))
    if explained:
        blocks.append(Items(explained))
    about = "Samples per second beside the paper's and beside measured ones."
    return Section(name, case.title, about, tuple(blocks))


def _printed_sheet(inputs: TiledInputs, rows: pd.DataFrame) -> Sheet:
    cells = []
    for _, row in rows.iterrows():
        printed = inputs.published.wafer.get(row["model"]) if inputs.published else None
        ours = row["samples_per_s"]
        theirs = (
            (digits(printed.palm, 5), change(ours / printed.palm), digits(printed.printed, 5),
             digits(inputs.measured(printed), 4), change(ours / inputs.measured(printed)))
            if printed else ("–",) * 5
        )  # fmt: skip
        cells.append(
            (
                str(row["model"]), str(row["system"]), mapped(row), str(row["bound_by"]),
                str(row["microbatches"]), digits(ours, 4), *theirs,
                digits(row["batch"] / row["uncontended_s"], 4), digits(row["batch"] / row["alone_s"], 4),
                percent(row["compute_share"]), percent(row["most_dram_share"]),
                percent(row["most_link_share"]),
            )
        )  # fmt: skip
    header = (
        "model", "system", "mapping", "bound by", "microbatches", "ours", "PALM", "ours over PALM",
        "printed beside it", "measured, scaled by peak", "ours over measured", "without contention",
        "work alone", "compute", "busiest port", "busiest link",
    )  # fmt: skip
    marked = frozenset(i for i, (_, row) in enumerate(rows.iterrows()) if _is_best(rows, row))
    caption = "Samples per second; the best of every model and system stands out"
    return Sheet(caption, header, tuple(cells), 4, marked, "tiled_runs")


def _is_best(rows: pd.DataFrame, row: pd.Series) -> bool:
    same = (rows["model"] == row["model"]) & (rows["system"] == row["system"])
    return bool(row["samples_per_s"] == rows.loc[same, "samples_per_s"].max())


def _explanations(inputs: TiledInputs, rows: pd.DataFrame) -> Iterator[str]:
    """Yield for every model and system what its best run is short of, in the words of its parts."""
    published = inputs.published
    fewest = rows[rows["microbatches"] == rows["microbatches"].min()]
    for (model, system), some in fewest.groupby(["model", "system"], sort=False):
        printed = published.wafer.get(str(model)) if published else None
        if printed is None:
            continue
        row = some.loc[some["samples_per_s"].idxmax()]
        strategy = row["strategy"]
        alone, quiet = (row["batch"] / row[key] for key in ("alone_s", "uncontended_s"))
        yield (
            f"{model} on {system}: work and bubbles alone allow {digits(alone, 4)} samples/s "
            f"({change(alone / printed.palm)} of PALM's), traffic without contention {digits(quiet, 4)}, "
            f"with it {digits(row['samples_per_s'], 4)}; {strategy}: operands that do not stay in "
            "SRAM are fetched from DRAM."
        )


def splits(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """Return Figures 9 and 10 with their table and Equation (6)."""
    rows = inputs.rows(name)
    blocks: list[Block] = []
    for system in case.systems:
        blocks += _split_charts(inputs, name, system, rows[rows["system"] == system])
    blocks += [_splits_sheet(rows), _optimum(inputs, rows)]
    about = "What the division of a stage's tiles into replicas and slices, and where they lie, changes."
    return Section(name, case.title, about, tuple(blocks))


def _split_charts(inputs: TiledInputs, name: str, system: str, rows: pd.DataFrame) -> Iterator[Chart]:
    """Yield what the splits reach on a system, and how long they hold its links."""
    best = inputs.published.best_tensor if inputs.published else {}
    yield Chart(
        f"{name}-{system}",
        f"Throughput by split of a stage's tiles, system {system} (Figure 10)",
        "Mappings of stages: line and S; near: slices of a replica next to each other, far: replicas "
        "of a slice. A triangle marks the paper's fastest split.",
        partial(figures.splits, rows, best),
    )
    largest = rows[rows["model"] == _occupied(inputs, rows)]
    yield Chart(
        f"{name}-{system}-links",
        f"How long links are held, {largest['model'].iloc[0]} on {system} (Figure 9)",
        "Mean over all links, in seconds of a batch and as a share of it.",
        partial(figures.occupancy, largest),
    )


def _occupied(inputs: TiledInputs, rows: pd.DataFrame) -> str:
    """Return the model whose links are shown: the paper's, or the last."""
    printed = inputs.published.least_occupancy if inputs.published else {}
    return next((model for model in printed if model in set(rows["model"])), str(rows["model"].iloc[-1]))


def _splits_sheet(rows: pd.DataFrame) -> Sheet:
    cells = [
        (
            str(row["model"]), str(row["system"]), mapped(row), str(row["bound_by"]),
            f"{row['tensor']} × {row['data']}", digits(row["samples_per_s"], 4),
            digits(row["batch"] / row["uncontended_s"], 4), seconds(row["link_busy_s"]),
            percent(row["link_busy_s"] / row["time_s"]), percent(row["most_dram_share"]),
            digits(row["layer_bytes"] / 1e9, 4),
        )
        for _, row in rows.iterrows()
    ]  # fmt: skip
    header = (
        "model", "system", "mapping", "bound by", "TP × DP", "samples/s", "without contention",
        "mean link held", "of the batch", "busiest port", "Equation (6), GB a layer",
    )  # fmt: skip
    return Sheet("Every split and mapping", header, tuple(cells), 4, source="tiled_runs", folded=True)


def _optimum(inputs: TiledInputs, rows: pd.DataFrame) -> Items:
    """Return where Equation (6) has its least, as a formula and of the splits."""
    sentences = [
        "Equation (6), 8 B S H N_m/N + 24 H²/N_m, is least at N_m = √(3 H N/(B S)): fewer for larger batches."
    ]
    for model, mine in rows.groupby("model", sort=False):
        one = mine.drop_duplicates("tensor").set_index("tensor")["layer_bytes"]
        tensor, worst = int(str(one.idxmin())), int(str(one.idxmax()))
        sentences.append(
            f"{model}, a batch of {int(mine['batch'].iloc[0]):,}: of the splits TP {tensor} passes on least "
            f"({digits(one.min() / 1e9, 4)} GB a layer), TP {worst} most "
            f"({times(one.max() / one.min())})."
        )
    if inputs.published:
        sentences.append(
            f"The paper's optimum of {inputs.published.optimum:g} for N = 16 needs B S/H = "
            f"{48 / inputs.published.optimum**2:.4g}, for T-145B and sequences of 2,048 tokens a batch of "
            f"about {48 / inputs.published.optimum**2 * 12288 / 2048:.0f}, which it does not print. "
            "Gradients count once a batch, activations for every sample."
        )
    return Items(tuple(sentences))


def pipeline(inputs: TiledInputs, name: str, case: TiledCase) -> Section:
    """Return a simulated pipeline over time, what its tiles hold, and its links."""
    blocks: list[Block] = []
    jobs, links = (frame[frame["case"] == name] for frame in (inputs.jobs, inputs.links))
    for (system, model, layout), mine in jobs.groupby(["system", "model", "layout"], sort=False):
        here = links[(links["system"] == system) & (links["model"] == model) & (links["layout"] == layout)]
        anchor = f"{name}-{model}-{system}-{layout}".replace(".", "-")
        blocks += _pipeline_charts(anchor, f"{model} on {system}, {layout}", mine, here)
    about = "One batch, event by event."
    return Section(name, case.title, about, tuple(blocks))


def _pipeline_charts(anchor: str, title: str, jobs: pd.DataFrame, links: pd.DataFrame) -> Iterator[Chart]:
    yield Chart(
        f"{anchor}-time",
        f"Stages over time: {title}",
        "A row is a stage, a cell a pass of a microbatch, the thin line below what goes on beside; "
        "white is time in which the stage waits.",
        partial(figures.pipeline, jobs),
    )
    yield Chart(
        f"{anchor}-memory",
        f"What a tile holds over time: {title}",
        "Weights, gradients, optimizer states and the inputs kept of microbatches in flight.",
        partial(figures.memory, jobs),
    )
    yield Chart(
        f"{anchor}-links",
        f"Links between tiles: {title}",
        "Every link in the colour of the share of the batch for which it is held; both directions "
        "lie beside each other.",
        partial(figures.heat, links),
    )


def networks(inputs: TiledInputs) -> Iterator[Section]:
    """Yield the figures on the network alone."""
    rows = inputs.networks
    if rows.empty:
        return
    blocks: list[Block] = []
    if (rows["figure"] == 7).any():
        blocks.append(
            Chart(
                "congestion",
                "By how much formulas without contention are short (Figure 7)",
                "Tasks of all 4 × 4 tiles that start together, beside the longest of their formulas (left) "
                "and beside the sum of them (right). In turns: one of each kind, all-to-alls around a ring, "
                "an access by every tile, as the authors' program.",
                partial(figures.congestion, rows[rows["figure"] == 7]),
            )
        )
    cells = [
        (str(row["figure"]), str(row["reading"]), str(row["setting"]), *_network_cells(row))
        for _, row in rows.iterrows()
    ]
    header = (
        "figure", "reading", "setting", "simulated, or strategy 1", "formula, or strategy 2",
        "short, or gain",
    )  # fmt: skip
    blocks.append(
        Sheet("Cases of the network alone", header, tuple(cells), 3, source="tiled_networks", folded=True)
    )
    blocks.append(Items(_NETWORK_NOTES))
    about = "Rings (Figure 6), tasks that overlap (Figure 7), groups that talk (Figure 12)."
    yield Section("networks", "The network alone", about, tuple(blocks))


_NETWORK_NOTES = (
    (
        "Figure 7 prints neither which tasks are stacked, nor against which formula, nor sizes beyond 8 MB "
        "of a single one. Its 30 % for five tasks come out with one of each kind in turns, all-to-alls "
        "around the ring, against the longest formula, whatever the size; its “at most 50 %” over all mixes "
        "of direct all-to-alls, against the sum of the formulas. No one of these readings gives both."
    ),
    (
        "Figure 12: a ring's all-reduce takes 2 · 11/12 of the tensor's time on a link and the transfer "
        "between groups one, in both strategies, so that strategy 2 cannot be 3.08 times as slow where each "
        "has the number of adapters that suits it. It is where the slowest is compared with the fastest: "
        "strategy 2 with one adapter over strategy 1 with four, tiles sending directly to the adapter at a "
        "corner, one at a time: (8 + 1 + 9)/(22/12 + 2 + 2) = 3.09 in units of the tensor's time on a link. "
        "That does not say which strategy to take. The same comparison does not give the 1.23 of broken "
        "rings, and some numbers of adapters above four make strategy 1 faster still."
    ),
    (
        "Where a tile breaks the ring, the way back meets nobody on directed links, so that strategy 2 is "
        "faster in some settings only."
    ),
)


def _network_cells(row: pd.Series) -> tuple[str, str, str]:
    if row["figure"] == 12:
        return seconds(row["seconds"]), seconds(row["other_s"]), times(row["value"])
    measured = row["seconds"] > 0
    both = (seconds(row["seconds"]), seconds(row["other_s"])) if measured else ("–", "–")
    return *both, percent(row["value"])


_TABLES = {
    "I": "Ratios of accelerators (Table I)",
    "IV": "Training runs on GPUs (Table IV)",
    "V": "Inference on Grayskull (Table V)",
}
_GPUS = (
    "PALM's published column of Table IV leaves out the attention and vocabulary terms; beside it stands "
    "what follows from the FLOP/s that are printed with the runs. Ours counts everything. One constant is "
    "fitted, the share of HBM's bandwidth that kernels reach: on all ten runs of the measured table, six of "
    "which are those of Table IV, and for comparison on the four others alone."
)


def printed_tables(inputs: TiledInputs) -> Iterator[Section]:
    """Yield the printed tables beside ours."""
    sheets: list[Block] = []
    for table, title in _TABLES.items():
        rows = inputs.besides[inputs.besides["table"] == table]
        if len(rows):
            sheets.append(_beside_sheet(title, rows))
    if sheets:
        about = "What the paper prints of accelerators, beside what follows from their files."
        yield Section("tables", "Tables I, IV and V", about, (*sheets, Prose(_GPUS)))


def _beside_sheet(title: str, rows: pd.DataFrame) -> Sheet:
    cells = [
        (
            str(row["case"]), str(row["reading"]), str(row["unit"]), digits(row["published"], 4),
            *_if_any(row["palm"], row["ours"]), *_if_any(row["measured"], row["ours"]),
            digits(row["ours"], 4), change(row["ours"] / row["published"]), str(row["explanation"]),
        )
        for _, row in rows.iterrows()
    ]  # fmt: skip
    header = (
        "case", "reading", "unit", "published", "PALM", "ours over PALM", "measured", "ours over measured",
        "ours", "ours over published", "how, and why",
    )  # fmt: skip
    marked = frozenset(i for i, (_, row) in enumerate(rows.iterrows()) if _far(row))
    return Sheet(
        f"{title}; more than 20 % apart stands out", header, tuple(cells), 3, marked, "tiled_besides"
    )


def _if_any(number: float, ours: float) -> tuple[str, str]:
    return (digits(number, 4), change(ours / number)) if number else ("–", "–")


def _far(row: pd.Series) -> bool:
    return bool(abs(row["ours"] / (row["measured"] or row["published"]) - 1) > CLOSE)


def notes(inputs: TiledInputs) -> Section:
    """Return how the numbers are made."""
    own = (FACTOR, "A transformer here is its layers, as PALM's operator: neither embedding nor head.")
    printed = inputs.published.notes if inputs.published else ()
    about = "What to know when reading them."
    return Section("method", "How these numbers are made", about, (Items((*own, *printed)),))


Part = Callable[[TiledInputs, str, TiledCase], Section]
PARTS: dict[str, Part] = {"table": table, "splits": splits, "pipeline": pipeline}
"""How cases are shown, in the order of the page."""


def sections_of(inputs: TiledInputs) -> Iterator[Section]:
    """Yield the sections of all cases, then the network alone."""
    for show, part in PARTS.items():
        for name, case in inputs.of(show):
            yield part(inputs, name, case)
    yield from networks(inputs)
    yield from printed_tables(inputs)
