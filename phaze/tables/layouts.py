"""Training plans over all layouts, of a runtime or a study's chips, and their proofs."""

from pathlib import Path
from typing import get_args

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.layout import Zero
from phaze.spec.names import Rank
from phaze.spec.training_plan import ChosenLayout, PlanCertificate, RankedPlan
from phaze.tables.base import TABLES, Table, columns_of, count, real, table_name, text
from phaze.tables.columns import MFU

_SIZE = {
    "model": text("model"),
    "system": text("system, with a device and network levels"),
    "devices": count("number of devices", 1),
    "ranking": text("time that ranks layouts", *get_args(Rank)),
}


class RankedLayouts(Table):
    """Plans of a model on a system with a given number of devices, fastest first."""

    keys = {**_SIZE, "rank": count("rank by time, from 1", 1)}
    columns = {
        **columns_of(RankedPlan, "time_s"),
        "prudent_s": real("prudent time of a step"),
        "time_s_low": real("lower end of the time's interval; infinite without one", finite=False),
        "time_s_high": real("upper end of the time's interval; infinite without one", finite=False),
        **columns_of(RankedPlan, "tokens_per_s_per_device"),
        "mfu": MFU,
        "fullest_gib": real("memory of the rank with peak memory"),
        **columns_of(RankedPlan, "bubble_share", "exposed_communication_share", "bound_by"),
        **columns_of(ChosenLayout, "tp", "cp", "pp", "vp", "dp", "microbatch", "sequence_parallel"),
        "zero": count("ZeRO stage, 0 to 3"),
        **columns_of(ChosenLayout, "recompute"),
        **columns_of(RankedPlan, "recomputed_layers"),
        **columns_of(ChosenLayout, "schedule", "pipeline_layout"),
    }
    rules = {
        "the time lies in its interval": lambda f: (f["time_s_low"] <= f["time_s_high"]) & (f["time_s"] > 0),
        "zero is 0 to 3": lambda f: f["zero"] <= max(get_args(Zero)),
    }


class LayoutProofs(Table):
    """Number of layouts excluded, bounded and simulated to prove a plan, and the resulting lower bound."""

    keys = dict(_SIZE)
    columns = {
        "status": text("whether a plan was found", "planned", "unfit"),
        **columns_of(PlanCertificate, "layouts"),
        "illegal": count("layouts that the runtime cannot run"),
        **columns_of(PlanCertificate, "same", "unfit"),
        "bounded": count("layouts excluded by a lower bound on their time"),
        **columns_of(PlanCertificate, "simulated", "divisions"),
        "hbm_gib": real("memory of a device"),
        "bound_s": real("proven lower bound on the step time", finite=False),
        **columns_of(PlanCertificate, "gap"),
        "reason": text("reason why nothing fits, empty if a plan was found"),
    }
    rules = {
        "every layout is accounted for": lambda f: (
            f["layouts"] == f[["illegal", "same", "unfit", "bounded", "simulated"]].sum(axis=1)
        )
    }


def read_any(path: str | Path) -> pd.DataFrame:
    """Load a file of any table; the file itself names its table."""
    import phaze.tables.chips  # noqa: F401  # adds its tables

    name = table_name(path)
    if name not in TABLES:
        raise PhazeError(f"{path}: holds no phaze table")
    return TABLES[name].load(path)
