"""Placement instances and results in the JSON format of the Phaze authors' device_placement program.

An instance gives, for every TMP width, the layers (`nodes`) with their sizes and latencies, and the tensors
passed between them (`edges`); the layer graph is the same for all widths and must contain a Hamiltonian path.
Sizes are bytes, `bandwidth` bytes per second, latencies seconds. As that program counts memory, SGD keeps
weights and gradients, and Adam one more copy of the weights.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal, NoReturn, Self

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from phaze.errors import PhazeError
from phaze.place.flush import Infeasible, place_widths
from phaze.theory.pipeline import Chain, Setting


def _number(value: object) -> object:
    """Refuse what pydantic would turn into a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a number")
    return value


Whole = Annotated[int, BeforeValidator(_number)]
Size = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class Node(_Part):
    """A layer, or the slice of it that one of t devices runs."""

    id: Whole
    parameter_size: Size
    activation_size: Size
    optimal_latency_fw: Size
    optimal_latency_bw: Size
    is_tensor_parallelized: Annotated[bool, Field(strict=True)]


class Edge(_Part):
    """A tensor that one layer passes to another."""

    source_id: Whole
    dest_id: Whole
    communication_cost: Size


class Instance(_Part):
    """A placement problem."""

    max_memory_per_device: Positive
    max_devices: Count
    bandwidth: Positive
    mbs_in_batch: Count
    nodes: dict[str, list[Node]] = Field(min_length=1)
    edges: dict[str, list[Edge]] = Field(min_length=1)
    activation_recomputation: Annotated[bool, Field(strict=True)]
    optimizer_algorithm: Literal["SGD", "Adam"]
    fixed_pp: Count | None = Field(None, alias="fixedPP")
    fixed_tmpc: Count | None = Field(None, alias="fixedTMPC")
    fixed_dp: Count | None = Field(None, alias="fixedDP")
    num_transformer_layers: Annotated[Whole, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for width in self.nodes.keys() | self.edges.keys():
            _check_width(width)
        if self.nodes.keys() != self.edges.keys():
            raise ValueError(
                f"nodes have TMP widths {sorted(self.nodes)}, edges {sorted(self.edges)}; they must agree"
            )
        for width in self.nodes:
            _check_graph(width, self.nodes[width], self.edges[width])
            self._check_same_graph(width, next(iter(self.nodes)))
        return self

    def _check_same_graph(self, width: str, other: str) -> None:
        if {n.id for n in self.nodes[width]} != {n.id for n in self.nodes[other]}:
            raise ValueError(
                f"nodes.{width}: ids differ from nodes.{other}; all TMP widths have the same layers"
            )
        if _ends(self.edges[width]) != _ends(self.edges[other]):
            raise ValueError(
                f"edges.{width}: ends differ from edges.{other}; all TMP widths have the same edges"
            )

    def order(self) -> list[int]:
        """Return the layer ids along the Hamiltonian path."""
        width = next(iter(self.nodes))
        return _path([node.id for node in self.nodes[width]], _ends(self.edges[width]))

    def setting(self) -> Setting:
        """Return the cluster and the batch."""
        return Setting(
            devices=self.max_devices,
            microbatches=self.mbs_in_batch,
            bandwidth_bytes_per_s=self.bandwidth,
            memory_bytes=self.max_memory_per_device,
            recompute=self.activation_recomputation,
        )

    def chain(self, width: str) -> Chain:
        """Return the layers in pipeline order for one TMP width."""
        position = {layer: place for place, layer in enumerate(self.order())}
        nodes = sorted(self.nodes[width], key=lambda node: position[node.id])
        weights = np.array([node.parameter_size for node in nodes])
        return Chain(
            forward_s=np.array([node.optimal_latency_fw for node in nodes]),
            backward_s=np.array([node.optimal_latency_bw for node in nodes]),
            weight_bytes=weights,
            static_bytes=(3 if self.optimizer_algorithm == "Adam" else 2) * weights,
            activation_bytes=np.array([node.activation_size for node in nodes]),
            tensor_parallel=np.array([node.is_tensor_parallelized for node in nodes]),
            edges=tuple(
                (position[edge.source_id], position[edge.dest_id], edge.communication_cost)
                for edge in self.edges[width]
            ),
        )


class ResultStage(_Part):
    """A stage of a placement."""

    nodes: list[int]
    """Ids of its layers, in order."""
    devices_for_stage: int


class Result(_Part):
    """A placement, or why there is none."""

    stages: list[ResultStage]
    tensor_parallel_degree: int | None
    data_parallel_degree: int | None
    final_time_per_batch: float | None
    reason: str | None = None
    """The limit that binds and by how much; absent if there is a placement."""


def read_instance(path: str | Path) -> Instance:
    """Return the instance in a JSON file, or raise PhazeError naming file, key, value and what is allowed."""
    loaded = _read_json(Path(path))
    try:
        return Instance.model_validate(loaded, by_alias=True, by_name=False)
    except ValidationError as error:
        raise PhazeError("\n".join(_lines(path, error))) from error


def place_instance(instance: Instance) -> Result:
    """Return the best placement of an instance, or a result without stages and with the reason."""
    found = place_widths({int(width): instance.chain(width) for width in instance.nodes}, instance.setting())
    if isinstance(found, Infeasible):
        return Result(
            stages=[],
            tensor_parallel_degree=None,
            data_parallel_degree=None,
            final_time_per_batch=None,
            reason=found.reason,
        )
    order = instance.order()
    return Result(
        stages=[
            ResultStage(nodes=order[i:j], devices_for_stage=devices)
            for (i, j), devices in zip(found.intervals(len(order)), found.devices, strict=True)
        ],
        tensor_parallel_degree=found.tensor,
        data_parallel_degree=found.data,
        final_time_per_batch=found.time_s,
    )


def result_text(result: Result) -> str:
    """Return a result as JSON."""
    content = result.model_dump(by_alias=True, exclude={"reason"} if result.reason is None else None)
    return json.dumps(content, indent=2, allow_nan=False)


def write_result(result: Result, path: str | Path) -> None:
    """Write a result as JSON, in one step."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(result_text(result) + "\n", encoding="utf-8")
        temporary.replace(target)
    except OSError as error:
        raise PhazeError(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)


def read_result(path: str | Path) -> Result:
    """Return the result in a JSON file, or raise PhazeError."""
    try:
        return Result.model_validate(_read_json(Path(path)), by_alias=True, by_name=False)
    except ValidationError as error:
        raise PhazeError("\n".join(_lines(path, error))) from error


def _read_json(path: Path) -> object:
    try:
        loaded: object = json.loads(
            path.read_text(encoding="utf-8"),
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
        )
    except (OSError, UnicodeDecodeError) as error:
        raise PhazeError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except (ValueError, RecursionError) as error:
        raise PhazeError(f"{path}: is not valid JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise PhazeError(f"{path}: must hold a JSON object, got {type(loaded).__name__}")
    return loaded


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a key given twice, where plain JSON silently keeps the last."""
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise ValueError(f"key {key!r} is given twice")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _lines(path: str | Path, error: ValidationError) -> list[str]:
    """Return one line for each thing that is wrong."""
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
        if problem["type"] == "extra_forbidden":
            message = "is not a known key"
        got = f", got {_short(problem['input'])}" if key else ""
        lines.append(f"{path}: {key + ': ' if key else ''}{message}{got}")
    return lines


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _check_width(width: str) -> None:
    if not (width.isascii() and width.isdigit() and width == str(int(width)) and int(width) > 0):
        raise ValueError(f"TMP width {width!r} must be a positive whole number, written as a string")


def _check_graph(width: str, nodes: list[Node], edges: list[Edge]) -> None:
    ids = [node.id for node in nodes]
    if not ids:
        raise ValueError(f"nodes.{width}: at least one layer is needed, got none")
    for layer, times in Counter(ids).items():
        if times > 1:
            raise ValueError(f"nodes.{width}: id {layer} is given {times} times; ids must be unique")
    for node in nodes:
        if width == "1" and node.is_tensor_parallelized:
            raise ValueError(
                f"nodes.1: id {node.id}: isTensorParallelized must be false for TMP width 1, got true"
            )
    _check_edges(width, set(ids), edges)
    _path(ids, _ends(edges))


def _check_edges(width: str, ids: set[int], edges: list[Edge]) -> None:
    for edge in edges:
        name = f"edges.{width}: edge {edge.source_id} -> {edge.dest_id}"
        for key, end in (("sourceId", edge.source_id), ("destId", edge.dest_id)):
            if end not in ids:
                raise ValueError(f"{name}: {key} {end} is not the id of a node")
        if edge.source_id == edge.dest_id:
            raise ValueError(f"{name}: joins a layer to itself; the graph must have no cycle")
    for (source, target), times in Counter((e.source_id, e.dest_id) for e in edges).items():
        if times > 1:
            raise ValueError(f"edges.{width}: edge {source} -> {target} is given {times} times")


def _ends(edges: list[Edge]) -> set[tuple[int, int]]:
    return {(edge.source_id, edge.dest_id) for edge in edges}


def _path(ids: list[int], edges: set[tuple[int, int]]) -> list[int]:
    """Return the only topological order, or raise ValueError if there is a cycle or more than one order."""
    waiting = Counter(target for _, target in edges)
    targets: dict[int, list[int]] = {layer: [] for layer in ids}
    for source, target in edges:
        targets[source].append(target)
    ready, order = [layer for layer in ids if not waiting[layer]], []
    while ready:
        if len(ready) > 1:
            raise ValueError(
                f"edges: layers {ready[0]} and {ready[1]} are not ordered; the layer graph must contain a "
                "path through all layers (branches run inside a layer)"
            )
        layer = ready.pop()
        order.append(layer)
        for target in targets[layer]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(order) < len(ids):
        stuck = sorted(set(ids) - set(order))
        raise ValueError(
            f"edges: layers {', '.join(map(str, stuck[:5]))} form or follow a cycle; it must be a DAG"
        )
    return order
