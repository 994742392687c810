"""Cases on tiled accelerators: models, chips, mappings and presentation."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from phaze.base.errors import PhazeError
from phaze.layout import Optimizer, Precision, Zero
from phaze.spec.model import Model
from phaze.spec.names import AdapterComparison
from phaze.spec.noun import Noun
from phaze.spec.values import Label, Name, PositiveInt

StagePlacement = Literal["line", "s-shaped", "own"]
"""Placement of stages: in rows, in blocks along an S, or on user-specified tiles (PALM, Figure 8)."""
Placed = Literal["near", "far"]
Inference = Literal["prefill", "decode"]
StageParts = Literal["layers", "operators"]
SimulatedLinks = Literal["auto", "each", "groups"]
Figure = Literal["6", "7", "12"]
Switching = Literal["pipelined", "hop-by-hop"]
PublishedTable = Literal["I", "IV", "V"]
OperatorDegrees = tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt]


def check_tiled(model: Model, where: str) -> None:
    """Raise PhazeError unless every block is a transformer layer that tiles support (PALM, Table III).

    That layer has multi-head attention and a feed-forward network of two matrices, 4 × hidden wide. `where`
    is the prefix of the message.
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
    if names := [name for name, present in unpriced.items() if present]:
        raise PhazeError(
            f"{where}: simulation on tiles does not support {', '.join(names)} of model {model.name}"
        )


