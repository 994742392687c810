"""The outer loop over gradient accumulation g and microbatch b' (Piper, Appendix A).

A batch holds g s b' samples, s being the sum of the data parallel degrees, and must not exceed B': for each
(g, b') the planner is asked once with N = B'/(g b'), where that is a whole number. The layers are those for
b': their times, activations and edges are of a microbatch of b' samples, so that TPS/b' is the time of one.

Accumulation changes N and nothing else: the memory is that of ceil(s/d) microbatches whatever g is, and
gradients are counted once in N microbatches, or once in d, as the cluster says. With the sum of degrees at
most N, g > 1 is therefore never better than g = 1; it is where the sum must be N exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from phaze.plan.piper.layers import Cluster, Layers, Plan

Planner = Callable[[Layers, Cluster, float], Plan | None]
"""Returns the best plan; None where there is none, or none in less than the given time."""


@dataclass(frozen=True)
class Split:
    """How a batch of B' samples is divided."""

    accumulation: int
    """g."""
    microbatch: int
    """b', samples."""
    microbatches: int
    """N = B'/(g b')."""


@dataclass(frozen=True)
class Batched:
    """A plan with the split of the batch that it is for."""

    split: Split
    plan: Plan

    @property
    def time_per_sample_s(self) -> float:
        """Return the time of a sample, where the plan's is that of a microbatch."""
        return self.plan.time_per_sample_s / self.split.microbatch


def splits(samples: int, accumulations: Iterable[int], microbatches: Iterable[int]) -> Iterator[Split]:
    """Yield the splits of a batch of that many samples, small g first, then small b'."""
    for g in sorted(set(accumulations)):
        for b in sorted(set(microbatches)):
            if samples % (g * b) == 0:
                yield Split(g, b, samples // (g * b))


def plan_batch(
    models: Mapping[int, Layers],
    cluster: Cluster,
    samples: int,
    accumulations: Iterable[int],
    planner: Planner,
) -> Batched | None:
    """Return the plan with the least time per sample, of equals that of the first split; None: none fits.

    models: the layers for each microbatch b'; samples: B'; the cluster's own N is not used.
    """
    best: Batched | None = None
    for split in splits(samples, accumulations, models):
        below_s = best.time_per_sample_s * split.microbatch if best else inf
        mine = replace(cluster, microbatches=split.microbatches)
        found = planner(models[split.microbatch], mine, below_s)
        if found is None:
            continue
        batched = Batched(split, found)
        if best is None or batched.time_per_sample_s < best.time_per_sample_s:
            best = batched
    return best
