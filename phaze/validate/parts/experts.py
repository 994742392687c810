"""Compare the predicted forward time of expert FFNs on one rank with measurements.

A row is a model's network for a number of tokens before routing. The experts are sharded across `ep` ranks,
and the rank with most dispatched tokens is measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, cast

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.errors import PhazeError
from phaze.cost.experts import ExpertNetwork, ExpertRows, expert_speed, feed_forward_s
from phaze.layout import Compute
from phaze.spec.blocks import Experts
from phaze.spec.files import FOLDER
from phaze.spec.models import load_transformer
from phaze.spec.speeds.experts import ExpertKernel, ExpertSpeed
from phaze.spec.system import Device
from phaze.validate.constants import Site
from phaze.validate.parts.base import UNPRICED, KernelPart
from phaze.workload.expert_loads import exponent_of, rank_loads

KERNELS: dict[str, ExpertKernel] = {
    "grouped": "grouped", "masked": "masked", "deepgemm": "masked", "moe_torch_flow": "grouped",
    "moe_torch_flow_cutlass": "grouped", "moe_torch_flow_nongated": "grouped",
}  # fmt: skip
"""Kernels by their names in tables: phaze's own, and TensorRT-LLM's in aiconfigurator."""
ALL = tuple(dict.fromkeys(KERNELS.values()))
FITTED = ("reached", "hbm", "passes", "start_s", "row_s")
"""Constants that rows can determine; `row_s` only for masked kernels."""
START = (0.7, 0.7, 0.4, 3e-5, 2e-8)
LOW = (0.1, 0.1, 0.05, 1e-6, 1e-10)
HIGH = (1.0, 0.95, 1.0, 1e-3, 1e-6)
"""Initial values of a fit, and the physical range: HBM reaches 95 % of its bandwidth at most."""
SCALE = 0.1
"""Error above which a row has less weight (soft L1)."""
LEAST = 8
"""Minimum rows per kernel and precision to fit its constants."""
DIGITS = 4
MOST_TIMES = 6.0
"""Assumed rate over half precision for precisions that a device does not list."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Sampled expert loads of the rows of a table."""

    loads: ExpertRows
    own: ExpertNetwork
    row: Ints
    """Row index of every draw."""

    @classmethod
    def of(cls, rows: pd.DataFrame) -> Draws:
        """Draw the loads of rows (R,)."""
        found, sizes, places = [], [], []
        for place, one in enumerate(rows.itertuples(index=False)):
            hidden, own = network_named(str(one.model))
            tokens, ranks = cast(int, one.tokens), cast(int, one.ep)
            drawn = rank_loads(tokens, own.count, own.per_token, ranks, str(one.distribution))
            found.append(ExpertRows.of(drawn))
            sizes += [(tokens, own.sent_width(hidden), own.width, own.gated)] * len(drawn)
            places += [place] * len(drawn)
        fields = ("rows", "tiles", "experts", "most")
        loads = ExpertRows(*(np.concatenate([getattr(one, name) for one in found]) for name in fields))
        return cls(loads, ExpertNetwork(*np.array(sizes, float).T), np.array(places))

    def seconds(self, device: Device, speed: ExpertSpeed, compute: Compute) -> Floats:
        """Mean seconds of each row over its random routings, (R,)."""
        each = feed_forward_s(self.loads, self.own, device, speed, compute)
        found: Floats = np.bincount(self.row, each) / np.bincount(self.row)
        return found


