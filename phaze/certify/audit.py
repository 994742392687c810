"""Verdicts on design points, which are solved again by code independent of the search.

The best time per batch of an architecture is that of Section 5 and Appendix B of the paper. A stage [i, j) of
the chain, s-th from the end, takes one device, or t if one of its layers is tensor parallel. Its load for one
microbatch is

    stash      in + F + out + B
    recompute  in + F + max(F + B, out + B), but the last stage never recomputes

with F, B the sums of its layers' latencies and in, out the transfers at its ends. It stores the layers'
static bytes and the activations of one microbatch once, and its stashed activations for every microbatch in
flight: s - 1 of them under 1F1B, all of a pipeline under GPipe. For every d and s the worst stage is
minimised over all cuts:

    (ceil(B/d) + s - 1) worst + f (d - 1)/d weights / bandwidth

where weights are those of the first stage. If every stage's gradients count, they are those of the stage that
has most, and cuts are searched under every relevant limit on the weights of a stage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from phaze.base.arrays import Floats, Ints
from phaze.base.progress import counted
from phaze.base.units import GIB
from phaze.certify.plain import DIRECTIONS
from phaze.cost.memory import parameter_bytes
from phaze.layout import Layout
from phaze.spec.settings import Training
from phaze.spec.system import Scenario
from phaze.tables import Audits
from phaze.tables.columns import layout_of

ROUNDING = 1e-8
"""Relative error allowed for sums in another order and for the solvers' tolerances."""
VALUES = ("plain_s", "bound_s", "exact_s")
"""Latencies of a layer: bounded by this package, bounded with integer programs, and as scheduled."""
Times = dict[str, float]
"""Times of a design point by the names in VALUES, and the number of integer programs solved for it."""


@dataclass(frozen=True)
class LayerChain:
    """Layers of a model in order, as arrays with one value per layer; bytes are per tensor-parallel rank."""

    weight_bytes: Floats
    static_bytes: Floats
    activation_bytes: Floats
    output_bytes: Floats
    tensor_parallel: NDArray[np.bool_]


@dataclass(frozen=True)
class PlacementLimits:
    """Constraints of a placement: cluster, batch, memory and schedule."""

    devices: int
    microbatches: int
    """Microbatches per batch."""
    bandwidth_bytes_per_s: float
    memory_bytes: float
    recompute: bool
    gpipe: bool
    layout: Layout
    every_stage: bool = False
    """True if the batch waits for the gradients of every stage, not only of the first."""
    all_reduce_factor: float = 4.0
    """Factor f of an all-reduce: 4 in the paper, 2 for a ring that sends and receives at once."""


@dataclass(frozen=True)
class StageSpans:
    """Costs of every stage [i, j) of a chain, as arrays (n, n + 1); entries with j <= i are infeasible."""

    load_s: Floats
    last_s: Floats
    """Load of [i, n) as the last stage (n,)."""
    once_bytes: Floats
    stashed_bytes: Floats
    activation_bytes: Floats
    single: Ints
    """1 if the stage needs only one device although the tensor-parallel width is larger."""
    synced_s: Floats
    """Gradient exchange time of [i, j) in the limit of many replicas."""


def best_time_s(
    chain: LayerChain,
    forward_s: Floats,
    backward_s: Floats,
    cluster: PlacementLimits,
    limit_s: float = np.inf,
) -> float:
    """Minimum time per batch over all placements; inf if none fits or is faster than the limit.

    Latencies have one value per layer.
    """
    stages = _stages(chain, forward_s, backward_s, cluster)
    search = _best_of_caps if cluster.every_stage else _best_by_first
    best = min(search(stages, cluster, widths, in_flight, limit_s) for widths, in_flight in _widths(cluster))
    return best if best < limit_s else np.inf


def _best_by_first(
    stages: StageSpans, cluster: PlacementLimits, widths: Ints, in_flight: int | None, _: float
) -> float:
    """Minimum time per batch over data-parallel widths if only the first stage's gradient exchange counts."""
    most_stages = min(len(stages.last_s), cluster.devices)
    return min(
        _least(loads, stages.synced_s[0, -loads.shape[1] :], s, widths, cluster)
        for s, loads in enumerate(_loads(stages, cluster, in_flight, most_stages), 1)
    )


