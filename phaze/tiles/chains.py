"""Chains of layers that a pipeline of tile groups runs: PALM's transformer layers, or those of any model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import prod
from operator import itemgetter
from typing import ClassVar, Protocol

from phaze.layout import Layout
from phaze.spec.models import AnyModel
from phaze.spec.tiled_study import StageParts
from phaze.spec.vision import ResNet, SemanticFpn
from phaze.tiles.chip import Chip
from phaze.tiles.cuts import CutLayer, bounded_operators
from phaze.tiles.degrees import cut_by_degrees
from phaze.tiles.lowering import Cut, LayerOperator, ModelLayer, ModelLayers, laid_out, model_layers
from phaze.tiles.operators import CutOperator, Degrees, Phase, TileOperator, TransformerLayer

SAMPLES = 960
"""Samples for which loads are counted: their tokens divide evenly among the experts of published models."""


class PartChain(Protocol):
    """Parts of a model in order, layers or operators, which stages share out among groups of tiles."""

    @property
    def count(self) -> int:
        """Number of parts."""

    @property
    def layer_count(self) -> int:
        """Number of layers."""

    @property
    def composition(self) -> str:
        """Parts of the model in words."""

    @property
    def sequence(self) -> int:
        """Tokens in a sample."""

    @property
    def replicates(self) -> bool:
        """True if every replica of a stage needs samples of its own."""

    @property
    def whole_samples(self) -> bool:
        """True if a replica cannot have a fraction of a sample."""

    @property
    def loads(self) -> tuple[float, ...]:
        """FLOPs of each part for a sample, forward and backward, without recomputation."""

    @property
    def crossing(self) -> tuple[float, ...]:
        """Elements that cross the boundary behind each part for `SAMPLES` samples, before layers are cut."""

    def cut(self, chip: Chip, parts: range, microbatch: int, layout: Layout, microbatches: int, /) -> Cut:
        """Operators of consecutive parts on a group of `layout.tp` × `layout.dp` tiles.

        `microbatch` samples are divided among the replicas. Raises `PhazeError` if that is impossible.
        """

    def passed_elements(self, part: int, microbatch: int, layout: Layout, phase: Phase, /) -> float:
        """Elements that each tile of a group passes on behind a part, or gradients that it passes back."""


@dataclass(frozen=True)
class PalmLayers:
    """PALM's transformer: layers of six products each, without norms, embedding and head (Table III)."""

    count: int
    hidden: int
    heads: int
    sequence: int
    replicates: ClassVar[bool] = True
    whole_samples: ClassVar[bool] = False

    @property
    def layer_count(self) -> int:
        """Number of layers."""
        return self.count

    @property
    def composition(self) -> str:
        """Parts of the model in words."""
        return f"{self.count} layers"

    @property
    def loads(self) -> tuple[float, ...]:
        """FLOPs of each layer for a sample: three times the forward pass."""
        forward = 24 * self.sequence * self.hidden**2 + 4 * self.sequence**2 * self.hidden
        return (3.0 * forward,) * self.count

    @property
    def crossing(self) -> tuple[float, ...]:
        """Elements of the activation behind each layer."""
        return (float(SAMPLES * self.sequence * self.hidden),) * self.count

    def cut(self, _: Chip, layers: range, microbatch: int, layout: Layout, __: int) -> Cut:
        """Layers of Table III; the samples of a replica may be a fraction."""
        layer = TransformerLayer(microbatch, self.hidden, self.sequence, self.heads)
        return ((layer, (layout.dp, layout.tp, 1, 1)),) * len(layers)

    def passed_elements(self, _: int, microbatch: int, layout: Layout, __: Phase) -> float:
        """Activation of a replica, whole on each of its tiles."""
        return microbatch / layout.dp * self.sequence * self.hidden


