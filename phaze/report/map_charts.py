"""Chart of mappings: bandwidths between the devices of the stages."""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from phaze.base.arrays import Floats
from phaze.base.units import GIB
from phaze.cost.network.device_networks import DeviceNetwork
from phaze.report.vega import panels

SQUARE, MOST_CELLS = 220, 64
"""Height of a matrix in pixels, and its maximum number of rows."""
WAY_NAMES = {
    "cs-map": "CS map",
    "p2p-map": "p2p map",
    "p2p": "search, messages",
    "allreduce": "search, all-reduce",
    "exact": "search, both",
    "local-search": "local search",
}


def mappings(network: DeviceNetwork, devices: pd.DataFrame, width: int | None = None) -> alt.TopLevelMixin:
    """Draw Figure 6: the bandwidths between devices, sorted by replica and stage, for each mapping method.

    Lines separate the replicas. `width` is that of a panel of a file, in pixels.
    """
    ordered = devices.sort_values(["replica", "stage"])
    matrices = {}
    for way in devices["way"].unique():
        order = ordered.loc[ordered["way"] == way, "device"].to_numpy()
        matrices[WAY_NAMES[way]] = network.bandwidth_bytes_per_s[np.ix_(order, order)]
    sizes = ordered[ordered["way"] == ordered["way"].iloc[0]].groupby("replica").size()
    lines = alt.Chart(pd.DataFrame({"first": sizes.cumsum()[:-1]})).mark_rule(color="white")
    layers = _cells("replica by replica"), lines.encode(x="first:Q"), lines.encode(y="first:Q")
    return panels(_matrices(matrices), "panel", *layers, height=SQUARE, width=width, own="xy")


def _cells(what: str) -> alt.Chart:
    """Rectangles of equal bandwidth."""
    axis = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    chart: alt.Chart = (
        alt.Chart()
        .mark_rect()
        .encode(
            alt.X("first:Q", title=what, axis=axis, scale=alt.Scale(nice=False)),
            alt.X2("last"),
            alt.Y("row:Q", title=None, axis=axis, scale=alt.Scale(nice=False, reverse=True)),
            alt.Y2("below"),
            alt.Color("bandwidth:Q", title="GiB/s", scale=alt.Scale(type="log", scheme="viridis")),
            tooltip=["first:Q", "row:Q", alt.Tooltip("bandwidth:Q", title="GiB/s", format=".3~g")],
        )
    )
    return chart


def _matrices(matrices: Mapping[str, Floats]) -> pd.DataFrame:
    """Runs of equal bandwidth of all panels."""
    return pd.concat([_runs(values / GIB).assign(panel=label) for label, values in matrices.items()])


def _runs(values: Floats) -> pd.DataFrame:
    """Runs of equal bandwidth in each row, without the diagonal; of many devices, means of blocks."""
    edges = np.append(np.arange(0, len(values), -(-len(values) // MOST_CELLS)), len(values))
    others = ~np.eye(len(values), dtype=bool)
    sums, counts = (
        np.add.reduceat(np.add.reduceat(of, edges[:-1], axis=0), edges[:-1], axis=1)
        for of in (np.where(others, values, 0.0), others.astype(np.float64))
    )
    means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    begins = np.ones(means.shape, dtype=bool)
    begins[:, 1:] = means[:, 1:] != means[:, :-1]
    row, first = np.nonzero(begins)
    last = np.where(np.append(row[1:], -1) == row, np.append(first[1:], 0), len(means))
    places = {"first": edges[first], "last": edges[last], "row": edges[row], "below": edges[row + 1]}
    return pd.DataFrame({**places, "bandwidth": means[row, first]}).dropna()
