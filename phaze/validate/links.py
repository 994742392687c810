"""Latency and bandwidth of links, fitted to the times of messages of several sizes.

In the postal model a message of M bytes takes latency + M / bandwidth (Bar-Noy and Kipnis, SPAA 1992;
Parmesan, Section VII). Clocks of two devices differ, so round trips are timed: M bytes to the target, one
byte back. A message takes the round trip less half a round trip of one byte each way. The bandwidth is that
of one direction; of the latencies only the mean of both directions can be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from phaze.base.errors import PhazeError

SIZES = tuple(8**power for power in range(9))
"""Sizes of the messages to time, in bytes: the shortest show the latency, the longest the bandwidth."""
ATTEMPTS = 5
"""Maximum number of times that a link is measured, until other programs have disturbed no message."""
RoundTrip = Callable[[int, int, int, int], float]
"""Seconds of a round trip, by source, target, bytes sent and bytes returned."""


class PostalFit(NamedTuple):
    """Postal model of a link."""

    latency_s: float
    bandwidth_bytes_per_s: float
    residual: float
    """Root mean square of the relative error of the fitted times."""


def fit_postal(sizes: Sequence[int], times_s: Sequence[float]) -> PostalFit:
    """Fit the times of messages by least squares of relative errors, with a latency >= 0.

    Relative errors weigh short messages, which show the latency, as much as long ones. Raises PhazeError for
    times <= 0, or times that do not grow with the size.
    """
    nbytes, times = np.array(sizes, np.float64), np.array(times_s, np.float64)
    if not (times > 0).all():
        raise PhazeError(
            f"links: times must be > 0, got {times.min():g} s", "measure again on an idle machine"
        )
    scale = np.array([times.min(), times.max() / nbytes.max()])  # columns of similar size for the solver
    columns = np.stack([np.ones_like(nbytes), nbytes], axis=1) * scale / times[:, None]
    coefficients, _ = nnls(columns, np.ones_like(nbytes))
    latency_s, seconds_per_byte = coefficients * scale
    if not seconds_per_byte > 0:
        raise PhazeError(
            f"links: times must grow with the size, got {times[0]:g} s for {sizes[0]} bytes and "
            f"{times[-1]:g} s for {sizes[-1]}",
            "measure again on an idle machine",
        )
    errors = columns @ coefficients - 1.0
    return PostalFit(float(latency_s), float(1.0 / seconds_per_byte), float(np.sqrt((errors**2).mean())))


def link_table(round_trip_s: RoundTrip, devices: int, sizes: Sequence[int] = SIZES) -> pd.DataFrame:
    """Table of all ordered pairs of devices: their postal model, and the time of each message size."""
    rows = []
    for source, target in permutations(range(devices), 2):
        half_s, trips_s = np.inf, np.full(len(sizes), np.inf)
        for _ in range(ATTEMPTS):
            # The shortest times are the least disturbed ones, so further attempts only make them better.
            half_s = min(half_s, round_trip_s(source, target, 1, 1) / 2.0)
            trips_s = np.minimum(trips_s, [round_trip_s(source, target, size, 1) for size in sizes])
            times_s = np.where(np.array(sizes) == 1, half_s, trips_s - half_s)
            if (times_s > 0).all():
                break
        fit = fit_postal(sizes, times_s.tolist())
        times = {f"seconds_of_{size}_bytes": time_s for size, time_s in zip(sizes, times_s, strict=True)}
        rows.append({"source": source, "target": target, **fit._asdict(), **times})
    return pd.DataFrame(rows)
