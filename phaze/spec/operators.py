"""Operator-graph files, the input for partitioning arbitrary models (Parmesan, Section VII).

A file lists all operators of a model for one microbatch on one device, in any order, and the tensors that
pass between them forward; gradients of the same size return.
"""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Literal, Self

from pydantic import Field, model_validator

from phaze.spec.noun import Noun
from phaze.spec.values import MOST_SIZE, Count, Size, Text, repeated

SHOWN = 10
"""Maximum number of errors of one kind in an error message."""


class StoredOperator(Noun):
    """Operator with its times and sizes for one microbatch."""

    name: Text = Field(min_length=1)
    """Unique name of the operator."""
    forward_s: Size
    """Forward time in seconds."""
    backward_s: Size
    """Backward time in seconds, without recomputation."""
    parameter_bytes: Size
    """Bytes of the operator's parameters, equal to those of the gradients that replicas all-reduce."""
    forward_bytes: Size
    """Peak memory of the forward pass in bytes."""
    backward_bytes: Size
    """Peak memory of the backward pass in bytes."""
    layer: Text | None = None
    """Layer of the operator, for partitions by layer; default: a layer of its own."""


class StoredEdge(Noun):
    """Tensor passed from one operator to another."""

    source: Text
    """Name of the producing operator."""
    target: Text
    """Name of the consuming operator."""
    bytes: Size
    """Size in bytes for one microbatch."""


class ProfiledInput(Noun):
    """Input tensor of a profiled module."""

    kind: Literal["real", "index"]
    """`real` for real numbers, in the precision of the parameters; `index` for indices such as token ids."""
    shape: tuple[Count, ...]
    """Shape for one sample; the microbatch is added as the first dimension."""


class ProfiledModule(Noun):
    """PyTorch module whose operators were measured."""

    module: Text
    """File and callable that create the module, as `FILE.py:NAME`; the file is relative to the folder in
    which the commands run."""
    inputs: tuple[ProfiledInput, ...] = Field(min_length=1)
    """Inputs of the module in order."""
    device: Text
    """Device that ran the operators."""
    step_s: Size
    """Measured time of the forward and backward pass of the whole module in seconds."""


class StoredOperators(Noun):
    """Acyclic graph of operators."""

    format: Literal["phaze-operators"]
    """Kind of file."""
    version: Literal[1]
    """Version of the file format."""
    name: Text
    """Name of the model."""
    microbatch: Count
    """Samples per microbatch."""
    operators: tuple[StoredOperator, ...] = Field(min_length=1)
    """Operators, in any order."""
    edges: tuple[StoredEdge, ...]
    """Tensors between operators, at most one for each pair."""
    profiled: ProfiledModule | None = None
    """PyTorch module of the operators, if `phaze profile` measured them."""

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
                operator.forward_s + operator.backward_s for operator in self.operators
            ),
            "operators: parameter_bytes": sum(operator.parameter_bytes for operator in self.operators),
            "edges: bytes": sum(edge.bytes for edge in self.edges),
        }
        for name, total in sums.items():
            if total > MOST_SIZE:
                yield f"{name} must sum up to at most {MOST_SIZE:g}, got {total:g}"

    def order(self) -> tuple[int, ...]:
        """Indices of the operators in a topological order that follows the file where possible.

        Raises ValueError for a cycle.
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
            raise ValueError(f"edges: must not form a cycle, got {around}") from error
        # The first ready operator of the file comes next; `static_order` would give any ready one.
        ready, order = list(sorter.get_ready()), list[int]()
        heapify(ready)
        while ready:
            order.append(heappop(ready))
            sorter.done(order[-1])
            for k in sorter.get_ready():
                heappush(ready, k)
        return tuple(order)


def refuse(mistakes: Iterator[str]) -> None:
    """Raise ValueError with the first few mistakes, one per line, if there are any."""
    messages = list(mistakes)
    if messages:
        omitted = [f"and {len(messages) - SHOWN} more mistakes"] if len(messages) > SHOWN else []
        raise ValueError("\n".join(messages[:SHOWN] + omitted))


def _bad_ends(names: set[str], edges: Sequence[StoredEdge]) -> Iterator[str]:
    for edge in edges:
        for key, end in (("source", edge.source), ("target", edge.target)):
            if end not in names:
                yield f"edges: {edge.source} -> {edge.target}: {key} {end!r} is not the name of an operator"
    for (source, target), times in repeated((edge.source, edge.target) for edge in edges):
        yield f"edges: {source} -> {target} is given {times} times"
