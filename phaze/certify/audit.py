"""Verdicts on points that are bounded and solved again by code independent of screen and place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from phaze.base.progress import counted
from phaze.base.units import GIB
from phaze.certify.batches import LayerChain, PlacementLimits, best_time_s
from phaze.cost.memory import parameter_bytes
from phaze.spec.settings import Training
from phaze.spec.system import Scenario
from phaze.tables import Audits
from phaze.tables.columns import layout_of

ROUNDING = 1e-8
"""Relative error allowed for sums in another order and for the solvers' tolerances."""
VALUES = ("plain_s", "bound_s", "exact_s")
"""Latencies of a layer: bounded by this package, bounded with integer programs, and as scheduled."""
DIRECTIONS = ("forward", "backward")

Times = dict[str, float]
"""Values of a point: VALUES, and the number of integer programs."""


@dataclass(frozen=True)
class AuditedModel:
    """Model in one layout with its training conditions."""

    layers: pd.DataFrame
    graph: pd.DataFrame
    scenario: Scenario
    training: Training

    @cached_property
    def chain(self) -> LayerChain:
        """Layers in order."""
        rows = self._each_layer(self.layers.set_index("layer"))
        each = parameter_bytes(self.training.optimizer, self.training.precision)
        return LayerChain(
            weight_bytes=each.weights * rows["parameters"].to_numpy(np.float64),
            static_bytes=each.static * rows["parameters"].to_numpy(np.float64),
            activation_bytes=rows["activation_bytes"].to_numpy(np.float64),
            output_bytes=rows["output_bytes"].to_numpy(np.float64),
            tensor_parallel=rows["tensor_parallel"].to_numpy(np.bool_),
        )

    def cluster(self, hbm_gib: float, recompute: bool) -> PlacementLimits:
        """Limits of a placement on the cluster."""
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
        """Time per batch by kind of latency of (layer, direction); inf above a limit."""
        found: dict[tuple[float, ...], float] = {}
        times = {}
        cluster = self.cluster(hbm_gib, recompute)
        wide = self._each_layer(pd.DataFrame(latencies[list(VALUES)].unstack("direction")))
        for value in VALUES:
            forward_s, backward_s = (wide[value, way].to_numpy(np.float64) for way in DIRECTIONS)
            key = (*forward_s, *backward_s)
            if key not in found:
                found[key] = best_time_s(self.chain, forward_s, backward_s, cluster, limit_s)
            times[value] = found[key]
        return times

    def _each_layer(self, rows: pd.DataFrame) -> pd.DataFrame:
        graph = self.graph.sort_values("position")
        return rows.loc[np.repeat(graph["layer"].to_numpy(str), graph["count"])]


def time_points(points: pd.DataFrame, latencies: pd.DataFrame, model: AuditedModel) -> list[Times]:
    """Times per batch of points of one layout, with the number of integer programs solved for them.

    `latencies` has the columns VALUES and `programs` for every architecture, layer and direction. Its column
    `fits` separates the latencies of points that fit according to the screen from the others.
    """
    passes = latencies.set_index(["layer", "direction"])
    groups = dict(list(passes.groupby(["architecture", "fits"])))
    found = []
    for _, point in counted(list(points.iterrows()), "point"):
        mine = groups[point["architecture"], bool(np.isfinite(point["lower_s"]))]
        # Plans slower than the point's feasible time give no more information than an infinite time.
        limit_s = float(point["feasible_s"]) * (1.0 + 10 * ROUNDING)
        times = model.times(mine, float(point["hbm_gib"]), bool(point["recompute"]), limit_s)
        found.append({**times, "programs": int(mine["programs"].sum())})
    return found


def is_proven(times: Times) -> bool:
    """True if a point cannot be faster than its layers are scheduled."""
    return times["bound_s"] >= times["exact_s"] * (1.0 - ROUNDING)


def judge_points(points: pd.DataFrame, times: Sequence[Times], best_s: float) -> pd.DataFrame:
    """Rows of table `audits` for points with the times from `time_points`."""
    rows = [
        {**point, **found, "best_s": best_s}
        for point, found in zip(points.to_dict("records"), times, strict=True)
    ]
    judged = [{**row, "verdict": judge(row)} for row in rows]
    return pd.DataFrame(judged, columns=list(Audits.fields()))


def judge(row: Mapping[str, object]) -> str:
    """Verdict on a point by its times: the first contradiction, otherwise confirmed or unproven.

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
