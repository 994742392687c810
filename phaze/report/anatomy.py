"""What happens inside a placement: what binds its operators, where its energy and its time go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from phaze.report.inputs import COMMON_SHARD, Cluster, Details, Inputs, Only, Point
from phaze.report.winners import COMMON, PER_MODEL, chip_named, chip_of
from phaze.tables import (
    Areas,
    Bindings,
    Breakdowns,
    Complexities,
    Energies,
    Estimates,
    Layers,
    Operators,
    Schedules,
    Stages,
)

PARTS = ("mac", "register", "l2", "glb", "hbm", "link")
DESIGN_OF_CORE = {
    "tensor": "tensor_design",
    "vector": "vector_design",
    "fused": "fused_design",
    "network": "vector_design",
}
"""Which design's estimate an operator takes: the reduction of a collective runs on the vector cores."""


def point_of(row: pd.Series) -> Point:
    """Return the model, TMP width and microbatch of a placement."""
    return Point(str(row["model"]), int(row["tensor"]), int(row["microbatch"]))


def shard_rows(
    cluster: Cluster, details: Details, table: type[Schedules | Stages], row: pd.Series
) -> pd.DataFrame:
    """Return the rows of a table that belong to the architecture of a placement."""
    only = Only("architecture", (str(row["architecture"]),))
    return details.rows(table, point_of(row), _shard(cluster, row), only)


def _shard(cluster: Cluster, row: pd.Series) -> str:
    return COMMON_SHARD if row.get("design") == COMMON else str(chip_of(cluster, row)["shard"])


def stages_of(cluster: Cluster, details: Details, row: pd.Series) -> pd.DataFrame:
    """Return the stages of a placement, from the first."""
    of = (float(row["hbm_gib"]), bool(row["recompute"]), str(row["planner"]))
    return _stages_on(details, point_of(row), str(row["architecture"]), _shard(cluster, row), of)


@lru_cache(maxsize=512)
def _stages_on(
    details: Details, point: Point, architecture: str, shard: str, of: tuple[float, bool, str]
) -> pd.DataFrame:
    """Return the same by HBM, recomputation and planner: several parts and checks look at every result."""
    found = details.rows(Stages, point, shard, Only("architecture", (architecture,)))
    keys = ("hbm_gib", "recompute", "planner")
    same = np.logical_and.reduce([found[key] == value for key, value in zip(keys, of, strict=True)])
    return found[same].sort_values("stage")


def operators_of(cluster: Cluster, details: Details, row: pd.Series) -> pd.DataFrame:
    """Return the scheduled operators of a placement with latency, limit, energy; none without schedules."""
    return _operators_on(cluster, details, point_of(row), str(row["architecture"]), _shard(cluster, row))


@lru_cache(maxsize=64)
def _operators_on(
    cluster: Cluster, details: Details, point: Point, architecture: str, shard: str
) -> pd.DataFrame:
    """Return the same of all placements that share an architecture and a point: results share many."""
    schedule = details.rows(Schedules, point, shard, Only("architecture", (architecture,)))
    operators = details.rows(Operators, point, "")
    keys = ["layer", "direction", "operator"]
    scheduled = operators.merge(
        schedule[[*keys, "core", "start_s", "end_s"]], on=keys, suffixes=("", "_index")
    )
    return with_estimates(scheduled, details, point, chip_named(cluster, architecture))


def with_estimates(scheduled: pd.DataFrame, details: Details, point: Point, chip: pd.Series) -> pd.DataFrame:
    """Add the columns of the one-core or the all-core estimate, as scheduled."""
    designs = {core: chip[design] for core, design in DESIGN_OF_CORE.items()}
    scheduled = scheduled.assign(
        design=scheduled["core"].map(designs).fillna(-1).astype("int64"),
        all_cores=scheduled["core_index"] < 0,
    )
    only = Only("design", tuple(sorted({int(design) for design in designs.values()})))
    estimates = details.rows(Estimates, point, chip["shard"], only)
    joined = scheduled.merge(
        estimates.drop(columns=["model", "tensor", "microbatch"]), on=["work", "design"], how="left"
    )
    every = joined["all_cores"]
    chosen = {
        f"{part}_j": joined[f"{part}_all_j"].where(every, joined[f"{part}_j"]).fillna(0.0) for part in PARTS
    }
    limit = joined["limit_all"].where(every, joined["limit"]).fillna("none")
    return joined.assign(limit=limit, latency_s=joined["end_s"] - joined["start_s"], **chosen)


def layer_counts(inputs: Inputs, model: str) -> pd.Series:
    """Return how often every distinct layer occurs in the model."""
    return inputs.graph_of(model).groupby("layer", sort=False)["count"].sum()


