"""The figure on planners."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from phaze.report.charts import wrapped
from phaze.report.style import (
    AMBER,
    BLUE,
    GREY,
    SAND,
    SILVER,
    TEAL,
    WIDE,
    axes,
    bars_beside,
    legend_above,
    name_groups,
)

_COLOURS = {"phaze": BLUE, "unflushed": TEAL, "piper": AMBER, "equal": GREY, "expert": SILVER}


def ratios(table: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw a bar for every planner and workload; rows are workloads, columns as in the colours."""
    figure, (ax,) = axes(WIDE, 3.4)
    for number, (name, colour) in enumerate(_COLOURS.items()):
        bars_beside(ax, table[name], number, len(_COLOURS), colour, titles[name])
    ax.axhline(1, color=SAND, lw=0.8)
    name_groups(ax, [wrapped(str(model)) for model in table.index])
    ax.set_ylabel("throughput over Phaze's planner")
    legend_above(figure, ax, 5)
    return figure
