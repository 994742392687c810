"""Columns that several tables share."""

from phaze.tables.base import count, flag, real, text

MODEL = text("name of the workload")
TENSOR = count("tensor model parallel width t", 1)
MICROBATCH = count("samples in a microbatch b", 1)
LAYER = text("distinct layer: embedding, block, head; of a model of images stem, stage-1, …")
DIRECTION = text("pass", "forward", "backward")
ARCHITECTURE = text("name of the architecture")
POINT = {"model": MODEL, "tensor": TENSOR, "microbatch": MICROBATCH}
OPERATOR = {
    "layer": LAYER,
    "direction": DIRECTION,
    "operator": count("topological index within layer and pass"),
}
CORES = ("tensor", "vector", "fused", "network", "none")
AXES = ("tp", "cp", "ep", "etp")
"""Axes of parallelism whose collectives are part of layers."""
LIMITS = ("compute", "vector", "global_buffer", "hbm", "network")
ENERGIES = ("mac", "register", "l2", "glb", "hbm", "link")

LAYER_OF = {**POINT, "architecture": ARCHITECTURE, "layer": LAYER, "direction": DIRECTION}

PLACED = {
    **POINT,
    "architecture": ARCHITECTURE,
    "hbm_gib": real("HBM capacity"),
    "recompute": flag("activations are recomputed"),
    "planner": text("who chose the placement", "phaze", "expert", "expert-even"),
}

SAMPLE_ENERGIES = {
    "joules_per_sample": real("energy of training a sample; infinite if infeasible", finite=False),
    **{f"{part}_j": real(f"{part} energy of it", finite=False) for part in (*ENERGIES, "leakage")},
}
"""Energy of a placement and its parts, which sum to it."""
