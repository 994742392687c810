"""How long arrays, SRAM and lanes of one tile take (cycles as in `cost.mapper.arrays`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from phaze.cost.mapper import arrays
from phaze.tiles.chip import DATAFLOWS, Tile
from phaze.tiles.operators import Product, Share

Rate = Literal["array", "peak"]
"""array: cycles of the dataflow that suits a product best; peak: FLOPs over the peak, as PALM has."""


@dataclass(frozen=True)
class Work:
    """Seconds for which the parts of a tile are busy at the same time."""

    compute_s: float = 0.0
    sram_s: float = 0.0
    sram_bytes: float = 0.0
    """Between SRAM and arrays; not known at the peak rate."""

    @property
    def busy_s(self) -> float:
        """Until the slower one is done."""
        return max(self.compute_s, self.sram_s)

    def __add__(self, other: Work) -> Work:
        return Work(
            self.compute_s + other.compute_s,
            self.sram_s + other.sram_s,
            self.sram_bytes + other.sram_bytes,
        )


def forward(tile: Tile, share: Share, element_bytes: int, rate: Rate = "array") -> Work:
    """Return the forward pass of a share; what arrays cannot do runs on lanes, or at the peak without any."""
    if not share.products or rate == "peak":
        lanes_per_s = tile.lanes * tile.clock_hz
        speed = tile.peak_flops_per_s if share.products or not tile.lanes else lanes_per_s
        return Work(share.flops / speed)
    return _sum(tile, share.products, element_bytes)


def backward(tile: Tile, share: Share, element_bytes: int, rate: Rate = "array") -> Work:
    """Return the backward pass of a share: two products for each one, as many FLOPs as they have."""
    if not share.products:
        return forward(tile, share, element_bytes, rate)
    if rate == "peak":
        again = sum(product.flops for product in share.again)
        return Work((2 * share.flops + again) / tile.peak_flops_per_s)
    both = tuple(product for some in share.products for product in some.gradients)
    return _sum(tile, share.again + both, element_bytes)


def _sum(tile: Tile, products: tuple[Product, ...], element_bytes: int) -> Work:
    found = [product_work(tile, product, element_bytes) for product in products]
    return sum(found, Work())


@lru_cache(maxsize=4096)
def product_work(tile: Tile, product: Product, element_bytes: int) -> Work:
    """Return the work of a product with the dataflow that is done first."""
    options = [_mapped(tile, product, DATAFLOWS[name], element_bytes) for name in tile.dataflows]
    return min(options, key=lambda work: (work.busy_s, work.compute_s))


def _mapped(tile: Tile, product: Product, dataflow: int, element_bytes: int) -> Work:
    """Return the work of a product in one dataflow, its folds shared out among the arrays.

    Where there are fewer folds than arrays, several arrays hold the same fold and divide the stream.
    """
    stream, down, across = _loops(product, dataflow)
    folds_down, folds_across = -(-down // tile.rows), -(-across // tile.columns)
    folds = product.count * folds_down * folds_across
    copies = max(1, tile.arrays // folds)
    start = arrays.start_cycles(dataflow, float(tile.rows), float(tile.columns))
    each = -(-folds // tile.arrays)
    cycles = arrays.pass_cycles(start, 1.0, float(-(-stream // copies)), float(each))
    words = product.count * arrays.array_words(
        dataflow,
        float(product.m * product.k),
        float(product.k * product.n),
        float(product.m * product.n),
        1.0,
        float(folds_down),
        float(folds_across),
    )
    size = words * element_bytes
    return Work(cycles / tile.clock_hz, size / tile.sram_bandwidth_bytes_per_s, size)


def _loops(product: Product, dataflow: int) -> tuple[int, int, int]:
    """Return what streams, and what lies down and across an array."""
    m, k, n = product.m, product.k, product.n
    if dataflow == arrays.WEIGHT:
        return m, k, n
    return (k, m, n) if dataflow == arrays.OUTPUT else (n, k, m)
