"""The figure on plans that are mapped to networks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phaze.report.charts import wrapped
from phaze.report.style import BLUE, GREY, SAND, SILVER, WIDE, axes, name_groups

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
        for number, (column, (name, colour)) in enumerate(_ORDERS.items()):
            at = [
                models.index(row["model"]) - 0.43 + group * (planners.index(row["planner"]) + 0.08)
                for _, row in rows.iterrows()
            ]
            height = 100 * (rows[column] / rows["alone_s"] - 1)
            width = group * 0.84 / len(_ORDERS)
            ax.bar(np.array(at) + width * (number + 0.5), height, width * 0.94, color=colour, label=name)
        _name_planners(ax, rows, titles, group)
        ax.axhline(0, color=SAND, lw=0.8)
        name_groups(ax, [wrapped(str(model)) for model in models])
        ax.tick_params(axis="x", pad=12)
        ax.set_ylabel("added, %")
        ax.set_title(title)
    all_axes[0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(_ORDERS))
    return figure


def _name_planners(ax: Axes, rows: pd.DataFrame, titles: Mapping[str, str], group: float) -> None:
    """Write below every group of bars whose plan it is."""
    models, planners = list(rows["model"].unique()), list(rows["planner"].unique())
    for _, row in rows.iterrows():
        x = models.index(row["model"]) - 0.43 + group * (planners.index(row["planner"]) + 0.5)
        ax.annotate(
            titles[row["planner"]], (x, 0.0), (0, -3), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize=7, ha="center", va="top",
        )  # fmt: skip
