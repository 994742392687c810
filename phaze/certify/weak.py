"""Simple bounds on the latency of a layer, to show which architectures are excluded without solving.

For a pass of a layer with ℓ_i on one core and ℓ̂_i on all, on many architectures at once:

    work   an operator on all cores keeps all of them busy (Section 4), so it takes at least min(ℓ_i, n ℓ̂_i)
           of core time on the n cores of its type. The latency is at least the sum over n, for tensor cores,
           vector cores and pairs. Network operators are added unless they overlap.
    path   operators on a path run one after the other, each for at least min(ℓ_i, ℓ̂_i).
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from phaze.base.arrays import Bools, Floats

TYPES = {"tensor": ("tensor", "fused"), "vector": ("vector", "fused"), "pair": ("fused",)}
"""Operator types that occupy a tensor core, a vector core, and a pair of both."""
DESIGNS = tuple(f"{core}_design" for core in ("tensor", "vector", "fused"))


class Estimated:
    """One pass of a layer with its latencies on A architectures, arrays (n, A), from `estimated_s`."""

    def __init__(
        self,
        operators: pd.DataFrame,
        edges: pd.DataFrame,
        estimated: tuple[Floats, Floats],
        architectures: pd.DataFrame,
        *,
        overlap_communication: bool,
    ) -> None:
        mine = operators.sort_values("operator")
        self.core = mine["core"].to_numpy(str)
        self.overlap = overlap_communication
        place = {number: i for i, number in enumerate(mine["operator"])}
        self.before: list[list[int]] = [[] for _ in place]
        for source, target in zip(edges["source"], edges["target"], strict=True):
            self.before[place[target]].append(place[source])
        designs = {name: architectures[name].to_numpy(np.int64) for name in DESIGNS}
        sources = _sources(mine)
        self.one_s, self.every_s = (
            np.stack([table[work][designs[design]] for work, design in sources]) for table in estimated
        )
        tensor, vector = (architectures[f"num_{c}"].to_numpy(np.float64) for c in ("tc", "vc"))
        self.cores = {"tensor": tensor, "vector": vector, "pair": np.minimum(tensor, vector)}


def estimated_s(estimates: pd.DataFrame) -> tuple[Floats, Floats]:
    """Latencies on one and on all cores, by work and design; NaN without an estimate, 0 for no-ops."""
    at = estimates["work"].to_numpy(np.int64), estimates["design"].to_numpy(np.int64)
    one, every = (np.full([int(index.max(initial=0)) + 2 for index in at], np.nan) for _ in range(2))
    for table, name in ((one, "latency_s"), (every, "latency_all_s")):
        table[at] = estimates[name].to_numpy(np.float64)
        table[-1] = 0.0
    return one, every


def _sources(operators: pd.DataFrame) -> list[tuple[int, str]]:
    """Work index and design column of every operator; collectives reduce on the vector cores."""
    design = {"tensor": "tensor", "fused": "fused"}
    return [
        (int(work), f"{design.get(core, 'vector')}_design")
        for work, core in zip(operators["work"], operators["core"], strict=True)
    ]


def bound_by_work(layer: Estimated) -> Floats:
    """Lower bound (A,) on the latency, from the work on each type of core."""
    areas = [_area(layer, np.isin(layer.core, users), layer.cores[r]) for r, users in TYPES.items()]
    link = layer.every_s[layer.core == "network"].sum(axis=0)
    busiest: Floats = np.max(areas, axis=0)
    work: Floats = np.maximum(busiest, link) if layer.overlap else busiest + link
    return work


def _area(layer: Estimated, users: Bools, cores: Floats) -> Floats:
    area: Floats = np.minimum(layer.one_s[users] / cores, layer.every_s[users]).sum(axis=0)
    return area


def bound_by_path(layer: Estimated) -> Floats:
    """Lower bound (A,) on the latency, from the longest path through the layer."""
    finish = np.minimum(layer.one_s, layer.every_s)
    for i, sources in enumerate(layer.before):
        if sources:
            finish[i] += finish[sources].max(axis=0)
    longest: Floats = finish.max(axis=0)
    return longest


BOUNDS: dict[str, Callable[[Estimated], Floats]] = {"work": bound_by_work, "path": bound_by_path}
"""Simple bounds by name, the simplest first."""
