"""Primitive operators of a model before fusion, by distinct layers, and the builder of layers.

Every primitive has one output tensor. A tensor with several readers passes through a `fork`, whose backward
pass sums the gradients of the readers. Every operator of the backward pass therefore mirrors one of the
forward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, Literal, Self, TypeVar

from phaze.base.errors import PhazeError
from phaze.layout import Axis, Module, OffloadedModule
from phaze.spec.names import ParameterGroup
from phaze.spec.rows import Gemm
from phaze.workload.kinds import KINDS, Kind

Region = Module | OffloadedModule | Literal["scan", "gate", "router", "logits"]
"""Group of primitives that may be recomputed, offloaded, or kept in high precision together.

A region may be recomputed together: a module, a scan, whose kernels store only their inputs, or the
activation of a gate, if one kernel recomputes it. Or its inputs may be offloaded to host memory. Or it is a
product of a router or a head, which no recipe runs in a lower precision.
"""

Whole = TypeVar("Whole")
Real = TypeVar("Real")

INDEX_BYTES = 8
"""Bytes per token id, label, or index into a table."""
INPUT = -1
"""Value of `Tensor.source` for the tensor passed on by the previous layer."""
MOST_OPERATORS = 500_000
"""Maximum number of operators of an unrolled model; a transformer of a thousand blocks has some 35,000."""


@dataclass(frozen=True)
class ScoreSizes(Generic[Whole, Real]):
    """Sizes of attention cores or fused attention kernels: queries, keys, heads and head dimensions."""

    samples: Whole
    queries: Whole
    """Queries per sample."""
    keys: Whole
    """Keys per sample."""
    longest: Real
    """Maximum number of keys per query: all, a window, or a chunk."""
    mean: Real
    """Mean number of keys per query: half the maximum with a causal mask."""
    heads: Whole
    kv_heads: Whole
    size: Whole
    """Head dimension of queries and keys."""
    value_size: Whole


@dataclass(frozen=True)
class Scores(ScoreSizes[int, float]):
    """Sizes of one attention core or fused attention kernel."""

    @property
    def windowed(self) -> bool:
        """True if windows or chunks limit the keys that each query attends to."""
        return self.longest < self.keys


@dataclass(frozen=True)
class Tensor:
    """Input tensor of a primitive: the whole output of another primitive, or a piece of it."""

    source: int
    """Index of the primitive that produces the tensor, or INPUT."""
    elements: int
    piece: int = 0
    """Index of the piece, if several readers read disjoint pieces of the output."""
    gradient: bool = True
    """True if a gradient flows back through the tensor."""


@dataclass(frozen=True)
class Primitive:
    """Operator of a model before fusion."""

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    elements: int
    """Number of output elements."""
    gemm: Gemm | None = None
    parameters: int = 0
    constant_bytes: int = 0
    """Bytes of indices, masks or tables read in addition to the inputs, in both passes; never stashed."""
    group: ParameterGroup = "dense"
    """Parameter group to which the parameters belong."""
    axis: Axis | Literal[""] = ""
    """Parallel axis over which a collective runs, see `Layout.group`; empty for other kinds."""
    regions: frozenset[Region] = frozenset()
    """Regions to which the primitive belongs."""
    kept_bytes: int = 0
    """Bytes stored in addition to tensors: expert choices, and memory that is stored along with a piece."""
    times: int = 1
    """Number of times that the cycle-table keys of the kind apply to every element."""
    frozen: bool = False
    """True if the parameters have no gradient and are never updated."""
    scores: Scores | None = None
    """Shape of the attention core whose scores the primitive computes."""

    @property
    def attention(self) -> bool:
        """True for the attention core: from queries, keys and values to the attention result.

        Selective recomputation recomputes it (Korthikanti et al. 2023, Section 5), and FlashAttention fuses
        it.
        """
        return "core_attn" in self.regions

    @property
    def traits(self) -> Kind:
        """Properties shared by all primitives of this kind."""
        return KINDS[self.kind]

    @property
    def parameters_read(self) -> int:
        """Number of parameters read; for an embedding table, only those of the rows looked up."""
        return min(self.elements, self.parameters) if self.kind == "lookup" else self.parameters

    def reading(self, place: Mapping[int, int]) -> Self:
        """Primitive that reads from new indices, by old ones; indices that are missing stay."""
        if all(place.get(x.source, x.source) == x.source for x in self.inputs):
            return self  # most primitives of most layers, and copies take time
        inputs = tuple(replace(x, source=place.get(x.source, x.source)) for x in self.inputs)
        return replace(self, inputs=inputs)


@dataclass(frozen=True)
class LayerGraph:
    """Primitives of a layer in topological order."""

    name: str
    primitives: tuple[Primitive, ...]
    input_elements: int
    """Number of elements received from the previous layer, 0 in the first layer."""
    output_elements: int
    """Number of elements passed to the next layer, 0 in the last layer."""

    @cached_property
    def readers(self) -> list[list[tuple[int, Tensor]]]:
        """Readers of every primitive's output, with the tensor that each reads."""
        readers: list[list[tuple[int, Tensor]]] = [[] for _ in self.primitives]
        for reader, primitive in enumerate(self.primitives):
            for tensor in primitive.inputs:
                if tensor.source != INPUT:
                    readers[tensor.source].append((reader, tensor))
        return readers


