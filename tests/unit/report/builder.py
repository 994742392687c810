"""A small consistent study: toy costs, toy placements, and all tables made of them.

Numbers are invented. Relations between them are those of a real study (loads add up, stages partition the
layers, schedules end with their objective), so that the checks of the report can pass and can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeVar

import numpy as np
import pandas as pd

from phaze.base.ranking import tied
from phaze.layout import layouts_of
from phaze.pages.document import Section
from phaze.pages.pipeline_picture import PipelinePicture, timeline_picture
from phaze.pages.verdicts import Checklist
from phaze.pipeline.longest_path import simulate
from phaze.pipeline.pipeline import Pipeline
from phaze.pipeline.stages import StageCost
from phaze.report.checks import Evidence
from phaze.report.inputs import Inputs, Only, Slicing
from phaze.search.pareto import uncovered
from phaze.search.winners import Outcome
from phaze.spec.architecture import EnergyFigures
from phaze.spec.study import Study
from phaze.spec.system import Scenario
from phaze.tables import (
    SCOPES,
    TABLES,
    Estimates,
    Fronts,
    Layers,
    Operators,
    Placements,
    Schedules,
    Sensitivities,
    Solves,
    Stages,
    Table,
    Times,
    Trials,
)
from tests.unit.report.toy_certificates import audits, certificates
from tests.unit.report.toy_chips import (
    BASELINE,
    CHIPS,
    COMMON,
    LIMIT_UM2,
    architectures,
    estimates,
    schedules,
    solves,
)
from tests.unit.report.toy_models import MODELS, graphs, layers, operators
from tests.unit.report.toy_placements import BATCH, DEVICES, EXPERTS, placed
from tests.unit.report.toy_simulations import simulations

ENERGY = EnergyFigures(
    mac_j=5e-13, register_j_per_byte=1e-13, sram_j_per_byte={8: 6e-13, 1024: 6e-12}, hbm_j_per_byte=3e-11,
    link_j_per_byte=8e-11, leakage_w_per_mm2=0.15,
)  # fmt: skip
FAMILIES = {family: {model: f"{family}-{model}" for model in MODELS} for family in ("phaze", "spotlight")}


class BuiltDetails:
    """Details built on demand."""

    def rows(self, table: type[Table], point: Slicing, shard: str, only: Only | None = None) -> pd.DataFrame:
        """Return the rows of a table."""
        if table in (Operators, Layers):
            return {"operators": operators, "layers": layers}[table.name](point)
        if table is Estimates:
            return among(estimates(point, shard), only)
        if table in (Stages, Schedules):
            found = placed(point, shard)[1] if table is Stages else schedules(point, shard)
            return among(found, only)
        return TABLES[table.name].empty()


def among(found: pd.DataFrame, only: Only | None) -> pd.DataFrame:
    """Return the rows with some values, or all."""
    return found if only is None else found[found[only.column].isin(only.values)]


def study() -> Study:
    axes = ("pipeline", "data", "tensor")
    experts = {model: dict(zip(axes, widths, strict=True)) for model, widths in EXPERTS.items()}
    workloads = {
        model: {"model": model, "sequence": seq, "tensor": widths, "expert": experts[model]}
        for model, (widths, _, _, seq) in MODELS.items()
    }
    named = [chip.name for chip in CHIPS if chip.shard == "named"]
    return Study.parse(
        {
            "workloads": workloads,
            "models": list(MODELS),
            "architectures": {"named": named, "baseline": BASELINE},
            "scenarios": {"paper": {"devices": DEVICES, "global_batch": BATCH}},
            "training": {"microbatches": [1, 2]},
            "certify": {"points": 5},
            "report": {
                "strategies": {"models": ["bert-large"]},
                "sensitivity": {
                    "hbm-half": {"hbm_bandwidth_factor": 0.5},
                    "network-tenfold": {"network_bandwidth_bytes_per_s": 4.3e10},
                },
            },
        },
        "builder",
    )


def points() -> list[Slicing]:
    return [
        Slicing(model, layout.key)
        for model, (widths, *_) in MODELS.items()
        for layout in layouts_of(widths, (1, 2))
    ]


def cluster() -> Outcome:
    shards = ("named", "small-buffer", "large-buffer")
    every = pd.concat([placed(point, shard)[0] for point in points() for shard in shards], ignore_index=True)
    chips = architectures()
    return Outcome(
        Scenario(devices=DEVICES, global_batch=BATCH),
        LIMIT_UM2,
        chips,
        Placements.check(every),
        Placements.check(every[every["architecture"] == COMMON]),
        (COMMON, 64.0),
    )


THROUGHPUTS = (900.0, 850, 1100, 1250, 1240, 1400, 1300, 1290, 1280, 1000)
"""Throughputs of ten architectures, each smaller than the previous one."""


def trials() -> pd.DataFrame:
    """Return the evaluations of the strategies: level h of the walk visits h + 2 architectures."""
    names = list(architectures()["architecture"])[: len(THROUGHPUTS)]
    found = dict(zip(names, THROUGHPUTS, strict=True))
    runs = {"certified": [names[5], names[6]]}
    runs |= {f"hysteresis-{level}": names[: level + 2] for level in range(1, 9)}
    rows = [
        {
            "model": "bert-large", "scope": scope, "strategy": strategy,
            "evaluation": evaluation, "architecture": name, "area_um2": (279.0 - names.index(name)) * 1e6,
            "samples_per_s": found[name],
            "best_samples_per_s": max(found[seen] for seen in run[:evaluation]),
        }
        for scope in SCOPES
        for strategy, run in runs.items()
        for evaluation, name in enumerate(run, 1)
    ]  # fmt: skip
    return Trials.check(pd.DataFrame(rows))


def times() -> pd.DataFrame:
    stages = {"extract": 3.0, "estimate": 60.0, "screen": 30.0, "schedule": 45.0, "place": 12.0}
    rows = [
        {"model": m, "stage": s, "jobs": 12, "wall_s": w * (1 + i), "cpu_s": w * (1 + i), "peak_bytes": 5e8}
        for i, m in enumerate(MODELS)
        for s, w in stages.items()
    ]
    return Times.check(pd.DataFrame(rows))


def sensitivities(placements: pd.DataFrame) -> pd.DataFrame:
    frames = []
    for variation, factor in (("hbm-half", 1.4), ("network-tenfold", 0.8)):
        changed = placements.copy()
        for column in ("time_per_batch_s", "bound_s", "max_load_s", "sync_s"):
            changed[column] *= factor
        for column in ("samples_per_s", "tokens_per_s", "mfu", "mfu_paper"):
            changed[column] /= factor
        frames.append(changed.assign(variation=variation))
    return Sensitivities.check(pd.concat(frames, ignore_index=True))


def fronts(placements: pd.DataFrame) -> pd.DataFrame:
    """Return the fronts of all placements on the toy grid, and those of half the area."""
    chips = architectures().set_index("architecture")
    rows = placements[(placements["status"] == "placed") & ~placements["architecture"].map(chips["named"])]
    rows = rows.assign(area_um2=rows["architecture"].map(chips["area_um2"]))
    rows = rows.assign(samples_per_s_per_mm2=rows["samples_per_s"] / rows["area_um2"] * 1e6)
    return Fronts.check(
        pd.concat(
            [
                front_of(mine[mine["area_um2"] <= limit]).assign(area_limit_um2=limit)
                for limit in (LIMIT_UM2, LIMIT_UM2 / 2)
                for _, mine in rows.groupby("model")
            ]
        )[list(Fronts.fields())]
    )


def front_of(rows: pd.DataFrame) -> pd.DataFrame:
    time, joules = (tied(rows[name].to_numpy()) for name in ("time_per_batch_s", "joules_per_sample"))
    found = rows[uncovered(time, rows["area_um2"].to_numpy(), joules)]
    best = {
        "throughput": found["time_per_batch_s"].idxmin(),
        "throughput_per_area": found["samples_per_s_per_mm2"].idxmax(),
        "energy": found["joules_per_sample"].idxmin(),
    }
    flags = {name: found.index == index for name, index in best.items()}
    return found.assign(objectives=np.logical_or.reduce(list(flags.values())), **flags)


def picture(placement: pd.Series, stages: pd.DataFrame) -> PipelinePicture:
    """Return the picture of a placement without its communication."""
    costs = tuple(
        StageCost(stage["forward_s"], stage["backward_s"], stash_bytes=stage["stashed_bytes"])
        for stage in stages.to_dict("records")
    )
    timeline = simulate(Pipeline(costs, max(BATCH // int(placement["data"]), 1), "1f1b"))
    return timeline_picture(str(placement["model"]), timeline)


@cache
def inputs() -> Inputs:
    """Return the whole small study."""
    main = cluster()
    shards = ("named", "small-buffer", "large-buffer")
    return Inputs(
        study=study(),
        clusters={"paper": main, "again": main},
        graphs=graphs(),
        solves=Solves.check(pd.concat([solves(p, s) for p in points() for s in shards], ignore_index=True)),
        details=BuiltDetails(),
        energy=ENERGY,
        families=FAMILIES,
        fronts=fronts(main.placements),
        trials=trials(),
        sensitivities=sensitivities(main.placements),
        simulations=simulations(main, study()),
        times=times(),
        certificates=certificates(main, study()),
        audits=audits(main),
        pictures=picture,
    )


Change = Callable[[pd.DataFrame], pd.DataFrame]


Block = TypeVar("Block")


def of_kind(section: Section, kind: type[Block]) -> list[Block]:
    """Blocks of one kind of a section."""
    return [block for block in section.blocks if isinstance(block, kind)]


def scaled(column: str, factor: float, planner: str = "") -> Change:
    """Change that multiplies one column, in all rows or in those of one planner."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        mine = frame["planner"] == planner if planner else pd.Series(True, frame.index)
        return frame.assign(**{column: frame[column].where(~mine, frame[column] * factor)})

    return change


def assert_caught(checks: Checklist[Evidence], evidence: Evidence, *defects: tuple[str, str, Change]) -> None:
    """Assert that every check passes on the evidence, and that each named check fails after its table is
    changed.
    """
    for name, check in checks.items():
        found = [holds for holds, _ in check(evidence)]
        assert found, name
        assert all(found), name
    for name, table, change in defects:
        wrong = replace(evidence.inputs, **{table: change(getattr(evidence.inputs, table))})
        failed = [what for holds, what in checks[name](replace(evidence, inputs=wrong)) if not holds]
        assert failed, (name, table)
        assert all(failed), (name, table)
