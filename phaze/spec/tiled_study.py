"""Cases on tiled accelerators: which models, on which chips, mapped how, and how they are shown."""

from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.base.errors import PhazeError
from phaze.spec.model import Model
from phaze.spec.noun import Noun
from phaze.spec.values import Label, Name, PositiveInt

Lie = Literal["line", "s-shaped", "own"]
"""Where stages lie: in rows, in blocks along an S, on a user's tiles (PALM, Figure 8)."""
Placed = Literal["near", "far"]
Figure = Literal["6", "7", "12"]
Switching = Literal["pipelined", "hop-by-hop"]
PrintedTable = Literal["I", "IV", "V"]


def check_tiled(model: Model, where: str) -> None:
    """Raise PhazeError unless every block is the transformer layer that tiles price (PALM, Table III).

    That layer has multi-head attention and a feed-forward network of two matrices, 4 × hidden wide; `where`
    says who asked.
    """
    feed_forward = any(block.feed_forward for block in model.blocks.values())
    unpriced = {
        "experts": model.experts,
        "state-space scans": model.mamba,
        "delta rules": model.delta,
        "blocks without attention": not all(block.mixer for block in model.blocks.values()),
        "blocks without feed-forward network": not all(
            block.feed_forward or block.experts for block in model.blocks.values()
        ),
        "latent attention": model.latent,
        "attention to a window": model.window,
        "attention in chunks": model.chunk,
        "gates of attention": model.attention_gate,
        "values that are the keys": model.shared_kv,
        f"grouped-query attention ({model.kv_heads} key-value heads of {model.heads})": (
            model.kv_heads != model.heads
        ),
        f"heads {model.head_width} wide": model.query_width != model.hidden,
        "gated feed-forward networks": feed_forward and model.gated,
        f"feed-forward networks {model.feed_forward} wide (4 × hidden is {4 * model.hidden})": (
            feed_forward and model.feed_forward != 4 * model.hidden
        ),
        "layers that predict tokens further on (mtp)": model.mtp,
        "low-rank matrices (lora)": model.lora,
    }
    if names := [name for name, there in unpriced.items() if there]:
        raise PhazeError(f"{where}: tiles do not price {', '.join(names)} of model {model.name}")


class TiledSettings(Noun):
    """How a transformer is spread over groups of tiles."""

    show: Literal["table", "splits", "pipeline"]
    """Beside printed throughputs (PALM, Table VII); by splits of a stage's tiles, with the occupancy of links
    (Figures 9 and 10); or event by event, with a picture of the pipeline and of the links."""
    sequence: PositiveInt = 2048
    """Tokens of a sample."""
    stages: PositiveInt = 20
    """Stages, each on as many tiles."""
    microbatches: tuple[PositiveInt, ...] = Field((20,), min_length=1)
    """Microbatches in a batch, each divided among the replicas of a stage."""
    tensor: tuple[PositiveInt, ...] = Field((8,), min_length=1)
    """Slices of a replica; replicas take the other tiles of a stage."""
    layouts: tuple[Lie, ...] = Field(("s-shaped",), min_length=1)
    """Stages in rows, in blocks along an S, or on tiles of your own (PALM, Figure 8)."""
    own: tuple[tuple[int, ...], ...] | None = None
    """Tiles of every stage, row by row from 0, for layout own."""
    placed: tuple[Placed, ...] = Field(("near",), min_length=1)
    """Slices of a replica next to each other (PALM's comm1), or replicas of a slice (comm2)."""


class TiledPoint(TiledSettings):
    """One job: a case with one model on one system."""

    system: Name
    """Name of a file in config/systems with tiles."""
    model: Name
    """Name of a spec in config/models."""
    batch: PositiveInt
    """Samples in a batch."""


class TiledCase(TiledSettings):
    """Transformers in a pipeline on groups of tiles, in every combination of what is listed."""

    title: Label
    """Title for readers."""
    systems: tuple[Name, ...] = Field(("wafer",), min_length=1)
    """Names of files in config/systems with tiles."""
    batches: dict[Name, PositiveInt] = Field(min_length=1)
    """Samples in a batch by model, a name of a spec in config/models."""

    @model_validator(mode="after")
    def _own_tiles(self) -> Self:
        if ("own" in self.layouts) != (self.own is not None):
            raise ValueError("own: the tiles of every stage must be given for layout own, and only for it")
        return self

    def points(self) -> dict[str, TiledPoint]:
        """Jobs of the case by a name that is also a file name."""
        shared = self.model_dump(include=set(TiledSettings.model_fields))
        return {
            f"{model}.{system}": TiledPoint(system=system, model=model, batch=batch, **shared)
            for system in self.systems
            for model, batch in self.batches.items()
        }


class ExchangeReading(Noun):
    """A reading of how two groups of tiles talk (PALM, Figure 12): what is sent how, and what is compared."""

    compare: Literal["best", "equal-adapters", "slowest-fastest"] = "best"
    """Each strategy with its best number of adapters; both with one and the same, where the gain is largest;
    or the slowest of the one over the fastest of the other."""
    most_adapters: PositiveInt | None = None
    """Adapters are from one to so many; as many as a group has tiles unless given."""
    sends: Literal["neighbours", "direct"] = "neighbours"
    """Whether reduces and broadcasts inside a group pass from neighbour to neighbour, or directly between the
    adapter and every tile."""
    ties: Literal["ring", "rows"] = "ring"
    """Which of the tiles that are equally near to the other group is the adapter: the first around the ring,
    or the first row by row, a corner."""
    switching: tuple[Switching, ...] = Field(("pipelined", "hop-by-hop"), min_length=1)
    """Whether a transfer holds its whole route at once (PALM, Equation 2) or link after link (Equation 3)."""
    half_duplex: tuple[bool, ...] = Field((False, True), min_length=1)
    """Whether the two directions between neighbours exclude each other."""
    pieces: tuple[PositiveInt, ...] = Field((1, 4), min_length=1)
    """In how many pieces a reduce or broadcast along neighbours sends a tensor."""

    @model_validator(mode="after")
    def _whole_if_direct(self) -> Self:
        if self.sends == "direct" and self.pieces != (1,):
            raise ValueError(f"pieces: must be [1] for direct sends, got {list(self.pieces)}")
        return self


class TiledStudy(Noun):
    """Cases to simulate on tiled accelerators, in addition to the models of the study."""

    published: Name | None = None
    """Published results to show beside ours, a file in config/published."""
    cases: dict[Name, TiledCase] = Field(default_factory=dict)
    """Transformers on tiles, by name."""
    tables: tuple[PrintedTable, ...] = ()
    """Tables of PALM beside ours: ratios of accelerators (I), runs on GPUs (IV), Grayskull (V)."""
    figures: tuple[Figure, ...] = ()
    """Figures of PALM on the network alone: rings (6), tasks that overlap (7), groups that talk (12)."""
    exchanges: dict[Name, ExchangeReading] = Field(default_factory=dict)
    """Readings of Figure 12, by name; one with the defaults unless given."""
