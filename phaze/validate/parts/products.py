"""Compare predicted GEMMs with measured ones: the forward GEMM of one layer with its input cast.

Tables come from inference. A GEMM of lower precision is timed with the cast of its input along rows, unless
the row says `cast: none`. With per-tensor 8-bit scaling, the search for the largest value is included
(aiconfigurator, `collect_gemm`).

The forward time of expert FFNs on one rank is compared as well. A row is a model's network for a number of
tokens before routing. The experts are sharded across `ep` ranks, and the rank with most dispatched tokens
is measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, cast

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.experts import TILE, ExpertNetwork, ExpertRows, expert_speed, feed_forward_s
from phaze.cost.kernels import time_kernels
from phaze.cost.mapper.works import Works
from phaze.cost.products import Products, cast_s, product_times
from phaze.layout import COMPUTES, Compute
from phaze.spec.blocks import Experts
from phaze.spec.files import FOLDER
from phaze.spec.models import load_transformer
from phaze.spec.speeds.experts import ExpertKernel, ExpertSpeed
from phaze.spec.speeds.products import ProductSpeed
from phaze.spec.system import Device
from phaze.validate.constants import Site
from phaze.validate.parts.base import UNPRICED, KernelPart
from phaze.workload.expert_loads import exponent_of, rank_loads

LARGE = 5e9
"""FLOPs of a GEMM from which its start-up time is a small fraction."""
HALF_BYTES = 2
ORDERS = {"forward": ("mkn",), "backward": ("mnk", "kmn")}
"""Sizes of the GEMMs of a direction, in the order rows, summed dimension, columns: gradients of the input and
of the weights."""
WORDS = {"direction": tuple(ORDERS), "cast": ("timed", "none")}
"""Words of a row, by column; the first is the default."""
TIMES: dict[Compute, float] = {"nvfp4": 4.0}
"""Rate relative to half precision, for precisions missing from a device file; 2 for those not listed."""
ALIKE: dict[Compute, tuple[Compute, ...]] = {"fp8": ("fp8-cs",), "fp8-block": ("mxfp8",)}
"""Precisions that share a GEMM, by the precision that tables list."""
HALF_CONSTANTS = ("reached", "fill", "split", "start_s")
LOW_CONSTANTS = ("reached", "fill", "split", "cast", "cast_start_s")
"""Constants fitted below half precision if casts are timed; the start-up time is that of half precision."""
RANGES: dict[str, tuple[float, float, float]] = {
    "reached": (0.2, 1.3, 0.1),
    "fill": (0.0, 8000.0, 100.0),
    "split": (100.0, 20000.0, 500.0),
    "start_s": (1e-6, 1e-5, 3e-6),
    "cast": (0.1, 1.0, 0.3),
    "cast_start_s": (0.0, 5e-5, 5e-6),
}
"""Lower end, upper end and scale of each fitted constant."""
FIRST = {"reached": 0.7, "fill": 150.0, "start_s": 2.3e-6, "cast": 0.6, "cast_start_s": 8e-6}
SPLITS = (100.0, 2000.0)
"""Initial values of `split`, one fit each: for many shapes the fit confuses split sums with whole waves."""
NOISE = 0.03
"""Relative spread of repeated measurements; larger errors get less than quadratic weight."""
DIGITS = 3
KERNELS: dict[str, ExpertKernel] = {
    "grouped": "grouped", "masked": "masked", "deepgemm": "masked", "moe_torch_flow": "grouped",
    "moe_torch_flow_cutlass": "grouped", "moe_torch_flow_nongated": "grouped",
}  # fmt: skip
"""Expert kernels by their names in tables: phaze's own names, and TensorRT-LLM's in aiconfigurator."""
ALL = tuple(dict.fromkeys(KERNELS.values()))
FITTED = ("reached", "hbm", "passes", "start_s", "row_s")
"""Constants that rows can determine; `row_s` only for masked kernels."""
START = (0.7, 0.7, 0.4, 3e-5, 2e-8)
LOW = (0.1, 0.1, 0.05, 1e-6, 1e-10)
HIGH = (1.0, 0.95, 1.0, 1e-3, 1e-6)
"""Upper ends of the constants' ranges (START: initial values); HBM reaches 95 % of its bandwidth at most."""
SCALE = 0.1
"""Error above which a row weighs less (soft L1)."""
LEAST = 8
"""Minimum number of rows per kernel and precision to fit the constants."""
EXPERT_DIGITS = 4
SIZES = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)")
"""Sizes in place of a model's name."""
MOST_TIMES = 6.0
"""Rate relative to half precision that is assumed for precisions a device does not list."""


