"""Operators of any model on a group of tiles, from the graph of the workload.

A layer is its fused operators (`workload.lower`): a product with the elementwise operations that follow it,
or a reduction such as a norm or softmax. PALM's Table III has the products. The others (norms, activation
functions, softmax, lookups, scans) run on the vector lanes of the tiles and at the bandwidth of their SRAM,
see `tile`; with tiles that specify neither, only their memory traffic counts. Scores of attention are tensors
like any other, but only unmasked ones are computed, as `phaze model` counts them.

Here a layer is cut by Megatron's layout, as the sharded workload has it: replicas of tensor-parallel ranks,
experts sharded over the replicas. Collectives are those of the workload: all-reduces of tensor-parallel
ranks, and all-to-alls of dispatched tokens. `degrees` cuts operators one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from phaze.cost.vector import usual_cycles
from phaze.layout import Layout
from phaze.spec.models import AnyModel
from phaze.spec.rows import Gemm
from phaze.tiles.operators import (
    CutOperator,
    Degrees,
    Phase,
    Reduction,
    TileAxis,
    TileOperator,
    TileShare,
)
from phaze.workload.kinds import COLLECTIVES
from phaze.workload.lower.backward import backward_pass
from phaze.workload.lower.forward import forward_pass
from phaze.workload.lower.fusion import Group, fuse
from phaze.workload.lower.memory import Stash, first_stashes, stored
from phaze.workload.models import build_graph
from phaze.workload.operators import Operator, Part
from phaze.workload.primitives import INDEX_BYTES, LayerGraph, Primitive

Cut = tuple[tuple[TileOperator, Degrees], ...]
"""Operators of a layer on a group of tiles, in order, each with the degrees by which it is cut."""
MESH_AXES: dict[str, TileAxis] = {"tp": "t", "etp": "t", "ep": "e"}
"""Axes of tiles by axis of a layout, for the collectives inside layers."""


class StoredOperands(NamedTuple):
    """Elements that a product stores for its backward pass, without those that another operator stores."""

    first: float
    second: float


class LayerOperator(NamedTuple):
    """Fused operator of a layer with its backward pass, before it is cut into tiles."""

    forward: Operator
    backward: Operator
    primitives: tuple[Primitive, ...]
    visible: float
    """Share of the products that no mask discards, 1 outside attention."""
    width: int
    """Bytes per element."""
    stored_operands: StoredOperands = StoredOperands(0.0, 0.0)
    """Elements of the product's operands among those that the operator stores for the backward pass."""
    indices: Group = ()
    """Positions of the primitives in the graph of the layer."""

    @property
    def flops(self) -> float:
        """FLOPs of the forward and the backward pass, masked scores left out."""
        return self.visible * (self.forward.tensor_flops + self.backward.tensor_flops)

    @property
    def parameters(self) -> int:
        """Number of parameters of the operator."""
        return sum(primitive.parameters for primitive in self.primitives)

    @property
    def expert(self) -> bool:
        """True if the parameters are those of experts."""
        return any(primitive.group == "expert" for primitive in self.primitives)

    @property
    def product(self) -> Primitive | None:
        """Product of the operator; None if it has vector operations only."""
        return next((primitive for primitive in self.primitives if primitive.gemm is not None), None)

    @property
    def gemm(self) -> Gemm | None:
        """Sizes of the product."""
        return None if self.product is None else self.product.gemm

    @property
    def row_width(self) -> int:
        """Width of the rows that a lookup reads, 1 for other operators."""
        lookups = [primitive for primitive in self.primitives if primitive.kind == "lookup"]
        # A lookup reads one index per row.
        rows = (max(1, primitive.constant_bytes // INDEX_BYTES) for primitive in lookups)
        widths = (primitive.elements // count for primitive, count in zip(lookups, rows, strict=True))
        return min(widths, default=1)

    @property
    def empty(self) -> bool:
        """True if the operator neither computes, communicates nor stores in either pass."""
        return not (self.forward.parts or self.backward.parts or self.parameters)

    @property
    def share(self) -> TileShare:
        """Share of a tile that runs the whole operator, without collectives."""
        forward, backward, network = self.forward, self.backward, self.forward.core == "network"
        return TileShare(
            forward.tensor_flops * self.visible,
            self.gemm,
            self.parameters,
            0.0 if network or not forward.parts else forward.input_bytes / self.width,
            0.0 if network or not forward.parts else forward.output_bytes / self.width,
            vector_cycles=_lane_cycles(forward.parts),
            backward_flops=backward.tensor_flops * self.visible,
            backward_cycles=_lane_cycles(backward.parts),
            backward_idle=not backward.parts or backward.core == "network",
            stored=forward.stashed_bytes / self.width,
            fetched=forward.parameter_bytes / self.width,
        )


class ModelLayer(NamedTuple):
    """Distinct layer of a model: its fused operators, and the graph of their primitives."""

    operators: tuple[LayerOperator, ...]
    graph: LayerGraph

    @property
    def output_elements(self) -> int:
        """Elements that the layer passes to the next one."""
        return self.graph.output_elements

    @property
    def flops(self) -> float:
        """FLOPs of the forward and the backward pass, masked scores left out."""
        return sum(operator.flops for operator in self.operators)


@dataclass(frozen=True)
class ModelLayers:
    """Layers of a model for a microbatch on each replica of a layout."""

    layers: Mapping[str, ModelLayer]
    order: tuple[str, ...]
    """Distinct layer at each position of the model."""


@lru_cache(maxsize=256)
def model_layers(model: AnyModel, sequence: int, layout: Layout) -> ModelLayers:
    """Lower a model to the operators of one rank of a layout.

    Raises `PhazeError` if the layout cannot shard the model, or the model does not support the sequence.
    """
    width = layout.bytes_per_element
    graph = build_graph(model, sequence, layout, width)
    layers = {layer.name: ModelLayer(tuple(_operators(layer, width)), layer) for layer in graph.layers}
    return ModelLayers(layers, tuple(run.layer for run in graph.runs for _ in range(run.count)))


def _operators(layer: LayerGraph, width: int) -> Iterator[LayerOperator]:
    """Yield the fused operators of a layer, each with its operator of the backward pass."""
    groups, stashed = fuse(layer, after_reductions=True), first_stashes(layer, width)
    forward, backward = forward_pass(layer, groups, width), backward_pass(layer, groups, width, "paired")
    mask = 1.0
    # The backward pass has the operators of the forward pass in reverse.
    for group, ahead, back in zip(groups, forward.operators, reversed(backward.operators), strict=True):
        if ahead.scores is not None:
            mask = ahead.scores.mean / ahead.scores.keys
        primitives = tuple(layer.primitives[index] for index in group)
        operands = _stored_operands(layer, group, stashed, width)
        operator = LayerOperator(
            ahead, back, primitives, mask if ahead.attention else 1.0, width, operands, group
        )
        if not operator.empty:
            yield operator


def _stored_operands(
    layer: LayerGraph, group: Sequence[int], stashed: Sequence[Sequence[Stash]], width: int
) -> StoredOperands:
    """Elements of each operand that the product of a fused operator is the first to store."""
    index = next((index for index in group if layer.primitives[index].gemm is not None), None)
    if index is None:
        return StoredOperands(0.0, 0.0)
    first = stored(layer, layer.primitives[index].inputs[0])
    sizes = [0.0, 0.0]
    for stash in stashed[index]:
        sizes[(stash.source, stash.piece) != (first.source, first.piece)] += stash.nbytes / width
    return StoredOperands(*sizes)


def _lane_cycles(parts: Sequence[Part]) -> float:
    """Cycles of one vector lane for the vector operations of an operator."""
    return sum(
        part.elements * _cycles()[part.role, part.kind]
        for part in parts
        if part.kind != "matmul" and part.kind not in COLLECTIVES
    )


@lru_cache(maxsize=1)
def _cycles() -> Mapping[tuple[str, str], float]:
    """Cycles per element of vector operations, by pass and kind; read from their file once."""
    return usual_cycles()


def laid_out(layer: ModelLayer, layout: Layout, tokens: int = 1) -> Cut:
    """Operators of a layer of the workload of one rank, with the collectives of its layout.

    With `tokens` > 1 those of the last of so many tokens of each sample: decode.
    """
    scores = [operator.forward.scores for operator in layer.operators if operator.forward.scores is not None]
    attended = max((sizes.longest / sizes.keys for sizes in scores), default=1.0)
    return tuple(_on_rank(operator, layout, tokens, attended) for operator in layer.operators)


def _last_token(operator: LayerOperator, tokens: int, attended: float) -> TileShare:
    """Share of an operator for the last of the tokens of each sample, without collectives.

    Products have one row instead of the rows of all tokens. Attention reads the stored keys or values of the
    share `attended` of all tokens, to which the last one attends.
    """
    share = operator.share
    flops, inputs, product, cached = share.flops / tokens, share.inputs / tokens, share.product, 0.0
    if product is not None and operator.forward.attention:
        cached = float(product.batch * product.k * product.n) * attended
        # The other operand has a row for the last token alone, and the flops have no mask.
        inputs = product.batch * max(1.0, product.m / tokens) * product.k + cached
        flops = operator.forward.tensor_flops * attended / tokens
    if product is not None:
        product = replace(product, m=max(1, product.m // tokens))
    return replace(
        share, flops=flops, product=product, inputs=inputs, outputs=share.outputs / tokens,
        vector_cycles=share.vector_cycles / tokens, stored=cached,
    )  # fmt: skip


def _on_rank(
    operator: LayerOperator, layout: Layout, tokens: int, attended: float
) -> tuple[CutOperator, Degrees]:
    """Operator of one rank, with its collectives and the degrees (replicas, expert ranks, tensor ranks)."""
    reductions = [
        Reduction(phase, MESH_AXES[part.axis], layout.group(part.axis).ranks,
                  part.network_bytes / operator.width / tokens, part.kind)  # type: ignore[arg-type]
        for phase, parts in _phases(operator) for part in parts if part.axis
    ]  # fmt: skip
    uses_experts = operator.expert or any(reduction.axis == "e" for reduction in reductions)
    degrees = (
        (layout.dp // layout.ep, layout.ep, layout.tp, 1) if uses_experts else (layout.dp, layout.tp, 1, 1)
    )
    axes: tuple[TileAxis, ...] = ("d", "e", "t") if uses_experts else ("d", "t")
    if operator.parameters and degrees[0] > 1:
        reductions.append(Reduction("update", "d", degrees[0], operator.parameters))
    share = operator.share if tokens == 1 else _last_token(operator, tokens, attended)
    share = replace(share, reductions=tuple(reductions))
    return CutOperator(operator.forward.name, share, axes), degrees


def _phases(operator: LayerOperator) -> Iterator[tuple[Phase, tuple[Part, ...]]]:
    yield "forward", operator.forward.parts
    yield "backward", operator.backward.parts