@dataclass(frozen=True)
class ModelChain:
    """All layers of a model, with all their operators, lowered from its workload."""

    model: AnyModel
    sequence: int
    degrees: tuple[tuple[str, Degrees], ...] | None = None
    """Degrees of operators by name, the others searched; None: all operators have Megatron's layout."""
    decode: bool = False
    """True for the next token after `sequence` tokens, whose keys and values are stored."""

    parts: StageParts = "layers"
    """Parts that stages share out."""

    @cached_property
    def whole(self) -> ModelLayers:
        """Whole layers for `SAMPLES` samples."""
        return model_layers(self.model, self.sequence, Layout(microbatch=SAMPLES))

    @cached_property
    def positions(self) -> tuple[tuple[int, range], ...]:
        """Layer of every part, and its bounded operators (`cuts`) among those of the layer."""
        counts = [len(self._bounded[name]) for name in self.whole.order]
        if self.parts == "layers":
            return tuple((layer, range(count)) for layer, count in enumerate(counts))
        return tuple(
            (layer, range(number, number + 1))
            for layer, count in enumerate(counts)
            for number in range(count)
        )

    @property
    def count(self) -> int:
        """Number of parts, those of embedding and head included."""
        return len(self.positions)

    @property
    def layer_count(self) -> int:
        """Number of layers, with embedding and head."""
        return len(self.whole.order)

    @property
    def composition(self) -> str:
        """Parts of the model in words: the number of layers, or the operators of each distinct layer."""
        if self.parts == "layers":
            return f"{self.count} layers"
        layers = (
            f"{times} × {name} ({', '.join(operator.forward.name for operator in self._bounded[name])})"
            for name, times in Counter(self.whole.order).items()
        )
        return f"{self.count} operators: {', '.join(layers)}"

    @property
    def replicates(self) -> bool:
        """True unless operators are cut one by one."""
        return self.degrees is None

    @property
    def whole_samples(self) -> bool:
        """True unless operators are cut one by one: the workload of a rank has whole samples."""
        return self.replicates

    @property
    def loads(self) -> tuple[float, ...]:
        """FLOPs of each part for a sample, forward and backward."""
        loads = {
            name: [operator.flops / SAMPLES for operator in operators]
            for name, operators in self._bounded.items()
        }
        return tuple(
            sum(loads[self.whole.order[layer]][numbers.start : numbers.stop])
            for layer, numbers in self.positions
        )

    @property
    def crossing(self) -> tuple[float, ...]:
        """Elements of the whole tensors that cross the boundary behind each part."""
        return tuple(self._crossing(self.whole, part, "forward") for part in range(self.count))

    def cut(self, chip: Chip, parts: range, microbatch: int, layout: Layout, microbatches: int) -> Cut:
        """Operators of the parts, cut by Megatron's layout or one by one."""
        lowered = self._lowered(microbatch, layout)
        cuts: dict[str, Cut] = {}
        operators = list[tuple[TileOperator, Degrees]]()
        for layer, group in groupby((self.positions[part] for part in parts), itemgetter(0)):
            numbers = [numbers for _, numbers in group]
            name = lowered.order[layer]
            if name not in cuts:
                cuts[name] = self._cut_layer(chip, lowered.layers[name], microbatch, layout, microbatches)
            operators += self._within(lowered, name, cuts[name], range(numbers[0].start, numbers[-1].stop))
        return tuple(operators)

    def passed_elements(self, part: int, microbatch: int, layout: Layout, phase: Phase) -> float:
        """Tensors of a replica on each of its tiles, or a share of them on every tile."""
        elements = self._crossing(self._lowered(microbatch, layout), part, phase)
        elements /= self.sequence if self.decode else 1
        return elements if self.degrees is None else elements / (layout.tp * layout.dp)

    def _crossing(self, lowered: ModelLayers, part: int, phase: Phase) -> float:
        """Elements that cross the boundary behind a part in lowered layers."""
        layer, numbers = self.positions[part]
        name = lowered.order[layer]
        if numbers.stop == len(self._bounded[name]):
            return float(lowered.layers[name].output_elements)
        return self._cut(lowered, name).passed_elements(numbers.stop - 1, gradient=phase == "backward")

    @cached_property
    def _bounded(self) -> dict[str, tuple[LayerOperator, ...]]:
        """Bounded operators of every distinct layer."""
        return {name: bounded_operators(layer) for name, layer in self.whole.layers.items()}

    def _cut(self, lowered: ModelLayers, name: str) -> CutLayer:
        return CutLayer(lowered.layers[name], self.whole.layers[name])

    def _within(self, lowered: ModelLayers, name: str, cut: Cut, numbers: range) -> Cut:
        """Operators of a part of a layer; the first one also stores what earlier stages store."""
        if numbers == range(len(self._bounded[name])):
            return cut
        layer = self._cut(lowered, name)
        inside = [pair for pair, place in zip(cut, layer.places, strict=True) if place in numbers]
        if numbers.start and not self.decode:
            operator, degrees = inside[0]
            assert isinstance(operator, CutOperator)
            repeated = layer.repeated_elements(numbers) / (1 if self.degrees is None else prod(degrees))
            share = replace(operator.share, stored=(operator.share.stored or 0.0) + repeated)
            inside[0] = replace(operator, share=share), degrees
        return tuple(inside)

    def _cut_layer(
        self, chip: Chip, layer: ModelLayer, microbatch: int, layout: Layout, microbatches: int
    ) -> Cut:
        if self.degrees is None:
            return laid_out(layer, layout, self.sequence if self.decode else 1)
        user_degrees: Mapping[str, Degrees] = dict(self.degrees)
        convolutions = isinstance(self.model, ResNet | SemanticFpn)
        return cut_by_degrees(
            chip, layout.tp * layout.dp, layer, user_degrees, microbatch, microbatches,
            convolutions=convolutions,
        )  # fmt: skip

    def _lowered(self, microbatch: int, layout: Layout) -> ModelLayers:
        """Layers of a rank of the layout, or whole layers to cut one by one."""
        if self.degrees is not None:
            return model_layers(
                self.model, self.sequence, Layout(microbatch=microbatch, precision=layout.precision)
            )
        # Megatron shards experts as it shards dense layers, and then sequences as well.
        ranks = replace(
            layout,
            microbatch=microbatch // layout.dp,
            etp=layout.tp,
            sequence_parallel=layout.ep > 1 and layout.tp > 1,
            pp=1,
            vp=1,
            zero=0,
        )
        return model_layers(self.model, self.sequence, ranks)
