"""Collectives among the replicas of parameters: which of them a step has, when, and how large they are.

ZeRO 0 all-reduces gradients once per step. From ZeRO 1 on gradients are reduce-scattered and weights are
all-gathered: once per step, or in every pass, gradients from ZeRO 2 on and weights with ZeRO 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from phaze.base.arrays import Count, Number

Exchange = Literal["all_reduce", "reduce_scatter", "all_gather"]
FIRST_IN_PASSES: dict[Exchange, int] = {"reduce_scatter": 2, "all_gather": 3}
"""First ZeRO stage under which an exchange occurs in every pass, instead of once per step."""


def in_passes(kind: Exchange, zero: Count) -> Count:
    """1 if an exchange occurs in every pass of a microbatch, else 0."""
    return (zero >= FIRST_IN_PASSES[kind]) * 1


def per_step(kind: Exchange, zero: Count) -> Count:
    """1 if an exchange with sharded states occurs once per step, else 0."""
    return ((zero >= 1) & (zero < FIRST_IN_PASSES[kind])) * 1


def collectives(
    kind: Exchange, size_bytes: Number, ranks: Number, shards: Number, stride: Number
) -> Iterator[tuple[Exchange, Number, Number, Number]]:
    """Yield the collectives with which `ranks` replicas, `stride` apart, exchange gradients or weights.

    Each has a kind, a size in bytes, a number of members, and their distance.

    Replicas share the states in groups of `shards`. Copies of a shard all-reduce its gradients after each
    group has scattered them (Megatron-Core `num_distributed_optimizer_instances`, torchtitan
    `data_parallel_replicate_degree`).
    """
    if kind == "all_reduce":
        yield kind, size_bytes, ranks, stride
        return
    yield kind, size_bytes, shards, stride
    copies = ranks // shards
    if kind == "reduce_scatter" and np.any(copies > 1):
        yield "all_reduce", size_bytes / shards, copies, stride * shards
