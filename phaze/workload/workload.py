"""Workload: the graph of one shard of a model for a microbatch, and the tables that store it.

Each distinct layer is stored once, with its forward and backward operators in order, the data passed between
them, and their network traffic. The order of the model is a list of runs: any sequence of layers, each
repeated any number of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from phaze.layout import Axis, Layout, OffloadedModule
from phaze.spec.names import ParameterGroup
from phaze.spec.rows import OperatorBytes
from phaze.workload.lower.memory import StoredTensor
from phaze.workload.operators import Edge, LayerPass, Operator, Part
from phaze.workload.primitives import LayerRun, Region

if TYPE_CHECKING:  # importing pandas takes longer than building a model
    import pandas as pd

Direction = Literal["forward", "backward"]
DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")
TABLES = ("operators", "parts", "edges", "layers")
"""Names of the tables that store the layers of a workload."""
GROUP_COLUMNS: tuple[ParameterGroup, ...] = ("expert", "embedding", "tied")
"""Parameter groups with a column of their own in table `layers`; the others are dense."""

Row = dict[str, str | int | float | bool]
Work = tuple[str, tuple[Part, ...]]
"""Key of a unit of work that several operators may share: the core type and the parts."""
OPERATOR_COLUMNS = tuple(column.name for column in fields(OperatorBytes))
"""Fields of an operator that are stored unchanged in table `operators`."""
LAYER_COLUMNS = ("parameter_bytes", "input_bytes", "output_bytes", "activation_bytes", "attention_bytes")
"""Fields of a layer that are stored unchanged in table `layers`."""


class Collective(NamedTuple):
    """Collective operation: its kind, the axis whose ranks take part, and the size of the tensor."""

    kind: str
    axis: Axis
    """Axis of the group, see `Layout.group`."""
    nbytes: float
    """Bytes of the whole tensor."""


@dataclass(frozen=True)
class Layer:
    """Distinct layer on one rank: its operators, parameters, stored activations, inputs and outputs."""

    name: str
    forward: LayerPass
    backward: LayerPass
    groups: Mapping[ParameterGroup, int]
    """Number of parameters by group; empty groups are omitted."""
    parameter_bytes: float
    input_bytes: float
    """Bytes of activations received from the previous layer."""
    output_bytes: float
    activation_bytes: float
    """Bytes stored per microbatch for the backward pass."""
    attention_bytes: float
    """Portion of `activation_bytes` inside the attention core."""
    primitives: int
    """Number of primitives in the forward pass, before fusion."""
    kept: tuple[StoredTensor, ...] = field(default=(), compare=False)
    """Tensors that make up the stored activations; not written to tables."""
    statistics_bytes: int = field(default=0, compare=False)
    """Additional bytes of row statistics if norms and attention are fused kernels; not stored in tables."""
    frozen: int = field(default=0, compare=False)
    """Number of parameters without gradient, none of them in experts; not stored in tables."""

    @property
    def parameters(self) -> int:
        """Number of parameters of the shard, over all groups."""
        return sum(self.groups.values())

    @property
    def trained(self) -> int:
        """Number of parameters of the shard that have gradients and optimizer states."""
        return self.parameters - self.frozen

    @property
    def tensor_parallel(self) -> bool:
        """True if the layer contains a collective in either pass."""
        return any(
            operator.core == "network" for operator in self.forward.operators + self.backward.operators
        )

    def pass_of(self, direction: Direction) -> LayerPass:
        """Forward or backward pass, by direction."""
        return self.forward if direction == "forward" else self.backward

    def forward_in(self, regions: frozenset[Region]) -> tuple[Operator, ...]:
        """Forward operators that belong to any of the given regions."""
        return tuple(operator for operator in self.forward.operators if operator.regions & regions)

    def freed_bytes(self, regions: frozenset[Region]) -> int:
        """Activation bytes that need not be stored if the regions are recomputed."""
        return sum(tensor.nbytes for tensor in self.kept if tensor.regions & regions)

    def waiting_bytes(self, modules: frozenset[OffloadedModule], recomputed: frozenset[Region]) -> int:
        """Bytes offloaded to the host for `modules`, excluding tensors freed by recomputing `recomputed`."""
        stored = (tensor for tensor in self.kept if not tensor.regions & recomputed)
        return sum(tensor.nbytes for tensor in stored if tensor.is_offloaded_with(modules))

    def without(self, regions: frozenset[Region]) -> Self:
        """Layer that does not store the tensors of the given regions, because its kernels recompute them."""
        tensors = tuple(tensor for tensor in self.kept if not tensor.regions & regions)
        core = sum(tensor.nbytes for tensor in tensors if "core_attn" in tensor.regions)
        total = self.activation_bytes - self.freed_bytes(regions)
        return replace(self, kept=tensors, activation_bytes=total, attention_bytes=core)

    def attention(self, direction: Direction) -> tuple[Operator, ...]:
        """Operators of the attention core in one pass."""
        return tuple(operator for operator in self.pass_of(direction).operators if operator.attention)

    def collectives(self, direction: Direction) -> tuple[Collective, ...]:
        """Collectives of one pass, in order."""
        parts = (part for operator in self.pass_of(direction).operators for part in operator.parts)
        return tuple(Collective(p.kind, p.axis, p.network_bytes) for p in parts if p.axis)

    @cached_property
    def gathered_bytes(self) -> float:
        """Memory for the keys and values of other context-parallel ranks while a pass runs, in bytes.

        A gather receives the whole sequence; a ring stores the current and the next part.
        """
        # A ring's first part counts for all: its steps reuse two buffers.
        parts = [operator.parts[0] for operator in self.forward.operators if operator.core == "network"]
        buffers = {"all_gather": 1, "send": 2}
        gathers = [part for part in parts if part.axis in ("cp", "cp-ring")]
        return sum(buffers.get(part.kind, 0) * part.network_bytes for part in gathers)


@dataclass(frozen=True)
class Workload:
    """Layers of one shard of a model for one microbatch, with their operators and order."""

    model: str
    """Name of the model."""
    layout: Layout
    layers: tuple[Layer, ...]
    """Distinct layers of the model."""
    runs: tuple[LayerRun, ...]
    """Order of the layers, as runs of identical layers."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of occurrences of each distinct layer."""
        return Counter(self.order)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Name of every layer, in model order."""
        return tuple(run.layer for run in self.runs for _ in range(run.count))

    def layer(self, name: str) -> Layer:
        """Distinct layer with the given name."""
        return next(layer for layer in self.layers if layer.name == name)

    def tensor_flops(self, direction: Direction) -> int:
        """FLOPs of all matrix multiplications in one pass."""
        return sum(self.counts[layer.name] * layer.pass_of(direction).tensor_flops for layer in self.layers)

    def parameters(self, *groups: ParameterGroup) -> int:
        """Number of parameters of the shard in the given groups; in all groups by default.

        An embedding shared by input and output is stored at both ends of a pipeline: once under `embedding`
        and once under `tied`.
        """
        return sum(
            self.counts[layer.name] * number
            for layer in self.layers
            for group, number in layer.groups.items()
            if not groups or group in groups
        )

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Tables `operators`, `parts`, `edges` and `layers`, by name."""
        works = self._works()
        rows: dict[str, Iterator[Row]] = {
            "operators": self._operator_rows(works),
            "parts": _part_rows(works),
            "edges": self._edge_rows(),
            "layers": map(_layer_row, self.layers),
        }
        point: Row = {"model": self.model, "layout": self.layout.key}
        return {name: _frame(name, point, rows[name]) for name in TABLES}

    @cached_property
    def graph(self) -> pd.DataFrame:
        """Table `graphs`: the layer runs of a model that is a chain."""
        return graph_table(self.model, self.runs)

    @cached_property
    def content(self) -> str:
        """Digest of the values of its tables."""
        from phaze.tables.base import content_digest

        return content_digest(self.graph, *self.tables.values())

    @classmethod
    def of_tables(cls, frames: Mapping[str, pd.DataFrame], graph: pd.DataFrame) -> Self:
        """Rebuild a workload from the tables of one layout, and table `graphs`."""
        from phaze.tables.columns import layout_of

        rows = {str(row["layer"]): row for _, row in frames["layers"].iterrows()}
        point = frames["layers"].iloc[0]
        runs = tuple(LayerRun(str(row["layer"]), int(row["count"])) for _, row in graph.iterrows())
        passes = _read_passes(frames)
        return cls(
            model=str(point["model"]),
            layout=layout_of(point),
            layers=tuple(_read_layer(rows[name], passes) for name in dict.fromkeys(r.layer for r in runs)),
            runs=runs,
        )

    def _passes(self) -> Iterator[tuple[Row, LayerPass]]:
        for layer in self.layers:
            for direction in DIRECTIONS:
                yield {"layer": layer.name, "direction": direction}, layer.pass_of(direction)

    def _works(self) -> dict[Work, int]:
        """Index of each distinct operator workload, independent of the order of the layers."""
        distinct = {_work(o) for _, run in self._passes() for o in run.operators if o.core != "none"}
        # Sorted, so that numbers do not depend on the order of the layers.
        return {work: number for number, work in enumerate(sorted(distinct))}

    def _operator_rows(self, works: Mapping[Work, int]) -> Iterator[Row]:
        for key, run in self._passes():
            for index, operator in enumerate(run.operators):
                yield {
                    **key,
                    "operator": index,
                    "core": operator.core,
                    "work": works.get(_work(operator), -1),
                    "tensor_flops": operator.tensor_flops,
                    "vector_flops": operator.vector_flops,
                    **{name: getattr(operator, name) for name in OPERATOR_COLUMNS},
                }

    def _edge_rows(self) -> Iterator[Row]:
        for key, run in self._passes():
            yield from (
                {**key, "source": edge.source, "target": edge.target, "bytes": edge.nbytes}
                for edge in run.edges
            )


