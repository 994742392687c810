"""Compare predicted times of fused attention with measured kernels, by pass and kernel of a device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from phaze.base.arrays import Bools, Floats
from phaze.cost.attention import Shapes, attention_s
from phaze.spec.speeds.attention import HEAD, AttentionKernel, AttentionPass
from phaze.spec.system import Device
from phaze.validate.constants import Site
from phaze.validate.parts.base import KernelPart
from phaze.workload.workload import DIRECTIONS, Direction

SIZES = ("batch", "sequence", "heads", "kv_heads", "head_size", "value_size")
MASKS = ("causal", "none")
LONG = 2048
"""Number of tokens from which a sequence counts as long."""
FIRST = "first"
"""Kernel of a row that names none: the first one of its device."""
SPREAD = 0.05
"""Error of a predicted time's logarithm above which a row has less than quadratic weight."""
DIGITS = 3


class AttentionPart(KernelPart):
    """Kernel part for attention, with one table row per pass.

    A table may omit `direction` (forward), `mask` (causal), `value_size` (head_size), `precision` (bf16) and
    `kernel`, which then is the third part of a path in `source`, as in h100_sxm/attention/trtllm/1.3, or else
    the first kernel of the device.
    """

    name: ClassVar[str] = "attention"
    fitted_to: ClassVar[str] = (
        "vLLM 0.14.0, TensorRT-LLM 1.3.0rc20 (aiconfigurator), FlashAttention-3, SimuMax"
    )
    sizes: ClassVar[tuple[str, ...]] = SIZES
    words: ClassVar[tuple[str, ...]] = ("kernel", "direction", "mask")
    renamed: ClassVar[dict[str, str]] = {
        "batch_size": "batch",
        "isl": "sequence",
        "num_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "head_dim": "head_size",
    }

    def completed(self, table: pd.DataFrame) -> pd.DataFrame:
        """Add the default values of missing optional columns to a table."""
        usual = {"precision": "bf16", "direction": "forward", "mask": "causal"}
        defaults = {name: [text] * len(table) for name, text in usual.items()}
        if "head_size" in table:
            defaults["value_size"] = list(table["head_size"])
        sources = table["source"] if "source" in table else [""] * len(table)
        defaults["kernel"] = [_kernel_in(text) or FIRST for text in sources]
        return table.assign(**{name: texts for name, texts in defaults.items() if name not in table})

    def problem(self, rows: pd.DataFrame) -> list[str]:
        """Error message for each row's direction, mask or number of heads; empty for a valid row."""
        columns = (rows[name] for name in ("direction", "mask", "heads", "kv_heads"))
        return [_problem(*row) for row in zip(*columns, strict=True)]

    def kinds(self, rows: pd.DataFrame) -> list[str]:
        """Kernel, pass and length class of every row."""
        lengths = np.where(rows["sequence"] >= LONG, "long", "short")
        return [
            f"{kernel} {direction} {length}"
            for kernel, direction, length in zip(rows["kernel"], rows["direction"], lengths, strict=True)
        ]

    def predicted_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Predicted time of rows in seconds; NaN for kernels the device lacks and precisions below bf16."""
        rows, times_s = _with_first_kernel(rows, site.device), np.full(len(rows), np.nan)
        for (name, kernel), direction in product(site.device.attention.items(), DIRECTIONS):
            if (speed := getattr(kernel, direction)) is not None:
                mask = _is_pass(rows, name, direction)
                shapes, backward = shapes_of(rows[mask]), direction == "backward"
                times_s[mask] = attention_s(shapes, speed, site.device, backward=backward).sum(axis=1)
        return times_s

    def fastest_s(self, rows: pd.DataFrame, site: Site) -> Floats:
        """Time of the GEMMs at peak FLOP/s over the (query, key) pairs that the mask leaves, in seconds."""
        times_s = np.zeros(len(rows))
        for direction in DIRECTIONS:
            mask = (rows["direction"] == direction).to_numpy()
            shapes, backward = shapes_of(rows[mask]), direction == "backward"
            pairs = shapes.samples * shapes.heads * shapes.queries * shapes.mean
            times_s[mask] = 2.0 * pairs * shapes.widths(backward=backward) / site.device.peak_flops_per_s
        return times_s

    def fitted(self, rows: pd.DataFrame, site: Site) -> Site:
        """Fit every kernel in the rows, one pass at a time; known block sizes are kept."""
        kernels = dict(site.device.attention)
        rows = _with_first_kernel(rows, site.device)
        for name in dict.fromkeys(rows["kernel"]):
            previous: AttentionKernel | None = kernels.get(name)
            passes = previous.model_dump(exclude_none=True) if previous is not None else {}
            for direction in DIRECTIONS:
                pass_rows = rows[_is_pass(rows, name, direction)]
                if len(pass_rows):
                    before = getattr(previous, direction, None)
                    passes[direction] = _fitted_pass(pass_rows, before, site.device, direction).model_dump()
            if "forward" in passes:
                kernels[name] = AttentionKernel.model_validate(passes)
        device = site.device.model_copy(update={"attention": kernels})
        return replace(site, device=device)


def shapes_of(rows: pd.DataFrame) -> Shapes:
    """Shapes of the rows' attention kernels, as input of the cost model."""
    sizes = {name: rows[name].to_numpy(float) for name in SIZES}
    keys = sizes["sequence"]
    # Averaged over all queries, a causal mask leaves half of the keys.
    mean = np.where(rows["mask"] == "causal", keys / 2, keys)
    ends = (sizes["heads"], sizes["kv_heads"], sizes["head_size"], sizes["value_size"])
    return Shapes(sizes["batch"], keys, keys, keys, mean, *ends)


