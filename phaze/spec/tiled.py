"""Tiled accelerators on a mesh: wafers, or several chips (PALM, II.C, Tables I and VI).

A tile is an array with SRAM and a router, a chip is a mesh of tiles, and a system is a mesh of chips with
memories at edges. PALM's Table VI calls a chip a tile, and its tiles cores.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.values import Chip, Count, Location, Positive, Size

Edge = Literal["north", "south", "west", "east"]
Position = Annotated[int, Field(ge=0, lt=2**20)]
FLOPS_OF_A_MAC = 2


class Tile(Noun):
    """Tile of a chip: an array of multiply-accumulate units with vector lanes and SRAM."""

    clock_hz: Positive
    """Clock of the tile."""
    pe_x: Count
    """Rows of the array, for 16-bit floating point."""
    pe_y: Count
    """Columns of the array."""
    int8_rate: Count = 1
    """Number of 8-bit integer multiply-accumulates per 16-bit one."""
    lanes: Count | None = None
    """Vector lanes; if null, vector operations take no time, as in PALM."""
    sram_bytes: Positive
    """SRAM."""
    sram_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth between SRAM and array, reads and writes together; default: enough for the array."""

    @property
    def flops(self) -> float:
        """FLOP/s of 16-bit arithmetic."""
        return FLOPS_OF_A_MAC * self.pe_x * self.pe_y * self.clock_hz


class Wire(Noun):
    """Link between neighbouring tiles."""

    bandwidth_bytes_per_s: Positive
    """Bandwidth in each direction."""
    latency_s: Size = 0.0
    """Latency of a hop."""


class TiledDevice(Noun):
    """Chip with identical tiles on a mesh or torus."""

    name: Chip
    """Name of the chip, equal to the name of its file."""
    rows: Count
    """Rows of the mesh."""
    columns: Count
    """Columns of the mesh."""
    rows_without_tiles: tuple[Position, ...] = ()
    """Rows without tiles, which only forward messages, such as those of memory controllers."""
    columns_without_tiles: tuple[Position, ...] = ()
    """Columns without tiles, which only forward messages."""
    working_tiles: Count | None = None
    """Number of working tiles; default: all.

    Mappings use all tiles, while peaks and capacities count only working ones.
    """
    torus: bool = False
    """True if the last tile of a row or column is a neighbour of the first."""
    tile: Tile
    """Tile of the chip."""
    link: Wire
    """Link between neighbouring tiles."""

    @model_validator(mode="after")
    def _inside(self) -> Self:
        for name, size in (("rows", self.rows), ("columns", self.columns)):
            without = getattr(self, f"{name}_without_tiles")
            if any(k >= size for k in without) or len(set(without)) == size:
                raise ValueError(
                    f"{name}_without_tiles: must be indices of rows or columns, from 0 to "
                    f"{size - 1}, got {list(without)}"
                )
        if (self.working_tiles or 1) > self.places:
            raise ValueError(
                f"working_tiles: must be at most {self.places}, the tiles of the mesh, got "
                f"{self.working_tiles}"
            )
        return self

    @property
    def places(self) -> int:
        """Number of tile positions on the mesh."""
        rows = self.rows - len(set(self.rows_without_tiles))
        return rows * (self.columns - len(set(self.columns_without_tiles)))

    @property
    def tiles(self) -> int:
        """Number of working tiles."""
        return self.working_tiles or self.places

    @property
    def flops(self) -> float:
        """FLOP/s of 16-bit arithmetic, over all working tiles."""
        return self.tiles * self.tile.flops

    @property
    def sram_bytes(self) -> float:
        """Total SRAM of all tiles, in bytes."""
        return self.tiles * self.tile.sram_bytes


class Dram(Noun):
    """Memory shared by all tiles (PALM, Equations 4 and 5), attached at edges or at individual tiles."""

    edges: Annotated[tuple[Edge, ...], Field(min_length=1)] = ("west", "east")
    """Edges with memories."""
    around: Literal["system", "chip"] = "system"
    """Scope of the edges: the whole mesh, or every chip."""
    ports_per_edge: Count | None = None
    """Ports per chip and edge, evenly spaced; default: one at every tile."""
    tiles: Annotated[tuple[tuple[Position, Position], ...], Field(min_length=1)] | None = None
    """Row and column in the whole mesh of every tile with a port, instead of edges."""
    bandwidth_bytes_per_s: Positive
    """Bandwidth of a port, reads and writes together; each port has its own memory."""
    response_s: Size = 0.0
    """Latency of an access."""
    gib: Positive | None = None
    """Memory in GiB of all ports together; default: unlimited."""

    @model_validator(mode="after")
    def _one_way_of_saying_where(self) -> Self:
        # Defaults of `edges` do not count as given: they are those of systems without `tiles`.
        if self.tiles and self.model_fields_set & {"edges", "around", "ports_per_edge"}:
            raise ValueError("tiles: must not be given together with edges, around or ports_per_edge")
        if len(set(self.edges)) < len(self.edges) or len(set(self.tiles or ())) < len(self.tiles or ()):
            raise ValueError("edges and tiles: must not have duplicates")
        return self


class TiledSystem(Noun):
    """Mesh of identical tiled chips, with memories at the edges."""

    device: Location
    """Chip of tiles: a name in config/devices, or a path."""
    rows: Count = 1
    """Rows of chips."""
    columns: Count = 1
    """Columns of chips."""
    link: Wire | None = None
    """Link between neighbouring tiles of two chips; required with more than one chip."""
    dram: Dram
    """Memory of the system."""
    fetched_once: bool = False
    """True if operands that exceed SRAM are read once per product. False: one of them is read again for each
    part of the other that fits (PALM, Algorithm 1).
    """

    @model_validator(mode="after")
    def _linked(self) -> Self:
        if self.link is None and self.chips > 1:
            raise ValueError(
                f"link: must be given if there are several chips, here {self.rows} × {self.columns}"
            )
        return self

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.rows * self.columns
