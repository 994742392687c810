"""Compare predicted NCCL collectives inside an NVLink domain with measured ones, and fit NCCL's constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import ClassVar, cast

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from phaze.base.arrays import Floats, Ints
from phaze.cost.network.fabric import network_of
from phaze.cost.network.nccl import Nccl
from phaze.cost.network.network import Collective
from phaze.layout import Group
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.spec.system import Level
from phaze.validate.constants import Site
from phaze.validate.parts.base import KernelPart

KINDS: dict[str, Collective] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "all_to_all": "all_to_all",
}  # fmt: skip
"""Kinds of collectives, by their names in tables."""
ELEMENT_BYTES = 2.0
"""Bytes per element: sizes count half-precision elements."""
SMALL_BYTES, LARGE_BYTES = 256 * 1024, 8e6
"""Size up to which latency dominates, and size from which bandwidth dominates."""
TYPICAL = NcclSpeeds(
    start_s=8e-6, step_s=0.9e-6, ll=0.25, ll128_start_s=8e-6, ll128=0.5, simple_start_s=12e-6,
    simple_step_s=4e-6, simple=0.8, own_bytes_per_s=1e12, nvls_start_s=60e-6, nvls=0.6, peer_s=0.6e-6,
    peer=0.02, direct_start_s=7e-6, direct=0.7, direct_own_bytes_per_s=1e12,
)  # fmt: skip
"""Initial constants of a fit; they are kept if no row depends on them.

They are NCCL's own latencies and efficiencies (src/graph/tuning.cc), rounded.
"""
NOISE, PULL = 0.1, 0.01
"""Log error above which rows weigh less, and residual per e-fold change of a constant from TYPICAL."""
STARTS: tuple[tuple[frozenset[str], tuple[float, ...]], ...] = (
    (frozenset({"ll", "ll128", "simple", "nvls", "direct"}), (1.0, 1.25, 0.8)),
    (frozenset({"own_bytes_per_s", "direct_own_bytes_per_s"}), (1.0, 0.5)),
    (frozenset({"simple_start_s", "simple_step_s"}), (1.0, 0.5, 2.0)),
    (frozenset({"ll128_start_s"}), (1.0, 2.0)),
)
"""Groups of constants, with the factors on TYPICAL from which fits start.

The fastest algorithm changes with size, which makes several local optima; the best fit is used.
"""
SIGNIFICANT = 3
"""Number of significant digits of fitted constants."""
OF_NVLS = ("nvls_start_s", "nvls")
DIRECT = ("peer_s", "peer", "direct_start_s", "direct", "direct_own_bytes_per_s")
"""Constants that only all-to-alls determine; rows of rings and NVLink switches determine the others."""


class Collectives(KernelPart):
    """Kernel part for NCCL collectives inside one NVLink domain, sized by a rank's whole tensor."""

    name: ClassVar[str] = "collectives"
    fitted_to: ClassVar[str] = "nccl-tests with NCCL 2.27.3 (A100) and 2.29.2 (aiconfigurator), vTrain"
    sizes: ClassVar[tuple[str, ...]] = ("ranks", "elements")
    words: ClassVar[tuple[str, ...]] = ("kind",)
    renamed: ClassVar[dict[str, str]] = {
        "dev": "device", "op_name": "kind", "nccl_dtype": "precision", "num_gpus": "ranks",
        "message_size_as_given": "elements",
    }  # fmt: skip

    def predicted_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Predicted times (R,) in seconds of collectives; NaN for more ranks than the system has devices."""
        network, times_s = network_of(site.cluster), np.full(len(rows), np.nan)
        for kind, ranks, places, size_bytes in _groups(rows):
            if ranks <= site.cluster.devices:
                times_s[places] = network.seconds(kind, size_bytes, Group(ranks, 1))
        return times_s

    def fitted(self, rows: pd.DataFrame, site: Site) -> Site:
        """Site whose innermost level has constants fitted to the rows, at its full bandwidth."""
        inner, *outer = site.cluster.levels
        bandwidth = inner.bandwidth_bytes_per_s
        speeds = fitted_speeds(rows, bandwidth, inner.nccl, switches_add="fp8" in site.device.products)
        level = Level(devices=inner.devices, bandwidth_bytes_per_s=bandwidth, nccl=speeds)
        cluster = site.cluster.model_copy(update={"levels": (level, *outer)})
        return replace(site, cluster=cluster)

    def fastest_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Lower bound on times (R,) in seconds: links carry (n − 1)/n of each rank's tensor."""
        ranks, size_bytes = rows["ranks"].to_numpy(float), ELEMENT_BYTES * rows["elements"].to_numpy(float)
        times_s: Floats = (ranks - 1) / ranks * size_bytes / site.cluster.levels[0].bandwidth_bytes_per_s
        return times_s

    def kinds(self, rows: pd.DataFrame) -> list[str]:
        """Kind of collective, number of ranks and size class of every row (R,)."""
        return [
            f"{KINDS[kind]} of {ranks}, {_size_class(ELEMENT_BYTES * elements)}"
            for kind, ranks, elements in zip(rows["kind"], rows["ranks"], rows["elements"], strict=True)
        ]

    def problem(self, rows: pd.DataFrame) -> list[str]:
        """Error message for each row (R,): unknown collective or single rank; empty for a valid row."""
        collectives = ", ".join(dict.fromkeys(KINDS.values()))
        return [
            f"kind must be one of {collectives}, got {kind}"
            if kind not in KINDS
            else "ranks must be at least 2, got 1"
            if ranks == 1
            else ""
            for kind, ranks in zip(rows["kind"], rows["ranks"], strict=True)
        ]


