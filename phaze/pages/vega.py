"""Vega-Lite charts of a page: their specifications, and the one script that draws them offline."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import altair as alt
import pandas as pd
import vl_convert

from phaze.base.files import atomic_path
from phaze.base.provenance import library_version
from phaze.base.store import Store
from phaze.base.units import digits
from phaze.pages.document import Chart

WIDTH: Final = "container"
"""Width of a chart: it fills its place in the page."""

BY_LINE: Final = "split(datum.label, '\\n')"
"""Vega expression that splits axis labels at their line breaks."""
COLUMNS, PANEL = 4, 170
"""Maximum number of panels side by side, and the height of one in pixels."""
DIGITS = 6
"""Significant digits of the numbers in a chart."""
PPI = 144
"""Pixels per inch of a picture."""
PACKAGE = Path(__file__).resolve().parents[1]
CACHE = PACKAGE / "__pycache__" / "scripts"
"""Folder of the bundled JavaScript of charts, one file per version of the library."""
# ids and references to them, as `"clip3"` and `url(#gradient_0)`
_ID = re.compile(r"(?<=[\"#])(clip|gradient)[_\d]+")


def coloured(column: str, looks: Mapping[str, str], *, legend: bool = True) -> alt.Color:
    """Colour encoding for the values of a column, in the order of the legend."""
    scale = alt.Scale(domain=[*looks], range=[*looks.values()])
    return alt.Color(f"{column}:N", scale=scale, legend=alt.Undefined if legend else None)


def rule(axis: Literal["x", "y"], value: float, *, dashed: bool = False) -> alt.Chart:
    """Line across the whole chart at a value of an axis."""
    dash = [4, 3] if dashed else alt.Undefined
    # a line without a label is nothing for screen readers
    line = alt.Chart(pd.DataFrame({"at": [value]})).mark_rule(strokeDash=dash, aria=False)
    mark: alt.Chart = line.encode(x=alt.datum(value)) if axis == "x" else line.encode(y=alt.datum(value))
    return mark


def panels(
    table: pd.DataFrame,
    by: str,
    *layers: alt.Chart,
    height: int = PANEL,
    width: int | None = None,
    columns: int = COLUMNS,
    independent: str = "",
) -> alt.TopLevelMixin:
    """Chart with a panel per value of a column, in rows of at most `columns` panels.

    Each panel has its own scales of the axes in `independent`. Without a width, a page chooses it.
    """
    size = {"height": height, **({} if width is None else {"width": width})}
    scales: dict[str, Literal["independent"]] = dict.fromkeys(independent, "independent")
    facet = alt.Facet(f"{by}:N", title=None, sort=None)
    panel = alt.layer(*layers, data=table).properties(**size)
    columns = min(columns, table[by].nunique())
    chart: alt.TopLevelMixin = panel.facet(facet, columns=columns).resolve_scale(**scales)
    return chart


def spec_of(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Vega-Lite specification of a chart, with rounded data and without schema or colours."""
    alt.data_transformers.disable_max_rows()  # long timelines stay whole
    spec: dict[str, Any] = chart.to_dict()
    del spec["$schema"], spec["config"]  # the page asks for nothing, and has colours for dark screens
    for rows in spec.get("datasets", {}).values():
        for row in rows:
            row.update({key: float(f"{x:.{DIGITS}g}") for key, x in row.items() if isinstance(x, float)})
    return spec


@dataclass(frozen=True)
class Drawn:
    """Chart as drawn on a page: its specification, or its value if the chart shows a single value."""

    spec: str
    only: str = ""


def draw(chart: Chart) -> Drawn:
    """Convert a chart to its specification for a page, or to its value if it shows a single value."""
    spec = spec_of(chart.draw())
    only = single_value(spec)
    return Drawn("" if only else as_json(spec), only)


def as_json(spec: Mapping[str, object]) -> str:
    """Specification as JSON that can be embedded in an HTML element."""
    # "</script>" in a text would end the element
    return json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")


def single_value(spec: Mapping[str, Any]) -> str:
    """Value of a chart whose marks all show the same value; empty for a chart of several values."""
    texts = list(_values(spec, spec.get("datasets", {}), []))
    if len({*texts}) != 1 or "" in texts[0]:
        return ""
    return f"{texts[0][-1]}{', the same for all' if len(texts) > 1 else ''}"


def _values(
    spec: Mapping[str, Any], datasets: Mapping[str, Any], rows: list[dict[str, Any]]
) -> Iterator[tuple[str, ...]]:
    """Yield each mark's value as text, after its part's name in a stacked bar; empty text for an area."""
    rows = datasets.get(spec.get("data", {}).get("name"), rows)
    for part in (*spec.get("layer", ()), *([spec["spec"]] if "spec" in spec else ())):
        yield from _values(part, datasets, rows)
    mark, channels = spec.get("mark", {}).get("type"), spec.get("encoding", {})
    if mark in ("rect", "area"):
        yield ("",)
    if mark in ("bar", "point", "line"):
        axes = [channels[axis] for axis in "yx" if axis in channels]
        numbers = [channel for channel in axes if channel.get("type") == "quantitative"]
        # parts of a stacked bar are told apart by colour, so that their values are compared by part
        is_stack = mark == "bar" and not {"xOffset", "yOffset"} & channels.keys()
        part = channels.get("color", {}).get("field") if is_stack else None
        for row in rows:
            shown = [
                f"{digits(row[channel['field']])} ({channel.get('title', channel['field'])})"
                for channel in numbers
                if row[channel["field"]] is not None
            ]
            yield (*([row[part]] if part else ()), " at ".join(shown) or "–")


def save(path: Path, chart: alt.TopLevelMixin) -> None:
    """Write a chart as SVG, PNG or PDF by the file's suffix; identical charts give identical SVG."""
    spec = chart.to_dict()
    with atomic_path(path) as temporary:
        if path.suffix.lower() == ".svg":
            temporary.write_text(_renumbered(vl_convert.vegalite_to_svg(spec)), encoding="utf-8")
        elif path.suffix.lower() == ".png":
            temporary.write_bytes(vl_convert.vegalite_to_png(spec, ppi=PPI))
        else:
            temporary.write_bytes(vl_convert.vegalite_to_pdf(spec))


def _renumbered(svg: str) -> str:
    """SVG with ids renumbered from 0; the library numbers them across all pictures of a process."""
    ids = {name: number for number, name in enumerate(dict.fromkeys(match[0] for match in _ID.finditer(svg)))}
    return _ID.sub(lambda match: f"{match[1]}{ids[match[0]]}", svg)


@cache
def library(drawing: str) -> str:
    """Script that bundles Vega, Vega-Lite, Vega-Embed and the code that draws the charts of a page.

    The script is cached inside the package, because bundling takes two seconds.
    """
    # in an installation that is read-only, every process bundles anew
    with Store(CACHE if os.access(PACKAGE, os.W_OK) else None, library_version("vl-convert-python")) as store:
        return store.of(drawing, lambda: vl_convert.javascript_bundle(drawing))