class LayerBuilder:
    """Builder that collects the primitives of a layer in topological order."""

    def __init__(self, input_elements: int = 0) -> None:
        self._primitives: list[Primitive] = []
        self._regions: list[frozenset[Region]] = []
        """Regions of each primitive so far; it gets them at last, as a copy for each mark is slow."""
        self._input_elements = input_elements

    @property
    def input(self) -> Tensor:
        """Tensor passed on by the previous layer."""
        return Tensor(INPUT, self._input_elements)

    def add(
        self,
        kind: str,
        name: str,
        *inputs: Tensor,
        elements: int | None = None,
        gemm: Gemm | None = None,
        parameters: int = 0,
        constant_bytes: int = 0,
        group: ParameterGroup = "dense",
        axis: Axis | Literal[""] = "",
        kept_bytes: int = 0,
        times: int = 1,
        scores: Scores | None = None,
    ) -> Tensor:
        """Append a primitive and return its output, by default as large as its first input."""
        if elements is None:
            elements = inputs[0].elements if gemm is None else gemm.result_elements
        self._primitives.append(
            Primitive(
                *(name, kind, inputs, elements, gemm, parameters, constant_bytes, group, axis),
                kept_bytes=kept_bytes,
                times=times,
                scores=scores,
            )
        )
        self._regions.append(frozenset())
        return Tensor(len(self._primitives) - 1, elements)

    def dense(
        self, name: str, x: Tensor, tokens: int, wide: int, *, bias: bool, group: ParameterGroup = "dense"
    ) -> Tensor:
        """Append a matrix multiplication with weights, (tokens x k)(k x wide), and optionally a bias."""
        gemm = Gemm(1, tokens, x.elements // tokens, wide)
        parameters = gemm.k * wide
        y = self.add("matmul", name, x, gemm=gemm, parameters=parameters, group=group)
        return self.bias(name, y, wide) if bias else y

    def bias(self, name: str, x: Tensor, wide: int, group: ParameterGroup = "dense") -> Tensor:
        """Append the addition of a bias."""
        return self.add("bias", f"{name}_bias", x, parameters=wide, group=group)

    @property
    def count(self) -> int:
        """Number of primitives so far."""
        return len(self._primitives)

    def mark(self, region: Region, first: int) -> None:
        """Mark the primitives from `first` to the last one as part of a region."""
        for index in range(first, self.count):
            self._regions[index] |= {region}

    def dropout(self, name: str, x: Tensor, share: float) -> Tensor:
        """Append a dropout unless its rate is 0."""
        return self.add("dropout", f"{name}_dropout", x) if share else x

    def by_heads(self, name: str, x: Tensor) -> Tensor:
        """Append the reshape and transpose that group the elements by head."""
        return self.add("transpose", f"{name}_transpose", self.add("reshape", f"{name}_reshape", x))

    def classify(
        self, logits: Tensor, count: int, softmax: str = "log_softmax", loss: str = "nll_loss"
    ) -> Tensor:
        """Append the cross entropy of `count` labelled samples."""
        y = self.add("log_softmax", softmax, logits)
        label_bytes = count * INDEX_BYTES
        return self.add("nll_loss", loss, replace(y, elements=count), constant_bytes=label_bytes)

    def finish(self, name: str, output_elements: int) -> LayerGraph:
        """Build the layer, with a fork after every tensor that has several readers."""
        primitives = (
            replace(primitive, regions=regions) if regions else primitive
            for primitive, regions in zip(self._primitives, self._regions, strict=True)
        )
        return with_forks(LayerGraph(name, tuple(primitives), self._input_elements, output_elements))


def with_forks(layer: LayerGraph) -> LayerGraph:
    """Insert a fork after every tensor that receives more than one gradient."""
    forked = _forked(layer)
    primitives: list[Primitive] = []
    place: dict[int, int] = {}
    """New index to read instead of each old one: that of the primitive, or of its fork."""

    def fork(name: str, index: int, elements: int) -> None:
        output = (Tensor(place.get(index, index), elements),)
        primitives.append(Primitive(f"{name}_fork", "fork", output, elements))
        place[index] = len(primitives) - 1

    if INPUT in forked:
        fork("input", INPUT, layer.input_elements)
    for index, primitive in enumerate(layer.primitives):
        primitives.append(primitive.reading(place))
        place[index] = len(primitives) - 1
        if index in forked:
            fork(primitive.name, index, primitive.elements)
    return replace(layer, primitives=tuple(primitives))


def _forked(layer: LayerGraph) -> set[int]:
    """Primitives whose whole output has several readers, and therefore receives several gradients."""
    count: Counter[int] = Counter()
    for primitive in layer.primitives:
        for tensor in primitive.inputs:
            # Pieces of a split are disjoint, and a fork already sums the gradients of its readers.
            shares = tensor.source != INPUT and layer.primitives[tensor.source].kind in ("split", "fork")
            count[tensor.source] += tensor.gradient and not shares
    return {source for source, readers in count.items() if readers > 1}


@dataclass(frozen=True)
class LayerRun:
    """Run of identical consecutive layers."""

    layer: str
    """Name of the distinct layer."""
    count: int = 1
    reads: tuple[int, ...] = ()
    """Indices of the runs whose last layers feed the pieces of this run's input; empty: the previous run."""


@dataclass(frozen=True)
class ModelGraph:
    """Primitives of a model for one microbatch: its distinct layers, and their order."""

    layers: tuple[LayerGraph, ...]
    """Distinct layers; a layer that reads several runs starts with a `split` of its input."""
    runs: tuple[LayerRun, ...]

    def with_head_in_layers(self) -> ModelGraph:
        """Model whose every layer between the embedding and the head ends with a copy of the head.

        All copies read the same embedding matrix, so none of them has parameters of its own.
        """
        tail = next((layer for layer in self.layers if layer.name == "head"), None)
        if tail is None:
            return self
        head = replace(
            tail,
            primitives=tuple(replace(p, parameters=0) if p.kind == "matmul" else p for p in tail.primitives),
        )

        def with_head(layer: LayerGraph) -> LayerGraph:
            count = len(layer.primitives)
            copies = _moved(head, "head", count, [count - 1])
            return replace(layer, primitives=(*layer.primitives, *copies))

        layers = tuple(
            layer if layer.name == "embedding" else with_head(layer)
            for layer in self.layers
            if layer.name != "head"
        )
        return ModelGraph(layers, tuple(run for run in self.runs if run.layer != "head"))

    def with_products_of_a_sample(self, microbatch: int) -> ModelGraph:
        """Model whose products with weights run on one sample of a microbatch; other operators on all."""

        def on_sample(primitive: Primitive) -> Primitive:
            gemm = primitive.gemm
            if gemm is None or not primitive.parameters or gemm.m % microbatch:
                return primitive
            return replace(primitive, gemm=replace(gemm, m=gemm.m // microbatch))

        layers = tuple(
            replace(layer, primitives=tuple(map(on_sample, layer.primitives))) for layer in self.layers
        )
        return replace(self, layers=layers)

    def unroll(self) -> LayerGraph:
        """Unroll the model into one layer with all operators, whose names are prefixed by their layers.

        Raises PhazeError if there are more than `MOST_OPERATORS`.
        """
        sizes = {layer.name: len(layer.primitives) for layer in self.layers}
        total = sum(run.count * sizes[run.layer] for run in self.runs)
        if total > MOST_OPERATORS:
            raise PhazeError(f"the model has {total:,} operators, a graph may have {MOST_OPERATORS:,}")
        primitives: list[Primitive] = []
        ends: list[int] = []
        # `_placed` reads `ends` between two layers: each layer's end is appended before the next is placed.
        for name, layer, sources in self._placed(ends):
            primitives += _moved(layer, name, len(primitives), [ends[q] for q in sources])
            ends.append(len(primitives) - 1)
        return with_forks(LayerGraph("model", _read_forks(primitives), 0, 0))

    def _placed(self, ends: list[int]) -> Iterator[tuple[str, LayerGraph, list[int]]]:
        """Yield every layer with its unrolled name and the positions of the layers that it reads."""
        layers = {layer.name: layer for layer in self.layers}
        totals = Counter[str]()
        for run in self.runs:
            totals[run.layer] += run.count
        numbers = Counter[str]()
        last: list[int] = []
        for run in self.runs:
            for _ in range(run.count):
                numbers[run.layer] += 1
                name = f"{run.layer}-{numbers[run.layer]}" if totals[run.layer] > 1 else run.layer
                before = [len(ends) - 1] if ends else []
                yield name, layers[run.layer], [last[q] for q in run.reads] or before
            last.append(len(ends) - 1)


def _moved(layer: LayerGraph, name: str, start: int, sources: list[int]) -> list[Primitive]:
    """Primitives of a layer, renumbered to follow `start` earlier ones, with `sources` as its inputs."""
    split = len(sources) > 1

    def place(tensor: Tensor) -> Tensor:
        if tensor.source == INPUT:
            return replace(tensor, source=sources[0]) if sources else tensor
        # The split is left out: its pieces are the outputs of the layers that this one reads.
        if split and tensor.source == 0:
            return Tensor(sources[tensor.piece], tensor.elements)
        return replace(tensor, source=tensor.source + start - split)

    return [
        replace(primitive, name=f"{name}.{primitive.name}", inputs=tuple(map(place, primitive.inputs)))
        for primitive in layer.primitives[split:]
    ]


def _read_forks(primitives: list[Primitive]) -> tuple[Primitive, ...]:
    """Redirect readers of a forked tensor to the fork."""
    # A layer may start with a fork of its input; other layers that read the same tensor must read that fork.
    forks = {p.inputs[0].source: index for index, p in enumerate(primitives) if p.kind == "fork"}
    return tuple(p if p.kind == "fork" else p.reading(forks) for p in primitives)
