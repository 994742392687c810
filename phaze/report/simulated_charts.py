"""The figure on simulated plans."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phaze.report.charts import wrapped
from phaze.report.style import (
    AMBER,
    BLUE,
    GREY,
    PURPLE,
    RED,
    SAND,
    SILVER,
    SKY,
    TEAL,
    WIDE,
    axes,
    bars_beside,
    name_groups,
)

_PLANNERS = {"phaze": BLUE, "piper": AMBER, "equal": GREY, "expert": SILVER}
_PARTS = {
    "imbalance_s": SKY,
    "bubbles_s": PURPLE,
    "transfers_s": TEAL,
    "synchronisation_s": SAND,
    "contention_s": RED,
}


def differences(
    ratios: pd.DataFrame,
    parts: Mapping[str, pd.DataFrame],
    titles: Mapping[str, str],
    names: Mapping[str, str],
) -> Figure:
    """Draw a bar for every planner and workload, and below the parts of the difference of two planners."""
    figure, (top, bottom) = axes(WIDE, 5.6, rows=2)
    for number, (name, colour) in enumerate(_PLANNERS.items()):
        bars_beside(top, ratios[name], number, len(_PLANNERS), colour, titles[name])
    top.axhline(1, color=SAND, lw=0.8)
    top.set_ylabel("simulated over planned")
    for number, (name, table) in enumerate(parts.items()):
        at = np.arange(len(table)) - 0.21 + 0.42 * number
        _stack(bottom, at, table.fillna(0.0), names if number == 0 else {})
        for x in at:
            bottom.annotate(
                titles[name], (float(x), 0.0), (0, 2), textcoords="offset points", fontsize=7, ha="center"
            )
    bottom.axhline(0, color=GREY, lw=0.8)
    bottom.set_ylabel("difference over planned")
    for ax, columns in ((top, 4), (bottom, 5)):
        name_groups(ax, [wrapped(str(model)) for model in ratios.index])
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns)
    return figure


def _stack(ax: Axes, at: np.ndarray, table: pd.DataFrame, names: Mapping[str, str]) -> None:
    """Draw positive parts upwards and negative ones downwards."""
    up, down = np.zeros(len(table)), np.zeros(len(table))
    for part, colour in _PARTS.items():
        values = table[part].to_numpy(float)
        base = np.where(values >= 0, up, down)
        ax.bar(at, values, 0.38, bottom=base, color=colour, label=names.get(part, "_"))
        up, down = up + np.maximum(values, 0), down + np.minimum(values, 0)
