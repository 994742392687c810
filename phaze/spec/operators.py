"""Files of operator graphs: what a partition of any model starts from (Parmesan, Section VII).

A file holds all operators of a model for one microbatch on one device, in any order, and the tensors that
they pass forward; as many bytes come back as gradients.
"""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.values import MOST_SIZE, Count, Size, repeated

SHOWN = 10
"""How many mistakes of one kind are listed."""


class StoredOperator(Noun):
    """An operator, for one microbatch."""

    name: str = Field(min_length=1)
    """Name that no other operator has."""
    forward_s: Size
    """Time of the forward pass."""
    backward_s: Size
    """Time of the backward pass, without recomputation."""
    parameter_bytes: Size
    """Bytes of its parameters, as their gradients are exchanged."""
    forward_bytes: Size
    """Peak memory of the forward pass."""
    backward_bytes: Size
    """Peak memory of the backward pass."""
    layer: str | None = None
    """Layer that it belongs to, for partitions by layer; an operator without one is a layer of its own."""


class StoredEdge(Noun):
    """A tensor that one operator passes to another."""

    source: str
    """Name of the operator that writes it."""
    target: str
    """Name of the operator that reads it."""
    bytes: Size
    """Bytes of a microbatch."""


class StoredOperators(Noun):
    """A graph of operators without a cycle."""

    format: Literal["phaze-operators"]
    """What the file holds."""
    version: Literal[1]
    """Version of the format."""
    name: str
    """Name of the model."""
    microbatch: Count
    """Samples in a microbatch."""
    operators: tuple[StoredOperator, ...] = Field(min_length=1)
    """Operators, in any order."""
    edges: tuple[StoredEdge, ...]
    """Tensors, each pair of operators at most once."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [operator.name for operator in self.operators]
        refuse(f"operators: name {name!r} is given {k} times" for name, k in repeated(names))
        refuse(_bad_ends(set(names), self.edges))
        refuse(self._too_large_sums())
        self.order()
        return self

    def _too_large_sums(self) -> Iterator[str]:
        sums = {
            "operators: forward_s and backward_s": sum(
                one.forward_s + one.backward_s for one in self.operators
            ),
            "operators: parameter_bytes": sum(one.parameter_bytes for one in self.operators),
            "edges: bytes": sum(edge.bytes for edge in self.edges),
        }
        for name, total in sums.items():
            if total > MOST_SIZE:
                yield f"{name} must sum up to at most {MOST_SIZE:g}, got {total:g}"

    def order(self) -> tuple[int, ...]:
        """Positions of the operators in a topological order, as they are given where they may be.

        ValueError for a cycle.
        """
        position = {operator.name: k for k, operator in enumerate(self.operators)}
        sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(position)), ()))
        for edge in self.edges:
            sorter.add(position[edge.target], position[edge.source])
        try:
            sorter.prepare()
        except CycleError as error:
            cycle: Sequence[int] = error.args[1]
            around = " -> ".join(self.operators[k].name for k in cycle[: SHOWN + 1])
            raise ValueError(f"edges: there must be no cycle, got {around}") from error
        ready, order = list(sorter.get_ready()), list[int]()
        heapify(ready)
        while ready:
            order.append(heappop(ready))
            sorter.done(order[-1])
            for k in sorter.get_ready():
                heappush(ready, k)
        return tuple(order)


def refuse(mistakes: Iterator[str]) -> None:
    """Raise ValueError with the first mistakes, one a line, if there are any."""
    found = list(mistakes)
    if found:
        more = [f"and {len(found) - SHOWN} more mistakes"] if len(found) > SHOWN else []
        raise ValueError("\n".join(found[:SHOWN] + more))


def _bad_ends(names: set[str], edges: Sequence[StoredEdge]) -> Iterator[str]:
    for edge in edges:
        for key, end in (("source", edge.source), ("target", edge.target)):
            if end not in names:
                yield f"edges: {edge.source} -> {edge.target}: {key} {end!r} is not the name of an operator"
    for (source, target), times in repeated((edge.source, edge.target) for edge in edges):
        yield f"edges: {source} -> {target} is given {times} times"
