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
Compute = Literal["bf16", "fp8", "fp8-cs", "fp8-block", "mxfp8", "nvfp4"]
"""Numbers that products of a block's weights multiply: half precision; eight bits scaled by the largest of
earlier steps, of the tensor, or of blocks of 128; eight or four bits scaled by 32 or 16 in hardware.
Attention, embedding, head and router stay in half precision (Megatron-Core, `--fp8-recipe`)."""
COMPUTES: tuple[Compute, ...] = get_args(Compute)