class ProductsPart(KernelPart):
    """Kernel part for GEMMs, identified by their sizes m × k × n.

    A table may have a `direction`: forward (default), or backward for both gradients of such a GEMM together;
    and a `cast`: timed (default), or none. Constants are fitted to forward GEMMs.
    """

    name: ClassVar[str] = "products"
    fitted_to: ClassVar[str] = "TensorRT-LLM 1.0.0 (A100) and 1.3.0rc20 (aiconfigurator); gradients: SimuMax"
    sizes: ClassVar[tuple[str, ...]] = ("m", "n", "k")
    words: ClassVar[tuple[str, ...]] = ("direction", "cast")
    renamed: ClassVar[dict[str, str]] = {"gemm_dtype": "precision"}

    def completed(self, table: pd.DataFrame) -> pd.DataFrame:
        """Add the default direction and cast to a table that has none."""
        return table.assign(**{name: words[0] for name, words in WORDS.items() if name not in table})

    def problem(self, rows: pd.DataFrame) -> list[str]:
        """Error message for each row's direction and cast; empty for a valid row."""
        return [
            "; ".join(
                f"{name} must be {' or '.join(words)}, got {given}"
                for (name, words), given in zip(WORDS.items(), row, strict=True)
                if given not in words
            )
            for row in rows[[*WORDS]].itertuples(index=False)
        ]

    def predicted_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Predicted times (R,) in seconds of rows of one device; NaN for precisions that it lacks."""
        times_s, backward = np.full(len(rows), np.nan), _is_backward(rows)
        for compute in set(rows["precision"]) & {"bf16", *site.device.products}:
            for name, orders in ORDERS.items():
                mask = (rows["precision"] == compute).to_numpy() & (backward == (name == "backward"))
                sizes = [
                    rows[mask][[*order, "cast"]].set_axis(["m", "k", "n", "cast"], axis=1) for order in orders
                ]
                times_s[mask] = sum(product_s(size, site.device, cast(Compute, compute)) for size in sizes)
        return times_s

    def fitted(self, rows: pd.DataFrame, site: Site) -> Site:
        """Site with GEMM speeds fitted to the rows.

        Half precision is fitted first, because the others use its start-up time.
        """
        device, rows = site.device, rows[~_is_backward(rows)]
        for compute in COMPUTES:
            if compute in set(rows["precision"]):
                device = fitted_device(rows[rows["precision"] == compute], device, compute)
        return replace(site, device=device)

    def fastest_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Time at peak FLOP/s in seconds, (R,); 0 for precisions that the device lacks."""
        peak = site.device.peak_flops_per_s
        times = {name: speed.times for name, speed in site.device.products.items()} or {"bf16": 1.0}
        # Missing precisions have rate inf, hence 0 seconds: no bound is known for them.
        rates = np.array([times.get(cast(Compute, name), np.inf) for name in rows["precision"]])
        return _flops(rows) * np.where(_is_backward(rows), 2.0, 1.0) / (peak * rates)

    def kinds(self, rows: pd.DataFrame) -> list[str]:
        """Size class of every row (R,), and its direction if that is backward."""
        sizes = ["5 GFLOP or more" if large else "below 5 GFLOP" for large in _flops(rows) >= LARGE]
        both = zip(sizes, _is_backward(rows), strict=True)
        return [f"{size}, backward" if backward else size for size, backward in both]