class ExpertsPart(KernelPart):
    """Feed-forward networks of experts."""

    name = "experts"
    fitted_to: ClassVar[str] = "TensorRT-LLM 1.0.0 (A100) and 1.3.0rc20 (aiconfigurator), SimuMax"
    sizes = ("tokens", "ep")
    words = ("model", "kernel", "distribution")
    renamed: ClassVar[dict[str, str]] = {
        "moe_dtype": "precision", "num_tokens": "tokens", "moe_ep_size": "ep", "kernel_source": "kernel",
    }  # fmt: skip

    def problem(self, rows: pd.DataFrame) -> list[str]:
        """Error in model, experts per rank or load distribution of each row; otherwise empty."""
        return [
            _problem(str(one.model), cast(int, one.ep), str(one.distribution))
            for one in rows.itertuples(index=False)
        ]

    def predicted_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Seconds (R,) of rows of one device, NaN for kernels and precisions without constants."""
        found = np.full(len(rows), np.nan)
        for (kernel, compute), which in _groups(rows).items():
            speed = expert_speed(site.device, kernel, compute)
            if speed is not None and speed.passes is not None and compute in site.device.products:
                found[which] = Draws.of(rows[which]).seconds(site.device, speed, compute)
        return found

    def fitted(self, rows: pd.DataFrame, site: Site) -> Site:
        """Site with fitted constants for every kernel and precision with at least LEAST rows."""
        speeds = {kernel: dict(own) for kernel, own in site.device.experts.items()}
        for (kernel, compute), which in _groups(rows).items():
            if which.sum() >= LEAST and compute in site.device.products:
                own = rows[which]
                speed = fitted_speed(
                    Draws.of(own), own["measured_s"].to_numpy(float), site.device, kernel, compute
                )
                speeds.setdefault(kernel, {})[compute] = speed
        device = site.device.model_copy(update={"experts": speeds})
        return replace(site, device=device)

    def fastest_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Seconds of the products of balanced experts at peak FLOP/s, (R,)."""
        found = np.zeros(len(rows))
        for place, one in enumerate(rows.itertuples(index=False)):
            hidden, own = network_named(str(one.model))
            numbers = own.sent_width(hidden) * own.width * (2 + own.gated)
            speed = site.device.products.get(cast(Compute, one.precision))
            rate = site.device.peak_flops_per_s * (speed.times if speed else MOST_TIMES)
            found[place] = 2.0 * cast(int, one.tokens) * own.per_token / cast(int, one.ep) * numbers / rate
        return found

    def kinds(self, rows: pd.DataFrame) -> list[str]:
        """Kernel and distribution of rows (R,)."""
        return [f"{one.kernel} {one.distribution}" for one in rows.itertuples(index=False)]


def fitted_speed(
    draws: Draws, measured_s: Floats, device: Device, kernel: ExpertKernel, compute: Compute
) -> ExpertSpeed:
    """Fit constants to measured seconds (R,) of draws by least squares of logarithms (soft L1)."""
    names = FITTED if kernel == "masked" else FITTED[:-1]
    device = device.model_copy(update={"sustained_clock": 1.0})

    def speed_of(logs: Floats) -> ExpertSpeed:
        return ExpertSpeed.model_construct(**dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def errors(logs: Floats) -> Floats:
        found: Floats = np.log(draws.seconds(device, speed_of(logs), compute) / measured_s)
        return found

    start, low, high = (np.log(one[: len(names)]) for one in (START, LOW, HIGH))
    found = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=SCALE)
    values = {name: float(f"{value:.{DIGITS}g}") for name, value in zip(names, np.exp(found.x), strict=True)}
    return ExpertSpeed(**values)


@cache
def network_named(name: str) -> tuple[int, Experts]:
    """Hidden size and experts of a model, by its name, an unambiguous prefix of a name, or its path."""
    known = sorted(path.stem for path in (FOLDER / "models").glob("*.yaml"))
    begun = [one for one in known if one.startswith(name.lower())]
    model = load_transformer(begun[0] if len(begun) == 1 else name, "model")
    if model.experts is None:
        raise PhazeError(f"model {name} has no experts")
    return model.hidden, model.experts


def _problem(model: str, ranks: int, distribution: str) -> str:
    try:
        _, own = network_named(model)
        exponent_of(distribution)
    except PhazeError as error:
        return str(error)
    return "" if own.count % ranks == 0 else f"ep must divide the {own.count} experts of {model}, got {ranks}"


def _groups(rows: pd.DataFrame) -> dict[tuple[ExpertKernel, Compute], Bools]:
    """Row masks (R,) by kernel and precision, for those that phaze prices."""
    kernels = rows["kernel"].map(KERNELS).to_numpy(object)
    words = rows["precision"].to_numpy(object)
    known = [pair for pair in zip(kernels, words, strict=True) if pair[0] in ALL and pair[1] not in UNPRICED]
    return {pair: (kernels == pair[0]) & (words == pair[1]) for pair in dict.fromkeys(known)}