def fitted_speeds(
    rows: pd.DataFrame,
    bandwidth_bytes_per_s: float,
    before: NcclSpeeds | None = None,
    *,
    switches_add: bool,
) -> NcclSpeeds:
    """Fit NCCL's constants for links of a given bandwidth to measured rows, by log least squares (soft L1).

    Constants on which no row depends keep their previous value: those of all-to-alls if there is none, and
    those of rings if there are only all-to-alls. `switches_add` is true if the switches support NVLS.
    """
    # Constants of NVLS are 0 where switches cannot add, and a logarithm of 0 cannot be fitted.
    typical = TYPICAL if switches_add else TYPICAL.model_copy(update=dict.fromkeys(OF_NVLS, 0.0))
    names = [name for name, value in typical if value]
    start = np.log([getattr(typical, name) for name in names])
    groups = [
        (kind, ranks, size_bytes, np.log(rows["measured_s"].to_numpy(float)[places]))
        for kind, ranks, places, size_bytes in _groups(rows)
    ]

    def speeds(x: Floats) -> NcclSpeeds:
        return NcclSpeeds.model_construct(
            **{**dict(typical), **dict(zip(names, np.exp(x).tolist(), strict=True))}
        )

    def residuals(x: Floats) -> Floats:
        trial = speeds(x)
        nccl = Nccl(trial, bandwidth_bytes_per_s)
        errors = [
            np.log(trial.start_s + nccl.seconds(kind, size_bytes, ranks)) - measured
            for kind, ranks, size_bytes, measured in groups
        ]
        return np.concatenate([*errors, PULL * (x - start)])

    fits = [
        least_squares(residuals, start + shift, loss="soft_l1", f_scale=NOISE, max_nfev=200)
        for shift in _shifts(names)
    ]
    best = dict(speeds(min(fits, key=lambda fit: cast(float, fit.cost)).x))
    if before is not None:
        # True if rows determine the constants of all-to-alls, False for those of rings; both may occur.
        direct = {KINDS[kind] == "all_to_all" for kind in rows["kind"]}
        best |= {
            name: value for name, value in before if (name in DIRECT) not in direct and name != "start_s"
        }
    return NcclSpeeds(**{name: float(f"{value:.{SIGNIFICANT}g}") for name, value in best.items()})


def _shifts(names: Sequence[str]) -> Iterator[Floats]:
    """Yield shifts of the constants' logarithms, (C,), one per starting point of a fit."""
    masks = [np.array([name in group for name in names]) for group, _ in STARTS]
    for factors in product(*(factors for _, factors in STARTS)):
        yield np.sum([np.log(factor) * mask for factor, mask in zip(factors, masks, strict=True)], axis=0)


def _groups(rows: pd.DataFrame) -> Iterator[tuple[Collective, int, Ints, Floats]]:
    """Yield rows grouped by collective and number of ranks: their indices and tensor sizes in bytes."""
    kinds, ranks = rows["kind"].to_numpy(), rows["ranks"].to_numpy()
    size_bytes = ELEMENT_BYTES * rows["elements"].to_numpy(float)
    for kind, count in dict.fromkeys(zip(kinds.tolist(), ranks.tolist(), strict=True)):
        places = np.flatnonzero((kinds == kind) & (ranks == count))
        yield KINDS[kind], int(count), places, size_bytes[places]


def _size_class(size_bytes: float) -> str:
    if size_bytes <= SMALL_BYTES:
        return "≤ 256 KiB"
    return "≥ 8 MB" if size_bytes >= LARGE_BYTES else "between"