def graph_table(model: str, runs: Sequence[LayerRun]) -> pd.DataFrame:
    """Table `graphs` with the layer runs of a model that is a chain."""
    rows: list[Row] = [{"position": i, "layer": run.layer, "count": run.count} for i, run in enumerate(runs)]
    return _frame("graphs", {"model": model}, rows)


def _work(operator: Operator) -> Work:
    return operator.core, operator.parts


def _part_rows(works: Mapping[Work, int]) -> Iterator[Row]:
    for (core, parts), work in works.items():
        yield from ({"work": work, "part": i, "core": core, **vars(part)} for i, part in enumerate(parts))


def _layer_row(layer: Layer) -> Row:
    return {
        "layer": layer.name,
        "parameters": layer.parameters,
        **{f"{group}_parameters": layer.groups.get(group, 0) for group in GROUP_COLUMNS},
        **{name: getattr(layer, name) for name in LAYER_COLUMNS},
        "tensor_parallel": layer.tensor_parallel,
        "forward_tensor_flops": layer.forward.tensor_flops,
        "forward_vector_flops": layer.forward.vector_flops,
        "operators": layer.primitives,
    }


def _frame(name: str, point: Row, rows: Iterable[Row]) -> pd.DataFrame:
    import pandas as pd

    from phaze.tables import TABLES as CONTRACTS

    table = CONTRACTS[name]
    return table.check(pd.DataFrame([{**point, **row} for row in rows], columns=list(table.fields())))