def _best_of_caps(
    stages: StageSpans, cluster: PlacementLimits, widths: Ints, in_flight: int | None, limit_s: float
) -> float:
    """Minimum time per batch over data-parallel widths if the longest gradient exchange counts.

    Under a cap no stage exchanges longer, and the batch waits for that time. For a range of caps, the
    shortest wait with the loads of the highest cap is a lower bound; depths for which it is not better are
    pruned.
    """
    n = len(stages.last_s)
    caps = np.unique(stages.synced_s[np.arange(n)[:, None] < np.arange(n + 1)])
    best, open_ranges = limit_s, [(caps, min(n, cluster.devices))]
    while open_ranges:
        cap_range, most_stages = open_ranges.pop()
        deepest = 0
        capped = _capped(stages, float(cap_range[-1]))
        for s, loads in enumerate(_loads(capped, cluster, in_flight, most_stages), 1):
            least = loads.min(axis=1, keepdims=True)
            best = min(best, _least(least, cap_range[-1:], s, widths, cluster))
            # A lower bound for the range: its shortest wait, with the loads that its longest allows.
            deepest = s if _least(least, cap_range[:1], s, widths, cluster) < best else deepest
        if deepest:
            # The loads of this range bound those of its parts, so depths hopeless here stay hopeless there.
            open_ranges += [(half, deepest) for half in np.array_split(cap_range[:-1], 2) if len(half)]
    return best


def _capped(stages: StageSpans, limit_s: float) -> StageSpans:
    """Exclude stages whose gradient exchange exceeds a limit, by setting their load to infinity."""
    allowed = stages.synced_s <= limit_s
    return replace(
        stages,
        load_s=np.where(allowed, stages.load_s, np.inf),
        last_s=np.where(allowed[:, -1], stages.last_s, np.inf),
    )


def _stages(chain: LayerChain, forward_s: Floats, backward_s: Floats, cluster: PlacementLimits) -> StageSpans:
    transfer = chain.output_bytes[:-1] / cluster.bandwidth_bytes_per_s
    into = np.concatenate([[0.0], transfer])[:, None]
    out = np.concatenate([[0.0], transfer, [0.0]])[None, :]
    forward, backward = _sums(forward_s), _sums(backward_s)
    plain = into + forward + out + backward
    # Recomputing overlaps with the arrival of the gradients: of both only the longer counts.
    recomputed = into + forward + np.maximum(forward + backward, out + backward)
    activations = _sums(chain.activation_bytes)
    arriving = np.concatenate([[0.0], chain.output_bytes[:-1]])[:, None]
    stage = _sums(np.ones(len(forward_s))) > 0
    # Without a tensor-parallel layer every rank would do the same work, so one device is enough.
    single = stage & (_sums(chain.tensor_parallel.astype(float)) == 0) & (cluster.layout.tp > 1)
    return StageSpans(
        load_s=np.where(stage, recomputed if cluster.recompute else plain, np.inf),
        last_s=plain[:, -1],
        once_bytes=_sums(chain.static_bytes) + activations,
        # A stage that recomputes stashes only its input.
        stashed_bytes=np.broadcast_to(arriving, activations.shape) if cluster.recompute else activations,
        activation_bytes=activations,
        single=single.astype(np.int64),
        synced_s=cluster.all_reduce_factor * _sums(chain.weight_bytes) / cluster.bandwidth_bytes_per_s,
    )


def _sums(values: Floats) -> Floats:
    """Sums of the values in all intervals [i, j), as an array (n, n + 1)."""
    before = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(before[None, :] - before[:-1, None])


