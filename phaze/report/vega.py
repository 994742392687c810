"""Vega-Lite charts of a page: their specifications, and the one script that draws them offline."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Final

import altair
import vl_convert

if TYPE_CHECKING:
    from altair import TopLevelMixin

WIDTH: Final = "container"
"""Width of a chart: that of its place in the page."""

BY_LINE: Final = "split(datum.label, '\\n')"
"""Expression for the labels of an axis whose names have line breaks."""


def spec_of(chart: TopLevelMixin) -> str:
    """Specification of a chart as JSON that may stand inside an HTML element."""
    altair.data_transformers.disable_max_rows()  # long timelines stay whole
    spec = chart.to_dict()
    del spec["$schema"], spec["config"]  # the page asks for nothing, and has colours for dark screens
    return json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")


@cache
def library(drawing: str) -> str:
    """Vega, Vega-Lite and Vega-Embed with the script that draws the charts of a page, as one script."""
    return vl_convert.javascript_bundle(drawing)
