"""Charts of mappings: bandwidths between devices, devices of each stage, samples per second."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.report.style import AMBER, BLUE, GREY, TEAL, WIDE, axes, panels
from phaze.report.vega import BY_LINE, WIDTH

COLUMNS = 4
BAR = 11
"""Height of a bar in pixels."""
WAY_NAMES = {
    "cs-map": "CS map",
    "p2p-map": "p2p map",
    "p2p": "search, messages",
    "allreduce": "search, all-reduce",
    "exact": "search, both",
    "local-search": "local search",
}


def bandwidths(networks: dict[str, DeviceNetwork]) -> Figure:
    """Draw Figure 10: the bandwidth between any two devices of each topology."""
    figure, every = panels(len(networks), COLUMNS, 0.3, 2.5)
    for ax, (label, network) in zip(every, networks.items(), strict=True):
        _matrix(figure, ax, _gib(network))
        ax.set_title(label)
    return figure


def _gib(network: DeviceNetwork) -> Floats:
    """Bandwidths in GiB/s, with NaN on the diagonal, (devices, devices)."""
    own = np.eye(network.devices, dtype=bool)
    return np.where(own, np.nan, network.bandwidth_bytes_per_s / GIB)


def _matrix(figure: Figure, ax: Axes, values: Floats) -> None:
    low, high = np.nanmin(values), np.nanmax(values)
    image = ax.imshow(values, norm=LogNorm(low, high if high > low else 2 * low), cmap="viridis")
    bar = figure.colorbar(image, ax=ax, shrink=0.75)
    bar.minorticks_off()
    bar.set_ticks([low, high], labels=[f"{low:.2g}", f"{high:.3g}"])
    bar.set_label("GiB/s", fontsize=8)
    ax.set_xticks([])
    ax.set_yticks([])


def mappings(network: DeviceNetwork, devices: pd.DataFrame) -> Figure:
    """Draw Figure 6: the bandwidths between devices, sorted by replica and stage, for each mapping method."""
    ways = list(dict.fromkeys(devices["way"]))
    figure, every = axes(WIDE, 4.1, 1, len(ways))
    values = _gib(network)
    for ax, way in zip(every, ways, strict=True):
        mine = devices[devices["way"] == way].sort_values(["replica", "stage"])
        order = mine["device"].to_numpy()
        _matrix(figure, ax, values[np.ix_(order, order)])
        for replica in range(1, mine["replica"].max() + 1):
            at = (mine["replica"] < replica).sum() - 0.5
            ax.axhline(at, color="white", lw=1)
            ax.axvline(at, color="white", lw=1)
        ax.set_title(WAY_NAMES[way])
        ax.set_xlabel("replica by replica")
    return figure


def throughputs(rows: pd.DataFrame, samples: pd.Series) -> alt.TopLevelMixin:
    """Draw Figure 4: samples per second of each pipeline shape with CS map, p2p map, and ours."""
    shown = {"cs-map": GREY, "p2p-map": AMBER, "by-sizes": TEAL, "ours": BLUE}
    names = {**WAY_NAMES, "by-sizes": "search, by sizes", "ours": "ours"}
    shapes = [f"{r.graph}\n{r.stages}x{r.replicas}, MB {r.microbatches}" for r in rows.itertuples()]
    parts = [
        pd.DataFrame({"shape": shapes, "way": names[way], "rate": (samples / rows[way]).to_numpy()})
        for way in shown
    ]
    ways = [names[way] for way in shown]
    chart: alt.Chart = (
        alt.Chart(pd.concat(parts), width=WIDTH, height=BAR * len(rows) * len(shown))
        .mark_bar()
        .encode(
            alt.X("rate:Q", title="samples per second"),
            alt.Y("shape:N", title=None, sort=None, axis=alt.Axis(labelExpr=BY_LINE)),
            alt.YOffset("way:N", sort=ways),
            alt.Color("way:N", sort=ways, scale=alt.Scale(domain=ways, range=[*shown.values()])),
            tooltip=["shape:N", "way:N", alt.Tooltip("rate:Q", title="samples/s", format=".4~g")],
        )
    )
    return chart