def layer_chain(inputs: Inputs, model: str) -> list[str]:
    """Return the distinct layer at every position of the model."""
    graph = inputs.graph_of(model).sort_values("position")
    return list(np.repeat(graph["layer"].to_numpy(dtype=str), graph["count"].to_numpy()))


def bindings(inputs: Inputs, found: pd.DataFrame) -> pd.DataFrame:
    """Return table bindings of the per-model results."""
    frames = [_bindings_of(inputs, row) for _, row in _placed(found, PER_MODEL)]
    return Bindings.check(pd.concat(frames, ignore_index=True)) if frames else Bindings.empty()


def _bindings_of(inputs: Inputs, row: pd.Series) -> pd.DataFrame:
    operators = operators_of(inputs.cluster, inputs.details, row)
    weight = operators["latency_s"] * operators["layer"].map(layer_counts(inputs, row["model"]))
    total = weight.sum()
    return operators.assign(share=weight / total if total > 0 else weight)[list(Bindings.fields())]


def limits_of(cluster: Cluster, inputs: Inputs, row: pd.Series) -> pd.Series:
    """Return the part of all layers' busy time that each limit binds, for a placement with schedules."""
    operators = operators_of(cluster, inputs.details, row)
    return shares_of_limits(
        operators["limit"], operators["latency_s"], operators["layer"], layer_counts(inputs, row["model"])
    )


def shares_of_limits(
    limit: pd.Series, latency_s: pd.Series, layer: pd.Series, counts: pd.Series
) -> pd.Series:
    """Return the part of the busy time that each limit binds, for operators of layers that repeat."""
    by_limit = (latency_s * layer.map(counts)).groupby(limit).sum()
    return by_limit / by_limit.sum() if by_limit.sum() > 0 else by_limit


def _placed(found: pd.DataFrame, *designs: str) -> Iterator[tuple[object, pd.Series]]:
    return found[found["design"].isin(designs) & (found["status"] == "placed")].iterrows()


def energies(found: pd.DataFrame, designs: tuple[str, ...]) -> pd.DataFrame:
    """Return table energies: the parts of a sample's energy for the results of those designs."""
    rows = found[found["design"].isin(designs) & (found["status"] == "placed")]
    columns = {f"{part}_j": part for part in (*PARTS, "leakage")}
    keys = ["model", "design", "joules_per_sample"]
    parts = rows[[*keys, *columns]].rename(columns=columns).melt(keys, var_name="part", value_name="joules")
    share = parts["joules"] / parts["joules_per_sample"]
    return Energies.check(
        parts.assign(joules_per_sample=parts["joules"], share=share)[list(Energies.fields())]
    )


def energy_by_layer(inputs: Inputs, row: pd.Series) -> pd.DataFrame:
    """Return joules per sample of every distinct layer and pass by part, over all executions on all slices.

    A layer runs forward once for each microbatch, once more where its stage recomputes (all but the last),
    and backward once; every slice of a tensor-parallel layer counts.
    """
    operators = operators_of(inputs.cluster, inputs.details, row)
    columns = [f"{part}_j" for part in PARTS]
    each = operators.groupby(["layer", "direction"])[columns].sum().reset_index()
    runs = executions(inputs, row)
    slices = _slices(inputs, row)
    per_sample = np.array(
        [
            runs[layer, direction] * slices[layer]
            for layer, direction in zip(each["layer"], each["direction"], strict=True)
        ]
    ) / int(row["microbatch"])
    return each.assign(**{column: each[column] * per_sample for column in columns})


def link_j_between_stages(inputs: Inputs, row: pd.Series) -> float:
    """Return joules per sample of what stages and pipelines send each other.

    Every device of a stage sends the activations at its end and receives their gradients, once a microbatch;
    the gradients of all weights go around the ring of the d pipelines, 2 (d - 1)/d of their bytes,
    once a batch.
    """
    stages = stages_of(inputs.cluster, inputs.details, row)
    if stages.empty:
        return 0.0
    layers = inputs.details.rows(Layers, point_of(row), "").set_index("layer")["output_bytes"]
    chain = layer_chain(inputs, row["model"])
    ends = [float(layers[chain[last]]) for last in stages["last_layer"].iloc[:-1]]
    sent = 2 * float(np.dot(ends, stages["devices"].iloc[:-1])) / int(row["microbatch"])
    gradients = float((stages["gradient_bytes"] * stages["devices"]).sum())
    around = 2 * (int(row["data"]) - 1) * gradients / inputs.cluster.scenario.global_batch
    return float(inputs.energy.link_j_per_byte * (sent + around))


