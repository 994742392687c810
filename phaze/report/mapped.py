"""The part of the report on networks: the best plans on their devices, before and after mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from phaze.report.charts import wrapped
from phaze.report.document import Cell, Chart, Items, Prose, Section, sheet_of
from phaze.report.findings import Findings
from phaze.report.inputs import Inputs
from phaze.report.planners import TITLES, titled
from phaze.report.style import BLUE, GREY, SAND, SILVER, WIDE, axes, name_groups
from phaze.report.winners import PER_MODEL
from phaze.report.words import percent
from phaze.tables import BY_HAND

WAYS = {
    "cs-map": "all-reduce first",
    "p2p-map": "stages first",
    "blocks-of-2": "blocks of 2 stages",
    "blocks-of-4": "blocks of 4 stages",
    "local-search": "local search",
}
"""How a plan comes to its devices, for readers."""
_PLACE = ["model", "architecture", "hbm_gib", "planner", "system"]


def on_networks(inputs: Inputs, findings: Findings) -> Iterator[Section]:
    """Yield the section on plans that are mapped to the devices of networks."""
    rows = side_by_side(inputs, findings)
    if rows.empty:
        return
    tables = {
        f"{system}: {mine['network'].iloc[0]}": mine for system, mine in rows.groupby("system", sort=False)
    }
    figure = Chart(
        "networks",
        "What communication adds to a simulated batch, by the order of its devices",
        "Of the time on a network that takes none. Where two bars of a workload differ, the order of the "
        "devices matters; the third is the mapping that is chosen.",
        partial(added, tables, TITLES),
    )
    columns: dict[str, Cell] = {
        "workload": "{model}", "planner": lambda row: TITLES[row["planner"]], "system": "{system}",
        "network": "{network}", "mapping": lambda row: WAYS[row["way"]],
        "workers × lanes × unit": "{workers} × {lanes} × {unit}",
        "without communication": "{alone_s:seconds}", "all-reduce first": "{cs_map:seconds}",
        "stages first": "{p2p_map:seconds}", "mapped": "{simulated_s:seconds}",
        "gain over all-reduce first": lambda row: percent(1 - row["simulated_s"] / row["cs_map"]),
        "gain over stages first": lambda row: percent(1 - row["simulated_s"] / row["p2p_map"]),
    }  # fmt: skip
    caption = "Simulated time per batch on networks, before and after mapping"
    sheet = sheet_of(caption, rows, columns, 5, source="plan_maps")
    blocks = (figure, sheet, Items(tuple(_facts(rows))), Prose(_HOW), Prose(_WHAT))
    about = (
        "Planners take the network for flat. Here their plans lie on the devices of networks that are not: "
        "in the default orders, and as topology-aware mapping puts them, simulated before and after."
    )
    yield Section("networks", "On networks", about, blocks)


_HOW = (
    "Every plan is executed event by event on the part of the network that has the study's devices; a link "
    "carries one message at a time, all-reduces go around inside nodes first, and the devices compute as "
    "those that were planned on. All-reduce first puts the replicas of a stage on consecutive devices, as "
    "Megatron-LM numbers them; stages first those of a pipeline. With the network in mind, the devices of a "
    "node or of a row of a torus hold 2 or 4 stages of some pipelines, or a local search makes short what a "
    "step takes without contention; of these the one with the least estimate is simulated. What is simulated "
    "to be the shortest of the three is the mapping, so that it is never slower than a default order."
)
_WHAT = (
    "A stage of the mapping is a worker, a replica a lane: as many lanes run beside each other as the data "
    "widths have as a common divisor, and the replicas of a stage inside a lane are workers of their own. "
    "The devices of a tensor parallel group are a unit with consecutive numbers; what they send each other "
    "is part of the passes, as planners charge it. Table plan_maps has every mapping that was tried, "
    "results/plan_devices the devices of the one that was chosen."
)


def side_by_side(inputs: Inputs, findings: Findings) -> pd.DataFrame:
    """Return a row for every plan and network: the time of both default orders and of the mapping chosen.

    A plan of several accelerators that are equally fast is shown once, on the one of the results.
    """
    found = findings.plan_maps
    if found.empty:
        return found
    wide = found.pivot(index=_PLACE, columns="way", values="simulated_s").reindex(columns=list(BY_HAND))
    chosen = found[found["chosen"]].set_index(_PLACE)
    rows = chosen.assign(**{name.replace("-", "_"): wide[name] for name in BY_HAND}).reset_index()
    designs = titled(inputs.study, findings.results, rows[_PLACE])
    best = designs[designs["design"] == PER_MODEL][_PLACE].assign(best=True)
    order = {name: place for place, name in enumerate((*inputs.study.models, *TITLES))}
    return (
        rows.merge(best, on=_PLACE, how="left")
        .sort_values(
            ["system", "model", "planner", "best", "architecture"],
            key=lambda column: column.map(order) if column.name in ("model", "planner") else column,
            kind="stable",
        )
        .drop_duplicates(["system", "model", "planner"])
        .reset_index(drop=True)
    )


def _facts(rows: pd.DataFrame) -> Iterator[str]:
    """Yield for every network what mapping gains, and what the worse default order costs."""
    for system, mine in rows.groupby("system", sort=False):
        gain = 1 - mine["simulated_s"] / mine["cs_map"]
        cost = mine["p2p_map"] / mine["cs_map"] - 1
        most, least, worst = (mine.iloc[int(at)] for at in (gain.argmax(), cost.argmin(), cost.argmax()))
        lowest, highest = (
            f"{'+' if value > 0 else ''}{percent(value)}" for value in (cost.min(), cost.max())
        )
        yield (
            f"{system}: over all-reduce first, mapping saves {percent(gain.mean())} of a batch on average, "
            f"and at most {percent(gain.max())} ({_which(most)}, {WAYS[most['way']]}); it makes "
            f"{int((gain > 0).sum())} of {len(mine)} plans faster. Stages first differs from all-reduce "
            f"first by {lowest} ({_which(least)}) to {highest} ({_which(worst)})."
        )


def _which(row: pd.Series) -> str:
    return f"{row['model']} by {TITLES[row['planner']]}"


_ORDERS = {
    "cs_map": ("all-reduce first", GREY),
    "p2p_map": ("stages first", SILVER),
    "simulated_s": ("mapped", BLUE),
}


def added(tables: Mapping[str, pd.DataFrame], titles: Mapping[str, str]) -> Figure:
    """Draw for every network a bar for each order of each plan: what communication adds, in per cent."""
    figure, all_axes = axes(WIDE, 0.5 + 2.3 * len(tables), rows=len(tables))
    for ax, (title, rows) in zip(all_axes, tables.items(), strict=True):
        models, planners = list(rows["model"].unique()), list(rows["planner"].unique())
        group = 0.86 / len(planners)
        left = rows["model"].map(models.index) - 0.43
        place = rows["planner"].map(planners.index)
        at = left + group * (place + 0.08)
        for number, (column, (name, colour)) in enumerate(_ORDERS.items()):
            height = 100 * (rows[column] / rows["alone_s"] - 1)
            width = group * 0.84 / len(_ORDERS)
            ax.bar(at + width * (number + 0.5), height, width * 0.94, color=colour, label=name)
        for x, planner in zip(left + group * (place + 0.5), rows["planner"], strict=True):
            ax.annotate(
                titles[planner], (x, 0.0), (0, -3), xycoords=("data", "axes fraction"),
                textcoords="offset points", fontsize=7, ha="center", va="top",
            )  # fmt: skip
        ax.axhline(0, color=SAND, lw=0.8)
        name_groups(ax, [wrapped(str(model)) for model in models])
        ax.tick_params(axis="x", pad=12)
        ax.set_ylabel("added, %")
        ax.set_title(title)
    all_axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(_ORDERS))
    return figure