def _with_first_kernel(rows: pd.DataFrame, device: Device) -> pd.DataFrame:
    """Rows in which the first kernel of a device has its name instead of FIRST."""
    return rows.replace({"kernel": {FIRST: next(iter(device.attention), "attention")}})


def _is_pass(rows: pd.DataFrame, kernel: str, direction: Direction) -> Bools:
    """Mask of the rows (R,) that measure one pass of a kernel, in half precision."""
    passes = (rows["kernel"] == kernel) & (rows["direction"] == direction)
    return (passes & (rows["precision"] == "bf16")).to_numpy()


def _kernel_in(source: str) -> str:
    folders = source.split("/")
    return folders[2] if len(folders) > 2 else source


def _problem(direction: object, mask: object, heads: int, kv_heads: int) -> str:
    if direction not in DIRECTIONS:
        return f"direction must be forward or backward, got {direction}"
    if mask not in MASKS:
        return f"mask must be causal or none, got {mask}"
    return f"kv_heads must divide heads {heads}, got {kv_heads}" if heads % kv_heads else ""


@dataclass(frozen=True)
class PassConstant:
    """Constant of a pass, with a prior value that counts like one row with an error of `spread`."""

    name: str
    usual: float
    spread: float
    low: float
    high: float
    log: bool = True
    """True if the logarithm of the constant is fitted."""

    def coded(self, value: float) -> float:
        """Convert a value to the fitted variable: its logarithm if `log` is set."""
        return float(np.log(value)) if self.log else value

    def value(self, coded: float, *, rounded: bool = False) -> float:
        """Convert a fitted variable back to the value of the constant."""
        value = float(np.exp(coded)) if self.log else float(coded)
        if not rounded:
            return value
        return float(f"{value:.{DIGITS}g}") if self.log else round(value, DIGITS)


CONSTANTS = (
    PassConstant("share", 0.6, 1.0, 0.02, 1.0),
    PassConstant("fill", 150.0, 1.0, 1.0, 3000.0),
    PassConstant("tail", 0.5, 0.25, 0.0, 1.0, log=False),
    PassConstant("start_s", 5e-6, 1.0, 1e-6, 1e-4),
    PassConstant("traffic", 0.0, 0.3, 0.0, 10.0, log=False),
)
UNMASKED = PassConstant("unmasked", 1.0, 0.1, 0.5, 2.0)


def _fitted_pass(
    rows: pd.DataFrame, previous: AttentionPass | None, device: Device, direction: Direction
) -> AttentionPass:
    """Fit the constants of a pass to the logarithms of measured times.

    Constants that no row determines keep their usual value.
    """
    start = previous or AttentionPass(share=1.0)
    multiple = start.head_multiple
    sizes = sorted(set((-(-rows["head_size"] // multiple) * multiple).tolist()) - {HEAD})
    of_mask = (UNMASKED,) if (rows["mask"] == "none").any() else ()
    of_heads = tuple(PassConstant(str(size), 1.0, 0.3, 0.1, 3.0) for size in sizes)
    constants = (*CONSTANTS, *of_mask, *of_heads)

    def pass_at(coded: Floats, *, rounded: bool = False) -> AttentionPass:
        pairs = zip(constants, coded, strict=True)
        named: dict[str, Any] = {constant.name: constant.value(x, rounded=rounded) for constant, x in pairs}
        heads = start.heads | {int(size): named.pop(str(size)) for size in sizes}
        return start.model_copy(update={"unmasked": 1.0, "heads": heads, **named})

    shapes, backward = shapes_of(rows), direction == "backward"
    measured = np.log(rows["measured_s"].to_numpy(float))
    usual = np.array([constant.coded(constant.usual) for constant in constants])
    spread = np.array([constant.spread for constant in constants])

    def errors(coded: Floats) -> Floats:
        seconds = attention_s(shapes, pass_at(coded), device, backward=backward).sum(axis=1)
        # Constants are pulled towards their usual value, which decides where no row depends on them.
        return np.concatenate([(np.log(seconds) - measured) / SPREAD, (coded - usual) / spread])

    low = [constant.coded(constant.low) for constant in constants]
    high = [constant.coded(constant.high) for constant in constants]
    # Variables differ in scale (logarithms, shares), which x_scale evens out.
    solution = least_squares(errors, usual, bounds=(low, high), loss="soft_l1", x_scale=spread).x
    return AttentionPass.model_validate(pass_at(solution, rounded=True).model_dump())
