"""The figure on planners."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from phaze.report.charts import WIDE, wrapped
from phaze.report.style import AMBER, BLUE, GREY, SAND, SILVER, TEAL, axes, legend_above

_COLOURS = {"phaze": BLUE, "unflushed": TEAL, "piper": AMBER, "equal": GREY, "expert": SILVER}


def ratios(table: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw a bar for every planner and workload; rows are workloads, columns as in the colours."""
    figure, (ax,) = axes(WIDE, 3.4)
    width = 0.84 / len(_COLOURS)
    for number, (name, colour) in enumerate(_COLOURS.items()):
        at = np.arange(len(table)) - 0.42 + width * (number + 0.5)
        ax.bar(at, table[name], width * 0.94, color=colour, label=titles[name])
    ax.axhline(1, color=SAND, lw=0.8)
    ax.set_xticks(range(len(table)), [wrapped(str(model)) for model in table.index])
    ax.set_xlim(-0.55, len(table) - 0.45)
    ax.set_ylabel("throughput over Phaze's planner")
    ax.grid(axis="y")
    legend_above(figure, ax, 5)
    return figure