def _is_backward(rows: pd.DataFrame) -> Bools:
    return (rows["direction"] == "backward").to_numpy(bool)


def product_s(rows: pd.DataFrame, device: Device, compute: Compute) -> Floats:
    """Time of GEMMs in one precision, with the cast of their input where it is timed, in seconds, (R,)."""
    m, k, n = rows[["m", "k", "n"]].to_numpy(np.int64).T
    shapes = np.stack([np.ones_like(m), m, k, n], axis=1)
    if device.products:
        times = product_times(Products(shapes, np.zeros(len(rows), bool), HALF_BYTES, compute), device)
    else:
        times = time_kernels(_works(shapes), device, HALF_BYTES)
    timed = (rows["cast"] == "timed").to_numpy(bool)
    times_s: Floats = times.sum(axis=1) + timed * cast_s(m * k.astype(float), compute, device)
    return times_s


def _works(shapes: Ints) -> Works:
    """Convert GEMMs to mapper workloads, for devices without fitted GEMM speeds."""
    nothing, every = np.zeros(len(shapes)), np.arange(len(shapes))
    kinds = np.full(len(shapes), "matmul")
    return Works(every, every, shapes, nothing, nothing, nothing, nothing, nothing, kinds)


def fitted_device(rows: pd.DataFrame, device: Device, compute: Compute) -> Device:
    """Fit one precision's speed to its measurements, and copy it to precisions with the same GEMM."""
    start = _start_speed(device, compute)
    has_casts = (rows["cast"] == "timed").any()
    names = LOW_CONSTANTS if compute != "bf16" and has_casts else HALF_CONSTANTS
    least, most, scale = np.array([RANGES[name] for name in names]).T
    measured = np.log(rows["measured_s"].to_numpy(float))

    def speed(values: Floats) -> ProductSpeed:
        return start.model_copy(update=dict(zip(names, (values * scale).tolist(), strict=True)))

    def errors(values: Floats) -> Floats:
        trial = device.model_copy(update={"products": {**device.products, compute: speed(values)}})
        logs: Floats = np.log(product_s(rows, trial, compute)) - measured
        return logs

    bounds, margin, fits = (least / scale, most / scale), 1e-3 * scale, []
    for split in SPLITS:
        first = np.array([(FIRST | {"split": split})[name] for name in names])
        inside = np.clip(first, least + margin, most - margin) / scale
        fits.append(least_squares(errors, inside, bounds=bounds, loss="soft_l1", f_scale=NOISE))
    best = _rounded(speed(min(fits, key=lambda fit: float(fit.cost)).x), names)
    return device.model_copy(update={"products": device.products | _shared_speeds(best, device, compute)})


def _start_speed(device: Device, compute: Compute) -> ProductSpeed:
    """Initial GEMM speed of a fit: the device's own, or else its bf16 speed scaled to the precision."""
    if compute in device.products:
        speed = device.products[compute]
    elif compute == "bf16":
        return ProductSpeed(reached=0.8)
    else:
        times = TIMES.get(compute, 2.0)
        speed = device.products["bf16"].model_copy(update={"times": times, "cast_start_s": 5e-6})
    half = device.products.get("bf16", speed)
    return speed.model_copy(update={"start_s": half.start_s})


def _shared_speeds(speed: ProductSpeed, device: Device, compute: Compute) -> dict[Compute, ProductSpeed]:
    """Fitted speed by precision, for the fitted precision and all others with the same GEMM."""
    others = (other for other in ALIKE.get(compute, ()) if other in (*device.products, "fp8-cs"))
    return dict.fromkeys((compute, *others), speed)