def executions(inputs: Inputs, row: pd.Series) -> dict[tuple[str, str], int]:
    """Return how often every distinct layer runs forward and backward for one microbatch."""
    chain = layer_chain(inputs, row["model"])
    stages = stages_of(inputs.cluster, inputs.details, row)
    last_start = int(stages["first_layer"].iloc[-1]) if len(stages) else 0
    again = last_start if row["recompute"] else 0
    runs: dict[tuple[str, str], int] = {}
    for position, layer in enumerate(chain):
        runs[layer, "forward"] = runs.get((layer, "forward"), 0) + (2 if position < again else 1)
        runs[layer, "backward"] = runs.get((layer, "backward"), 0) + 1
    return runs


def _slices(inputs: Inputs, row: pd.Series) -> dict[str, int]:
    layers = inputs.details.rows(Layers, point_of(row), "")
    split = dict(zip(layers["layer"], layers["tensor_parallel"], strict=True))
    return {layer: int(row["tensor"]) if parallel else 1 for layer, parallel in split.items()}


def areas(inputs: Inputs, found: pd.DataFrame, designs: tuple[str, ...]) -> pd.DataFrame:
    """Return table areas."""
    frames = []
    for _, row in _placed(found, *designs):
        chip = chip_of(inputs.cluster, row)
        parts = pd.Series({part: float(chip[f"{part}_um2"]) for part in ("tensor", "vector", "l2", "glb")})
        share = parts / float(chip["area_um2"])
        columns = {"part": parts.index, "area_um2": parts.to_numpy(), "share": share.to_numpy()}
        frames.append(pd.DataFrame({"model": row["model"], "design": row["design"], **columns}))
    return Areas.check(pd.concat(frames, ignore_index=True)) if frames else Areas.empty()


def breakdowns(inputs: Inputs, found: pd.DataFrame, designs: tuple[str, ...]) -> pd.DataFrame:
    """Return table breakdowns: time = load of the slowest stage * (microbatches + s - 1) + sync."""
    rows = [_breakdown_of(inputs, row) for _, row in _placed(found, *designs)]
    rows = [row for row in rows if row]
    return Breakdowns.check(pd.DataFrame(rows)) if rows else Breakdowns.empty()


def microbatches_of(inputs: Inputs, row: pd.Series) -> int:
    """Return the microbatches of a pipeline, ceil(B / (b d))."""
    batch = inputs.cluster.scenario.global_batch // int(row["microbatch"])
    return -(-batch // int(row["data"]))


def _breakdown_of(inputs: Inputs, row: pd.Series) -> dict[str, object]:
    stages = stages_of(inputs.cluster, inputs.details, row)
    if stages.empty:
        return {}
    slowest = stages.iloc[int(stages["load_s"].to_numpy().argmax())]
    count = microbatches_of(inputs, row)
    fill = float(slowest["load_s"]) * (int(row["stages"]) - 1)
    passes = {
        f"{part}_s": float(slowest[f"{part}_s"]) * count for part in ("forward", "backward", "transfer")
    }
    return {
        "model": row["model"],
        "design": row["design"],
        "useful_s": float(row["time_per_batch_s"] * row["mfu"]),
        **passes,
        "fill_s": fill,
        "sync_s": max(0.0, float(row["time_per_batch_s"]) - fill - sum(passes.values())),
    }


def complexities(inputs: Inputs) -> pd.DataFrame:
    """Return table complexities, for the smallest TMP width and one microbatch of the smallest size."""
    rows = [_complexity_of(inputs, model) for model in inputs.study.models]
    rows = [row for row in rows if row]
    return Complexities.check(pd.DataFrame(rows)) if rows else Complexities.empty()


def _complexity_of(inputs: Inputs, model: str) -> dict[str, object]:
    point = Point(model, min(inputs.study.workloads[model].tensor), min(inputs.study.training.microbatches))
    layers = inputs.details.rows(Layers, point, "").set_index("layer")
    counts = layer_counts(inputs, model)
    if layers.empty or counts.empty:
        return {}
    block = _Sizes(layers.loc[[str(counts.idxmax())]], pd.Series(1, [str(counts.idxmax())]))
    every = _Sizes(layers.loc[counts.index], counts)
    return {
        **point._asdict(),
        "layers": int(counts.max()),
        "operators": int(block.total("operators")),
        "parameters": inputs.parameters.get(model, int(every.total("parameters"))),
        "held_parameters": int(every.total("parameters")),
        "block_parameter_bytes": block.total("parameter_bytes"),
        **{f"block_{name}": block.total(column) for name, column in _SIZES.items()},
        **{name: every.total(column) for name, column in _SIZES.items()},
    }


_SIZES = {
    "activation_bytes": "activation_bytes",
    "tensor_flops": "forward_tensor_flops",
    "vector_flops": "forward_vector_flops",
}


@dataclass(frozen=True)
class _Sizes:
    """Distinct layers and how often each occurs."""

    layers: pd.DataFrame
    counts: pd.Series

    def total(self, column: str) -> float:
        """Return the sum of a column over all occurrences."""
        return float(np.dot(self.layers[column], self.counts))
