"""Answers to single questions, as the command line prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from phaze.config import GRID_SHARDS, load_architecture, load_model_named, load_system, load_technology
from phaze.cosearch import Evaluation, Subject, Terms, best_placement, evaluate_architectures, extract_subject
from phaze.estimate import area_um2, describe_named, enumerate_grid
from phaze.spec.architecture import Grid
from phaze.spec.model import Model
from phaze.spec.settings import EstimateSettings, ExtractSettings, ScheduleSettings, Training
from phaze.spec.system import Scenario, System
from phaze.units import GIB, UM2_PER_MM2

Described = dict[str, object]
SECONDS_PER_DAY = 86400.0


@dataclass(frozen=True)
class Question:
    """A model on an architecture in a cluster; what is not said is searched or has the study's default."""

    model: str
    """Name of a spec in config/models, or path of one or of a Hugging Face config.json."""
    architecture: str
    """Name of a file in config/architectures, or path of one."""
    system: str
    """Name of a file in config/systems, or path of one."""
    sequence: int | None
    """Tokens of a sample; the model's longest unless given."""
    widths: tuple[int, ...]
    """TMP widths to consider; those of 1, 2, 4, 8 that divide the model if empty."""
    training: Training
    global_batch: int
    devices: int | None = None
    backward: str = "paired"

    def read_model(self) -> Model:
        """Return the model."""
        return load_model_named(self.model)

    def scenario(self) -> Scenario:
        """Return cluster and batch."""
        system: System = load_system(self.system)
        given = {} if self.devices is None else {"devices": self.devices}
        return Scenario.parse(
            {**system.model_dump(), "global_batch": self.global_batch, **given}, "--devices"
        )

    def terms(self) -> Terms:
        """Return what the evaluation depends on besides the model."""
        return Terms(
            scenario=self.scenario(),
            training=self.training,
            technology=load_technology("22nm"),
            estimate=EstimateSettings(),
            schedule=ScheduleSettings(),
        )

    def subject(self) -> Subject:
        """Return the operators of the model for all TMP widths and microbatches."""
        model = self.read_model()
        sequence = self.sequence or model.position_count or 2048
        model.check_sequence(sequence, "--sequence")
        widths = self.widths or tuple(t for t in (1, 2, 4, 8) if model.divides(t))
        for width in widths:
            model.check_tensor_width(width, "--tensor")
        batches = [b for b in self.training.microbatches if self.global_batch % b == 0]
        settings = ExtractSettings.parse({"backward": self.backward}, "--backward")
        return extract_subject(model, sequence, widths, batches, settings)

    def architectures(self) -> pd.DataFrame:
        """Return the architecture as table architectures."""
        figures = load_technology("22nm").area_um2
        return describe_named([load_architecture(self.architecture)], figures, "named")


def answer(question: Question) -> tuple[Subject, Evaluation]:
    """Return everything about the question: estimates, schedules, placements."""
    subject = question.subject()
    return subject, evaluate_architectures(subject, question.architectures(), question.terms())


def describe_placement(question: Question, subject: Subject, found: Evaluation) -> Described:
    """Return the best placement in plain values, or why there is none."""
    searched = found.placements[found.placements["planner"] == "phaze"]
    best = best_placement(searched)
    described: Described = {key: _plain(best[key]) for key in _HEADLINES}
    if best["status"] != "placed":
        return {"status": "infeasible", "reason": str(best["reason"])}
    keys = ["tensor", "microbatch", "architecture", "hbm_gib", "recompute", "planner"]
    same = (found.stages[keys] == best[keys]).all(axis=1)
    stages = found.stages[same].sort_values("stage")
    described["memory"] = [
        {name: _plain(row[name]) for name in _STAGE} for _, row in stages[list(_STAGE)].iterrows()
    ]
    described["days_to_train"] = question.training.tokens / float(best["tokens_per_s"]) / SECONDS_PER_DAY
    described["gap"] = 1.0 - float(best["bound_s"]) / float(best["time_per_batch_s"])
    return described


_HEADLINES = (
    "status", "architecture", "tensor", "data", "stages", "microbatch", "recompute", "hbm_gib", "devices_used",
    "time_per_batch_s", "samples_per_s", "tokens_per_s", "mfu", "binding",
)  # fmt: skip
_STAGE = ("stage", "first_layer", "last_layer", "devices", "load_s", "memory_bytes", "headroom_bytes")


def _plain(value: object) -> object:
    """Return a NumPy scalar as Python's."""
    return value.item() if hasattr(value, "item") else value


def in_one_line(found: Described) -> str:
    """Return a described placement as the answer to the main question."""
    if found["status"] != "placed":
        return f"infeasible: {found['reason']}"
    memory = ", ".join(_stage_memory(stage) for stage in _stages(found))
    layers = ", ".join(f"{stage['first_layer']}-{stage['last_layer']}" for stage in _stages(found))
    return (
        f"t={found['tensor']} d={found['data']} s={found['stages']}; layers {layers}; "
        f"microbatch {found['microbatch']}; {'recompute' if found['recompute'] else 'stash'}; "
        f"HBM {found['hbm_gib']:g} GiB, used {memory}; "
        f"{found['time_per_batch_s']:.4g} s per batch, {found['tokens_per_s']:.4g} tokens/s, "
        f"MFU {100 * float(str(found['mfu'])):.1f} %, {found['days_to_train']:.3g} days to train; "
        f"bound by {found['binding']}"
    )


def _stages(found: Described) -> Sequence[dict[str, float]]:
    stages = found["memory"]
    assert isinstance(stages, list)
    return stages


def _stage_memory(stage: dict[str, float]) -> str:
    return f"{stage['memory_bytes'] / GIB:.2f} (+{stage['headroom_bytes'] / GIB:.2f} free)"


def describe_space(area_limit_mm2: float | None, *, minimum_share: bool) -> Described:
    """Return the size of the searched space, its area limit, and its smallest and largest architecture."""
    figures = load_technology("22nm").area_um2
    if area_limit_mm2 is None:
        limit_um2 = area_um2(load_architecture("tpu-v4"), figures)
    else:
        limit_um2 = area_limit_mm2 * UM2_PER_MM2
    grid = Grid() if minimum_share else Grid(minimum_area_share=None)
    shards = [enumerate_grid(grid.restricted_to(s), figures, limit_um2, s) for s in GRID_SHARDS]
    found = pd.concat(shards).sort_values(["area_um2", "architecture"])
    return {
        "architectures": len(found),
        "area_limit_mm2": limit_um2 / UM2_PER_MM2,
        "smallest": _describe(found.iloc[0]) if len(found) else None,
        "largest": _describe(found.iloc[-1]) if len(found) else None,
    }


def _describe(row: pd.Series) -> Described:
    """Return an architecture of the grid in plain values."""
    sizes = ["num_tc", "num_vc", "pe_x", "pe_y", "pe_vc", "glb_bytes", "l2_tc_bytes", "l2_vc_bytes"]
    return {
        "architecture": str(row["architecture"]),
        "area_mm2": float(row["area_um2"]) / UM2_PER_MM2,
        **{name: int(row[name]) for name in sizes},
    }
