"""Columns shared by several tables."""

from typing import Literal

import numpy as np
import pandas as pd

from phaze.base.arrays import Ints
from phaze.layout import Layout
from phaze.tables.base import Column, count, flag, real, text

MODEL = text("name of the workload")
LAYOUT = Column("str", "key of the layout that slices are cut by, as tp4-b2", order=Layout.of_key)
LAYER = text("distinct layer: embedding, block, head; for a model of images stem, stage-1, …")
DIRECTION = text("pass", "forward", "backward")
ARCHITECTURE = text("name of the architecture")
POINT = {"model": MODEL, "layout": LAYOUT}
OPERATOR = {
    "layer": LAYER,
    "direction": DIRECTION,
    "operator": count("topological index within layer and pass"),
}
CORES = ("tensor", "vector", "fused", "network", "none")
LIMITS = ("compute", "vector", "global_buffer", "hbm", "network")
ENERGIES = ("mac", "register", "l2", "glb", "hbm", "link")

LAYER_OF = {**POINT, "architecture": ARCHITECTURE, "layer": LAYER, "direction": DIRECTION}

MFU = real("required FLOPs (causal half of attention, no recomputation) over the peak of the precision")
MFU_PAPER = real("FLOPs as counted in papers, 6 N + 12 L H Q T per token (PaLM, Appendix B), over the peak")

SIZED = {"architecture": ARCHITECTURE, "hbm_gib": real("HBM capacity")}
"""Columns that identify a device: its architecture and HBM capacity."""
SETTING = {**POINT, **SIZED, "recompute": flag("whether activations are recomputed")}
"""Columns that identify a setting in which a model is placed."""
CHOSEN_BY = text("planner of the placement", "phaze", "expert", "expert-even")
PLACED = {**SETTING, "planner": CHOSEN_BY}
FITS = {
    "status": text("result", "placed", "infeasible"),
    "reason": text("violated limit and by how much, empty if placed"),
}
CUT = {"data": count("data-parallel width d"), "stages": count("pipeline depth s")}
SPAN = {
    "first_layer": count("position of the first layer"),
    "last_layer": count("position of the last layer"),
}
"""Columns with the first and last layer of a stage."""
STAGE_WIDTHS = {
    "data": count("data-parallel width d", 1),
    "tensor": count("devices of a replica: the TMP width t, or 1 without a split layer", 1),
}
MFUS = {"mfu": MFU, "mfu_paper": MFU_PAPER}
IN_FLIGHT = {
    "in_flight": count("microbatches with stored activations on each device, including the current one", 1)
}
BOUNDS = {
    "lower_s": real("lower bound on the time of all placements; infinite if none fits", finite=False),
    "feasible_s": real("time that some placement reaches; infinite if none fits", finite=False),
}

SAMPLE_ENERGIES = {
    "joules_per_sample": real("training energy per sample; infinite if infeasible", finite=False),
    **{f"{part}_j": real(f"{part} energy of it", finite=False) for part in (*ENERGIES, "leakage")},
}
"""Columns with the energy per sample of a placement, and its parts, which sum to it."""


def layout_of(rows: pd.DataFrame | pd.Series) -> Layout:
    """Layout of a row, or the common layout of several rows."""
    key = rows["layout"]
    return Layout.of_key(str(key.iloc[0] if isinstance(key, pd.Series) else key))


def widths_of(rows: pd.DataFrame, axis: Literal["tp", "microbatch"]) -> Ints:
    """Width along an axis in the layout of every row."""
    codes, keys = pd.factorize(rows["layout"])
    return np.array([getattr(Layout.of_key(key), axis) for key in keys], dtype=np.int64)[codes]


def by_numbers(column: pd.Series) -> pd.Series:
    """Sort key for `sort_values`: layouts are sorted by their numbers, other columns by value."""
    return pd.Series(LAYOUT.ranks(column), column.index) if column.name == "layout" else column