def _read_passes(frames: Mapping[str, pd.DataFrame]) -> dict[tuple[str, str], LayerPass]:
    parts: dict[int, list[Part]] = {}
    for row in frames["parts"].sort_values(["work", "part"]).to_dict("records"):
        part = Part(**{name: row[name] for name in Part.__dataclass_fields__})
        parts.setdefault(row["work"], []).append(part)
    operators: dict[tuple[str, str], list[Operator]] = {}
    for row in frames["operators"].sort_values("operator").to_dict("records"):
        operator = Operator(
            parts=tuple(parts.get(row["work"], ())), **{name: row[name] for name in OPERATOR_COLUMNS}
        )
        operators.setdefault((row["layer"], row["direction"]), []).append(operator)
    edges: dict[tuple[str, str], list[Edge]] = {}
    for row in frames["edges"].to_dict("records"):
        edge = Edge(row["source"], row["target"], row["bytes"])
        edges.setdefault((row["layer"], row["direction"]), []).append(edge)
    return {
        key: LayerPass(tuple(pass_operators), tuple(edges.get(key, ())))
        for key, pass_operators in operators.items()
    }


def _read_layer(row: pd.Series, passes: Mapping[tuple[str, str], LayerPass]) -> Layer:
    name = str(row["layer"])
    groups: dict[ParameterGroup, int] = {group: int(row[f"{group}_parameters"]) for group in GROUP_COLUMNS}
    # Table `layers` has no column for dense parameters: they are all others.
    groups["dense"] = int(row["parameters"]) - sum(groups.values())
    return Layer(
        name=name,
        forward=passes[name, "forward"],
        backward=passes[name, "backward"],
        groups={group: number for group, number in groups.items() if number},
        primitives=int(row["operators"]),
        parameter_bytes=float(row["parameter_bytes"]),
        input_bytes=float(row["input_bytes"]),
        output_bytes=float(row["output_bytes"]),
        activation_bytes=float(row["activation_bytes"]),
        attention_bytes=float(row["attention_bytes"]),
    )
