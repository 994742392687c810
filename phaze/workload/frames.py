"""The layers of a model as tables."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from phaze import tables
from phaze.layout import Layout
from phaze.spec.model import AnyModel, Model
from phaze.spec.settings import ExtractSettings
from phaze.workload.lower.backward import backward_graph
from phaze.workload.lower.forward import forward_graph
from phaze.workload.lower.fusion import fuse
from phaze.workload.models import build_network
from phaze.workload.operators import Operator, OperatorGraph, Part
from phaze.workload.primitives import LayerGraph

Row = dict[str, str | int | float | bool]
Work = tuple[str, tuple[Part, ...]]
"""What makes two operators equal work: the core type and the parts."""
Passes = dict[tuple[str, str], OperatorGraph]
"""Layer and direction -> its operator graph."""


class LayerTables(NamedTuple):
    """What extract knows of the distinct layers of a model for one TMP width and microbatch."""

    operators: pd.DataFrame
    parts: pd.DataFrame
    edges: pd.DataFrame
    layers: pd.DataFrame


def extract_layers(model: AnyModel, sequence: int, layout: Layout, settings: ExtractSettings) -> LayerTables:
    """Return the tables of one slice of every distinct layer; how often a layer repeats changes nothing
    here.

    Raises PhazeError where tp does not divide the heads, or the model has no positions for the
    sequence.
    """
    width = settings.bytes_per_element
    layers = build_network(_trained(model, head=settings.head), sequence, layout, width).layers
    passes = _passes(layers, settings)
    works = _works(passes)
    point: Row = {"model": model.name, "tensor": layout.tp, "microbatch": layout.microbatch}
    return LayerTables(
        operators=_frame(tables.Operators, point, _operator_rows(passes, works)),
        parts=_frame(tables.Parts, point, _part_rows(works)),
        edges=_frame(tables.Edges, point, _edge_rows(passes)),
        layers=_frame(tables.Layers, point, [_layer_row(layer, settings, passes) for layer in layers]),
    )


def extract_graph(model: AnyModel, *, head: bool = True) -> pd.DataFrame:
    """Return the layer graph of a model, a chain of runs; it alone depends on the number of blocks.

    Without `head` it is that of the base model. Raises PhazeError for a model that is no chain of layers.
    """
    model.check_chain("extract")
    network = build_network(_trained(model, head=head), 1, Layout(), 1)
    rows: list[Row] = [
        {"position": i, "layer": run.layer, "count": run.count} for i, run in enumerate(network.runs)
    ]
    return _frame(tables.Graphs, {"model": model.name}, rows)


def _trained(model: AnyModel, *, head: bool) -> AnyModel:
    """Return the model as it is trained: with its head or, for a transformer, without."""
    return model.without_head() if isinstance(model, Model) and not head else model


def _passes(layers: tuple[LayerGraph, ...], settings: ExtractSettings) -> Passes:
    passes: Passes = {}
    for layer in layers:
        groups = fuse(layer, enabled=settings.fusion, after_reductions=settings.after_reductions)
        passes[layer.name, "forward"] = forward_graph(layer, groups, settings.bytes_per_element)
        form = settings.backward if settings.weight_gradients else "data"
        passes[layer.name, "backward"] = backward_graph(layer, groups, settings.bytes_per_element, form)
    return passes


def _work(operator: Operator) -> Work:
    return operator.core, operator.parts


def _works(passes: Passes) -> dict[Work, int]:
    """Return an id for all work that differs, in an order that only the work itself decides."""
    found = {_work(o) for graph in passes.values() for o in graph.operators if o.core != "none"}
    return {work: number for number, work in enumerate(sorted(found))}


def _operator_rows(passes: Passes, works: dict[Work, int]) -> list[Row]:
    return [
        {
            "layer": layer,
            "direction": direction,
            "operator": index,
            "name": operator.name,
            "core": operator.core,
            "work": works.get(_work(operator), -1),
            "tensor_flops": sum(part.tensor_flops for part in operator.parts),
            "vector_flops": sum(part.vector_flops for part in operator.parts),
            "input_bytes": operator.input_bytes,
            "parameter_bytes": operator.parameter_bytes,
            "output_bytes": operator.output_bytes,
            "stashed_bytes": operator.stashed_bytes,
        }
        for (layer, direction), graph in passes.items()
        for index, operator in enumerate(graph.operators)
    ]


def _part_rows(works: dict[Work, int]) -> list[Row]:
    return [
        {
            "work": work,
            "part": number,
            "core": core,
            "kind": part.kind,
            "role": part.role,
            "batch": part.batch,
            "m": part.m,
            "k": part.k,
            "n": part.n,
            "elements": part.elements,
            "streamed_bytes": part.streamed_bytes,
            "network_bytes": part.network_bytes,
            "unrolled": part.unrolled,
        }
        for (core, parts), work in works.items()
        for number, part in enumerate(parts)
    ]


def _edge_rows(passes: Passes) -> list[Row]:
    return [
        {"layer": layer, "direction": direction, "source": e.source, "target": e.target, "bytes": e.nbytes}
        for (layer, direction), graph in passes.items()
        for e in graph.edges
    ]


def _layer_row(layer: LayerGraph, settings: ExtractSettings, passes: Passes) -> Row:
    width = settings.bytes_per_element
    forward, backward = (passes[layer.name, direction].operators for direction in ("forward", "backward"))
    parameters = sum(primitive.parameters for primitive in layer.primitives)
    return {
        "layer": layer.name,
        "parameters": parameters,
        "parameter_bytes": parameters * width,
        "activation_bytes": settings.activation_factor * sum(o.stashed_bytes for o in forward),
        "input_bytes": layer.input_elements * width,
        "output_bytes": layer.output_elements * width,
        "tensor_parallel": any(operator.core == "network" for operator in (*forward, *backward)),
        "forward_tensor_flops": sum(p.tensor_flops for operator in forward for p in operator.parts),
        "forward_vector_flops": sum(p.vector_flops for operator in forward for p in operator.parts),
        "operators": len(layer.primitives),
    }


def _frame(table: type[tables.Table], point: Row, rows: list[Row]) -> pd.DataFrame:
    """Return a checked frame of a table, with the key of the point in every row."""
    return table.check(pd.DataFrame([{**point, **row} for row in rows], columns=list(table.fields())))
