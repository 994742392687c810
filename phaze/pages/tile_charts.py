"""Charts of tiles: utilisation and traffic as maps, what limits a step, and the load of memory ports."""

from __future__ import annotations

import altair as alt
import pandas as pd

from phaze.pages import style
from phaze.pages.vega import WIDTH

TALLEST = 640
"""Maximum height of a map in pixels."""


def heat(links: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the links of the mesh, coloured by share of busy time, with both directions next to each other."""
    # both directions of a link have the same ends: each is shifted to its own side, by 0.13 of a tile
    across, down = (links[f"target_{axis}"] - links[f"source_{axis}"] for axis in ("column", "row"))
    columns = {
        "x": links["source_column"] + 0.13 * down, "y": links["source_row"] + 0.13 * across,
        "x2": links["target_column"] + 0.13 * down, "y2": links["target_row"] + 0.13 * across,
        "busy": 100 * links["busy_share"],
    }  # fmt: skip
    high, wide = links["source_row"].max() + 1, links["source_column"].max() + 1
    tall = min(TALLEST, int(22 * high) + 20)
    marks = alt.Chart(pd.DataFrame(columns), width=WIDTH, height=tall).mark_rule(strokeWidth=3)
    chart: alt.Chart = marks.encode(
        alt.X("x:Q", title="column of tiles", scale=alt.Scale(domain=[-0.7, wide - 0.3], nice=False)),
        alt.X2("x2"),
        alt.Y("y:Q", title="row", scale=alt.Scale(domain=[high - 0.3, -0.7], nice=False)),
        alt.Y2("y2"),
        alt.Color("busy:Q", title="% of the batch held", scale=alt.Scale(scheme="viridis", reverse=True)),
        tooltip=[alt.Tooltip("busy:Q", title="% of the batch held", format=".3~g")],
    )
    return chart


def tile_map(groups: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the rectangles of tiles of each stage, coloured by the share of the step for which they compute.

    Columns: row, column, to_row, to_column (exclusive), stage, busy (in %).
    """
    high = groups["to_row"].max()
    marks = alt.Chart(groups, width=WIDTH, height=min(TALLEST, int(22 * high) + 20))
    scale = alt.Scale(domain=[high, 0], nice=False)
    cells = marks.mark_rect(stroke="white").encode(
        alt.X("column:Q", title="column of tiles", scale=alt.Scale(nice=False)),
        alt.X2("to_column"),
        alt.Y("row:Q", title="row", scale=scale),
        alt.Y2("to_row"),
        alt.Color("busy:Q", title="% of the step computing", scale=alt.Scale(scheme="viridis", reverse=True)),
        tooltip=["stage:N", alt.Tooltip("busy:Q", title="% computing", format=".3~g")],
    )
    named = groups.groupby("stage", as_index=False).agg(
        {"row": "min", "to_row": "max", "column": "min", "to_column": "max"}
    )
    middles = pd.DataFrame(
        {
            "stage": named["stage"],
            "down": (named["row"] + named["to_row"]) / 2,
            "across": (named["column"] + named["to_column"]) / 2,
        }
    )
    texts = alt.Chart(middles).mark_text(color=style.RED, fontWeight="bold")
    texts = texts.encode(alt.X("across:Q"), alt.Y("down:Q", scale=scale), text="stage:N")
    return alt.layer(cells, texts)


def limits(shares: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the busy share of each resource, of the busiest one and on average; columns what, of, busy (%)."""
    chart: alt.Chart = (
        alt.Chart(shares, width=WIDTH)
        .mark_bar()
        .encode(
            alt.Y("what:N", title=None, sort=None),
            alt.X("busy:Q", title="% of the step", scale=alt.Scale(domain=[0, 100])),
            alt.YOffset("of:N", sort=None),
            alt.Color("of:N", title=None, scale=alt.Scale(range=[style.BLUE, style.SKY])),
            tooltip=["what:N", "of:N", alt.Tooltip("busy:Q", format=".3~g")],
        )
    )
    return chart


def port_load(ports: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the share of the step for which memory ports are busy, by their place; columns port, busy (%)."""
    chart: alt.Chart = (
        alt.Chart(ports, width=WIDTH)
        .mark_bar(color=style.TEAL)
        .encode(
            alt.X("port:N", title="row, column of the port", sort=None),
            alt.Y("busy:Q", title="% of the step", scale=alt.Scale(domain=[0, 100])),
            tooltip=["port:N", alt.Tooltip("busy:Q", format=".3~g")],
        )
    )
    return chart
