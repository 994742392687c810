"""GEMM speed of a device in one precision."""

from phaze.spec.noun import Noun
from phaze.spec.values import Part, Positive, PositiveInt, Share, Size


class ProductTile(Noun):
    """Tile of the result that an SM computes at once, with its efficiency."""

    rows: PositiveInt
    """Rows of the tile; the tile may also be used transposed."""
    columns: PositiveInt
    """Columns of the tile."""
    efficiency: Part = 1.0
    """Share of `reached` with this tile; smaller tiles read more operand bytes per multiplication."""


TILES = (
    ProductTile(rows=256, columns=128),
    ProductTile(rows=128, columns=128, efficiency=0.75),
    ProductTile(rows=128, columns=64, efficiency=0.5),
    ProductTile(rows=64, columns=64, efficiency=0.375),
)
"""Tiles of NVIDIA's GEMM libraries.

A tile reads rows + columns operand elements per term of its sums, and its time is assumed proportional to
that. The efficiency of a tile is its rows · columns / (rows + columns) relative to 256 · 128 / (256 + 128).
"""


class ProductSpeed(Noun):
    """GEMM speed in one precision, fitted to kernels timed in a loop.

    Processors share a result out in tiles. A tile whose sums have k terms takes the time of k + fill terms.
    The last wave of tiles takes as long as a full one, unless the library splits the sums of the remaining
    tiles.
    """

    times: Positive = 1.0
    """Peak rate relative to half precision, from the data sheet."""
    reached: Positive
    """Share of the peak rate reached in full waves of the largest tiles with long sums, at the device's full
    clock. Above 1 if that clock exceeds the data sheet's."""
    fill: Size = 64.0
    """Overhead per tile, to start it and store its results, as an equivalent number of terms of a sum."""
    split: Size | None = None
    """Overhead of split sums, to exchange partial results between SMs, as an equivalent number of
    terms of a sum. Default: tiles are not split."""
    hbm: Part = 0.8
    """Share of the HBM bandwidth reached by memory-bound GEMMs."""
    added: Share = 0.5
    """Exposed share of the time to read and write accumulated gradients, where the GEMM that makes weight
    gradients also accumulates them."""
    start_s: Size = 3e-6
    """Fixed time per kernel in seconds, to start and end."""
    cast: Part = 0.77
    """Share of the HBM bandwidth at which inputs are cast, for tables that time a GEMM together with its
    cast. Plans price casts at the device's sustained bandwidth."""
    cast_start_s: Size = 0.0
    """Fixed time in seconds of the kernels that cast inputs."""
    tiles: tuple[ProductTile, ...] = ()
    """Tiles to choose the fastest from. Default: those of NVIDIA's libraries, 256 × 128, 128 × 128, 128 × 64
    and 64 × 64, with efficiencies by operand traffic."""