class TiledSettings(Noun):
    """Settings for training a model on groups of tiles."""

    show: Literal["table", "splits", "pipeline"]
    """Content: comparison with published throughputs (PALM, Table VII); splits of a stage's tiles, with the
    occupancy of links (Figures 9 and 10); or a simulation event by event, with a picture of the pipeline and
    of the links.
    """
    sequence: PositiveInt = 2048
    """Tokens in a sample."""
    stages: PositiveInt | Annotated[tuple[tuple[PositiveInt, PositiveInt], ...], Field(min_length=1)] = 20
    """Number of groups of tiles, equally large, each with one stage for every chunk; or the layers (operators
    with `stage_parts`) and tiles of every stage, as [[layers, tiles], …]. Embedding and head are layers.
    """
    stage_parts: StageParts = "layers"
    """Parts of the model that stages share out: its layers, or its operators, so that a stage may begin
    inside a layer. An operator is a product with the operations fused to it, or another operation such as a
    norm; collectives do not count.
    """
    microbatches: tuple[PositiveInt, ...] = Field((20,), min_length=1)
    """Microbatches in a batch; each is divided among the replicas of a stage."""
    tensor: tuple[PositiveInt, ...] = Field((8,), min_length=1)
    """Tensor-parallel ranks of a replica; the other tiles of a stage are replicas. Unused with `degrees`."""
    layouts: tuple[StagePlacement, ...] = Field(("s-shaped",), min_length=1)
    """Placement of stages: in rows, in blocks along an S, or on the tiles in `own` (PALM, Figure 8)."""
    own: tuple[tuple[int, ...], ...] | None = None
    """Tiles of every stage, numbered row by row from 0, for layout own."""
    placed: tuple[Placed, ...] = Field(("near",), min_length=1)
    """Neighbours on the mesh: tensor-parallel ranks of a replica (PALM's comm1), or replicas of a shard
    (comm2).
    """
    operators: Literal["all", "palm"] = "all"
    """Operators of the model: all of them, with norms, embedding and head; or PALM's, six products per layer
    of a transformer (Table III).
    """
    split: Literal["compute", "layers"] = "compute"
    """Layers (operators with `stage_parts`) of a stage, if `stages` is a number: the slowest stage has the
    least compute, or all stages have equally many.
    """
    experts: PositiveInt = 1
    """Expert-parallel ranks among the replicas of a stage, which dispatch tokens by all-to-all."""
    degrees: dict[Label, OperatorDegrees] | None = None
    """Degrees by which operators are cut over the tiles of a stage, by name: [b, m, n, k] of a product,
    [b, c, i, k] of a convolution (PALM, Table III); the fastest for operators that are not listed. Default:
    tensor-parallel ranks and replicas, as `tensor` says.
    """
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b"
    """Pipeline schedule."""
    chunks: PositiveInt = 1
    """Stages per group of tiles: 2 or more for schedule interleaved, 1 for the others."""
    optimizer: Optimizer = "adam"
    """Optimizer, whose states each weight has."""
    precision: Precision = "mixed"
    """Precision of weights: half, mixed (with master weights in single precision), or single."""
    zero: Zero = 0
    """States of weights that replicas shard: none (0), optimizer states (1), also gradients (2), also weights
    (3).
    """
    recompute: Literal["needed", "always", "never"] = "needed"
    """Stages that recompute activations in the backward pass: those whose activations do not fit into DRAM,
    all, or none.
    """
    dram: Literal["limited", "unlimited"] = "limited"
    """Memory of the system: stages must fit into it, or it is unlimited."""
    remainder: Literal["refuse", "drop"] = "refuse"
    """Samples of a batch that do not fill whole microbatches of all replicas: an error, or dropped."""
    inference: Inference | None = None
    """Inference instead of training: prefill of `sequence` tokens a sample, or decode of the next token of
    every sample after `sequence` tokens. Optimizer, ZeRO, schedule and recomputation have no effect.
    """
    links: SimulatedLinks = "auto"
    """Simulated links: each of them, or those between groups of tiles, with formulas inside the groups. Auto:
    each of up to 4,096 tiles.
    """

    @field_validator("stages", mode="before")
    @classmethod
    def _counted(cls, stages: object) -> object:
        """Refuse other than a number or pairs of numbers in one message, not in one for each form."""
        pairs = stages if isinstance(stages, list | tuple) else []
        counts = [pair if isinstance(pair, list | tuple) and len(pair) == 2 else (0,) for pair in pairs]
        listed = counts and all(type(n) is int and n >= 1 for pair in counts for n in pair)
        # By type, as True is an instance of int.
        if not listed and not (type(stages) is int and stages >= 1):
            raise ValueError(
                "must be a number of at least 1, or layers (operators with stage_parts) and tiles of every "
                "stage, at least 1 each, such as [[2, 16], [2, 16]]"
            )
        return stages

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            least = "at least 2" if self.schedule == "interleaved" else "1"
            raise ValueError(f"chunks: must be {least} for schedule {self.schedule}, got {self.chunks}")
        inner = self.degrees is not None or self.experts > 1 or self.stage_parts == "operators"
        if self.operators == "palm" and inner:
            raise ValueError(
                "operators: must be all with degrees, experts or stage_parts operators, got palm"
            )
        if self.inference is not None and (self.chunks > 1 or self.degrees is not None):
            raise ValueError("inference: must have 1 chunk per group and no degrees")
        if self.inference == "decode" and self.operators == "palm":
            raise ValueError("operators: must be all for inference decode, got palm")
        if self.degrees is not None and self.experts > 1:
            raise ValueError(f"experts: must be 1 with degrees, got {self.experts}")
        tiles = self.group_tiles
        if tiles and tiles * self.chunks != tuple(count for _, count in self.listed_stages):
            raise ValueError(
                f"stages: every chunk of a group must have its tiles: {self.chunks} chunks of "
                f"{len(tiles)} groups, got {[count for _, count in self.listed_stages]}"
            )
        return self

    @property
    def listed_stages(self) -> tuple[tuple[int, int], ...]:
        """Layers (or operators) and tiles of every stage; empty if only their number is given."""
        return () if isinstance(self.stages, int) else self.stages

    @property
    def group_count(self) -> int:
        """Number of groups of tiles."""
        return self.stages if isinstance(self.stages, int) else len(self.stages) // self.chunks

    @property
    def group_tiles(self) -> tuple[int, ...]:
        """Number of tiles of each group; empty if all are equally large."""
        return tuple(tiles for _, tiles in self.listed_stages[: self.group_count])