def _widths(cluster: PlacementLimits) -> Iterator[tuple[Ints, int | None]]:
    """Yield data-parallel widths with their stashed microbatches per stage; None if stages differ."""
    widths = np.arange(1, min(cluster.devices, cluster.microbatches) + 1)
    if not cluster.gpipe:
        yield widths, None
        return
    # Under GPipe all ceil(B/d) microbatches of a pipeline are in flight: equal counts, equal memory.
    counts = -(-cluster.microbatches // widths)
    for count in np.unique(counts):
        yield widths[counts == count], int(count)


def _loads(
    stages: StageSpans, cluster: PlacementLimits, in_flight: int | None, most: int
) -> Iterator[Floats]:
    """Yield the minimum bottleneck loads of pipelines of 1 to `most` stages.

    They are indexed by u, the number of stages on a single device, and by the first stage.

    worst[u, i] is the bottleneck load of layers i to n in s stages, u of them on single devices.
    """
    n = len(stages.last_s)
    # The last stage has s - 1 = 0 further microbatches under 1F1B, and stashes all activations:
    # it does not recompute.
    stored = stages.once_bytes[:, n] + (in_flight or 0) * stages.activation_bytes[:, n]
    worst = np.full((int(np.diagonal(stages.single, 1).sum()) + 1, n + 1), np.inf)
    fitting = np.flatnonzero(stored <= cluster.memory_bytes)
    worst[stages.single[fitting, n], fitting] = stages.last_s[fitting]
    yield worst[:, :1]
    for s in range(2, most + 1):
        stored = stages.once_bytes + (s - 1 if in_flight is None else in_flight) * stages.stashed_bytes
        load = np.where(stored <= cluster.memory_bytes, stages.load_s, np.inf)
        # worst[u, j] of the layers after [i, j), where u counts the stage itself if it needs one device.
        shifted = np.concatenate([np.full((1, n + 1), np.inf), worst[:-1]])
        following = np.where(stages.single == 1, shifted[:, None, :], worst[:, None, :])
        longer = np.maximum(load, following)
        yield longer[:, 0]
        # No stage starts after the last layer.
        worst[:, :n], worst[:, n] = longer.min(axis=2), np.inf


def _least(loads: Floats, synced_s: Floats, s: int, widths: Ints, cluster: PlacementLimits) -> float:
    """Minimum time per batch with s stages, from their bottleneck loads and gradient exchange times."""
    best = np.inf
    for u, load in enumerate(loads):
        # One pipeline: s stages of t devices each, less t - 1 for each of the u on a single device.
        devices = s * cluster.layout.tp - u * (cluster.layout.tp - 1)
        d = widths[widths * devices <= cluster.devices][:, None]
        if len(d) and np.isfinite(load).any():
            counts = -(-cluster.microbatches // d)
            best = min(best, float(((counts + s - 1) * load + (d - 1) / d * synced_s).min()))
    return best


@dataclass(frozen=True)
class AuditedModel:
    """Model sharded for one layout, with its training conditions."""

    layers: pd.DataFrame
    graph: pd.DataFrame
    scenario: Scenario
    training: Training

    @cached_property
    def chain(self) -> LayerChain:
        """Layers of the model in order, with their sizes."""
        rows = self._each_layer(self.layers.set_index("layer"))
        per_parameter = parameter_bytes(self.training.optimizer, self.training.precision)
        return LayerChain(
            weight_bytes=per_parameter.weights * rows["parameters"].to_numpy(np.float64),
            static_bytes=per_parameter.static * rows["parameters"].to_numpy(np.float64),
            activation_bytes=rows["activation_bytes"].to_numpy(np.float64),
            output_bytes=rows["output_bytes"].to_numpy(np.float64),
            tensor_parallel=rows["tensor_parallel"].to_numpy(np.bool_),
        )

    def cluster(self, hbm_gib: float, recompute: bool) -> PlacementLimits:
        """Constraints of a placement on the cluster: devices, batch, memory and schedule."""
        layout = layout_of(self.layers)
        return PlacementLimits(
            devices=self.scenario.devices,
            microbatches=layout.microbatches(self.scenario.global_batch),
            bandwidth_bytes_per_s=self.scenario.network_bandwidth_bytes_per_s,
            memory_bytes=hbm_gib * GIB,
            recompute=recompute,
            gpipe=self.training.schedule == "gpipe",
            layout=layout,
            every_stage=self.training.gradients == "every-stage",
            all_reduce_factor=self.scenario.all_reduce_factor,
        )

    def times(
        self, latencies: pd.DataFrame, hbm_gib: float, recompute: bool, limit_s: float
    ) -> dict[str, float]:
        """Time per batch for every kind of latency in VALUES; inf above the limit."""
        time_by_latencies: dict[tuple[float, ...], float] = {}
        times = {}
        cluster = self.cluster(hbm_gib, recompute)
        wide = self._each_layer(pd.DataFrame(latencies[list(VALUES)].unstack("direction")))
        for value in VALUES:
            forward_s, backward_s = (wide[value, direction].to_numpy(np.float64) for direction in DIRECTIONS)
            # Proven layers have equal bounds and latencies, so the placement is often solved only once.
            key = (*forward_s, *backward_s)
            if key not in time_by_latencies:
                time_by_latencies[key] = best_time_s(self.chain, forward_s, backward_s, cluster, limit_s)
            times[value] = time_by_latencies[key]
        return times

    def _each_layer(self, rows: pd.DataFrame) -> pd.DataFrame:
        graph = self.graph.sort_values("position")
        return rows.loc[np.repeat(graph["layer"].to_numpy(str), graph["count"])]


def time_points(points: pd.DataFrame, latencies: pd.DataFrame, model: AuditedModel) -> list[Times]:
    """Times per batch of design points in one layout, with the number of integer programs solved for them.

    `latencies` has the columns VALUES and `programs` for every architecture, layer and direction. Its column
    `fits` separates the latencies of points that fit according to the screen from the others.
    """
    passes = latencies.set_index(["layer", "direction"])
    groups = dict(list(passes.groupby(["architecture", "fits"])))
    point_times = []
    for _, point in counted(list(points.iterrows()), "point"):
        chip_latencies = groups[point["architecture"], bool(np.isfinite(point["lower_s"]))]
        # Plans slower than the point's feasible time give no more information than an infinite time.
        limit_s = float(point["feasible_s"]) * (1.0 + 10 * ROUNDING)
        times = model.times(chip_latencies, float(point["hbm_gib"]), bool(point["recompute"]), limit_s)
        point_times.append({**times, "programs": int(chip_latencies["programs"].sum())})
    return point_times


def is_proven(times: Times) -> bool:
    """True if a point's proven lower bound equals its time with the scheduled layers, up to rounding."""
    return times["bound_s"] >= times["exact_s"] * (1.0 - ROUNDING)


def judge_points(points: pd.DataFrame, times: Sequence[Times], best_s: float) -> pd.DataFrame:
    """Rows of table `audits` for design points with the times from `time_points`."""
    rows = [
        {**point, **point_times, "best_s": best_s}
        for point, point_times in zip(points.to_dict("records"), times, strict=True)
    ]
    judged = [{**row, "verdict": judge(row)} for row in rows]
    return pd.DataFrame(judged, columns=list(Audits.fields()))


def judge(row: Mapping[str, object]) -> str:
    """Verdict on a design point from its times: the first contradiction, otherwise confirmed or unproven.

    The exact time lies between bound_s and exact_s, which are equal if all layers are proven.
    """
    plain, bound, exact, best, lower, feasible = (
        float(str(row[key])) for key in (*VALUES, "best_s", "lower_s", "feasible_s")
    )
    above, below = 1.0 + ROUNDING, 1.0 - ROUNDING
    if lower == np.inf and exact < np.inf:
        return "fits the memory"
    if lower > exact * above or plain > exact * above:
        return "lower bound too high"
    if bound > feasible * above:
        return "feasible time too low"
    if row["chosen"] == "best":
        return "confirmed" if exact <= best * above and exact >= best * below else "not as fast as claimed"
    if exact < best * below:
        return "beats the best"
    return "unproven" if bound < best * below else "confirmed"
