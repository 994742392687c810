"""Names and limits that settings and tables share.

Kept apart from the validation of settings, so that commands without settings start faster.
"""

from typing import Literal, get_args

from phaze.layout import Compute

MOST = 2**20
"""Largest number of devices, stages, replicas, microbatches or tensor-parallel ranks in files and options."""
Planner = Literal["piper", "no-dp", "no-tp", "no-ar", "equi", "equi-no-tp"]
"""Names of Piper and its baselines (Piper, Section 5)."""
PLANNERS: tuple[Planner, ...] = get_args(Planner)
WrittenRuntime = Literal["megatron", "torchtitan", "deepspeed"]
"""Runtimes whose flags or configurations can be written."""
TrainingRuntime = Literal[WrittenRuntime, "maxtext"]
"""Runtimes that train on devices."""
Runtime = Literal[TrainingRuntime, "chip"]
"""Runtimes for which layouts can be planned; `chip`: an architecture without a runtime."""
Rank = Literal["prudent", "expected"]
"""Kind of step time by which layouts are ranked: expected, or prudent (measured overlap only)."""
RANK: Rank = "prudent"
"""Default kind of step time that ranks layouts, for commands, requests in Python and studies."""
ChipObjective = Literal["time", "area", "energy", "cost"]
"""What a chip is chosen for: step time, or mm², joules or price of the chips per throughput."""
REFERENCE_CHIP = "tpu-v4-as-built"
"""Architecture beside which every choice and comparison of chips stands."""
PRECISION: Compute = "bf16"
"""Default compute precision."""
GAP = 0.005
"""Default optimality gap: relative time by which a better plan may be missed."""
Backward = Literal["paired", "split"]
"""Backward pass of an operator: one operator for all gradients (paired), or one per gradient (split)."""
Instantiation = Literal["p2p", "allreduce", "exact"]
"""Terms of a mapping's stage time: compute c_u plus messages c_m (6), plus all-reduce c_AR (7), or both."""
InstantiationChoice = Literal[Instantiation, "auto", "authors", "ensemble"]
"""Instantiations to search: one, the paper's choice by sizes, both of the paper's, or all plus annealing."""
MapMethod = Literal[Instantiation, "local-search", "cs-map", "p2p-map"]
"""Method that found a mapping: an instantiation, annealing, or one of two heuristics."""
MAP_METHODS: tuple[MapMethod, ...] = get_args(MapMethod)
Mean = Literal["mean", "normalised", "geometric"]
"""Mean of the models' throughputs that a common architecture maximises."""
AdapterComparison = Literal["best", "equal-adapters", "slowest-fastest"]
"""Adapter counts at which two strategies are compared: the best of each; the same count for both, where the
gain is largest; or the slowest of one with the fastest of the other."""
ParameterGroup = Literal["dense", "expert", "embedding", "tied"]
"""Parameter groups: embeddings, the head's copy of a tied embedding, experts, and all others (dense)."""
Partitioner = Literal["full", "fastest", "paper", "clusters", "order", "pipedream", "pipedream-operators"]
"""Names of the partitioners: five of phaze, and two of PipeDream.

`full` is phaze's own flow; `fastest` also accepts stage times up to twice the minimum if the simulated step
is faster. `paper` is the paper's flow; `clusters` is the same without refinement; `order` cuts one order into
intervals, as RaNNC does. `pipedream` works by layer, `pipedream-operators` treats every operator as a layer.
"""
PARTITIONERS: tuple[Partitioner, ...] = get_args(Partitioner)
