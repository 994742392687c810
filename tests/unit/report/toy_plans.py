"""Plans that agree with the toy placements; the plans of other planners are invented."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import pandas as pd

from phaze.report.inputs import Slicing
from phaze.search.winners import ChipChoice, Outcome, choose_chips, in_order, with_areas
from phaze.spec.study import Study
from phaze.tables import PLANNERS, Plans, PlanStages
from phaze.tables.columns import layout_of
from tests.unit.report.toy_models import MODELS
from tests.unit.report.toy_placements import BATCH, placed

Row = dict[str, object]
GIB = 2**30
SHARDS = ("named", "small-buffer", "large-buffer")
SLOWER = {"phaze": 1.0, "equal": 1.1, "expert": 1.3}


def plans(cluster: Outcome, study: Study) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the tables of plans and their stages for all models."""
    choice = ChipChoice(
        baseline=study.architectures.baseline,
        named=study.architectures.named,
        best=study.screen.best,
        tolerance=study.screen.tolerance,
    )
    found = [
        one
        for model in study.models
        for chip in choose_chips(_only(cluster, model), choice).compared
        for one in _of_chip(cluster, model, *chip)
    ]
    assumed = {
        f"{of}_bandwidth_bytes_per_s": getattr(cluster.scenario, f"{of}_bandwidth_bytes_per_s")
        for of in ("network", "hbm")
    }
    rows = [{**key, **assumed, **plan} for key, plan, _ in found]
    stages = [{**key, "stage": s, **stage} for key, _, cut in found for s, stage in enumerate(cut)]
    return Plans.check(pd.DataFrame(rows)), PlanStages.check(pd.DataFrame(stages))


def _only(cluster: Outcome, model: str) -> Outcome:
    """Return the cluster as the jobs of one model see it."""
    mine = cluster.placements[cluster.placements["model"] == model]
    return Outcome(
        cluster.scenario, cluster.area_limit_um2, cluster.architectures, mine, common=cluster.common
    )


def _of_chip(
    cluster: Outcome, model: str, architecture: str, hbm_gib: float
) -> Iterator[tuple[Row, Row, list[Row]]]:
    """Yield key, plan and stages of every planner on one chip."""
    key: Row = {"model": model, "architecture": architecture, "hbm_gib": hbm_gib}
    every = cluster.placements[cluster.placements["planner"] == "phaze"]
    mine = every[(every["model"] == model) & (every["architecture"] == architecture)]
    best = in_order(with_areas(cluster, mine[mine["hbm_gib"] == hbm_gib])).iloc[0]
    if best["status"] != "placed":
        for planner in PLANNERS:
            yield {**key, "planner": planner}, _nothing(), []
        return
    for planner, slower in SLOWER.items():
        yield {**key, "planner": planner}, _flushing(best, slower), _cut(best)
    yield {**key, "planner": "piper"}, *_pipers(best)


def _nothing() -> Row:
    return {
        "status": "infeasible", "reason": "memory: too little", "flushes": False, "tensor": "", "data": "",
        "memory": "none", "samples_per_s": 0.0,
        "schedule": "none", "sync_s": 0.0, "all_reduce_factor": 0.0,
        **dict.fromkeys(("microbatch", "microbatches", "stages", "devices_used", "degree"), 0),
        "time_per_sample_s": math.inf,
    }  # fmt: skip


def _flushing(best: pd.Series, slower: float) -> Row:
    time = slower * float(best["time_per_batch_s"]) / BATCH
    return {
        "status": "placed", "reason": "", "flushes": True, "schedule": "1f1b",
        "microbatch": layout_of(best).microbatch, "microbatches": BATCH // layout_of(best).microbatch,
        "tensor": str(layout_of(best).tp), "data": str(best["data"]),
        "memory": "recompute" if best["recompute"] else "stash",
        "stages": best["stages"], "devices_used": best["devices_used"],
        "degree": best["data"] * best["stages"], "time_per_sample_s": time, "samples_per_s": 1 / time,
        "sync_s": 0.0, "all_reduce_factor": 2.0,
    }  # fmt: skip


@cache
def _stages(point: Slicing) -> pd.DataFrame:
    return pd.concat([placed(point, shard)[1] for shard in SHARDS], ignore_index=True)


def _cut(best: pd.Series) -> list[Row]:
    """Return the stages of Phaze's placement."""
    stages = _stages(Slicing(best["model"], best["layout"]))
    for name in ("architecture", "hbm_gib", "recompute", "planner"):
        stages = stages[stages[name] == best[name]]
    return [
        {
            "first_layer": row["first_layer"], "last_layer": row["last_layer"], "data": best["data"],
            "tensor": layout_of(best).tp,
            "recomputed": (row["last_layer"] - row["first_layer"] + 1) * bool(best["recompute"]),
            "in_flight": best["stages"] - row["stage"],
            "time_per_sample_s": row["load_s"] / best["data"] / layout_of(best).microbatch,
            "memory_bytes": row["memory_bytes"], "headroom_bytes": row["headroom_bytes"],
            **_work(row["forward_s"], row["backward_s"], row["weight_bytes"]),
        }
        for _, row in stages.sort_values("stage").iterrows()
    ]  # fmt: skip


def _work(forward_s: float, backward_s: float, weight_bytes: float) -> Row:
    """Return the work, tensors and memory of a stage, without some parts."""
    tensors = ("arriving_bytes", "departing_bytes")
    moved = (
        f"{way}_{what}_bytes" for way in ("forward", "recompute", "backward") for what in ("hbm", "reduced")
    )
    return {
        "forward_s": forward_s, "recompute_s": 0.0, "backward_s": backward_s, "weight_bytes": weight_bytes,
        **dict.fromkeys((*tensors, *moved, "fixed_bytes", "stash_bytes", "work_bytes"), 0.0),
    }  # fmt: skip


def _pipers(best: pd.Series) -> tuple[Row, list[Row]]:
    """Return a plan of two stages, with two replicas of the first and mixed recomputation."""
    time, last = 0.7 * float(best["time_per_batch_s"]) / BATCH, MODELS[best["model"]][1] + 1
    widest = layout_of(best).tp
    same: Row = {"memory_bytes": 1.0 * GIB, "headroom_bytes": (best["hbm_gib"] - 1) * GIB}
    busy = time * layout_of(best).microbatch / 4
    same |= _work(busy, 2 * busy, 1e6)
    stages: list[Row] = [
        {
            **same, "first_layer": 0, "last_layer": 4, "data": 2, "tensor": 2 * widest, "recomputed": 3,
            "in_flight": 2, "time_per_sample_s": time,
        },
        {
            **same, "first_layer": 5, "last_layer": last, "data": 1, "tensor": widest, "recomputed": 0,
            "in_flight": 1, "time_per_sample_s": 0.8 * time,
        },
    ]  # fmt: skip
    return {
        "status": "placed", "reason": "", "flushes": False, "schedule": "2bw",
        "microbatch": layout_of(best).microbatch, "microbatches": BATCH // layout_of(best).microbatch,
        "tensor": f"{2 * widest},{widest}", "data": "2,1", "memory": "mixed", "stages": 2,
        "devices_used": 5 * widest, "degree": 3, "time_per_sample_s": time, "samples_per_s": 1 / time,
        "sync_s": 0.0, "all_reduce_factor": 2.0,
    }, stages  # fmt: skip
