"""Analysis of placements: bottlenecks of their operators, and breakdowns of their energy and time."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
import pandas as pd

from phaze import tables
from phaze.cost.designs import DESIGN_OF_CORE
from phaze.layout import Layout
from phaze.report.findings import COMMON, PER_MODEL, placed_rows
from phaze.report.inputs import COMMON_SHARD, Details, Inputs, Only, Slicing, table_of
from phaze.search.winners import Outcome, chip_named, chip_of
from phaze.tables.columns import ENERGIES, POINT, layout_of

_SIZES = {
    "activation_bytes": "activation_bytes",
    "tensor_flops": "forward_tensor_flops",
    "vector_flops": "forward_vector_flops",
}


def point_of(row: pd.Series) -> Slicing:
    """Model and layout key of a placement."""
    return Slicing(str(row["model"]), str(row["layout"]))


def shard_rows(inputs: Inputs, table: type[tables.Schedules | tables.Stages], row: pd.Series) -> pd.DataFrame:
    """Rows of a table for the architecture of a placement."""
    only = Only("architecture", (str(row["architecture"]),))
    return inputs.details.rows(table, point_of(row), _shard(inputs, row), only)


def _shard(inputs: Inputs, row: pd.Series) -> str:
    return COMMON_SHARD if row.get("design") == COMMON else str(chip_of(inputs.cluster, row)["shard"])


def stages_of(inputs: Inputs, row: pd.Series) -> pd.DataFrame:
    """Stages of a placement, in order."""
    stages = shard_rows(inputs, tables.Stages, row)
    same = np.logical_and.reduce([stages[key] == row[key] for key in ("hbm_gib", "recompute", "planner")])
    return stages[same].sort_values("stage")


def operators_of(inputs: Inputs, row: pd.Series) -> pd.DataFrame:
    """Scheduled operators of a placement with latency, bottleneck and energy; empty without schedules."""
    architecture, shard = str(row["architecture"]), _shard(inputs, row)
    return _operators_on(inputs.cluster, inputs.details, point_of(row), architecture, shard)


@lru_cache(maxsize=64)
def _operators_on(
    cluster: Outcome, details: Details, point: Slicing, architecture: str, shard: str
) -> pd.DataFrame:
    """Scheduled operators of a point on an architecture; cached, because many results share them."""
    schedule = details.rows(tables.Schedules, point, shard, Only("architecture", (architecture,)))
    operators = details.rows(tables.Operators, point, "")
    keys = ["layer", "direction", "operator"]
    times = schedule[[*keys, "core", "start_s", "end_s"]]
    scheduled = operators.merge(times, on=keys, suffixes=("", "_index"))
    chip = chip_named(cluster, architecture)
    designs = {core: chip[design] for core, design in DESIGN_OF_CORE.items()}
    scheduled = scheduled.assign(
        # -1, operators that run on no core, matches no estimate: they have no energy and no bottleneck
        design=scheduled["core"].map(designs).fillna(-1).astype("int64"),
        all_cores=scheduled["core_index"] < 0,
    )
    only = Only("design", tuple(sorted({int(design) for design in designs.values()})))
    estimates = details.rows(tables.Estimates, point, chip["shard"], only)
    joined = scheduled.merge(estimates.drop(columns=list(POINT)), on=["work", "design"], how="left")
    # estimates are for one core and for all cores of its type: those of the schedule count
    shared = joined["all_cores"]
    for part in ENERGIES:
        joined[f"{part}_j"] = joined[f"{part}_all_j"].where(shared, joined[f"{part}_j"]).fillna(0.0)
    limit = joined["limit_all"].where(shared, joined["limit"]).fillna("none")
    return joined.assign(limit=limit, latency_s=joined["end_s"] - joined["start_s"])


def layer_counts(inputs: Inputs, model: str) -> pd.Series:
    """Number of occurrences of each distinct layer in the model."""
    return inputs.graph_of(model).groupby("layer", sort=False)["count"].sum()


def layer_chain(inputs: Inputs, model: str) -> list[str]:
    """Distinct layer at each position of the model."""
    graph = inputs.graph_of(model).sort_values("position")
    return list(np.repeat(graph["layer"].to_numpy(dtype=str), graph["count"].to_numpy()))


def bindings(inputs: Inputs, results: pd.DataFrame) -> pd.DataFrame:
    """Table `bindings`: bottleneck of every operator, on the best accelerator of each model."""
    frames = []
    for _, row in placed_rows(results, PER_MODEL).iterrows():
        operators = operators_of(inputs, row)
        # a layer is scheduled once for all of its occurrences in the model
        weight = operators["latency_s"] * operators["layer"].map(layer_counts(inputs, row["model"]))
        total = weight.sum()
        share = weight / total if total > 0 else weight
        frames.append(operators.assign(share=share)[list(tables.Bindings.fields())])
    return tables.Bindings.check(pd.concat(frames, ignore_index=True)) if frames else tables.Bindings.empty()


def limits_of(inputs: Inputs, row: pd.Series) -> pd.Series:
    """Share of busy time bound by each resource, over all layers of a placement with schedules."""
    operators, counts = operators_of(inputs, row), layer_counts(inputs, row["model"])
    busy_s = operators["latency_s"] * operators["layer"].map(counts)
    by_limit = busy_s.groupby(operators["limit"]).sum()
    return by_limit / by_limit.sum() if by_limit.sum() > 0 else by_limit


def energies(results: pd.DataFrame, designs: tuple[str, ...]) -> pd.DataFrame:
    """Table `energies`: breakdown of the energy per sample for the results of some designs."""
    columns = {f"{part}_j": part for part in (*ENERGIES, "leakage")}
    keys = ["model", "design", "joules_per_sample"]
    rows = placed_rows(results, *designs)[[*keys, *columns]].rename(columns=columns)
    parts = rows.melt(keys, var_name="part", value_name="joules")
    share = parts["joules"] / parts["joules_per_sample"]
    parts = parts.assign(joules_per_sample=parts["joules"], share=share)
    return tables.Energies.check(parts[list(tables.Energies.fields())])


def energy_by_layer(inputs: Inputs, row: pd.Series) -> pd.DataFrame:
    """Energy in J per sample by distinct layer, pass and part, over all executions and tensor-parallel ranks.

    Per microbatch, a layer runs forward once, once more if its stage recomputes (all but the last), and
    backward once. A tensor-parallel layer counts once per rank.
    """
    operators = operators_of(inputs, row)
    columns = [f"{part}_j" for part in ENERGIES]
    by_pass = operators.groupby(["layer", "direction"])[columns].sum().reset_index()
    counts = executions(inputs, row)
    layers = inputs.details.rows(tables.Layers, point_of(row), "").set_index("layer")["tensor_parallel"]
    slices = layers.map({True: layout_of(row).tp, False: 1})
    passes = zip(by_pass["layer"], by_pass["direction"], strict=True)
    executed = np.array([counts[layer, direction] * slices[layer] for layer, direction in passes])
    per_sample = executed / layout_of(row).microbatch
    return by_pass.assign(**{column: by_pass[column] * per_sample for column in columns})


def link_j_between_stages(inputs: Inputs, row: pd.Series) -> float:
    """Energy in J per sample of the communication between stages and between pipelines.

    Once per microbatch, every device of a stage sends the stage's output activations and receives their
    gradients. Once per batch, the gradients of all weights are all-reduced around the ring of the d
    pipelines, which sends 2 (d - 1)/d of their bytes.
    """
    stages = stages_of(inputs, row)
    if stages.empty:
        return 0.0
    layers = inputs.details.rows(tables.Layers, point_of(row), "").set_index("layer")["output_bytes"]
    chain = layer_chain(inputs, row["model"])
    # every border between stages carries what the last layer before it outputs
    ends = [float(layers[chain[last]]) for last in stages["last_layer"].iloc[:-1]]
    stage_bytes = 2 * float(np.dot(ends, stages["devices"].iloc[:-1])) / layout_of(row).microbatch
    gradients = float((stages["gradient_bytes"] * stages["devices"]).sum())
    ring_bytes = 2 * (int(row["data"]) - 1) * gradients / inputs.cluster.scenario.global_batch
    return float(inputs.energy.link_j_per_byte * (stage_bytes + ring_bytes))


def executions(inputs: Inputs, row: pd.Series) -> dict[tuple[str, str], int]:
    """Executions per microbatch, by distinct layer and pass (forward or backward)."""
    chain = layer_chain(inputs, row["model"])
    stages = stages_of(inputs, row)
    last_start = int(stages["first_layer"].iloc[-1]) if len(stages) else 0
    # under 1F1B the last stage runs a backward pass right after its forward pass: nothing to recompute
    recomputed = last_start if row["recompute"] else 0
    forward = [(layer, "forward") for layer in (*chain, *chain[:recomputed])]
    return Counter([*forward, *((layer, "backward") for layer in chain)])


def areas(inputs: Inputs, results: pd.DataFrame, designs: tuple[str, ...]) -> pd.DataFrame:
    """Table `areas`: breakdown of the chip area for the results of some designs."""
    rows = []
    for _, row in placed_rows(results, *designs).iterrows():
        chip = chip_of(inputs.cluster, row)
        # Technologies of the papers have cores and buffers only.
        for part in ("tensor", "vector", "l2", "glb", *(["other"] if chip["other_um2"] else [])):
            sizes = {"area_um2": chip[f"{part}_um2"], "share": chip[f"{part}_um2"] / chip["area_um2"]}
            rows.append({**row[["model", "design"]], "part": part, **sizes})
    return table_of(tables.Areas, rows)


def breakdowns(inputs: Inputs, results: pd.DataFrame, designs: tuple[str, ...]) -> pd.DataFrame:
    """Table `breakdowns`: terms of batch time = slowest load * (microbatches + s - 1) + sync."""
    rows = (_breakdown_of(inputs, row) for _, row in placed_rows(results, *designs).iterrows())
    return table_of(tables.Breakdowns, filter(None, rows))


def microbatches_of(inputs: Inputs, row: pd.Series) -> int:
    """Microbatches per pipeline, ceil(B / (b d))."""
    batch = inputs.cluster.scenario.global_batch // layout_of(row).microbatch
    return -(-batch // int(row["data"]))


def _breakdown_of(inputs: Inputs, row: pd.Series) -> dict[str, object]:
    stages = stages_of(inputs, row)
    if stages.empty:
        return {}
    slowest = stages.iloc[int(stages["load_s"].to_numpy().argmax())]
    count = microbatches_of(inputs, row)
    fill = float(slowest["load_s"]) * (int(row["stages"]) - 1)
    parts = "forward_s", "backward_s", "transfer_s"
    passes = {part: float(slowest[part]) * count for part in parts}
    return {
        "model": row["model"],
        "design": row["design"],
        "useful_s": float(row["time_per_batch_s"] * row["mfu_paper"]),
        **passes,
        "fill_s": fill,
        # the remainder of the batch, which rounding may leave just below 0
        "sync_s": max(0.0, float(row["time_per_batch_s"]) - fill - sum(passes.values())),
    }


def complexities(inputs: Inputs) -> pd.DataFrame:
    """Table `complexities`: model sizes at the smallest TMP width and microbatch size."""
    rows = (_complexity_of(inputs, model) for model in inputs.study.models)
    return table_of(tables.Complexities, filter(None, rows))


def _complexity_of(inputs: Inputs, model: str) -> dict[str, object]:
    tp, microbatch = min(inputs.study.workloads[model].tensor), min(inputs.study.training.microbatches)
    point = Slicing(model, Layout(tp=tp, microbatch=microbatch).key)
    layers = inputs.details.rows(tables.Layers, point, "").set_index("layer")
    counts = layer_counts(inputs, model)
    if layers.empty or counts.empty:
        return {}
    # the layer that occurs most often stands for the model's block
    block = layers.loc[[str(counts.idxmax())]].iloc[0]
    totals = layers.loc[counts.index, ["parameters", *_SIZES.values()]].mul(counts, axis=0).sum()
    return {
        **point._asdict(),
        "layers": int(counts.max()),
        "operators": int(block["operators"]),
        "parameters": inputs.parameters.get(model, int(totals["parameters"])),
        "held_parameters": int(totals["parameters"]),
        "block_parameter_bytes": float(block["parameter_bytes"]),
        **{f"block_{name}": float(block[column]) for name, column in _SIZES.items()},
        **{name: float(totals[column]) for name, column in _SIZES.items()},
    }
