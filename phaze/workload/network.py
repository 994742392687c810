"""Networks of layers: the distinct ones, how they follow on each other, and one graph of all operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from phaze.base.errors import PhazeError
from phaze.workload.primitives import INPUT, LayerGraph, Primitive, Tensor, with_forks

MOST_OPERATORS = 500_000
"""Operators of an unrolled model; a thousand blocks of a transformer have some 35,000."""


@dataclass(frozen=True)
class Run:
    """Equal layers, each after the other."""

    layer: str
    """Name of the distinct layer."""
    count: int = 1
    reads: tuple[int, ...] = ()
    """Positions of the runs whose last layers are the pieces of its input; the one before if empty."""


@dataclass(frozen=True)
class Network:
    """The layers of a model for one microbatch."""

    layers: tuple[LayerGraph, ...]
    """Each distinct layer once; one that reads several runs starts with a `split` of its input."""
    runs: tuple[Run, ...]

    def unroll(self) -> LayerGraph:
        """Return all operators of the network as one layer, their names with those of their layers.

        Raises PhazeError where they are more than `MOST_OPERATORS`.
        """
        sizes = {layer.name: len(layer.primitives) for layer in self.layers}
        total = sum(run.count * sizes[run.layer] for run in self.runs)
        if total > MOST_OPERATORS:
            raise PhazeError(f"the model has {total:,} operators, a graph may have {MOST_OPERATORS:,}")
        made: list[Primitive] = []
        ends: list[int] = []
        for name, layer, sources in self._placed(ends):
            made += _moved(layer, name, len(made), [ends[q] for q in sources])
            ends.append(len(made) - 1)
        return with_forks(LayerGraph("model", _read_forks(made), 0, 0))

    def _placed(self, ends: list[int]) -> Iterator[tuple[str, LayerGraph, list[int]]]:
        """Yield every layer with its name and the positions of the layers that it reads."""
        layers = {layer.name: layer for layer in self.layers}
        last: list[int] = []
        for run in self.runs:
            for number in range(run.count):
                name = f"{run.layer}-{number + 1}" if run.count > 1 else run.layer
                before = [len(ends) - 1] if ends else []
                yield name, layers[run.layer], [last[q] for q in run.reads] or before
            last.append(len(ends) - 1)


def _moved(layer: LayerGraph, name: str, start: int, sources: list[int]) -> list[Primitive]:
    """Return the primitives of a layer behind `start` others; its input comes from `sources`."""
    split = len(sources) > 1

    def place(tensor: Tensor) -> Tensor:
        if tensor.source == INPUT:
            return replace(tensor, source=sources[0]) if sources else tensor
        if split and tensor.source == 0:
            return Tensor(sources[tensor.piece], tensor.elements)
        return replace(tensor, source=tensor.source + start - split)

    return [
        replace(primitive, name=f"{name}.{primitive.name}", inputs=tuple(map(place, primitive.inputs)))
        for primitive in layer.primitives[split:]
    ]


def _read_forks(primitives: list[Primitive]) -> tuple[Primitive, ...]:
    """Return primitives that read a fork of what they need where there is one already."""
    forks = {p.inputs[0].source: index for index, p in enumerate(primitives) if p.kind == "fork"}

    def behind(tensor: Tensor) -> Tensor:
        return replace(tensor, source=forks.get(tensor.source, tensor.source))

    return tuple(
        p if p.kind == "fork" else replace(p, inputs=tuple(map(behind, p.inputs))) for p in primitives
    )
