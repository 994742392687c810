"""Models of the toy study: operators, layers and layer graphs, with invented numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pandas as pd

from phaze.layout import Layout
from phaze.report.inputs import Slicing
from phaze.tables import Graphs, Layers, Operators

MODELS: dict[str, tuple[tuple[int, ...], int, int, int]] = {
    "bert-large": ((1,), 12, 1024, 512),
    "megatron-bert": ((1, 2), 12, 1024, 512),
    "megatron-gpt3-175b": ((4,), 24, 12288, 2048),
}
"""TMP widths, blocks, hidden size, sequence length."""
DIRECTIONS = ("forward", "backward")
Op = tuple[str, str, float, float, float]
"""Name, core, tensor FLOPs, vector FLOPs, bytes."""


def layer_operators(model: str, point: Slicing) -> dict[str, list[Op]]:
    _, _, h, seq = MODELS[model]
    s, t = seq * Layout.of_key(point.layout).microbatch, Layout.of_key(point.layout).tp
    gemm, act = 2.0 * s * h * h / t, 2.0 * s * h / t
    block: list[Op] = [
        ("layer norm 1", "vector", 0, 8.0 * s * h, 2 * act * t),
        ("query", "tensor", gemm, 0, 2 * act + 2 * h * h / t),
        ("key", "tensor", gemm, 0, 2 * act + 2 * h * h / t),
        ("value", "tensor", gemm, 0, 2 * act + 2 * h * h / t),
        (
            "scores, softmax",
            "fused",
            2.0 * s * seq * h / t,
            5.0 * s * seq * 16 / t,
            4 * act + 2.0 * s * seq * 16 / t,
        ),
        ("reshape", "none", 0, 0, 0),
        ("projection", "tensor", gemm, 0, 2 * act + 2 * h * h / t),
        *([("all-reduce", "network", 0, 1.0 * s * h, 2.0 * s * h)] if t > 1 else []),
        ("layer norm 2", "vector", 0, 8.0 * s * h, 2 * act * t),
        ("up, gelu", "fused", 4 * gemm, 30.0 * s * h / t, 5 * act + 8 * h * h / t),
        ("down", "tensor", 4 * gemm, 0, 5 * act + 8 * h * h / t),
    ]
    return {
        "embedding": [("lookup", "vector", 0, 1.0 * s * h, 4.0 * s * h)],
        "block": block,
        "head": [
            ("logits", "tensor", 2.0 * s * h * 3000, 0, 6.0e3 * s),
            ("loss", "vector", 0, 5.0 * s * 3000, 6.0e3 * s),
        ],
    }


def each_operator(model: str, point: Slicing) -> Iterator[tuple[str, str, int, Op]]:
    for layer, ops in layer_operators(model, point).items():
        for direction in DIRECTIONS:
            twice = 1 if direction == "forward" else 2
            ordered = ops if direction == "forward" else ops[::-1]
            for i, (name, core, tensor, vector, size) in enumerate(ordered):
                yield layer, direction, i, (name, core, twice * tensor, twice * vector, twice * size)


@cache
def operators(point: Slicing) -> pd.DataFrame:
    rows, work = [], 0
    for layer, direction, i, (name, core, tensor, vector, size) in each_operator(point.model, point):
        rows.append(
            {
                **point._asdict(), "layer": layer, "direction": direction, "operator": i, "name": name,
                "core": core,
                "work": -1 if core == "none" else work, "tensor_flops": tensor, "vector_flops": vector,
                "input_bytes": size / 3, "parameter_bytes": size / 3, "output_bytes": size / 3,
                "stashed_bytes": size / 3, "attention": False,
            }
        )  # fmt: skip
        work += core != "none"
    return Operators.check(pd.DataFrame(rows))


@cache
def layers(point: Slicing) -> pd.DataFrame:
    _, _, h, seq = MODELS[point.model]
    rows = []
    for layer, ops in layer_operators(point.model, point).items():
        parameters = {
            "embedding": 3000 * h,
            "block": 12 * h * h // Layout.of_key(point.layout).tp,
            "head": 3000 * h,
        }[layer]
        edge = 2.0 * Layout.of_key(point.layout).microbatch * seq * h
        rows.append(
            {
                **point._asdict(), "layer": layer, "parameters": parameters,
                "parameter_bytes": 2.0 * parameters,
                "expert_parameters": 0, "embedding_parameters": 0, "tied_parameters": 0,
                "attention_bytes": 0.0,
                "activation_bytes": edge * (200 / Layout.of_key(point.layout).tp if layer == "block" else 2),
                "input_bytes": edge,
                "output_bytes": edge, "tensor_parallel": layer == "block",
                "forward_tensor_flops": sum(op[2] for op in ops),
                "forward_vector_flops": sum(op[3] for op in ops),
                "operators": len(ops) + 3,
            }
        )  # fmt: skip
    return Layers.check(pd.DataFrame(rows))


def graphs() -> pd.DataFrame:
    rows = [
        {"model": model, "position": i, "layer": layer, "count": count}
        for model, (_, blocks, _, _) in MODELS.items()
        for i, (layer, count) in enumerate((("embedding", 1), ("block", blocks), ("head", 1)))
    ]
    return Graphs.check(pd.DataFrame(rows))


@cache
def sizes(point: Slicing) -> dict[str, dict[str, float]]:
    return {str(row["layer"]): row.to_dict() for _, row in layers(point).iterrows()}


def model_flops(point: Slicing) -> Iterator[float]:
    info = sizes(point)
    for layer, count in (("embedding", 1), ("block", MODELS[point.model][1]), ("head", 1)):
        split = bool(info[layer]["tensor_parallel"])
        yield count * info[layer]["forward_tensor_flops"] / (1 if split else Layout.of_key(point.layout).tp)
