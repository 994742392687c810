"""How figures become SVG that can stand inside a page, small and deterministic, and files of their own."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from html import escape
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from phaze.base.files import atomic_path
from phaze.report.document import Chart
from phaze.report.style import RC
from phaze.report.workers import Workers
from phaze.tables.store import Recalled

PIXELS_PER_INCH = 96


@dataclass(frozen=True)
class Drawn:
    """A figure of a page."""

    svg: str
    width_px: int


def ask_for_figure(chart: Chart, workers: Workers, kept: Recalled) -> Callable[[], Drawn]:
    """Return what waits for a figure, which a worker draws unless it is kept, by content.

    The digest is of the data by value, without a memo: parts that are one object in one process are equal
    ones where workers made some.
    """
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream)
    pickler.fast = True
    pickler.dump(chart)
    content = f"{hashlib.sha256(stream.getvalue()).hexdigest()}, matplotlib {mpl.__version__}"
    question = partial(draw, chart)
    wait = question if kept.knows(content) else workers.ask(question)
    return lambda: Drawn(*kept.of(content, lambda: astuple(wait())))


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
    """Give everything its place, which saving would do by drawing the figure once more for any engine."""
    FigureCanvasSVG(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        with mpl.rc_context({"figure.constrained_layout.use": False}):
            figure.set_layout_engine(None)


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