def _rounded(speed: ProductSpeed, names: tuple[str, ...]) -> ProductSpeed:
    values = {name: float(f"{getattr(speed, name):.{DIGITS}g}") for name in names}
    # A fit approaches a bound of 0 without reaching it.
    small = {name: 0.0 for name in names if values[name] < RANGES[name][2] / 100}
    return speed.model_copy(update=values | small)


def _flops(rows: pd.DataFrame) -> Floats:
    flops: Floats = 2.0 * rows[["m", "n", "k"]].to_numpy(float).prod(axis=1)
    return flops


@dataclass(frozen=True, eq=False)
class Draws:
    """Randomly drawn expert loads for the rows of a table."""

    loads: ExpertRows
    network: ExpertNetwork
    row: Ints
    """Row index to which each draw belongs."""

    @classmethod
    def of(cls, rows: pd.DataFrame, block: int) -> Draws:
        """Draw expert loads for rows (R,); kernels pad each expert's tokens to multiples of `block`."""
        drawn_loads, sizes, places = [], [], []
        for place, row in enumerate(rows.itertuples(index=False)):
            hidden, experts = network_named(str(row.model))
            tokens, ranks = cast(int, row.tokens), cast(int, row.ep)
            # Tokens choose experts at random, and a time is not linear in loads: average times, not loads.
            drawn = rank_loads(tokens, experts.count, experts.per_token, ranks, str(row.distribution))
            drawn_loads.append(ExpertRows.of(drawn, block))
            sizes += [(tokens, experts.sent_width(hidden), experts.width, experts.gated)] * len(drawn)
            places += [place] * len(drawn)
        fields = ("rows", "tiles", "experts", "most")
        loads = ExpertRows(*(np.concatenate([getattr(x, name) for x in drawn_loads]) for name in fields))
        return cls(loads, ExpertNetwork(*np.array(sizes, float).T), np.array(places))

    def seconds(self, device: Device, speed: ExpertSpeed, compute: Compute) -> Floats:
        """Mean time of each row over its draws, in seconds, (R,)."""
        draw_s = feed_forward_s(self.loads, self.network, device, speed, compute)
        return np.bincount(self.row, draw_s) / np.bincount(self.row)


class ExpertsPart(KernelPart):
    """Kernel part for the feed-forward networks of experts."""

    name = "experts"
    fitted_to: ClassVar[str] = "TensorRT-LLM 1.0.0 (A100) and 1.3.0rc20 (aiconfigurator), SimuMax"
    sizes = ("tokens", "ep")
    words = ("model", "kernel", "distribution")
    renamed: ClassVar[dict[str, str]] = {
        "moe_dtype": "precision", "num_tokens": "tokens", "moe_ep_size": "ep", "kernel_source": "kernel",
    }  # fmt: skip

    def problem(self, rows: pd.DataFrame) -> list[str]:
        """Error message for each row's model, experts per rank or load distribution; empty if valid."""
        return [
            _problem(str(row.model), cast(int, row.ep), str(row.distribution))
            for row in rows.itertuples(index=False)
        ]

    def predicted_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Predicted times (R,) in seconds; NaN for kernels and precisions without constants."""
        times_s = np.full(len(rows), np.nan)
        for (kernel, compute), mask in _groups(rows).items():
            speed = expert_speed(site.device, kernel, compute)
            if speed is not None and speed.passes is not None and compute in site.device.products:
                draws = Draws.of(rows[mask], speed.block)
                times_s[mask] = draws.seconds(site.device, speed, compute)
        return times_s

    def fitted(self, rows: pd.DataFrame, site: Site) -> Site:
        """Site with constants fitted for every kernel and precision that has at least LEAST rows."""
        speeds = {kernel: dict(by_precision) for kernel, by_precision in site.device.experts.items()}
        for (kernel, compute), mask in _groups(rows).items():
            if mask.sum() >= LEAST and compute in site.device.products:
                known = expert_speed(site.device, kernel, compute)
                block = known.block if known else TILE
                draws, measured_s = Draws.of(rows[mask], block), rows[mask]["measured_s"].to_numpy(float)
                speed = fitted_speed(draws, measured_s, site.device, kernel, compute)
                updated = speed.model_copy(update={"block": block})
                speeds.setdefault(kernel, {})[compute] = updated
        device = site.device.model_copy(update={"experts": speeds})
        return replace(site, device=device)

    def fastest_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Time of the GEMMs of balanced experts at peak FLOP/s, in seconds, (R,)."""
        times_s = np.zeros(len(rows))
        for place, row in enumerate(rows.itertuples(index=False)):
            hidden, experts = network_named(str(row.model))
            numbers = experts.sent_width(hidden) * experts.width * (2 + experts.gated)
            speed = site.device.products.get(cast(Compute, row.precision))
            rate = site.device.peak_flops_per_s * (speed.times if speed else MOST_TIMES)
            times_s[place] = (
                2.0 * cast(int, row.tokens) * experts.per_token / cast(int, row.ep) * numbers / rate
            )
        return times_s

    def kinds(self, rows: pd.DataFrame) -> list[str]:
        """Kernel and load distribution of every row (R,)."""
        return [f"{row.kernel} {row.distribution}" for row in rows.itertuples(index=False)]


