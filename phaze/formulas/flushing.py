"""Time of a flushing pipeline and of its stages (Phaze, Section 5 and Appendix B).

A model is a chain of layers: a graph with a Hamiltonian path, possibly with skip edges, in the order of that
path. A stage is an interval [i, j) of it. Tables of all stages are arrays (n, n + 1) indexed by i and j;
entries with j <= i are undefined.

Load of a stage (Appendix B.1): layers run one by one. Each starts when its predecessor in the stage is done
and its tensors from other stages have arrived. All transfers start at time 0 and take bytes / bandwidth,
without contention. The backward pass is the same on the reversed graph, with the gradients of outgoing edges
as transfers. A stage with recompute repeats its forward pass before the backward pass, from stashed inputs,
while the gradients arrive:

    load      = forward(with arrivals) + backward(with arrivals)
    recompute = forward(with arrivals) + max(forward + backward, backward(with arrivals))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from phaze.base.arrays import Bools, Floats, Ints
from phaze.base.compiled import njit
from phaze.base.room import refuse_beyond_memory
from phaze.base.units import GIB
from phaze.cost.memory import Gradients, Schedule, most_in_flight
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.layout import Layout
from phaze.workload.graphs import TimedGraph

if TYPE_CHECKING:
    from phaze.spec.settings import Training
    from phaze.spec.system import Scenario

TABLES = 12
"""Number of stage tables in memory at once while a chain is placed; 11.2 measured for 2,000 layers."""


@dataclass(frozen=True, eq=False)
class Chain(TimedGraph):
    """Layers of a model in pipeline order for one tensor-parallel width; bytes are per rank."""

    kind = "layer graph"
    node = "a layer"

    static_bytes: Floats
    """Weights, gradients and optimizer state."""
    activation_bytes: Floats
    """Activations that the backward pass of one microbatch needs."""
    tensor_parallel: Bools
    """False for a layer that is not sharded: a stage of such layers takes one device instead of t."""

    @cached_property
    def footprints(self) -> Footprints:
        """Memory footprint of every possible stage."""
        return stage_footprints(self)


@dataclass(frozen=True)
class Setting:
    """Constraints of a placement: the cluster, the batch, and the storage of activations."""

    devices: int
    """Number of devices in the cluster, K."""
    microbatches: int
    """Number of microbatches in a batch, B."""
    bandwidth_bytes_per_s: float
    """Bandwidth between any two devices."""
    memory_bytes: float
    """HBM capacity of a device."""
    recompute: bool = False
    schedule: Schedule = "1f1b"
    gradients: Gradients = "first-stage"
    all_reduce_factor: float = BOTH_DIRECTIONS
    """Factor of an all-reduce: over n devices it takes (n - 1)/n times bytes / bandwidth times this factor.

    It is 4 in the paper, and 2 for a ring whose links carry both directions at once."""

    @classmethod
    def of(
        cls, scenario: Scenario, training: Training, layout: Layout, hbm_gib: float, *, recompute: bool
    ) -> Setting:
        """Build the setting for placements of a layout from the options of a study."""
        return cls(
            devices=scenario.devices,
            microbatches=layout.microbatches(scenario.global_batch),
            bandwidth_bytes_per_s=scenario.network_bandwidth_bytes_per_s,
            memory_bytes=hbm_gib * GIB,
            recompute=recompute,
            schedule=training.schedule,
            gradients=training.gradients,
            all_reduce_factor=scenario.all_reduce_factor,
        )

    @classmethod
    def grid(cls, scenario: Scenario, training: Training, layout: Layout) -> list[Setting]:
        """Settings of a study for a layout, in the order of `Training.memory_grid`."""
        return [
            cls.of(scenario, training, layout, hbm_gib, recompute=recompute)
            for hbm_gib, recompute in training.memory_grid
        ]

    @property
    def network(self) -> Flat:
        """Network with equal links between any two devices."""
        return Flat(self.bandwidth_bytes_per_s, self.all_reduce_factor)

    def in_pipeline(self, layout: Layout) -> int:
        """Number of microbatches per batch in the busiest pipeline, ceil(B/d)."""
        return -(-self.microbatches // layout.dp)

    def exchange_s(self, weight_bytes: Floats) -> Floats:
        """Gradient exchange time in the limit of many replicas; d replicas take (d - 1)/d of it."""
        return self.network.endless_s("all_reduce", weight_bytes)


@dataclass(frozen=True)
class Loads:
    """Time of each stage for one microbatch, in seconds."""

    plain_s: Floats
    recomputed_s: Floats

    def of(self, recompute: bool) -> Floats:
        """Loads of all stages but the last, with or without recompute."""
        return self.recomputed_s if recompute else self.plain_s


@dataclass(frozen=True)
class Footprints:
    """Memory of each possible stage, and whether the stage takes a single device."""

    constant_bytes: Floats
    """Weights, gradients, optimizer state and the activations of one microbatch."""
    activation_bytes: Floats
    arriving_bytes: Floats
    """Bytes of the tensors on the edges that enter the stage."""
    weight_bytes: Floats
    single: Bools
    """True if no layer of the stage is tensor parallel, so that it takes one device."""

    def stashed_bytes(self, recompute: bool) -> Floats:
        """Bytes that a stage other than the last stores for each in-flight microbatch."""
        return self.arriving_bytes if recompute else self.activation_bytes


@dataclass(frozen=True)
class Room:
    """Positions in a pipeline at which each stage fits in memory."""

    most_stages: Ints
    """Stage [i, j) fits as the s-th from the end for 2 <= s <= most_stages[i, j], (n, n + 1)."""
    last_fits: Bools
    """True if the stage [i, n) fits as the last, (n,)."""


def stage_loads(chain: Chain, bandwidth_bytes_per_s: float) -> Loads:
    """Load of every possible stage of a chain, with and without recompute."""
    forward, backward = np.asarray(chain.forward_s, float), np.asarray(chain.backward_s, float)
    transfers = chain.edge_bytes / bandwidth_bytes_per_s
    return Loads(*latencies(forward, backward, chain.sources, chain.targets, transfers))


@njit
def latencies(
    forward: Floats, backward: Floats, sources: Ints, targets: Ints, transfers: Floats
) -> tuple[Floats, Floats]:
    """Loads of all stages without and with recompute, from the transfer times of the edges."""
    n = len(forward)
    arrive, depart = np.zeros((n, n)), np.zeros((n + 1, n))
    # arrive[i, v] is the latest arrival at layer v from before a stage that begins with layer i;
    # depart[j, v] is that of the gradients that layer v gets from behind a stage that ends before layer j.
    for e in range(len(sources)):
        for i in range(sources[e] + 1, targets[e] + 1):
            arrive[i, targets[e]] = max(arrive[i, targets[e]], transfers[e])
            depart[i, sources[e]] = max(depart[i, sources[e]], transfers[e])
    first, recompute = np.zeros((n, n + 1)), np.zeros((n, n + 1))
    for i in range(n):
        finish = total = 0.0
        for v in range(i, n):
            finish = max(finish, arrive[i, v]) + forward[v]
            total += forward[v]
            first[i, v + 1], recompute[i, v + 1] = finish, total
    plain, recomputed = np.full((n, n + 1), np.inf), np.full((n, n + 1), np.inf)
    for j in range(1, n + 1):
        finish = total = 0.0
        for i in range(j - 1, -1, -1):
            finish = max(finish, depart[j, i]) + backward[i]
            total += backward[i]
            plain[i, j] = first[i, j] + finish
            recomputed[i, j] = first[i, j] + max(recompute[i, j] + total, finish)
    return plain, recomputed


def stage_footprints(chain: Chain) -> Footprints:
    """Memory footprint of every possible stage of a chain; PhazeError if the tables do not fit in memory."""
    refuse_beyond_memory(
        8.0 * TABLES * len(chain) * (len(chain) + 1),
        f"the tables of all stages of {len(chain):,} layers",
        "merge layers that come one after the other",
    )
    activations = interval_sums(chain.activation_bytes)
    return Footprints(
        constant_bytes=interval_sums(chain.static_bytes) + activations,
        activation_bytes=activations,
        arriving_bytes=_arriving_bytes(len(chain), chain.sources, chain.targets, chain.edge_bytes),
        weight_bytes=interval_sums(chain.parameter_bytes),
        single=interval_sums(np.asarray(chain.tensor_parallel, float)) == 0,
    )


def interval_sums(values: Floats) -> Floats:
    """Sums of `values` over all intervals [i, j), shape (n, n + 1); exact for integers below 2^53."""
    before = np.concatenate(([0.0], np.cumsum(values)))
    return before[None, :] - before[:-1, None]


def _arriving_bytes(layers: int, sources: Ints, targets: Ints, sizes: Floats) -> Floats:
    """Bytes on the edges that enter each stage [i, j) from earlier layers, (n, n + 1)."""
    arriving = np.zeros((layers, layers + 1))
    for source, target, size in zip(sources, targets, sizes, strict=True):
        arriving[source + 1 : target + 1, target + 1] += size
    return np.cumsum(arriving, axis=1, out=arriving)


def room(footprints: Footprints, setting: Setting, microbatches: int) -> Room:
    """Positions at which each stage fits in memory; only GPipe depends on `microbatches` per pipeline."""
    n = len(footprints.constant_bytes)
    constant, stashed = footprints.constant_bytes, footprints.stashed_bytes(setting.recompute)
    if setting.schedule == "1f1b":
        # The constant bytes include the current microbatch, which most_in_flight does not count.
        most = 1 + most_in_flight(constant, stashed, setting.memory_bytes, n - 1)
        return Room(most, most[:, n] >= 1)
    # Under GPipe a stage stashes all microbatches wherever it is: it fits at any position or at none.
    fits = constant + microbatches * stashed <= setting.memory_bytes
    # The last stage never recomputes (`Loads`), so it stores activations in full.
    last = constant[:, n] + microbatches * footprints.activation_bytes[:, n]
    return Room(np.where(fits, n, 0).astype(np.int64), last <= setting.memory_bytes)


def useful_widths(microbatches: int, limit: int) -> tuple[Ints, Ints]:
    """Pairs (ceil(B/d), d), d ascending: the fewest pipelines d for each number of microbatches per pipeline.

    A larger d with the same number of microbatches only adds synchronisation and devices, so no other d can
    be optimal. There are about 2 sqrt(B) of them. `limit` is the maximum d, min(K, B) in the paper.
    """
    widths = np.arange(1, min(limit, microbatches) + 1, dtype=np.int64)
    counts = -(-microbatches // widths)
    first = np.concatenate(([True], counts[1:] < counts[:-1]))[: len(widths)]
    return counts[first], widths[first]


def sync_s(weight_bytes: Floats, layout: Layout, setting: Setting) -> float:
    """Time that a batch waits for the gradient exchange, in seconds, from each stage's weight bytes, (s,).

    All stages exchange after the last backward pass. The result is the slowest exchange, or the first stage's
    alone (paper, equation 18). An earlier start of later stages, while earlier ones still work, is not
    modelled: slower layers could then shorten the batch, and bounds from lower latencies would not hold.
    """
    every = (layout.dp - 1) / layout.dp * setting.exchange_s(weight_bytes)
    return float(every[0] if setting.gradients == "first-stage" else every.max())


def batch_time_s(max_load_s: float, layout: Layout, microbatches: int, synchronisation_s: float) -> float:
    """Time per batch: the largest load times ceil(B/d) + s - 1, plus the synchronisation."""
    return max_load_s * (-(-microbatches // layout.dp) + layout.pp - 1) + synchronisation_s
