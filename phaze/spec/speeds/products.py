"""Speed of matrix products on a device, in one precision."""

from phaze.spec.noun import Noun
from phaze.spec.values import Part, Positive, PositiveInt, Share, Size


class ProductTile(Noun):
    """A tile of a result that a processor works on at once, and how near its arrays come to full speed."""

    rows: PositiveInt
    """Rows of the result, or its columns."""
    columns: PositiveInt
    """The other way round."""
    efficiency: Part = 1.0
    """Share of `reached` with this tile: a smaller one reads more operands for each multiplication."""


TILES = (
    ProductTile(rows=256, columns=128),
    ProductTile(rows=128, columns=128, efficiency=0.75),
    ProductTile(rows=128, columns=64, efficiency=0.5),
    ProductTile(rows=64, columns=64, efficiency=0.375),
)
"""Tiles of NVIDIA's libraries. Operands that a tile reads are rows + columns for each term of its sums, to
which its time is taken to be proportional: 256 · 128 / (256 + 128), over the same of a smaller tile.
"""


class ProductSpeed(Noun):
    """Speed of matrix products in one precision, of kernels that are timed in a loop.

    Processors share a result out in tiles. A tile of a sum of k terms takes as long as k + fill terms; the
    last wave of tiles is as long as the others, or the library splits the sums of the tiles that are left.
    """

    times: Positive = 1.0
    """Rate of the arrays over that of half precision, by the data sheet."""
    reached: Positive
    """Share of that rate in whole waves of the largest tiles with long sums, at the full clock of the device;
    above 1 where its clock is higher than that of the data sheet."""
    fill: Size = 64.0
    """Terms of a sum that go by while a tile starts and its results are stored."""
    split: Size | None = None
    """Terms of a sum that go by while processors exchange partial results, where the sums of tiles are split
    among more processors; without it tiles stay whole."""
    hbm: Part = 0.8
    """Share of the HBM bandwidth that products reach whose operands and results take the time."""
    added: Share = 0.5
    """Share of the time in which gradients of earlier microbatches are read and written that is not hidden,
    where the product that makes gradients of weights adds them up."""
    start_s: Size = 3e-6
    """Time in which a kernel starts and ends."""
    cast: Part = 0.77
    """Share of the HBM bandwidth at which inputs are cast, in tables that time a product with its cast; plans
    price casts at the bandwidth that the device sustains."""
    cast_start_s: Size = 0.0
    """Time in which the kernels of that cast start and end."""
    tiles: tuple[ProductTile, ...] = ()
    """Tiles in which processors share out a product, of which the fastest is taken; unless given those of
    NVIDIA's libraries: 256 × 128, 128 × 128, 128 × 64 and 64 × 64, as fast as they read operands."""
