"""Placements of the toy study: the best of several {p, d}, with nearly even stages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import pandas as pd

from phaze.layout import Layout
from phaze.report.inputs import Slicing
from phaze.tables import Placements, Stages
from tests.unit.report.toy_chips import NETWORK, OWN_GIB, chip_named, length_s, members, spent_j
from tests.unit.report.toy_models import MODELS, model_flops, sizes

DEVICES, BATCH = 64, 256
EXPERTS = {"bert-large": (8, 8, 1), "megatron-bert": (4, 8, 1), "megatron-gpt3-175b": (8, 2, 4)}
"""Widths {p, d, t}."""
PARTS = ("mac_j", "register_j", "l2_j", "glb_j", "hbm_j", "link_j", "leakage_j")
LINK_J = 8e-11
"""Energy per byte."""


@dataclass(frozen=True)
class Try:
    """Placement to evaluate: {s, d} on one chip with one memory size."""

    point: Slicing
    chip: str
    hbm_gib: float
    recompute: bool
    stages: int
    data: int

    @property
    def layout(self) -> Layout:
        """Layout of the point."""
        return Layout.of_key(self.point.layout)


def _cuts(layers_: int, stages: int) -> list[tuple[int, int]]:
    """Return first and last layer of every stage, as even as can be."""
    ends = [round(i * layers_ / stages) for i in range(stages + 1)]
    return [(a, b - 1) for a, b in pairwise(ends)]


def stage_rows(a: Try) -> list[dict[str, float | int]]:
    """Return the stages of a placement."""
    info = sizes(a.point)
    blocks = MODELS[a.point.model][1]
    chain = ["embedding", *["block"] * blocks, "head"]
    rows: list[dict[str, float | int]] = []
    for number, (first, last) in enumerate(_cuts(len(chain), a.stages)):
        mine = chain[first : last + 1]
        forward = sum(length_s(a.point, a.chip, layer, "forward") for layer in mine)
        backward = sum(length_s(a.point, a.chip, layer, "backward") for layer in mine)
        again = a.recompute and number < a.stages - 1
        weights = sum(info[layer]["parameter_bytes"] for layer in mine)
        work = sum(info[layer]["activation_bytes"] for layer in mine)
        kept = info[mine[0]]["input_bytes"] if again else work
        transfer = 0.0 if a.stages == 1 else info[mine[0]]["input_bytes"] / NETWORK * 0.2
        memory = 2 * weights + work + (a.stages - 1 - number) * kept
        rows.append(
            {
                "stage": number, "first_layer": first, "last_layer": last,
                "devices": a.layout.tp,
                "forward_s": forward, "backward_s": backward + again * forward, "transfer_s": transfer,
                "load_s": forward + backward + again * forward + transfer, "weight_bytes": weights,
                "gradient_bytes": weights, "optimizer_bytes": 0.0, "activation_bytes": work,
                "stashed_bytes": (a.stages - 1 - number) * kept, "memory_bytes": memory,
                "headroom_bytes": a.hbm_gib * 2**30 - memory,
            }
        )  # fmt: skip
    return rows


def _outcome(a: Try, planner: str) -> tuple[dict[str, object], list[dict[str, float | int]]]:
    """Return a row of placements without its key, and its stages."""
    stages = stage_rows(a)
    lacking = -min(float(stage["headroom_bytes"]) for stage in stages)
    if lacking > 0:
        return _infeasible(f"memory: stage 1 of {a.stages} needs {lacking / 2**30:.1f} GiB more"), []
    load = max(float(stage["load_s"]) for stage in stages)
    sync = 4 * (a.data - 1) / a.data * float(stages[0]["weight_bytes"]) / NETWORK
    time = load * (math.ceil(BATCH / a.layout.microbatch / a.data) + a.stages - 1) + sync
    flops = 3 * sum(model_flops(a.point)) * a.layout.tp / a.layout.microbatch * BATCH
    seq = MODELS[a.point.model][3]
    gap = 0.02 if a.chip == "8-64-128-128-128-glb32" else 0.0
    mfu = min(1.0, flops / (chip_named(a.chip).peak * DEVICES * time))
    return {
        "status": "placed", "reason": "", "data": a.data, "stages": a.stages,
        "devices_used": a.data * a.stages * a.layout.tp, "time_per_batch_s": time,
        "bound_s": time * (1 - gap),
        "max_load_s": load, "sync_s": sync, "samples_per_s": BATCH / time, "tokens_per_s": BATCH * seq / time,
        "mfu": 0.9 * mfu, "mfu_paper": mfu, **energies(a, stages, time),
        "binding": "load of the slowest stage" if planner == "phaze" else "given placement",
    }, stages  # fmt: skip


def energies(a: Try, stages: list[dict[str, float | int]], time: float) -> dict[str, float]:
    """Return joules per sample by part: layers on their ranks, links, leakage."""
    blocks, info, b = MODELS[a.point.model][1], sizes(a.point), a.layout.microbatch
    again = int(stages[-1]["first_layer"]) if a.recompute else 0
    parts = dict.fromkeys(PARTS, 0.0)
    for position, layer in enumerate(["embedding", *["block"] * blocks, "head"]):
        slices = a.layout.tp if info[layer]["tensor_parallel"] else 1
        for direction, runs in (("forward", 2 if position < again else 1), ("backward", 1)):
            for part, value in spent_j(a.point, a.chip, layer, direction).items():
                parts[part] += value * runs * slices / b
    edge = info["block"]["output_bytes"] * a.layout.tp / b
    ring = sum(float(stage["gradient_bytes"]) for stage in stages) * a.layout.tp * (a.data - 1) / BATCH
    parts["link_j"] += 2 * LINK_J * (edge * (len(stages) - 1) + ring)
    area = sum(chip_named(a.chip).parts_um2) / 1e6
    parts["leakage_j"] = 0.15 * area * a.data * len(stages) * a.layout.tp * time / BATCH
    return {"joules_per_sample": sum(parts.values()), **parts}


def _infeasible(reason: str) -> dict[str, object]:
    return {
        "status": "infeasible", "reason": reason, "data": 0, "stages": 0, "devices_used": 0,
        "time_per_batch_s": math.inf, "bound_s": math.inf, "max_load_s": math.inf, "sync_s": math.inf,
        "samples_per_s": 0.0, "tokens_per_s": 0.0, "mfu": 0.0, "mfu_paper": 0.0, "binding": "memory",
        **dict.fromkeys(("joules_per_sample", *PARTS), math.inf),
    }  # fmt: skip


def _tries(a: Try) -> Iterator[Try]:
    for stages in (1, 2, 4, 8, 14, 16):
        data = DEVICES // (stages * a.layout.tp)
        if data and stages <= MODELS[a.point.model][1] + 2:
            yield replace(a, stages=stages, data=data)


def _searched(a: Try) -> tuple[dict[str, object], list[dict[str, float | int]]]:
    found = [_outcome(one, "phaze") for one in _tries(a)]
    p, d, t = EXPERTS[a.point.model]
    if t == a.layout.tp:
        found.append(_outcome(replace(a, stages=p, data=d), "phaze"))
    return min(found, key=lambda pair: float(str(pair[0]["time_per_batch_s"])))


@cache
def placed(point: Slicing, shard: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return placements and stages of a shard."""
    rows: list[dict[str, object]] = []
    stages: list[dict[str, object]] = []
    for name in members(shard)["architecture"]:
        for hbm in (OWN_GIB[name],) if name in OWN_GIB else (32.0, 64.0, 80.0):
            for recompute in (False, True):
                a = Try(point, name, hbm, recompute, 1, 1)
                for planner, (row, cut) in _planned(a, shard).items():
                    key = point._asdict() | {"architecture": name, "hbm_gib": hbm}
                    key |= {"recompute": recompute, "planner": planner}
                    rows.append({**key, **row})
                    stages.extend({**key, **stage} for stage in cut)
    placements = Placements.check(pd.DataFrame(rows))
    return placements, Stages.check(pd.DataFrame(stages)) if stages else Stages.empty()


def _planned(a: Try, shard: str) -> dict[str, tuple[dict[str, object], list[dict[str, float | int]]]]:
    plans = {"phaze": _searched(a)}
    p, d, t = EXPERTS[a.point.model]
    if shard == "named" and t == a.layout.tp:
        expert = _outcome(replace(a, stages=p, data=d), "expert")
        plans |= {"expert": expert, "expert-even": expert}
    return plans
