"""Charts shared by several pages: bars by name, utilisations, memory sizes, and accelerators by area."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import altair as alt
import pandas as pd

from phaze.base.units import UM2_PER_MM2
from phaze.pages import style
from phaze.pages.vega import BY_LINE, WIDTH, coloured, panels, rule

GEOMETRIC_MEAN = "geometric mean"
Looks = Mapping[str, tuple[str, str]]
"""Label and colour of each drawn column of a table."""
AREA_PARTS: Looks = {
    "tensor": ("tensor cores", style.BLUE),
    "vector": ("vector cores", style.SKY),
    "l2": ("L2 buffers", style.TEAL),
    "glb": ("global buffer", style.PURPLE),
    "other": ("interconnect, HBM, links, rest", style.SILVER),
}
ENERGY_PARTS: Looks = {
    "mac": ("MAC", style.BLUE), "register": ("registers", style.SKY), "l2": ("L2", style.TEAL),
    "glb": ("global buffer", style.PURPLE), "hbm": ("HBM", style.AMBER), "link": ("link", style.RED),
    "leakage": ("leakage", style.SILVER),
}  # fmt: skip
TIME_PARTS: Looks = {
    "forward_s": ("forward", style.SKY), "backward_s": ("backward", style.BLUE),
    "transfer_s": ("stage transfers", style.TEAL), "fill_s": ("pipeline fill", style.SAND),
    "sync_s": ("gradient sync", style.RED),
}  # fmt: skip
STAGES: Looks = {
    "extract": ("extract", style.SILVER), "estimate": ("estimate", style.AMBER),
    "screen": ("screen", style.SAND), "schedule": ("schedule", style.BLUE), "place": ("place", style.TEAL),
}  # fmt: skip
ROW, BAR, LINE = 22, 13, 17
"""Heights in pixels: of a single bar with its gap, of a bar in a group, and of a line of a label."""
MOST_PX, THIN = 480, 5
"""Chart height in pixels beyond which bars become thinner, and the minimum height of a bar."""
LETTERS = 18
"""Maximum number of characters on a line of a label."""
ROOM = 46
"""Width in pixels reserved for the text next to a bar."""
PEAK = "at peak (MFU)"
_KINDS = {
    "placed": style.SILVER, "baseline": style.RED, "smallest in tolerance": style.AMBER, "best": style.BLUE,
}  # fmt: skip
_SHAPES, _SIZES = ("circle", "square", "triangle-up", "diamond"), (12, 60, 70, 90)
"""Shape and size of the mark of each kind of architecture, in the order of `_KINDS`."""


def bars(
    table: pd.DataFrame,
    what: str,
    colours: Mapping[str, str] | None = None,
    *,
    origin: float = 0.0,
    format_value: Callable[[float], str] | None = None,
) -> alt.TopLevelMixin:
    """Draw a group of horizontal bars per row, one bar per column, from an origin.

    `format_value` formats the values, which stand behind the bars.
    """
    table = _on_lines(table)
    looks = colours or dict(zip(table.columns, style.HUES, strict=False))
    long = _long(table, "bar")
    scale = _scale(long["value"], origin, ROOM if format_value else 0)
    if format_value is not None:
        # a missing value has no bar, but a text at the origin
        long = long.assign(said=long["value"].map(format_value), value=long["value"].fillna(origin))
    base = alt.Chart(long).encode(
        alt.X("value:Q", title=what, scale=scale),
        _names(table),
        tooltip=["row:N", "bar:N", alt.Tooltip("value:Q", title=what, format=",.4~g")],
    )
    if len(looks) > 1:
        base = base.encode(alt.YOffset("bar:N", scale=alt.Scale(domain=[*looks])))
    layers = [
        base.mark_bar().encode(coloured("bar", looks, legend=len(looks) > 1), x2=alt.datum(origin)),
        rule("x", origin),
    ]
    if format_value is not None:
        texts = {True: base.mark_text(align="right", dx=-4), False: base.mark_text(align="left", dx=4)}
        for before, rows in long.groupby(long["value"] < origin):  # an empty layer has no scale
            layers.append(texts[bool(before)].properties(data=rows).encode(text="said:N"))
    bar = BAR if format_value else max(THIN, min(BAR, MOST_PX / max(1, table.size)))
    # high enough for the lines of a label and for all bars of the group
    tall = max(LINE * _lines(table), ROW if len(looks) == 1 else bar * len(looks) + 6)
    return alt.layer(*layers).properties(width=WIDTH, height=tall * len(table))


def _on_lines(table: pd.DataFrame) -> pd.DataFrame:
    """Wrap the row names of a table into several lines."""
    return table.set_axis([style.wrapped(str(name), LETTERS) for name in table.index])


def _long(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Table in long format: one row per value, with its row name and its column name."""
    return table.reset_index(names="row").melt("row", var_name=column)


