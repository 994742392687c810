"""Plans of a study as tables, made by formulas, with every kind of presentation."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from phaze.papers.piper import PlanInputs
from phaze.papers.publications import PublishedPlans, TableClaims
from phaze.spec.names import PLANNERS
from phaze.spec.planning import PlanPoint, PlanStudy
from phaze.tables import Cases, Curves, Pipelines

FACTOR = {"piper": 1.0, "no-dp": 3.0, "no-tp": 1.2, "no-ar": 1.1, "equi": 1.125, "equi-no-tp": 1.5}
CASES = {
    "bars": {
        "input": "bert", "show": "throughput", "clusters": [{"devices": [8, 16], "memory_gib": [1, 8]}],
    },
    "lines": {"input": "bert", "show": "curve", "clusters": [{"devices": [32], "memory_gib": [8]}]},
    "digits": {
        "input": "gnmt", "show": "table", "planners": ["piper", "equi"], "modes": ["table-1", "program"],
        "clusters": [{"devices": [8, 16], "memory_gib": [1]}],
    },
}  # fmt: skip
INPUTS = {
    "bert": {"label": "BERT", "file": "bert.json"},
    "gnmt": {"label": "GNMT", "file": "gnmt.json", "unit": "ms"},
}
PLANS = PlanStudy.parse(
    {
        "folder": "inputs",
        "inputs": INPUTS,
        "cases": {name: {**case, "microbatches": [16]} for name, case in CASES.items()},
    },
    "toy",
)
PRINTED: dict[str, object] = {
    "mean throughput of equi": {"gnmt": 0.89},
    "without DP nothing": 4,
    "planning {devices} devices": [
        {"blocks": 8, "devices": 16, "microbatches": 16, "printed": 60, "limit": "1 min"}
    ],
}


def toy_claims(group: TableClaims) -> list[dict[str, object]]:
    """Claims of a group with the toy's figures instead of printed ones."""
    found = [claim.model_dump() for claim in group.claims]
    for claim in found:
        own = [figure for words, figure in PRINTED.items() if words in claim["statement"]]
        claim["printed"] = own[0] if own else claim["printed"]
    return found


PIPER = PublishedPlans.from_file(Path("config/published/piper-neurips-2021.yaml"))
PUBLISHED = PublishedPlans.parse(
    {
        **PIPER.model_dump(),
        "title": "Toy",
        "table": {
            "gnmt": [
                {"devices": 8, "memory_gib": 1, "piper": "1.25", "equi": "OOM"},
                {"devices": 16, "memory_gib": 1, "piper": "0.625", "equi": "0.703125"},
            ]
        },
        "claims": [{**group.model_dump(), "claims": toy_claims(group)} for group in PIPER.claims],
        "missing": ["Figure 9 is a picture without values."],
    },
    "toy",
)
"""The paper's claims with figures of the toy's plans."""


def time_of(planner: str, devices: int, memory_gib: float, mode: str) -> float:
    """Return a time that falls with devices; with 1 GiB not everything fits."""
    if planner == "equi" and devices == 8 and memory_gib == 1:
        return np.inf
    if planner in ("no-ar", "equi-no-tp") and memory_gib == 1:
        return np.inf
    return FACTOR[planner] * 10 / devices * (1.0 if mode == "table-1" else 0.999)


Rows = dict[str, list[dict[str, object]]]


def made(case: str, point: PlanPoint) -> Rows:
    rows: Rows = {name: [] for name in ("cases", "pipelines", "curves")}
    same = {"case": case, "blocks": point.blocks, "memory_gib": point.memory_gib}
    same |= {"microbatches": point.microbatches}
    for mode, planner in product(point.modes, point.planners):
        keys = {**same, "mode": mode, "planner": planner}
        for k in point.devices:
            if point.show != "curve":
                add_plan(rows, keys, PLANS.cases[case].input, k)
        last = {"no-dp": 4, "no-tp": 16, "equi-no-tp": 16}.get(planner, 32)
        for k in (1, 2, 4, 8, 16, 32) if point.show == "curve" else ():
            if k <= last:
                step = {"input": "bert", "most_devices": 32, "devices": k}
                time = time_of(planner, k, point.memory_gib, mode)
                rows["curves"].append({**keys, **step, "time_per_sample": time})
    return rows


def add_plan(rows: Rows, keys: dict[str, object], source: str, devices: int) -> None:
    time = time_of(str(keys["planner"]), devices, float(str(keys["memory_gib"])), str(keys["mode"]))
    if keys["planner"] == "no-dp":  # as the curve, it gains nothing beyond four devices
        time = max(time, FACTOR["no-dp"] * 10 / 4 * 0.999)
    on, fits = {**keys, "devices": devices}, np.isfinite(time)
    status = "planned" if fits else "infeasible"
    rows["cases"].append(
        {
            **on, "input": source, "layers": 3, "bandwidth_gib_per_s": 25.0, "status": status,
            "time_per_sample": time, "devices_used": 2 * fits, "degree": 2 * fits, "stages": 2 * fits,
        }
    )  # fmt: skip
    rows["pipelines"] += [
        {
            **on, "stage": stage, "layers": layers, "data": 1, "tensor": 1, "configurations": "1 × vanilla",
            "in_flight": 2 - stage, "time_per_sample": time / (stage + 1), "memory_bytes": 1000.0,
        }
        for stage, layers in enumerate(("0 1", "2") if fits else ())
    ]  # fmt: skip


def toy_inputs(plans: PlanStudy = PLANS, published: PublishedPlans | None = PUBLISHED) -> PlanInputs:
    """Return the inputs of the page."""
    rows: Rows = {name: [] for name in ("cases", "pipelines", "curves")}
    for case in plans.made:
        for point in plans.made[case].points().values():
            for name, found in made(case, point).items():
                rows[name] += found
    frames = {table.name: table.check(pd.DataFrame(rows[table.name])) for table in (Cases, Pipelines, Curves)}
    return PlanInputs(study=plans, published=published, **frames)


assert set(FACTOR) == set(PLANNERS)
