"""Chains of layers that a pipeline of tile groups runs: PALM's transformer layers, or those of any model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Protocol

from phaze.layout import Layout
from phaze.spec.models import AnyModel
from phaze.spec.vision import ResNet, SemanticFpn
from phaze.tiles.chip import Chip
from phaze.tiles.degrees import cut_by_degrees
from phaze.tiles.lowering import Cut, ModelLayers, laid_out, model_layers
from phaze.tiles.operators import Degrees, TransformerLayer

SAMPLES = 960
"""Samples for which loads are counted: their tokens divide evenly among the experts of published models."""


class Chain(Protocol):
    """Layers of a model in order, which stages share out among groups of tiles."""

    @property
    def count(self) -> int:
        """Number of layers."""

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
        """FLOPs of each layer for a sample, forward and backward, without recomputation."""

    def cut(self, chip: Chip, layers: range, microbatch: int, layout: Layout, microbatches: int, /) -> Cut:
        """Operators of consecutive layers on a group of `layout.tp` × `layout.dp` tiles.

        `microbatch` samples are divided among the replicas. Raises `PhazeError` if that is impossible.
        """

    def passed_elements(self, layer: int, microbatch: int, layout: Layout, /) -> float:
        """Elements of the output of a layer that each tile of a group has or needs."""


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
    def loads(self) -> tuple[float, ...]:
        """FLOPs of each layer for a sample: three times the forward pass."""
        forward = 24 * self.sequence * self.hidden**2 + 4 * self.sequence**2 * self.hidden
        return (3.0 * forward,) * self.count

    def cut(self, _: Chip, layers: range, microbatch: int, layout: Layout, __: int) -> Cut:
        """Layers of Table III; the samples of a replica may be a fraction."""
        layer = TransformerLayer(microbatch, self.hidden, self.sequence, self.heads)
        return ((layer, (layout.dp, layout.tp, 1, 1)),) * len(layers)

    def passed_elements(self, _: int, microbatch: int, layout: Layout) -> float:
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

    @cached_property
    def whole(self) -> ModelLayers:
        """Whole layers for `SAMPLES` samples."""
        return model_layers(self.model, self.sequence, Layout(microbatch=SAMPLES))

    @property
    def count(self) -> int:
        """Number of layers, with embedding and head."""
        return len(self.whole.order)

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
        """FLOPs of each layer for a sample, forward and backward."""
        return tuple(self.whole.layers[name].flops / SAMPLES for name in self.whole.order)

    def cut(self, chip: Chip, layers: range, microbatch: int, layout: Layout, microbatches: int) -> Cut:
        """Operators of the layers, cut by Megatron's layout or one by one."""
        lowered = self._lowered(microbatch, layout)
        names = [lowered.order[layer] for layer in layers]
        cuts: dict[str, Cut] = {}
        for name in dict.fromkeys(names):
            layer = lowered.layers[name]
            if self.degrees is None:
                cuts[name] = laid_out(layer, layout, self.sequence if self.decode else 1)
            else:
                user_degrees: Mapping[str, Degrees] = dict(self.degrees)
                convolutions = isinstance(self.model, ResNet | SemanticFpn)
                tiles = layout.tp * layout.dp
                cuts[name] = cut_by_degrees(
                    chip, tiles, layer, user_degrees, microbatch, microbatches, convolutions=convolutions
                )
        return tuple(operator for name in names for operator in cuts[name])

    def passed_elements(self, layer: int, microbatch: int, layout: Layout) -> float:
        """Activation of a replica on each of its tiles, or a share of it on every tile."""
        lowered = self._lowered(microbatch, layout)
        elements = lowered.layers[lowered.order[layer]].output_elements / (
            self.sequence if self.decode else 1
        )
        return elements if self.degrees is None else elements / (layout.tp * layout.dp)

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