def fitted_speed(
    draws: Draws, measured_s: Floats, device: Device, kernel: ExpertKernel, compute: Compute
) -> ExpertSpeed:
    """Fit constants to measured times (R,) in seconds, for drawn loads, by log least squares (soft L1)."""
    names = FITTED if kernel == "masked" else FITTED[:-1]
    # Tables time kernels in short loops, at the full clock.
    device = device.model_copy(update={"sustained_clock": 1.0})

    def speed_of(logs: Floats) -> ExpertSpeed:
        return ExpertSpeed.model_construct(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def errors(logs: Floats) -> Floats:
        return np.log(draws.seconds(device, speed_of(logs), compute) / measured_s)

    start, low, high = (np.log(values[: len(names)]) for values in (START, LOW, HIGH))
    fit = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=SCALE)
    values = {
        name: float(f"{value:.{EXPERT_DIGITS}g}") for name, value in zip(names, np.exp(fit.x), strict=True)
    }
    return ExpertSpeed.model_validate(values)


@cache
def network_named(name: str) -> tuple[int, Experts]:
    """Hidden size and experts of a model, given its name, an unambiguous prefix of it, a path, or sizes.

    Sizes are `hidden x width x experts x experts per token` of gated experts, such as 7168x256x257x9.
    """
    if sizes := SIZES.fullmatch(name):
        hidden, width, count, per_token = map(int, sizes.groups())
        return hidden, Experts(count=count, per_token=per_token, width=width)
    names = sorted(path.stem for path in (FOLDER / "models").glob("*.yaml"))
    matches = [stem for stem in names if stem.startswith(name.lower())]
    model = load_transformer(matches[0] if len(matches) == 1 else name, "model")
    if model.experts is None:
        raise PhazeError(f"model {name} has no experts")
    return model.hidden, model.experts


def _problem(model: str, ranks: int, distribution: str) -> str:
    try:
        experts = network_named(model)[1]
        exponent_of(distribution)
    except PhazeError as error:
        return str(error)
    if experts.count % ranks:
        return f"ep must divide the {experts.count} experts of {model}, got {ranks}"
    return ""


def _groups(rows: pd.DataFrame) -> dict[tuple[ExpertKernel, Compute], Bools]:
    """Row masks (R,) by kernel and precision, for the pairs that phaze prices."""
    kernels = rows["kernel"].map(KERNELS).to_numpy(object)
    words = rows["precision"].to_numpy(object)
    pairs = [pair for pair in zip(kernels, words, strict=True) if pair[0] in ALL and pair[1] not in UNPRICED]
    return {pair: (kernels == pair[0]) & (words == pair[1]) for pair in dict.fromkeys(pairs)}