def _names(table: pd.DataFrame, title: str | None = None) -> alt.Y:
    """Vertical axis with the row names of a table."""
    axis = alt.Axis(labelExpr=BY_LINE, labelOverlap=len(table) * ROW > MOST_PX)
    return alt.Y("row:N", title=title, axis=axis, scale=alt.Scale(domain=[*table.index], padding=0.12))


def _lines(table: pd.DataFrame) -> int:
    """Largest number of lines of any row name."""
    return max((name.count("\n") + 1 for name in table.index), default=1)


def _scale(values: pd.Series, origin: float, room_px: int) -> alt.Scale:
    """Horizontal scale that includes the origin, with room for the text next to the bars."""
    low, high = min(origin, values.min(skipna=True)), max(origin, values.max(skipna=True))
    if not high > low:  # also without any value
        low, high = origin, origin + 1.0
    left_px = room_px if low < origin else 0
    # Only the browser knows the width of the chart, so that an expression converts pixels of room to values.
    # At least 40 pixels count as left for the bars, however narrow the page is.
    pixel = f"{high - low:.9g} / max(40, width - {left_px + room_px})"
    return alt.Scale(
        domainMin=alt.ExprRef(f"{low:.9g} - {left_px} * {pixel}"),
        domainMax=alt.ExprRef(f"{high:.9g} + {room_px} * {pixel}"),
        nice=not room_px,
    )


def stacked(
    table: pd.DataFrame,
    parts: Looks,
    what: str,
    rows: str | None = None,
    *,
    limit: float | None = None,
    peak: pd.Series | None = None,
) -> alt.TopLevelMixin:
    """Draw a horizontal bar per row, stacked from the columns in `parts`.

    A dashed line marks a limit of all rows. A mark in each row shows its value at peak.
    """
    table = _on_lines(table)
    drawn = {name: look for name, look in parts.items() if name in table and table[name].any()}
    looks = {**dict(drawn.values()), **({} if peak is None else {PEAK: style.INK})}
    long = _long(table[[*drawn]].rename(columns={name: label for name, (label, _) in drawn.items()}), "part")
    # parts of a bar follow the order of the legend
    long["order"] = long["part"].map([*looks].index)
    tall = min(max(ROW, LINE * _lines(table)), max(8.0, MOST_PX / max(1, len(table))))
    base = alt.Chart(long[long["value"] > 0]).encode(
        alt.X("value:Q", title=what, scale=alt.Scale(nice=False)),
        _names(table, rows),
        coloured("part", looks),
        tooltip=["row:N", "part:N", alt.Tooltip("value:Q", title=what, format=",.4~g")],
    )
    layers: list[alt.Chart] = [base.mark_bar().encode(order="order:Q")]
    if limit is not None:
        layers.append(rule("x", limit, dashed=True))
    if peak is not None:
        marks = _long(_on_lines(peak.to_frame(PEAK)), "part")
        layers.append(base.mark_tick(thickness=3, size=tall).properties(data=marks))
    return alt.layer(*layers).properties(width=WIDTH, height=tall * len(table))


