"""How figures become SVG that can stand inside a page, small and deterministic, and files of their own.

No figure depends on another, so that several processes draw those of a page. They are forked from a server
that has imported what this process has of phaze and does nothing else: a process that has already computed
has threads, which do not survive a fork, and one started afresh imports for as long as it draws.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from html import escape
from multiprocessing import forkserver
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from phaze.files import atomic_path
from phaze.report.document import Chart
from phaze.report.style import RC

PIXELS_PER_INCH = 96


@dataclass(frozen=True)
class Drawn:
    """A figure of a page."""

    svg: str
    width_px: int


def draw_all(charts: Sequence[Chart], processes: int = 1) -> dict[str, Drawn]:
    """Return the figures by name, drawn by so many processes: the same for every number."""
    needed = min(processes, len(charts))
    drawn = map(draw, charts) if needed < 2 else _drawn_by(needed, charts)
    return {chart.name: figure for chart, figure in zip(charts, drawn, strict=True)}


def get_ready(processes: int) -> None:
    """Let the server import while there is other work, if several processes are to draw."""
    if processes > 1:
        multiprocessing.set_forkserver_preload([name for name in sys.modules if name.startswith("phaze.")])
        forkserver.ensure_running()


def _drawn_by(processes: int, charts: Sequence[Chart]) -> list[Drawn]:
    get_ready(processes)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(processes, context, _end_with_parent) as pool:
        return list(pool.map(draw, charts))


def _end_with_parent() -> None:
    """Let this process end when the one that started it has ended, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and says so

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def draw(chart: Chart) -> Drawn:
    """Return a figure as SVG for a page."""
    with mpl.rc_context(RC):
        figure = chart.draw()
        _lay_out(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    width = round(figure.get_figwidth() * PIXELS_PER_INCH)
    return Drawn(_inline(buffer.getvalue(), chart.name, chart.title), width)


def _lay_out(figure: Figure) -> None:
    """Give everything its place, which saving would do by drawing the figure once more."""
    FigureCanvasSVG(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def save(path: Path, draw: Callable[[], Figure]) -> None:
    """Write a drawn figure in the format that the file's name ends in: the same figure, the same file."""
    kind = path.suffix.removeprefix(".").lower()
    dates = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context(RC), atomic_path(path) as temporary:
        draw().savefig(temporary, format=kind, metadata=dates.get(kind, {}), dpi=200)


def _inline(svg: str, name: str, title: str) -> str:
    """Return SVG for a page: no prologue, no style of its own, short numbers, ids of its own."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r"<defs>\s*</defs>", "", body)
    body = re.sub(r"-?\d+\.\d{3,}", lambda number: _short(number[0]), body)
    body = re.sub(r"\s+", " ", body).replace("> <", "><").replace("xlink:href", "href")
    body = re.sub(r' xmlns(:xlink)?="[^"]*"| version="[^"]*"', "", body)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r'(url\(|href=")#', rf"\1#{name}-", body)
    head, rest = body.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None, head
    label = escape(title, quote=True)
    return f'<svg {box[0]} role="img" aria-label="{label}"><title>{label}</title>{rest}'.strip()


def _short(number: str) -> str:
    return f"{float(number):.2f}".rstrip("0").rstrip(".")
