"""Shared by benchmarks: curves of cost against size, drawn at the end into `.benchmarks/curves.png`.

A benchmark that is a point of a curve sets `extra_info`: `curve` (its name), `size`, and `bound`, the
exponent of the size in the paper's cost bound (Appendix B.2). Its `note` is printed below the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest

from phaze.pages.vega import panels, save

FILE = Path(".benchmarks/curves.png")
NOTES = pytest.StashKey[list[str]]()

Measured = dict[str, Any]
"""A benchmark with its statistics, as pytest-benchmark passes it to its hooks."""


@dataclass(frozen=True)
class Curve:
    """Cost against size."""

    name: str
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    bound: float

    @property
    def exponent(self) -> float:
        """Return the slope between the last two sizes, in logarithms: how fast the cost grows in the end."""
        (a, b), (s, t) = np.log(self.sizes[-2:]), np.log(self.seconds[-2:])
        return float((t - s) / (b - a))

    def __str__(self) -> str:
        points = ", ".join(f"{n:g}: {s:.2g} s" for n, s in zip(self.sizes, self.seconds, strict=True))
        return (
            f"{self.name}: {points}; grows as size^{self.exponent:.2f}, the paper's bound is ^{self.bound:g}"
        )


def curves_of(benchmarks: Sequence[Measured]) -> Iterator[Curve]:
    """Yield the curves among measured benchmarks, by the fastest round of every point."""
    points: dict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    for one in benchmarks:
        info = one["extra_info"]
        if "curve" in info:
            points[info["curve"], info["bound"]].append((info["size"], one["min"]))
    for (name, bound), found in points.items():
        if len(found) > 1:
            sizes, seconds = zip(*sorted(found), strict=True)
            yield Curve(name, sizes, seconds, bound)


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw all curves on logarithmic axes, each with the growth of the paper's bound."""
    parts = []
    for curve in curves:
        sizes = np.array(curve.sizes)
        lines = {"measured": curve.seconds, "bound": curve.seconds[0] * (sizes / sizes[0]) ** curve.bound}
        parts += [
            pd.DataFrame({"curve": curve.name, "kind": kind, "size": sizes, "seconds": seconds})
            for kind, seconds in lines.items()
        ]
    scale = alt.Scale(type="log", nice=False)
    line = alt.Chart().mark_line(point=True)
    line = line.encode(alt.X("size:Q", scale=scale), alt.Y("seconds:Q", scale=scale), color="kind:N")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, panels(pd.concat(parts), "curve", line, width=320, height=260, independent="xy"))


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_group_stats(config: pytest.Config, benchmarks: Sequence[Measured]) -> None:
    """Draw the curves; return None, so that benchmarks are grouped as usual."""
    curves = list(curves_of(benchmarks))
    notes = [one["extra_info"]["note"] for one in benchmarks if "note" in one["extra_info"]]
    if curves:
        draw(curves, config.rootpath / FILE)
        notes += [*map(str, curves), f"drawn in {FILE}"]
    config.stash[NOTES] = notes


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the notes and the curves below the table of benchmarks."""
    for line in config.stash.get(NOTES, []):
        terminalreporter.write_line(line)
