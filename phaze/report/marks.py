"""Rules for drawn figures: a single value is a sentence, and ticks are plain numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.scale import LogTransform
from matplotlib.ticker import LogFormatter

from phaze.base.units import digits


def single_value(figure: Figure) -> str:
    """Value of a figure whose marks all show the same one; empty for a figure of several values."""
    shown = [axes for axes in figure.axes if axes.get_visible()]
    if any(_has_areas(axes) for axes in shown):
        return ""
    values = [value for axes in shown for value in (*_bars(axes), *_points(axes))]
    if len({*values}) != 1:
        return ""
    return f"{values[0]}{', the same for all' if len(values) > 1 else ''}"


def is_list(figure: Figure) -> bool:
    """Whether a figure is one list of horizontal bars, which suits any width."""
    bars = [bars for axes in figure.axes for bars in axes.containers if isinstance(bars, BarContainer)]
    return len(figure.axes) == 1 and bool(bars) and all(found.orientation == "horizontal" for found in bars)


def _has_areas(axes: Axes) -> bool:
    """Whether an axes has marks other than bars and lines, such as images and boxes over time."""
    bars = sum(len(found.patches) for found in axes.containers if isinstance(found, BarContainer))
    return bool(axes.images) or bool(axes.collections) or len(axes.patches) > bars


def _bars(axes: Axes) -> Iterator[str]:
    """Yield the value at the end of each bar, and a dash for a missing one.

    Stacked bars have one for each part; parts without length say nothing.
    """
    every: list[tuple[float, float, float, str]] = []
    for bars in axes.containers:
        if isinstance(bars, BarContainer):
            across = bars.orientation == "horizontal"
            label = axes.get_xlabel() if across else axes.get_ylabel()
            every += [
                (bar.get_y(), bar.get_x(), bar.get_width(), label)
                if across
                else (bar.get_x(), bar.get_y(), bar.get_height(), label)
                for bar in bars.patches
            ]
    seen = {place for place, _, length, _ in every if np.isfinite(length) and length}
    for place, start, length, label in every:
        if place not in seen or (np.isfinite(length) and length):
            yield f"{digits(float(start + length))} ({label})" if np.isfinite(length) else "–"


def _points(axes: Axes) -> Iterator[str]:
    """Yield the coordinates of each point of a line; lines across the whole axes are no data."""
    across, up = axes.get_xlabel(), axes.get_ylabel()
    for line in axes.lines:
        if line.get_transform() == axes.transData:
            for x, y in np.asarray(line.get_xydata(), dtype=float):
                if np.isfinite((x, y)).all():
                    yield f"{digits(float(y))} ({up}) at {digits(float(x))} ({across})"


class PlainTicks(LogFormatter):
    """Labels of a logarithmic axis as plain numbers, for example 64 instead of a power of two."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Label of a tick; empty for minor ticks without room."""
        return f"{x:,.10g}" if super().__call__(x, pos) else ""


def label_plainly(figure: Figure) -> None:
    """Replace powers by plain numbers in the tick labels of logarithmic axes."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        scale = axis.get_transform()
        if isinstance(scale, LogTransform):
            if isinstance(axis.get_major_formatter(), LogFormatter):
                axis.set_major_formatter(PlainTicks(scale.base))
            if isinstance(axis.get_minor_formatter(), LogFormatter):
                axis.set_minor_formatter(PlainTicks(scale.base))
