"""Stages that begin inside a layer: operators on both sides of a boundary, and the tensors that cross it.

Boundaries lie behind the operators of the whole layer, which are the same for every layout. References to
tensors are no operators here. A sharded layer has the same primitives, and collectives in addition. Gathers
and copies belong to their reader, so that shards cross a boundary. Other collectives belong to their
producer.

A tensor crosses a boundary if the previous layer or an operator before the boundary produces it, and an
operator behind the boundary reads it. It crosses once for all of its readers. A residual passes through all
stages between its producer and its last reader. Gradients return the same way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from phaze.tiles.lowering import LayerOperator, ModelLayer
from phaze.workload.kinds import GATHERS
from phaze.workload.lower.memory import Stash, stashes, stored
from phaze.workload.primitives import INPUT, LayerGraph, Tensor


def bounded_operators(whole: ModelLayer) -> tuple[LayerOperator, ...]:
    """Operators of a whole layer behind which a stage may end: all but references to tensors."""
    return tuple(
        operator
        for operator in whole.operators
        if any(primitive.traits.role != "view" for primitive in operator.primitives)
    )


@dataclass(frozen=True)
class CutLayer:
    """Layer of a layout, whose operators are numbered by the bounded operators of the whole layer."""

    layer: ModelLayer
    whole: ModelLayer

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Number of the whole layer's operator to which each operator belongs, ascending."""
        bounded, names = bounded_operators(self.whole), _distinct_names(self.whole.graph)
        numbers = {names[index]: number for number, op in enumerate(bounded) for index in op.indices}
        names, places, last = _distinct_names(self.layer.graph), list[int](), 0
        for operator in self.layer.operators:
            shared = [numbers[names[index]] for index in operator.indices if names[index] in numbers]
            if shared:
                last = max(last, *shared)
            elif places and operator.primitives[0].kind in ("copy", *GATHERS):
                last = min(last + 1, len(bounded) - 1)
            places.append(last)
        return tuple(places)

    def passed_elements(self, number: int, *, gradient: bool) -> float:
        """Elements of the tensors, or of the gradients, that cross the boundary behind an operator."""
        crossing = {
            (tensor.source, tensor.piece): tensor.elements
            for place, read in self._reads
            if number < place and (read.gradient or not gradient)
            for tensor in (stored(self.layer.graph, read),)
            if self._produced(tensor.source) <= number
        }
        return float(sum(crossing.values()))

    def repeated_elements(self, numbers: range) -> float:
        """Elements that operators store for the backward pass although earlier operators store them as well.

        Operators of one stage share them.
        """
        users: dict[Stash, set[int]] = {}
        for place, operator in zip(self.places, self.layer.operators, strict=True):
            for index in operator.indices:
                for stash in stashes(self.layer.graph, index, operator.width):
                    users.setdefault(stash, set()).add(place)
        return float(
            sum(
                stash.elements
                for stash, places in users.items()
                if min(places) < numbers.start and not places.isdisjoint(numbers)
            )
        )

    @cached_property
    def _reads(self) -> tuple[tuple[int, Tensor], ...]:
        """Tensors that operators read from other operators, each with its reader's index."""
        return tuple(
            (place, tensor)
            for place, operator in zip(self.places, self.layer.operators, strict=True)
            for index in operator.indices
            for tensor in self.layer.graph.primitives[index].inputs
            if tensor.source not in operator.indices
        )

    @cached_property
    def _producers(self) -> dict[int, int]:
        """Place of every primitive that is part of an operator."""
        return {
            index: place
            for place, operator in zip(self.places, self.layer.operators, strict=True)
            for index in operator.indices
        }

    def _produced(self, source: int) -> int:
        """Place of the operator that produces a tensor; -1 for the previous layer."""
        while source != INPUT and source not in self._producers:
            # Only references to a tensor are part of no operator.
            source = self.layer.graph.primitives[source].inputs[0].source
        return self._producers.get(source, -1)


def _distinct_names(graph: LayerGraph) -> list[tuple[str, int]]:
    """Name of every primitive of a layer, numbered among the primitives of the same name."""
    counts = Counter[str]()
    names = []
    for primitive in graph.primitives:
        names.append((primitive.name, counts[primitive.name]))
        counts[primitive.name] += 1
    return names
