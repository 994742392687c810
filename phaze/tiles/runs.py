"""Runs of a study point on tile groups: layers, layout, tiles of each stage, and options of training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from math import inf, lcm
from typing import Literal

from phaze.base.errors import PhazeError
from phaze.cost.memory import parameter_bytes
from phaze.layout import Layout, Optimizer
from phaze.spec.model import Model
from phaze.spec.models import AnyModel
from phaze.spec.tiled_study import StagePlacement, TiledPoint, check_tiled
from phaze.tiles.blocks import stage_blocks, stage_rows
from phaze.tiles.chains import ModelChain, PalmLayers, PartChain
from phaze.tiles.chip import Chip
from phaze.tiles.degrees import check_names
from phaze.tiles.placement import Placed, Tiles, in_turn, own
from phaze.tiles.stages import by_compute, evenly

Row = dict[str, object]
LINKED = 4096
"""Largest number of tiles of which every link is simulated unless the user asks for it."""
Recompute = Literal["needed", "always", "never"]


@dataclass(frozen=True)
class TiledRun:
    """Training run of a model on tile groups."""

    chain: PartChain
    batch: int
    """Samples in a batch."""
    microbatches: int
    """Microbatches in a batch; each is divided among the replicas of a stage."""
    layout: Layout
    """Tensor- and expert-parallel ranks, replicas of the first stage, chunks (vp), ZeRO and precision."""
    groups: tuple[Tiles, ...]
    """Tiles of each group, which has one stage for each chunk."""
    placed: Placed = "near"
    optimizer: Optimizer = "adam"
    schedule: str = "1f1b"
    recompute: Recompute = "always"
    dram_bytes: float = inf
    """Memory of the chip that stages may fill."""
    split: tuple[int, ...] = ()
    """Parts of the chain in each stage; empty: as evenly as possible."""
    inference: bool = False
    """True for forward passes only, without gradients, optimizer states and stored activations."""

    def __post_init__(self) -> None:
        if self.chain.count < self.stages or min(self.parts_of) < 1:
            raise PhazeError(
                f"tiles: stages: every one of {self.stages} needs a part of the model, which has "
                f"{self.chain.composition}",
                "choose fewer stages",
            )
        if len(self.parts_of) != self.stages or sum(self.parts_of) != self.chain.count:
            raise PhazeError(
                f"tiles: stages: must have all parts of the model, {self.chain.composition}; got "
                f"{sum(self.parts_of)} in {len(self.parts_of)} of {self.stages} stages",
                f"make the sum {self.chain.count}",
            )
        if self.chain.replicates and self.batch // self.microbatches < self.replicas:
            raise PhazeError(
                f"tiles: batch must have a sample for each of {self.microbatches} microbatches × "
                f"{self.replicas} replicas, got {self.batch}",
                f"make it at least {self.microbatches * self.replicas}, or choose fewer microbatches or a "
                "wider tensor",
            )

    @property
    def stages(self) -> int:
        """Number of stages, one for each group and chunk."""
        return len(self.groups) * self.layout.vp

    @property
    def replicas(self) -> int:
        """Fewest samples in a microbatch: the most replicas of a group, or the lcm for whole samples."""
        counts = replicas_of(self.groups, self.layout.tp)
        return lcm(*counts) if self.chain.whole_samples else max(counts)

    @property
    def microbatch(self) -> int:
        """Samples per microbatch, equally many on all replicas; the rest of the batch is dropped."""
        samples = self.batch // self.microbatches
        return samples // self.replicas * self.replicas if self.chain.whole_samples else samples

    @property
    def samples(self) -> int:
        """Simulated samples of a batch: those of whole microbatches."""
        return self.microbatch * self.microbatches

    @property
    def parts_of(self) -> tuple[int, ...]:
        """Number of layers, or operators, of each stage."""
        return self.split or evenly(self.chain.count, self.stages)

    @property
    def ranges(self) -> tuple[range, ...]:
        """Layers, or operators, of each stage."""
        return tuple(range(start, end) for start, end in pairwise([0, *accumulate(self.parts_of)]))

    @property
    def flops(self) -> float:
        """FLOPs of a batch without recomputation; in inference a third, and in decode those of one token."""
        flops = self.samples * sum(self.chain.loads)
        return flops / (3.0 if self.inference else 1.0) / (self.chain.sequence if self.decodes else 1)

    @property
    def decodes(self) -> bool:
        """True if every sample has one new token, after others."""
        return isinstance(self.chain, ModelChain) and self.chain.decode

    @property
    def element_bytes(self) -> int:
        """Bytes per element of activations, those of the weights in compute."""
        return parameter_bytes(self.optimizer, self.layout.precision).weights

    def tiles_of(self, stage: int) -> Tiles:
        """Tiles of a stage, which chunks share."""
        return self.groups[stage % len(self.groups)]

    def layout_of(self, stage: int) -> Layout:
        """Layout of the tiles of a stage; groups may have different numbers of replicas."""
        return replace(self.layout, dp=len(self.tiles_of(stage)) // self.layout.tp)


def replicas_of(groups: Sequence[Tiles], tensor: int) -> tuple[int, ...]:
    """Number of replicas of each group of tiles, of `tensor` tiles each."""
    return tuple(len(tiles) // tensor for tiles in groups)


def runs_of(case: str, point: TiledPoint, model: AnyModel, chip: Chip) -> Iterator[tuple[Row, TiledRun]]:
    """Yield a run for every combination of a point's options, with its key columns.

    Raises `PhazeError` if the tensor-parallel size does not divide the tiles of a stage.
    """
    where = f"tiled: case {case}"
    chain = chain_of(point, model, where)
    # Operators that are cut one by one have no tensor-parallel ranks in common.
    tensors = point.tensor if point.degrees is None else (1,)
    for shape, placed, tensor, microbatches in product(
        point.layouts, point.placed, tensors, point.microbatches
    ):
        groups = mapping(chip, point, shape)
        key = {
            "case": case, "system": point.system, "model": point.model, "layout": shape, "placed": placed,
            "tensor": tensor, "microbatches": microbatches,
        }  # fmt: skip
        yield key, TiledRun(
            chain, point.batch, microbatches, _layout(point, groups, tensor, microbatches, where), groups,
            placed, point.optimizer, point.schedule, point.recompute,
            inf if point.dram == "unlimited" else chip.dram_bytes, _split(point, chain, groups),
            inference=point.inference is not None,
        )  # fmt: skip


def chain_of(point: TiledPoint, model: AnyModel, where: str) -> PartChain:
    """Layers that a point simulates: PALM's products, or all operators of the model.

    Raises `PhazeError` if PALM's table lacks operators of the model, or if its layers are not a chain.
    """
    if point.operators == "palm":
        if not isinstance(model, Model):
            raise PhazeError(
                f"{where}: operators: must be all for model {model.name}, no transformer, got palm"
            )
        check_tiled(model, where)
        return PalmLayers(model.layers, model.hidden, model.heads, point.sequence)
    if point.group_count * point.chunks > 1:
        model.check_chain(where)
    # A sample of any other model has the length for which it was traced, or is an image.
    sequence = point.sequence if isinstance(model, Model) else model.usual_sequence
    decode = point.inference == "decode"
    if decode and not isinstance(model, Model):
        raise PhazeError(
            f"{where}: inference: must be prefill for model {model.name}, no transformer, got decode"
        )
    degrees = None if point.degrees is None else tuple(point.degrees.items())
    chain = ModelChain(model, sequence, degrees, decode, point.stage_parts)
    if point.degrees:
        check_names(point.degrees, chain.whole.layers.values(), where)
    return chain


def _layout(point: TiledPoint, groups: Sequence[Tiles], tensor: int, microbatches: int, where: str) -> Layout:
    """Layout of a run; raises `PhazeError` if its widths do not divide tiles, replicas or samples."""
    replicas = replicas_of(groups, tensor)
    if point.degrees is None:
        for tiles in groups:
            if len(tiles) % tensor:
                raise PhazeError(f"tiled: tensor must divide the {len(tiles)} tiles of a stage, got {tensor}")
    layout = Layout(
        tp=tensor, ep=point.experts, pp=len(groups), vp=point.chunks, dp=replicas[0], zero=point.zero,
        precision=point.precision,
    )  # fmt: skip
    for count in dict.fromkeys(replicas):
        if count % point.experts:
            raise PhazeError(
                f"{where}: experts: must divide the {count} replicas of a stage, got {point.experts}"
            )
    parts = microbatches * (1 if point.degrees is not None else lcm(*replicas))
    if point.remainder == "refuse" and point.batch % parts:
        raise PhazeError(
            f"{where}: batch: must be a multiple of the {microbatches} microbatches × "
            f"{parts // microbatches} replicas, got {point.batch}",
            f"make it {-(-point.batch // parts) * parts}, or choose other microbatches or a wider tensor",
        )
    return layout


def _split(point: TiledPoint, chain: PartChain, groups: Sequence[Tiles]) -> tuple[int, ...]:
    """Layers or operators of each stage, as given, by compute, or (empty) as evenly as possible."""
    if point.listed_stages:
        return tuple(parts for parts, _ in point.listed_stages)
    if point.split == "layers":
        return ()
    passed = chain.crossing if point.stage_parts == "operators" else None
    return by_compute(chain.loads, [len(tiles) for tiles in groups] * point.chunks, passed)


def default_batch(point: TiledPoint, chip: Chip) -> int:
    """Samples of a batch that all microbatches and replicas of a point share equally."""
    replicas = {
        1 if point.degrees is not None else max(1, len(tiles) // tensor)
        for shape, tensor in product(point.layouts, point.tensor)
        for tiles in mapping(chip, point, shape)
    }
    return lcm(*point.microbatches) * lcm(*replicas)


def mapping(chip: Chip, point: TiledPoint, shape: StagePlacement) -> tuple[Tiles, ...]:
    """Tiles of each group: in rows, in blocks along an S-shaped path, or as specified by the user."""
    if shape == "own":
        return own(chip.grid, point.own or ())
    grouped = point.links == "groups" or (point.links == "auto" and chip.grid.tiles > LINKED)
    sites, sizes, groups = chip.sites, point.group_tiles, point.group_count
    if sizes and (len(set(sizes)) > 1 or sum(sizes) != sites.tiles):
        listed = in_turn(sites, sizes, reverse=shape == "s-shaped")
        return tuple(chip.located(tiles) for tiles in listed)
    if shape == "line":
        blocks = stage_rows(sites, groups)
    else:
        parts = max(point.tensor) if grouped and point.degrees is None else 1
        blocks = stage_blocks(sites, groups, chip.wires.block, parts)
    if grouped and chip.lines is not None:
        raise PhazeError(
            f"system {chip.name}: has rows or columns without tiles: only each of its links can be simulated",
            "set links: each",
        )
    return tuple(blocks) if grouped else tuple(chip.located(block) for block in blocks)
