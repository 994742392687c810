"""Accelerators of tiles on a mesh: wafers, and chips side by side (PALM, II.C, Tables I and VI).

A tile is an array with its SRAM and its router; a chip is a mesh of tiles; a system is a mesh of chips with
memories at edges. What PALM's Table VI calls a tile is a chip here, its cores are tiles.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.values import Chip, Count, Location, Positive, Size

Edge = Literal["north", "south", "west", "east"]
Position = Annotated[int, Field(ge=0, lt=2**20)]
FLOPS_OF_A_MAC = 2


class Tile(Noun):
    """An array of multiply-accumulates with its vector lanes and its SRAM."""

    clock_hz: Positive
    """Clock of the tile."""
    pe_x: Count
    """Rows of the array, 16-bit floating point."""
    pe_y: Count
    """Columns of the array."""
    int8_rate: Count = 1
    """Multiply-accumulates of 8-bit integers in the time of one of 16 bits."""
    lanes: Count | None = None
    """Vector lanes; vector operations are not counted unless given, as in PALM."""
    sram_bytes: Positive
    """SRAM."""
    sram_bandwidth_bytes_per_s: Positive | None = None
    """Bandwidth between SRAM and array, reads and writes together; enough for the array unless given."""

    @property
    def flops(self) -> float:
        """FLOP/s of 16 bits."""
        return FLOPS_OF_A_MAC * self.pe_x * self.pe_y * self.clock_hz


class Wire(Noun):
    """A link between neighbours."""

    bandwidth_bytes_per_s: Positive
    """Bandwidth in each direction."""
    latency_s: Size = 0.0
    """Time of a hop beside its bytes."""


class TiledDevice(Noun):
    """A chip of equal tiles on a mesh or torus."""

    name: Chip
    """Name of the chip; that of its file."""
    rows: Count
    """Rows of the mesh."""
    columns: Count
    """Columns of the mesh."""
    rows_without_tiles: tuple[Position, ...] = ()
    """Rows that only pass on what others send, such as those of memory controllers."""
    columns_without_tiles: tuple[Position, ...] = ()
    """Columns that only pass on what others send."""
    working_tiles: Count | None = None
    """Tiles that work; all unless given. Mappings take all; peaks and capacities those that work."""
    torus: bool = False
    """Whether the last tile of a row or column is next to the first."""
    tile: Tile
    """A tile."""
    link: Wire
    """A link between neighbouring tiles."""

    @model_validator(mode="after")
    def _inside(self) -> Self:
        for name, size in (("rows", self.rows), ("columns", self.columns)):
            without = getattr(self, f"{name}_without_tiles")
            if any(k >= size for k in without) or len(set(without)) == size:
                raise ValueError(
                    f"{name}_without_tiles: must be some of the rows or columns from 0 to {size - 1}, "
                    f"got {list(without)}"
                )
        if (self.working_tiles or 1) > self.places:
            raise ValueError(
                f"working_tiles: must be at most the {self.places} of the mesh, got {self.working_tiles}"
            )
        return self

    @property
    def places(self) -> int:
        """Tiles of the mesh."""
        rows = self.rows - len(set(self.rows_without_tiles))
        return rows * (self.columns - len(set(self.columns_without_tiles)))

    @property
    def tiles(self) -> int:
        """Tiles that work."""
        return self.working_tiles or self.places

    @property
    def flops(self) -> float:
        """FLOP/s of 16 bits."""
        return self.tiles * self.tile.flops

    @property
    def sram_bytes(self) -> float:
        """SRAM of all tiles."""
        return self.tiles * self.tile.sram_bytes


class Dram(Noun):
    """Memory that all tiles share (PALM, Equations 4 and 5), behind edges or single places."""

    edges: Annotated[tuple[Edge, ...], Field(min_length=1)] = ("west", "east")
    """Edges with memories."""
    around: Literal["system", "chip"] = "system"
    """Edges with DRAM: of the whole mesh, or of every chip."""
    ports_per_edge: Count | None = None
    """Places with a port on each chip's side of an edge, evenly spread; all unless given."""
    tiles: Annotated[tuple[tuple[Position, Position], ...], Field(min_length=1)] | None = None
    """Row and column in the whole mesh of every place with a port, instead of edges."""
    bandwidth_bytes_per_s: Positive
    """Bandwidth of a port, reads and writes together; each port has a memory of its own."""
    response_s: Size = 0.0
    """Time of an access beside its bytes."""
    gib: Positive | None = None
    """Memory in GiB of all ports together; unlimited unless given."""

    @model_validator(mode="after")
    def _one_way_of_saying_where(self) -> Self:
        if self.tiles and self.model_fields_set & {"edges", "around", "ports_per_edge"}:
            raise ValueError("tiles: must not be given with edges, around or ports_per_edge")
        if len(set(self.edges)) < len(self.edges) or len(set(self.tiles or ())) < len(self.tiles or ()):
            raise ValueError("edges and tiles: must not have one twice")
        return self


class TiledSystem(Noun):
    """Equal chips of tiles, side by side on a mesh, with memories at edges."""

    device: Location
    """Name of a file in config/devices with a chip of tiles, or path of one."""
    rows: Count = 1
    """Rows of chips."""
    columns: Count = 1
    """Columns of chips."""
    link: Wire | None = None
    """A link between neighbouring tiles of two chips; needed unless there is one chip."""
    dram: Dram
    """The memories."""
    fetched_once: bool = False
    """Whether operands that SRAM cannot hold are read once for a product; unless said so, one of them again
    for each part of the other that fits (PALM, Algorithm 1)."""

    @model_validator(mode="after")
    def _linked(self) -> Self:
        if self.link is None and self.chips > 1:
            raise ValueError(f"link: must be given for {self.rows} × {self.columns} chips")
        return self

    @property
    def chips(self) -> int:
        """Chips."""
        return self.rows * self.columns