def utilisations(ours: pd.DataFrame, theirs: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw Table 5: model FLOPs utilisation by model (rows) and design (columns), ours and published."""
    theirs, ours = _on_lines(theirs.reindex(ours.index).filter(ours.columns)), _on_lines(ours)
    kinds = {"ours": ours, "printed in the paper": theirs}
    shares = {kind: _long(table, "design").set_index(["row", "design"]) for kind, table in kinds.items()}
    long = 100 * pd.concat(shares)
    long = long.dropna().rename_axis(["kind", "row", "design"]).reset_index()
    looks = dict(zip(ours.columns, (style.GREY, style.AMBER, style.BLUE), strict=False))
    base = alt.Chart(long).encode(
        alt.X("value:Q", title="model FLOPs utilisation, %"),
        _names(ours),
        alt.YOffset("design:N", scale=alt.Scale(domain=[*looks])),
        coloured("design", looks),
        tooltip=["row:N", "design:N", "kind:N", alt.Tooltip("value:Q", format=".1f")],
    )
    shape = alt.Shape("kind:N", scale=alt.Scale(domain=[*kinds], range=["circle", "diamond"]))
    points = base.mark_point(filled=True, size=70, opacity=1).encode(shape)
    # a line joins our value and the printed one of the same model and design
    return alt.layer(base.mark_line(strokeWidth=1).encode(detail="row:N"), points).properties(
        width=WIDTH, height=(BAR * len(looks) + 6) * len(ours)
    )


def memories(table: pd.DataFrame) -> alt.TopLevelMixin:
    """Draw the throughput with each HBM capacity relative to the best; the chosen one is in full colour."""
    looks = {"chosen": style.BLUE, "other": style.SILVER}
    chosen, other = looks
    table = _on_lines(table.set_index("model"))
    models = table[~table.index.duplicated()]
    columns = {
        "row": table.index,
        "GiB": table["hbm_gib"],
        "value": 100 * table["relative"],
        "kind": table["chosen"].map({True: chosen, False: other}),
        "said": [f"{size:g} GiB" for size in table["hbm_gib"]],
    }
    rows = pd.DataFrame(columns)
    base = alt.Chart(rows).encode(
        alt.X("value:Q", title="throughput, % of best", scale=_scale(rows["value"], 0.0, ROOM)),
        _names(models),
        alt.YOffset("GiB:O", scale=alt.Scale(domain=sorted({*table["hbm_gib"]}))),
        tooltip=["row:N", "GiB:Q", alt.Tooltip("value:Q", format=".2f")],
    )
    labels = base.mark_text(align="left", dx=4).encode(text="said:N")
    return alt.layer(base.mark_bar().encode(coloured("kind", looks)), labels).properties(
        width=WIDTH, height=(BAR * table["hbm_gib"].nunique() + 6) * len(models)
    )


def frontiers(clouds: Mapping[str, pd.DataFrame], limit_um2: float) -> alt.TopLevelMixin:
    """Draw throughput against area of all placed architectures, one panel per model.

    A cloud has area_um2, relative (throughput over the best), kind ('', 'best', 'smallest', 'baseline').
    """
    rows = pd.concat([cloud.assign(model=model) for model, cloud in clouds.items()])
    kinds = rows["kind"].replace({"": "placed", "smallest": "smallest in tolerance"})
    rows = rows.assign(area=rows["area_um2"] / UM2_PER_MM2, kind=kinds)
    table = rows[["model", "area", "relative", "kind"]]
    marks = alt.Chart().mark_point(filled=True, opacity=1)
    formats = {"area": ".1f", "relative": ".4~f"}
    points = marks.encode(
        alt.X("area:Q", title="area, mm²", scale=alt.Scale(zero=False)),
        alt.Y("relative:Q", title="throughput over best"),
        coloured("kind", _KINDS),
        alt.Shape("kind:N", scale=alt.Scale(domain=[*_KINDS], range=_SHAPES)),
        alt.Size("kind:O", scale=alt.Scale(domain=[*_KINDS], range=_SIZES)),
        tooltip=["model:N", "kind:N", *(alt.Tooltip(f"{of}:Q", format=form) for of, form in formats.items())],
    )
    return panels(table, "model", points, rule("x", limit_um2 / UM2_PER_MM2, dashed=True))
