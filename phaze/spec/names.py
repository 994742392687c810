"""Names that settings and tables share, without what checks settings: who needs no settings starts sooner."""

from typing import Literal, get_args

MOST = 2**20
"""Devices, stages, replicas, microbatches and TMP widths that a file or an option may name."""
Planner = Literal["piper", "no-dp", "no-tp", "no-ar", "equi", "equi-no-tp"]
"""Piper, and what it is compared with (Piper, Section 5)."""
PLANNERS: tuple[Planner, ...] = get_args(Planner)
ModelPlanner = Literal["phaze", "piper", "equal", "expert"]
"""Who may plan a model: Phaze's planner, Piper's, equal stages, and the experts' widths."""
MODEL_PLANNERS: tuple[ModelPlanner, ...] = get_args(ModelPlanner)
Partitioner = Literal["full", "fastest", "paper", "clusters", "order", "pipedream", "pipedream-operators"]
"""All of ours; the same, with up to twice the least stage time for a step that is simulated faster; the
paper's flow; the same without refinement; intervals of one order, as RaNNC; PipeDream's, by layer; the same
with every operator as a layer."""
PARTITIONERS: tuple[Partitioner, ...] = get_args(Partitioner)
