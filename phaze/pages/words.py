"""Formatting of numbers for readers: three digits, and a suitable unit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from string import Formatter

import pandas as pd

from phaze.base.units import GIB, KIB, MIB, UM2_PER_MM2, digits, percent, signed
from phaze.layout import Layout

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
LIMITS = {
    "compute": "compute", "vector": "vector lanes", "global_buffer": "global buffer", "hbm": "HBM",
    "network": "network", "none": "nothing",
}  # fmt: skip
"""Display names of the bottlenecks of operators."""


def seconds(value: float) -> str:
    """Format a duration in s, for example 1.25 ms."""
    if not math.isfinite(value):
        return "–"
    # from two hours on, thousands of seconds say little
    if value >= 7200:
        return f"{digits(value / 3600)} h"
    scale, unit = _fitting(value, _SECONDS)
    return f"{digits(value / scale)} {unit}" if value else "0 s"


def _fitting(value: float, units: tuple[tuple[float, str], ...]) -> tuple[float, str]:
    """Largest unit that does not exceed the value, else the smallest unit."""
    return next((unit for unit in units if abs(value) >= unit[0]), units[-1])


def size(value: float) -> str:
    """Format a number of bytes in binary units, for example 1.25 GiB."""
    scale, unit = _fitting(value, _BYTES)
    return f"{digits(value / scale)} {unit}"


def decimal(value: float, unit: str) -> str:
    """Format a quantity in decimal units, for example 1.25 TB/s."""
    scale, prefix = _fitting(value, _DECIMAL)
    return f"{digits(value / scale)} {prefix}{unit}" if value else f"0 {unit}"


def change(ratio: float) -> str:
    """Format the difference of a ratio from one with its sign, for example +2.5 %."""
    return f"{100 * (ratio - 1):+.1f} %" if math.isfinite(ratio) else "–"


def count(value: float) -> str:
    """Format a count, for example 1,250; a dash for infinity."""
    return f"{value:,.0f}" if math.isfinite(value) else "–"


def times(value: float) -> str:
    """Format a ratio, for example 1.25×."""
    return f"{value:.2f}×" if 0 < value < math.inf else "–"


def area(um2: float) -> str:
    """Format an area in µm² as mm², for example 12.5 mm²."""
    return f"{um2 / UM2_PER_MM2:.1f} mm²"


def join(words: Iterable[object]) -> str:
    """Join items as a list in a sentence, for example "a, b and c"."""
    every = [str(word) for word in words]
    return " and ".join([", ".join(every[:-1]), every[-1]] if len(every) > 1 else every)


def compute(chip: pd.Series) -> str:
    """Format the cores of a chip as {num_tc, num_vc, pe_x, pe_y, pe_vc}, as in Table 2 of the Phaze paper."""
    return "{" + ", ".join(str(int(chip[key])) for key in ("num_tc", "num_vc", "pe_x", "pe_y", "pe_vc")) + "}"


def buffers(chip: pd.Series) -> str:
    """Format the buffers of a chip as {glb, glb words per cycle, l2_tc, l2_vc}."""
    l2 = f"{short(chip['l2_tc_bytes'])}, {short(chip['l2_vc_bytes'])}"
    return f"{{{short(chip['glb_bytes'])}, {chip['glb_words_per_cycle']:.0f}, {l2}}}"


def short(value: float) -> str:
    """Format a number of bytes, usually a power of two, without trailing zeros."""
    scale, unit = _fitting(value, _BYTES)
    return f"{value / scale:g} {unit}"


def widths(row: pd.Series) -> str:
    """Format the widths of a placement as {p, d, t}."""
    return fill("{{{stages}, {data}, {layout:tp}}}", row)


def tensor_width(key: object) -> str:
    """Tensor-parallel width of the layout with the given key."""
    return str(Layout.of_key(str(key)).tp)


def sliced(key: object) -> str:
    """Format the tensor-parallel width and microbatch size of the layout with the given key."""
    layout = Layout.of_key(str(key))
    return f"t {layout.tp}, b {layout.microbatch}"


def samples(key: object) -> str:
    """Format the microbatch size of the layout with the given key."""
    return str(Layout.of_key(str(key)).microbatch)


def operator(name: object) -> str:
    """Display name of an operator, with its fused parts separated and without its pass."""
    return str(name).removesuffix(".backward").replace("_", " ").replace("+", " + ")


def file_name(name: object) -> str:
    """Name for use in the file name of a figure, without dots, which would start an extension."""
    return str(name).replace(".", "-")


def storing(recompute: object) -> str:
    """Treatment of activations: "recompute" or "stash"."""
    return "recompute" if recompute else "stash"


_FORMS: Mapping[str, Callable[[float], str]] = {
    **{form.__name__: form for form in (seconds, size, percent, signed, change, times, area, digits, short)},
    **{form.__name__: form for form in (storing, sliced, samples, operator, count)},
    "tp": tensor_width,
    "limit": lambda name: LIMITS[str(name)],
    **{f"percent{decimals}": partial(percent, decimals=decimals) for decimals in (0, 2, 3)},
    **{f"digits{count}": partial(digits, count=count) for count in (4, 5, 7)},
    **{unit: partial(decimal, unit=unit) for unit in ("B", "J", "Hz", "FLOP")},
}


class _Filled(Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        form = _FORMS.get(format_spec)
        return format(value, format_spec) if form is None else form(value)  # type: ignore[arg-type]


def fill(template: str, row: pd.Series | Mapping[str, object]) -> str:
    """Fill a template with the values of a row, for example `"{hbm_gib:g} GiB in {time_s:seconds}"`.

    In addition to Python's formats, the formats of this module are available: seconds, size, percent,
    percent2, signed, change, times, area, digits, digits4, storing, operator, limit, sliced, samples and tp
    of a layout, and the units B, J, Hz and FLOP.
    """
    return _Filled().vformat(template, (), {str(name): value for name, value in row.items()})