class TiledPoint(TiledSettings):
    """Simulation job: one model of a case on one system."""

    system: Name
    """System of tiles: a name in config/systems."""
    model: Name
    """Model: a name in config/models."""
    batch: PositiveInt
    """Samples in a batch."""
    devices: PositiveInt | None = None
    """Devices of a cluster, such as h100, that take the place of tiles; default: all of the cluster."""


class TiledCase(TiledSettings):
    """Models pipelined over groups of tiles, in every combination of the listed values."""

    title: Label
    """Display title."""
    systems: tuple[Name, ...] = Field(("wafer",), min_length=1)
    """Systems of tiles: names in config/systems."""
    batches: dict[Name, PositiveInt] = Field(min_length=1)
    """Samples in a batch by model, a name in config/models."""

    @model_validator(mode="after")
    def _own_tiles(self) -> Self:
        if ("own" in self.layouts) != (self.own is not None):
            raise ValueError(
                "own: must have the tiles of every stage for layout own, and must be empty otherwise"
            )
        return self

    def points(self) -> dict[str, TiledPoint]:
        """Simulation jobs of the case, by a name that can also be a file name."""
        shared = self.model_dump(include=set(TiledSettings.model_fields))
        return {
            f"{model}.{system}": TiledPoint(system=system, model=model, batch=batch, **shared)
            for system in self.systems
            for model, batch in self.batches.items()
        }


class ExchangeReading(Noun):
    """Interpretation of the communication between two groups of tiles (PALM, Figure 12)."""

    compare: AdapterComparison = "best"
    """Comparison of strategies: each with its best number of adapters; both with the same number, where the
    gain is largest; or the slowest of the first over the fastest of the second.
    """
    most_adapters: PositiveInt | None = None
    """Maximum number of adapters; default: the tiles of a group."""
    sends: Literal["neighbours", "direct"] = "neighbours"
    """Route of reduces and broadcasts inside a group: from neighbour to neighbour, or directly between the
    adapter and every tile.
    """
    ties: Literal["ring", "rows"] = "ring"
    """Adapter among tiles that are equally near to the other group: the first around the ring, or the first
    row by row (a corner).
    """
    switching: tuple[Switching, ...] = Field(("pipelined", "hop-by-hop"), min_length=1)
    """Links that a transfer occupies: its whole route at once (PALM, Equation 2), or link after link
    (Equation 3).
    """
    half_duplex: tuple[bool, ...] = Field((False, True), min_length=1)
    """True if the two directions between neighbours exclude each other."""
    pieces: tuple[PositiveInt, ...] = Field((1, 4), min_length=1)
    """Numbers of pieces into which a reduce or broadcast along neighbours splits a tensor."""

    @model_validator(mode="after")
    def _whole_if_direct(self) -> Self:
        if self.sends == "direct" and self.pieces != (1,):
            raise ValueError(f"pieces: must be [1] for direct sends, got {list(self.pieces)}")
        return self


class TiledStudy(Noun):
    """Cases to simulate on tiled accelerators, in addition to the study's models."""

    published: Name | None = None
    """Published results to compare with: a file in config/published."""
    cases: dict[Name, TiledCase] = Field(default_factory=dict)
    """Models on tiles, by name."""
    tables: tuple[PublishedTable, ...] = ()
    """Tables of PALM to compare with: ratios of accelerators (I), runs on GPUs (IV), Grayskull (V)."""
    figures: tuple[Figure, ...] = ()
    """Figures of PALM on the network alone: rings (6), overlapping tasks (7), communicating groups (12)."""
    exchanges: dict[Name, ExchangeReading] = Field(default_factory=dict)
    """Interpretations of Figure 12, by name; default: one with default values."""
